//! The verdict where a program failed: how, and what the stand-in may have to do with it; and where memory ran out
//! without a record of it.

use std::collections::BTreeSet;

use plimsoll_standin::notice::{Kind, Notice};
use plimsoll_trace::explain::Cause;

use super::answer::{Shortage, Verdict};
use super::report::{Report, Thrown};
use super::run::Ended;

/// The verdict where the program failed.
pub(super) fn failed(ended: Ended, reports: &[Report]) -> Verdict {
    // What starts the ranks of a job fails, too, if one of them does.
    let failed = reports.iter().filter(|report| report.error.is_some());
    let error = failed.min_by_key(|report| report.rank.is_none()).and_then(|report| report.error.as_ref());
    let how = match (error, ended) {
        (Some(error), _) => {
            let place = error.file.as_ref().zip(error.line).map(|(file, line)| format!(" at {file}:{line}"));
            let text = error.text.lines().next().unwrap_or_default();
            format!("{}{}: {text}", error.kind, place.unwrap_or_default())
        }
        (None, Ended::Signal(signal)) => format!("it was ended by signal {signal}"),
        (None, Ended::Status(code)) => format!("it ended with exit status {code}"),
        (None, _) => "it failed".to_owned(),
    };
    let hint = match (error, ended) {
        (Some(error), _) => hint(error, reports),
        (None, Ended::Signal(11)) => Some(
            "a line above that begins with `plimsoll-standin: the host touched`, if there is one, says which call read a device's \
             memory"
                .to_owned(),
        ),
        _ => None,
    };
    Verdict::Failed { how, hint }
}

/// Words of exceptions about something that is empty.
const EMPTY: [&str; 7] =
    ["empty", "numel() == 0", "non-zero size", "out of range", "0 elements", "zero-size", "at least one"];

/// What the stand-in may have to do with an exception.
fn hint(error: &Thrown, reports: &[Report]) -> Option<String> {
    let text = error.text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let hint = if says(&["no kernel image"]) {
        "this build of PyTorch has no code for that GPU: one for an older or newer CUDA may have it"
    } else if says(&["not_supported", "not supported", "cublas", "cudnn", "cusolver", "cusparse", "cufft"])
        && let refused = refused(reports)
        && !refused.is_empty()
    {
        return Some(format!("the stand-in does not imitate what was called: {}", refused.join(", ")));
    } else if says(&["invalid device ordinal", "duplicate gpu"]) {
        "the program asks for more GPUs than it sees: add --devices"
    } else if let Some(selection) = selection(reports)
        && (error.reads || says(&EMPTY))
    {
        return Some(selection);
    } else if error.reads {
        "a value is read back from the device close above that line, which may be the cause: here it is zero, as nothing \
         is computed"
    } else {
        return None;
    };
    Some(hint.to_owned())
}

/// Where something was selected by values of the device, in words; nothing if that was nowhere.
fn selection(reports: &[Report]) -> Option<String> {
    let mut lines = reports.iter().flat_map(|report| &report.reads).filter_map(|read| read.empty_selection());
    if let Some(line) = lines.next_back() {
        return Some(format!(
            "what is selected by values of the device at {line} is empty here, which may be the cause: --assume {line}=half \
             takes it to be half of all"
        ));
    }
    let is_noticed = |report: &Report| report.notices.iter().any(|notice| notice.kind == Kind::Selected);
    reports.iter().any(is_noticed).then(|| {
        "what is selected by values of the device is empty here (`nonzero`, `unique`, a mask), which may be the cause"
            .to_owned()
    })
}

/// The calls that were refused, by name.
fn refused(reports: &[Report]) -> Vec<&str> {
    let notices: BTreeSet<&Notice> = reports.iter().flat_map(|report| &report.notices).collect();
    notices.into_iter().filter(|it| it.kind == Kind::Refused).map(|it| it.about.as_str()).collect()
}

impl Report {
    /// The verdict where a request failed and no recording has it: by the exception, if that ended the process.
    pub(super) fn shortage_without_record(&self) -> Verdict {
        let unknown = || Verdict::Unknown("memory ran out, and no snapshot tells where".to_owned());
        let Some(error) = &self.error else { return unknown() };
        let line = error.file.as_ref().zip(error.line).map(|(file, line)| format!("{file}:{line}"));
        match asked_bytes(&error.text) {
            Some(asked_bytes) => {
                let (step, cause) = (self.failed_step, Cause::Unknown);
                Verdict::RunsOut(Shortage { step, line, asked_bytes, cause, caught: false })
            }
            None => Verdict::Unknown(line.map_or_else(
                || "memory ran out, and no snapshot tells where".to_owned(),
                |line| format!("memory ran out at {line}, and this allocator keeps no record of requests"),
            )),
        }
    }
}

/// The bytes that a message of PyTorch's names, as in `Tried to allocate 20.00 MiB.`: rounded to its two digits.
fn asked_bytes(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once("Tried to allocate ")?;
    let mut words = rest.split([' ', '.']);
    let (whole, part) = (words.next()?, words.next()?);
    if part == "bytes" {
        return whole.parse().ok();
    }
    let unit = match words.next()? {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let hundredths: u64 = format!("{whole}{part}").parse().ok()?;
    Some((u128::from(hundredths) << unit) as u64 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_message_are_read_in_every_unit() {
        for (text, bytes) in [
            ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has", Some(20 << 20)),
            ("Tried to allocate 1.50 GiB (GPU 0", Some(3 << 29)),
            ("Tried to allocate 512 bytes.", Some(512)),
            ("CUDA error: out of memory", None),
        ] {
            assert_eq!(asked_bytes(text), bytes, "{text}");
        }
    }
}
