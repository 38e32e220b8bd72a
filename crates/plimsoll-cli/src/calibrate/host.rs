//! `calibrate --host`: the speed of one thread of this host, relative to a reference.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::exit::Answer;

/// The schema of the answer.
const SCHEMA: &str = "plimsoll.calibrate.host/1";

/// The time of one round of [`work`] on the reference host, in nanoseconds: a virtual machine on an Intel Xeon at
/// 2.6 GHz, in November 2026.
const REFERENCE_NS: u64 = 1_040_000;

/// How long to measure.
const LONG: Duration = Duration::from_millis(1500);

/// How long `plan` measures; it prints only times that depend on the result.
const SHORT: Duration = Duration::from_millis(90);

/// How many parts the measurement has. The fastest one counts, because other programs only make it slower.
const PARTS: u32 = 15;

/// Work similar to that of a Python program that launches kernels: lookups, small allocations, data-dependent branches.
fn work(seed: u64) -> u64 {
    let mut names: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut state = seed | 1;
    for _ in 0..12_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("layers.{}.weight", state >> 56);
        let sizes = names.entry(key).or_default();
        if sizes.len() > 8 {
            sizes.clear();
        }
        sizes.push(state >> 40);
    }
    names.values().flatten().fold(0, |sum, size| sum ^ size.rotate_left(7))
}

/// The processor time of this thread.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The factor of this host: 1.30 means that its work takes 1.3 times as long as on the reference host.
pub(crate) fn factor() -> f64 {
    static FACTOR: LazyLock<f64> = LazyLock::new(|| round_ns(SHORT) as f64 / REFERENCE_NS as f64);
    *FACTOR
}

/// The time for one round of work, in nanoseconds of the thread's processor time.
fn round_ns(long: Duration) -> u64 {
    let mut best = u64::MAX;
    let mut sum = 0;
    for part in 0..PARTS {
        let (began, mut rounds) = (thread_ns(), 0);
        let until = u64::try_from((long / PARTS).as_nanos()).unwrap_or(u64::MAX);
        while thread_ns() - began < until {
            sum ^= work(u64::from(part) * 1_000 + rounds);
            rounds += 1;
        }
        best = best.min((thread_ns() - began) / rounds.max(1));
    }
    // The result is used, so that the compiler does not remove the work.
    std::hint::black_box(sum);
    best
}

/// Measures this host.
pub(super) fn run(as_json: bool) -> Answer {
    let ns = round_ns(LONG);
    let factor = ns as f64 / REFERENCE_NS as f64;
    let shown = format!("{factor:.2}");
    let than = if factor > 1.0 { "slower than" } else { "as fast as, or faster than," };
    let summary = format!("host factor {shown}: one thread of this host is {than} the reference (1.00)");
    let text = match as_json {
        true => {
            let factor: f64 = shown.parse().unwrap_or(factor);
            format!(
                "{:#}",
                json!({ "schema": SCHEMA, "summary": summary, "factor": factor, "round_ns": ns,
                    "reference_ns": REFERENCE_NS, "basis": "measured" })
            )
        }
        false => format!(
            "{summary}\n  {ns} ns of processor time a round (measured), {REFERENCE_NS} on the reference\n  \
             A step that waits for the host takes about this many times as long as on the reference.\n"
        ),
    };
    Answer::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_depends_on_its_seed_and_takes_time() {
        assert_eq!(work(5), work(5));
        assert_ne!(work(5), work(7));
        let before = thread_ns();
        std::hint::black_box(work(3));
        assert!(thread_ns() > before);
    }
}
