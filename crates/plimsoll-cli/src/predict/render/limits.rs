//! The limits of a run's figures: the assumptions behind them and the memory that they leave out, for the text and JSON reports.

use std::collections::BTreeMap;

use plimsoll_gpu::nccl;
use plimsoll_standin::notice::{self, Notice};

use super::cut_loops::cut_loops;
use super::reads;
use crate::predict::analysis::judged::Analysis;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::protocol::NATIVE;

/// Sentences without a final period. Empty for a program that failed or used no CUDA.
pub(super) fn limits(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    let reports = &outcome.reports;
    if reports.is_empty() || matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_)) {
        return Vec::new();
    }
    let mut limits = assumed(outcome);
    if outcome.uses_cudnn() && reports.iter().any(|report| report.cudnn_search) {
        limits.push(
            "the kernel search of `torch.backends.cudnn.benchmark`: on a GPU, the first steps also try kernels with \
             workspaces as large as the free memory; this raises the peaks (on an H200, by 2 to 5 % for a 3D U-Net, and to three times for a \
             classifier of images), but cannot run out of memory"
                .to_owned(),
        );
    }
    if reports.iter().any(|report| report.captures > 0) {
        limits.push(
            "CUDA graphs (`reduce-overhead` captures them): their pools were up to 10 % larger on an H200 than here".to_owned(),
        );
    }
    limits.extend(cut_loops(reports));
    limits.extend(outcome.judged.as_ref().and_then(|judged| waits(judged.analysis.as_ref()?, &size)));
    // A library that was only imported uses no GPU memory. Requests of other libraries are counted.
    let may_take = reports.iter().filter(|report| report.outside_bytes != Some(0));
    let mut libraries: Vec<&str> =
        may_take.flat_map(|report| report.libraries.iter().map(String::as_str)).collect();
    libraries.sort_unstable();
    libraries.dedup();
    if !libraries.is_empty() {
        let libraries = libraries.join(", ");
        limits.push(format!(
            "the kernels of these libraries on the GPU, which take up to 8 MiB each: {libraries}"
        ));
    }
    limits.extend(shared(outcome, &size));
    if let Some(report) = reports.iter().find(|report| report.allocator != NATIVE) {
        limits.push(match report.allocator.as_str() {
            "none" => "the owners of the memory: with PYTORCH_NO_CUDA_MEMORY_CACHING=1 every tensor is a device allocation of whole \
                       2 MiB pages, and nothing is recorded"
                .to_owned(),
            other => format!("the owners of the memory: the allocator {other} does not record its blocks"),
        });
    }
    if reports.iter().any(|report| report.alone) {
        limits.push("the other ranks of the job, which did not run".to_owned());
    }
    let mut outside = reports.iter().flat_map(|report| &report.outside);
    let counts_nccl = outside.any(|row| row.owner.starts_with("NCCL"));
    if reports.iter().any(|report| report.rank.is_some()) && !counts_nccl {
        limits.push("NCCL's buffers, which are outside PyTorch's allocator: the program made no communicator here, or \
                     --context 0 leaves them out".to_owned());
    }
    if counts_nccl {
        limits.extend(unknown_variables(
            std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()),
        ));
    }
    limits.extend(reads::problems(reports));
    limits
}

/// What variables of NCCL do not decide: messages, the choice of network interfaces, time limits.
const WITHOUT_BYTES: [&str; 8] = [
    "NCCL_DEBUG",
    "NCCL_SOCKET_",
    "NCCL_IB_",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_TIMEOUT",
    "NCCL_HOSTID",
    "NCCL_COMM_ID",
];

/// A sentence about the variables of NCCL that are set and may change its memory, but are not part of the model.
fn unknown_variables(names: impl Iterator<Item = String>) -> Option<String> {
    let is_unknown = |name: &String| {
        name.starts_with("NCCL_")
            && !nccl::KNOWN.contains(&name.as_str())
            && !WITHOUT_BYTES.iter().any(|start| name.starts_with(start))
    };
    let mut found: Vec<String> = names.filter(is_unknown).collect();
    found.sort_unstable();
    (!found.is_empty()).then(|| format!("what these variables change in NCCL's memory: {}", found.join(", ")))
}

/// Sentences about what the simulated GPU (plimsoll-standin) assumed, and about calls that it does not support.
fn assumed(outcome: &Outcome) -> Vec<String> {
    let notices = outcome.notices();
    let answered = notices.iter().any(|notice| notice.text == notice::ASKED);
    let sentence = |Notice { about, text, .. }: &Notice| match (about.as_str(), text.as_str()) {
        (notice::CUDNN, notice::ASKED) => format!(
            "{about} {text}; in 88 of 98 training and inference runs on an H200, the peak of reserved bytes matched \
             to the byte; GPUs of one model differ by up to 2 %, because different multiprocessors are disabled"
        ),
        // The model computes the other workspaces, some of them to the byte: recurrent networks, normalization, the CTC
        // loss.
        (notice::CUDNN, notice::MODELLED) if answered => {
            format!(
                "{about}, where it cannot answer without a GPU (recurrent networks, normalization, CTC loss), {text}"
            )
        }
        (notice::CUDNN, notice::MODELLED) => format!(
            "{about} {text}; in thirty training runs of ten networks there, the peak of reserved bytes was between 10 % too low \
             and 0.3 % too high"
        ),
        _ => format!("{about} {text}"),
    };
    notices.into_iter().map(sentence).collect()
}

/// The sentence about blocks that were freed while another stream used them. On the simulated GPU, a stream has always
/// finished.
fn waits(analysis: &Analysis, size: impl Fn(u64) -> String) -> Option<String> {
    let waiting = analysis.device().timeline.lives.iter().filter(|life| {
        let at_once = |freed| life.completed.is_some_and(|completed| completed.index() == freed + 1);
        life.freed.is_some_and(|freed| !at_once(freed.index()))
    });
    let (blocks, most) = waiting.fold((0, 0), |(blocks, most), life| (blocks + 1, life.bytes.max(most)));
    (blocks > 0).then(|| {
        format!(
            "delayed frees (`record_stream`): on a GPU, a freed block waits for the streams that use it; here it does not. This affects {blocks} blocks of at most {}",
            size(most)
        )
    })
}

/// Sentences about GPUs that several processes share.
fn shared(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    let mut shared: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
    for (_, peaks) in outcome.rows() {
        let Some(together_bytes) = peaks.together_bytes else { continue };
        let (processes, bytes, together) = shared.entry(peaks.gpu).or_default();
        (*processes, *bytes, *together) = (*processes + 1, *bytes + peaks.reserved_bytes, together_bytes);
    }
    let sentence = |(gpu, (processes, bytes, together_bytes))| {
        format!(
            "cached memory that the {processes} processes on GPU {gpu} may release: those that run at the same time count as keeping \
             what they reserve, {} together (with contexts); PyTorch reserves {} in all of them (without contexts)",
            size(together_bytes),
            size(bytes)
        )
    };
    shared.into_iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_nccl_that_are_not_modelled_are_named() {
        let said = |names: &[&str]| unknown_variables(names.iter().map(|it| (*it).to_owned()));
        assert_eq!(said(&["NCCL_DEBUG", "NCCL_BUFFSIZE", "NCCL_IB_HCA", "PATH"]), None);
        let both = "what these variables change in NCCL's memory: NCCL_COLLNET_ENABLE, NCCL_PROTO";
        assert_eq!(said(&["NCCL_PROTO", "NCCL_COLLNET_ENABLE"]).as_deref(), Some(both));
    }
}
