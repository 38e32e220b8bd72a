//! What applies to a run and its figures cannot tell, for people and for programs.

use std::collections::BTreeMap;

use plimsoll_standin::notice::{self, Notice};

use super::answer::{Outcome, Told, Verdict};
use super::reads;
use super::report::NATIVE;

/// Each as a sentence without its end. None of a program that failed, nor where nothing was seen.
pub(super) fn limits(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    let reports = &outcome.reports;
    if reports.is_empty() || matches!(outcome.verdict, Verdict::Failed { .. }) {
        return Vec::new();
    }
    let mut limits = assumed(outcome);
    if outcome.uses_cudnn() && reports.iter().any(|report| report.cudnn_search) {
        limits.push(
            "the search of `torch.backends.cudnn.benchmark`: on a card the first steps also try kernels with as much \
             workspace as is free, which raises the peaks but does not run out"
                .to_owned(),
        );
    }
    limits.extend(outcome.judged.as_ref().and_then(|judged| waits(judged.told.as_ref()?, &size)));
    // One that was only imported took nothing.
    let may_take = reports.iter().filter(|report| report.outside_bytes != Some(0));
    let mut libraries: Vec<&str> =
        may_take.flat_map(|report| report.libraries.iter().map(String::as_str)).collect();
    libraries.sort_unstable();
    libraries.dedup();
    if !libraries.is_empty() {
        let libraries = libraries.join(", ");
        limits.push(format!("memory that these take without asking PyTorch's allocator: {libraries}"));
    }
    limits.extend(shared(outcome, &size));
    if let Some(report) = reports.iter().find(|report| report.allocator != NATIVE) {
        limits.push(match report.allocator.as_str() {
            "none" => "who holds the memory: PYTORCH_NO_CUDA_MEMORY_CACHING=1 asks the device for every tensor, in whole pages \
                       of 2 MiB, and no record is kept"
                .to_owned(),
            other => format!("who holds the memory: the allocator {other} keeps no record of its blocks"),
        });
    }
    if reports.iter().any(|report| report.alone) {
        limits.push("the other ranks of the job, which were not run".to_owned());
    }
    if reports.iter().any(|report| report.rank.is_some()) {
        limits.push("what NCCL takes for its channels, which is outside PyTorch's allocator".to_owned());
    }
    limits.extend(reads::problems(reports));
    limits
}

/// What the stand-in took to be so, and refused.
fn assumed(outcome: &Outcome) -> Vec<String> {
    let notices = outcome.notices();
    let answered = notices.iter().any(|notice| notice.text == notice::ASKED);
    let sentence = |Notice { about, text, .. }: &Notice| match (about.as_str(), text.as_str()) {
        (notice::CUDNN, notice::ASKED) => format!(
            "{about} {text}; of 98 trainings and inferences on an H200 the peak of reserved bytes was the same to the \
             byte for 88; GPUs of one model differ by up to 2 %, by which multiprocessors are switched off"
        ),
        // What cuDNN cannot be asked for is known nearly or to the byte: recurrent networks, normalization, the CTC loss.
        (notice::CUDNN, notice::MODELLED) if answered => {
            format!("{about}, where it cannot be asked (recurrent networks, normalization, CTC loss), {text}")
        }
        (notice::CUDNN, notice::MODELLED) => format!(
            "{about} {text}; of thirty trainings of ten networks there, the peak of reserved bytes was from 10 % too little \
             to 0.3 % too much"
        ),
        _ => format!("{about} {text}"),
    };
    notices.into_iter().map(sentence).collect()
}

/// Blocks that the program let go while another stream had them: here a stream is done as soon as it is asked.
fn waits(told: &Told, size: impl Fn(u64) -> String) -> Option<String> {
    let waiting = told.device().timeline.lives.iter().filter(|life| {
        let at_once = |freed| life.completed.is_some_and(|completed| completed.index() == freed + 1);
        life.freed.is_some_and(|freed| !at_once(freed.index()))
    });
    let (blocks, most) = waiting.fold((0, 0), |(blocks, most), life| (blocks + 1, life.bytes.max(most)));
    (blocks > 0).then(|| {
        format!(
            "when streams are done with blocks that were let go (`record_stream`): here at once, on a card later. {blocks} \
             blocks, of {} at most, may be held longer there",
            size(most)
        )
    })
}

/// GPUs that several processes share.
fn shared(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    let mut shared: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
    for (_, peaks) in outcome.rows() {
        let Some(together_bytes) = peaks.together_bytes else { continue };
        let (processes, bytes, together) = shared.entry(peaks.gpu).or_default();
        (*processes, *bytes, *together) = (*processes + 1, *bytes + peaks.reserved_bytes, together_bytes);
    }
    let sentence = |(gpu, (processes, bytes, together_bytes))| {
        format!(
            "how {processes} processes that share GPU {gpu} meet in time: here they took {} of it at one moment, contexts \
             included; their peaks together, without contexts, are {} reserved",
            size(together_bytes),
            size(bytes)
        )
    };
    shared.into_iter().map(sentence).collect()
}
