//! Whether the recording overflowed its ring buffer (`max_entries`): [`ran_over`].
//!
//! PyTorch does not record this. If blocks exist but the events before them are missing, then either the ring
//! overflowed, or the recording was stopped and started again. The length and the beginning of the trace distinguish
//! the two.

use std::collections::BTreeMap;

use crate::snapshot::{Action, Event, Setting, Snapshot, Stage, TextId};

/// The evidence that the ring overflowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RanOver {
    /// The file says that the ring overflowed.
    Said,
    /// The trace looks as a full ring would leave it. This evidence is not sufficient: a complete recording may happen
    /// to have as many events.
    Shown,
    /// There is no evidence, or the file says that the ring did not overflow.
    No,
}

pub(super) fn ran_over(snapshot: &Snapshot, trace: &[Event]) -> RanOver {
    match snapshot.setting("trace_alloc_overflowed") {
        Some(Setting::Bool(true)) => return RanOver::Said,
        Some(Setting::Bool(false)) => return RanOver::No,
        _ => {}
    }
    if let Some(most) = snapshot.recorder().max_entries {
        return if trace.len() as u64 >= most { RanOver::Said } else { RanOver::No };
    }
    let begins_inside = trace.first().is_some_and(|event| event.action == Action::FreeCompleted);
    let is_full = is_round(trace.len() as u64);
    if is_full || begins_inside || lost_scopes(snapshot, trace) { RanOver::Shown } else { RanOver::No }
}

/// Whether this is a number that users typically choose for `max_entries`, for example 100,000, 1,500 or 65,536.
fn is_round(count: u64) -> bool {
    let (mut digits, mut zeros) = (count, 0);
    while digits >= 10 && digits.is_multiple_of(10) {
        digits /= 10;
        zeros += 1;
    }
    count >= 64 && count.is_power_of_two() || zeros >= 1 && digits < 10 || zeros >= 2 && digits < 100
}

/// Whether scopes ended before the first event, while later scopes with the same name contain events. If so, the events
/// in the earlier scopes were lost, because starting a recording also clears the scopes.
fn lost_scopes(snapshot: &Snapshot, trace: &[Event]) -> bool {
    let times: Vec<u64> = trace.iter().filter_map(|event| event.time_us.get()).collect();
    let Some(&first) = times.first() else { return false };
    let holds_events = |from: u64, to: u64| {
        let next = times.partition_point(|&time| time < from);
        times.get(next).is_some_and(|&time| time <= to)
    };
    let mut open: BTreeMap<TextId, u64> = BTreeMap::new();
    let mut seen: BTreeMap<TextId, [bool; 2]> = BTreeMap::new();
    for annotation in &snapshot.annotations {
        let Some(time) = annotation.time_us.get() else { continue };
        match annotation.stage {
            Stage::Start => drop(open.insert(annotation.name, time)),
            Stage::End => {
                let Some(began) = open.remove(&annotation.name) else { continue };
                let [before, behind] = seen.entry(annotation.name).or_default();
                *before |= time < first;
                *behind |= began >= first && holds_events(began, time);
            }
        }
    }
    seen.values().any(|&[before, behind]| before && behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_has_a_number_of_events_that_somebody_chose() {
        for count in [40, 100, 1500, 100_000, 250_000, 65_536, 1 << 20] {
            assert!(is_round(count), "{count}");
        }
        for count in [0, 7, 17, 63, 120, 1234, 99_999, 10_010] {
            assert!(!is_round(count), "{count}");
        }
    }
}
