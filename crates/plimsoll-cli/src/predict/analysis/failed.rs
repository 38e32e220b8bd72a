//! The verdict for a program that failed, with a hint if the simulated GPU (plimsoll-standin) may be the cause; and the
//! verdict if memory ran out and there is no recording.

use std::collections::BTreeSet;

use plimsoll_standin::notice::{Kind, Notice};
use plimsoll_trace::explain::Cause;

use super::shortage::Shortage;
use super::verdict::Verdict;
use crate::predict::launch::ended::Ended;
use crate::predict::recording::job::Job;
use crate::protocol::{Read, Report, Thrown};

/// The verdict for a program that failed.
pub(crate) fn failed(job: &Job) -> Verdict {
    let Job { ended, reports, uncopied, .. } = job;
    if let Some(file) = uncopied {
        return Verdict::Unknown(format!(
            "the isolation failed, not the program: {} belongs to another user or group, and an overlay without \
             CAP_SYS_ADMIN cannot change it; --isolation redirect can",
            file.display()
        ));
    }
    // The launcher of a job also fails if a rank fails.
    let failed = reports.iter().filter(|report| report.error.is_some());
    let error = failed.min_by_key(|report| report.rank.is_none()).and_then(|report| report.error.as_ref());
    let how = match (error, *ended) {
        (Some(error), _) => {
            let place = error.file.as_ref().zip(error.line).map(|(file, line)| format!(" at {file}:{line}"));
            let text = error.text.lines().next().unwrap_or_default();
            let technique =
                error.technique.as_ref().map(|it| format!("the technique {it}: ")).unwrap_or_default();
            format!("{technique}{}{}: {text}", error.kind, place.unwrap_or_default())
        }
        (None, Ended::Signal(signal)) => format!("it was ended by signal {signal}"),
        (None, Ended::Status(code)) => format!("it ended with exit status {code}"),
        (None, _) => "it failed".to_owned(),
    };
    let hint = match (error, *ended) {
        (Some(error), _) => hint(error, reports),
        (None, Ended::Signal(11)) => Some(
            "look above for a line that begins with `plimsoll-standin: the host touched`: it names the call that accessed device \
             memory from the host"
                .to_owned(),
        ),
        _ => None,
    };
    Verdict::Failed { how, hint }
}

/// Words that occur in error messages about empty tensors.
const EMPTY: [&str; 7] =
    ["empty", "numel() == 0", "non-zero size", "out of range", "0 elements", "zero-size", "at least one"];

/// Explains how the simulated GPU (plimsoll-standin) may have caused an exception.
fn hint(error: &Thrown, reports: &[Report]) -> Option<String> {
    let text = error.text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let hint = if says(&["no kernel image"]) {
        "this build of PyTorch has no code for that GPU; a build for another CUDA version may have it"
    } else if says(&["not_supported", "not supported", "cublas", "cudnn", "cusolver", "cusparse", "cufft"])
        && let refused = refused(reports)
        && !refused.is_empty()
    {
        return Some(format!("the simulated GPU does not support: {}", refused.join(", ")));
    } else if says(&["invalid device ordinal", "duplicate gpu"]) {
        "the program uses more GPUs than it sees: add --devices"
    } else if let Some(selection) = selection(reports)
        && (error.reads || says(&EMPTY))
    {
        return Some(selection);
    } else if error.reads
        && let Some(line) =
            reports.iter().flat_map(|report| &report.reads).filter_map(Read::deciding).next_back()
    {
        return Some(format!(
            "the cause may be a value that the program reads from the GPU at {line}: it is zero here, because nothing is computed; --assume {line}=VALUE sets it"
        ));
    } else if error.reads {
        "the cause may be a value that the program reads from the GPU just above that line: it is zero here, because nothing is computed"
    } else {
        return None;
    };
    Some(hint.to_owned())
}

