//! A moment of a recording as users type it: [`When`], for `export --at` and `explain --events`.

use plimsoll_trace::explain::DeviceExplanation;
use plimsoll_trace::snapshot::{EventIndex, Snapshot};

use crate::exit::{Exit, Failure};

/// A moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// The moment at which the most bytes were allocated.
    Peak,
    /// The moment at which the snapshot was taken.
    End,
    /// The moment at which a request last failed.
    Failure,
    /// After the event with this number, counted from 0.
    After(usize),
    /// This many microseconds after the recording's first event.
    Time(u64),
}

/// Parses a moment.
pub(crate) fn parse(text: &str) -> Result<When, String> {
    const UNITS: [(&str, f64); 3] = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let time = UNITS.into_iter().find_map(|(unit, scale)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(When::Time((number * scale) as u64))
    });
    match text {
        "peak" => Ok(When::Peak),
        "end" => Ok(When::End),
        "failure" => Ok(When::Failure),
        _ => time.or_else(|| text.parse().ok().map(When::After)).ok_or_else(|| {
            "a moment is peak, end, failure, an event's number or a time such as 2.5s".to_owned()
        }),
    }
}

/// A moment of one device: the event after which it is, and its description.
pub(crate) type Found = (Option<EventIndex>, String);

/// Finds the moment on a device; `several` says whether there are more devices. The default is when memory ran
/// out, or else the peak. `None` if a failure was requested and the device has none.
///
/// # Errors
/// If the device does not have the moment.
pub(crate) fn find(
    when: Option<When>,
    (file, snapshot): (&str, &Snapshot),
    device: &DeviceExplanation,
    several: bool,
) -> Result<Option<Found>, Failure> {
    let usage = |message: String| Err(Failure::new(Exit::Usage, message));
    let (number, events) = (device.timeline.device, device.timeline.quality.events);
    let found = match (when, device.failure) {
        (None | Some(When::Failure), Some(failure)) => (Some(failure.at), "when memory ran out".to_owned()),
        (None | Some(When::Peak), _) => (device.timeline.peak_allocated.after, "at the peak".to_owned()),
        (Some(When::End), _) => (EventIndex::new(events), "at the end".to_owned()),
        (Some(When::Failure), None) => return Ok(None),
        (Some(When::After(_)), _) if several => {
            return usage("an event number belongs to one device: add --device N".to_owned());
        }
        (Some(When::After(nth)), _) if nth < events => (EventIndex::new(nth), format!("after event {nth}")),
        (Some(When::After(nth)), _) => {
            return usage(format!("there is no event {nth}: {file} has {events} events on device {number}"));
        }
        (Some(When::Time(after_us)), _) => {
            let times = snapshot.trace(number).iter().map(|event| event.time_us.get());
            let Some(first) = times.clone().flatten().next() else {
                return usage(format!("{file} has no times for device {number}: give an event number"));
            };
            let until = first.saturating_add(after_us);
            let place = last_until(times, until);
            (place.and_then(EventIndex::new), format!("{} s after the first event", after_us as f64 / 1e6))
        }
    };
    Ok(Some(found))
}

/// The failure if no device has a failed request.
pub(crate) fn no_failure(file: &str) -> Failure {
    Failure::new(Exit::Usage, format!("no request failed in {file}: choose another moment, such as peak"))
}

/// The index of the last time that is not after `until`.
fn last_until(times: impl Iterator<Item = Option<u64>>, until: u64) -> Option<usize> {
    times
        .enumerate()
        .filter(|(_, time)| time.is_some_and(|time| time <= until))
        .map(|(place, _)| place)
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_people_write_them() {
        for (text, expected) in [
            ("peak", When::Peak),
            ("12", When::After(12)),
            ("2.5s", When::Time(2_500_000)),
            ("3 ms", When::Time(3000)),
            ("7us", When::Time(7)),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in ["", "s", "-1", "-1s", "1.5", "nan s", "infs", "soon"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
