//! A job as text: a row for each rank on this machine, then the rank with the least room.

use std::fmt::Write;

use plimsoll::memory::live::Sample;

use super::text;
use crate::bytes;

/// The samples of a job; a single process is shown in the same way as by [`text::render`].
pub(super) fn render(samples: &[Sample], whole: bool) -> String {
    let Some(fullest) = fullest(samples) else { return String::new() };
    let shown = text::render(&samples[fullest], whole);
    if samples.len() == 1 {
        return shown;
    }
    let rank = rank(&samples[fullest]);
    format!("{}\nThe rank with the least headroom: {rank}\n{shown}", table(samples, whole))
}

/// The index of the sample with the least room.
pub(super) fn fullest(samples: &[Sample]) -> Option<usize> {
    (0..samples.len()).min_by_key(|&nth| samples[nth].free_bytes() + samples[nth].cached_bytes())
}

/// The rank, or the process ID if it has no rank.
pub(super) fn rank(sample: &Sample) -> String {
    sample.rank.map_or_else(|| format!("process {}", sample.pid), |rank| rank.to_string())
}

fn table(samples: &[Sample], whole: bool) -> String {
    let size = |bytes| bytes::shown(bytes, whole);
    let job = samples.iter().find_map(|it| it.job.as_deref()).unwrap_or("");
    let mut out = format!("{} of a job on this machine: {job}\n\n", samples.len());
    let _ = writeln!(
        out,
        "{:>4}  {:>8}  {:>12}  {:>12}  {:>13}  {:>12}  {:>7}  growth a step",
        "rank", "process", "allocated", "reserved", "peak reserved", "device free", "steps"
    );
    for it in samples {
        let growth = match it.growth_bytes_per_step {
            None => "unknown".to_owned(),
            Some(growth) if growth.abs() < 0.5 => "none".to_owned(),
            // The cast saturates at the range of the integer.
            Some(growth) => bytes::change(growth.round() as i128, whole),
        };
        let _ = writeln!(
            out,
            "{:>4}  {:>8}  {:>12}  {:>12}  {:>13}  {:>12}  {:>7}  {growth}",
            it.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            it.pid,
            size(it.allocated_bytes),
            size(it.reserved_bytes),
            size(it.peak_reserved_bytes),
            size(it.device_free_bytes),
            it.steps
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::text::tests::sample;

    #[test]
    fn a_job_has_a_row_for_each_rank_and_the_rank_with_the_least_room_in_full() {
        let job = Some("2 ranks, localhost 29500".to_owned());
        let samples = [
            Sample { rank: Some(0), job: job.clone(), ..sample() },
            Sample { rank: Some(1), job, pid: 4712, allocated_bytes: 39 << 20, ..sample() },
        ];
        let text = render(&samples, false);
        assert!(text.starts_with("2 of a job on this machine: 2 ranks, localhost 29500\n"), "{text}");
        assert!(text.contains("   1      4712     39.00 MiB     40.00 MiB"), "{text}");
        assert!(text.contains("The rank with the least headroom: 1\nprocess 4712, rank 1, on cpu"), "{text}");
        assert_eq!(render(&samples[..1], false), text::render(&samples[0], false));
    }
}