/// The hint about an operator that selected elements by GPU values, if there was such an operator.
fn selection(reports: &[Report]) -> Option<String> {
    let reads = reports.iter().flat_map(|report| &report.reads);
    let mut empty = reads.filter_map(|read| read.empty_selection().map(|line| (read, line)));
    if let Some((read, line)) = empty.next_back() {
        let advice = if read.knows_half() {
            format!("--assume {line}=half selects half of the elements")
        } else {
            format!("use --assume {line}=N, where N is the number of elements selected on a GPU")
        };
        return Some(format!(
            "the cause may be that a selection by GPU values at {line} is empty here: {advice}"
        ));
    }
    let is_noticed = |report: &Report| report.notices.iter().any(|notice| notice.kind == Kind::Selected);
    reports.iter().any(is_noticed).then(|| {
        "the cause may be that a selection by GPU values is empty here (`nonzero`, `unique`, a mask)"
            .to_owned()
    })
}

/// The names of the CUDA calls that the program made and the simulated GPU does not support.
fn refused(reports: &[Report]) -> Vec<&str> {
    let notices: BTreeSet<&Notice> = reports.iter().flat_map(|report| &report.notices).collect();
    notices.into_iter().filter(|it| it.kind == Kind::Refused).map(|it| it.about.as_str()).collect()
}

impl Report {
    /// The verdict for a failed request if nothing was recorded. The request's line and size come from the exception
    /// that ended the process, if an exception did.
    pub(crate) fn shortage_without_record(&self) -> Verdict {
        let unknown =
            || Verdict::Unknown("memory ran out, and there is no snapshot that shows where".to_owned());
        let Some(error) = &self.error else { return unknown() };
        let line = error.file.as_ref().zip(error.line).map(|(file, line)| format!("{file}:{line}"));
        match asked_bytes(&error.text) {
            Some(asked_bytes) => {
                let (step, cause) = (self.failed_step, Cause::Unknown);
                Verdict::RunsOut(Shortage {
                    step,
                    line,
                    asked_bytes,
                    owner: None,
                    cause,
                    caught: false,
                    is_saved_by_caches: false,
                })
            }
            None => Verdict::Unknown(line.map_or_else(
                || "memory ran out, and there is no snapshot that shows where".to_owned(),
                |line| format!("memory ran out at {line}, and this allocator records no requests"),
            )),
        }
    }
}

/// The size in PyTorch's message `Tried to allocate 20.00 MiB.`, to the precision of the message's two decimals.
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

    /// The hint for a failure if this operator selected elements by GPU values at `train.py:4`.
    fn hint_after(operator: &str) -> String {
        let report = serde_json::json!({
            "pid": 7, "rank": null, "alone": false, "state": "failed", "torch": "2.15.0", "cuda": "13.2",
            "standin": true, "started": true, "steps": 0, "failures": 0, "failed_step": 0, "devices": [],
            "cudnn_search": false, "libraries": [],
            "error": {
                "kind": "RuntimeError", "text": "max(): Expected reduction dim for input.numel() == 0",
                "file": "/me/train.py", "line": 5, "reads": true,
            },
            "reads": [{
                "file": "/me/train.py", "line": 4, "via": null, "operator": operator, "fate": "size", "count": 1,
                "assumed": null,
            }],
        });
        let report: Report = serde_json::from_value(report).expect("a report");
        let job = Job { ended: Ended::Status(1), reports: vec![report], host: Vec::new(), uncopied: None };
        match failed(&job) {
            Verdict::Failed { hint: Some(hint), .. } => hint,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_that_the_overlay_cannot_copy_is_not_the_programs_fault() {
        let uncopied = Some("/lab/log.txt".into());
        let job = Job { ended: Ended::Status(1), reports: Vec::new(), host: Vec::new(), uncopied };
        let Verdict::Unknown(why) = failed(&job) else { panic!("{:?}", failed(&job)) };
        assert!(why.contains("/lab/log.txt") && why.ends_with("--isolation redirect can"), "{why}");
    }

    #[test]
    fn a_hint_advises_half_only_where_half_is_known() {
        let hint = hint_after("nonzero");
        assert!(
            hint.contains("train.py:4 is empty here") && hint.contains("--assume train.py:4=half "),
            "{hint}"
        );
        for operator in ["_unique2", "unique_consecutive", "unique_dim"] {
            let hint = hint_after(operator);
            let wanted = "--assume train.py:4=N, where N is the number of elements selected on a GPU";
            assert!(hint.ends_with(wanted) && !hint.contains("half"), "{hint}");
        }
    }

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
