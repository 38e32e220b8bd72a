//! `--snapshot`: saves a run's snapshots. If the option names a file, the snapshot of the process that decides the
//! verdict is saved; if it names a folder, all snapshots are saved.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_trace::pickle::add_entry;
use plimsoll_trace::snapshot::Key;

use super::answer::Outcome;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::predicted::Predicted;
use crate::protocol::Report;
use crate::sink::Sink;

/// The destination of snapshots.
pub(super) enum Keep {
    One(Sink),
    All { folder: PathBuf, force: bool },
}

impl Keep {
    /// Parses the argument: an existing folder, or a path that ends with `/`, is a folder.
    ///
    /// # Errors
    /// If the file, or snapshots in the folder, already exist, and `force` is not set.
    pub(super) fn of(path: &Path, force: bool) -> Result<Keep, Failure> {
        if !path.is_dir() && !path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            let sink = Sink::new(path.to_path_buf(), force);
            return sink.check().map(|()| Keep::One(sink));
        }
        // Snapshots of another run would look like those of other ranks of this run.
        let is_snapshot = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|ending| ending == "pickle"))
        };
        if !force && fs::read_dir(path).is_ok_and(|mut entries| entries.any(is_snapshot)) {
            let message = format!(
                "{} already contains snapshots: add --force to replace them, or choose another folder",
                path.display()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(Keep::All { folder: path.to_path_buf(), force })
    }

    /// Writes the snapshots, and puts the new file name into the explanation. The snapshot of the process that decides
    /// also gets the results of the prediction.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn write(&self, outcome: &mut Outcome, found: Option<&Predicted>) -> Result<(), Failure> {
        let found = found.and_then(|found| serde_json::to_string(found).ok());
        let analysis = outcome.judged.as_mut().and_then(|judged| judged.analysis.as_mut());
        match self {
            Keep::One(sink) => analysis.map_or(Ok(()), |analysis| {
                analysis.explained.file = sink.name();
                copy(&analysis.snapshot, sink, found.as_deref())
            }),
            Keep::All { folder, force } => {
                let unwritable = |why| Failure::new(Exit::Unreadable, format!("{}: {why}", folder.display()));
                fs::create_dir_all(folder).map_err(unwritable)?;
                let own = analysis.map(|analysis| (analysis.snapshot.clone(), &mut analysis.explained.file));
                let (own, mut file) = own.unzip();
                let kept: Vec<&Report> =
                    outcome.reports.iter().filter(|report| report.snapshot.is_some()).collect();
                if *force && !kept.is_empty() {
                    clear(folder).map_err(unwritable)?;
                }
                for (report, name) in kept.iter().zip(names(&kept)) {
                    let Some(snapshot) = &report.snapshot else { continue };
                    let sink = Sink::new(folder.join(name), *force);
                    let is_own = own.as_ref() == Some(snapshot);
                    copy(snapshot, &sink, found.as_deref().filter(|_| is_own))?;
                    if let Some(file) = file.as_mut().filter(|_| is_own) {
                        **file = sink.name();
                    }
                }
                if kept.len() > 1 {
                    let (folder, kept) = (folder.display(), kept.len());
                    output::progress(&format!("`plimsoll explain {folder}` compares the {kept}"));
                }
                Ok(())
            }
        }
    }
}

/// Copies a snapshot; `found` is added to the copy.
fn copy(snapshot: &Path, sink: &Sink, found: Option<&str>) -> Result<(), Failure> {
    sink.write(|out| {
        let mut file = File::open(snapshot)?;
        match found {
            Some(text) => add_entry(&mut file, Key::Prediction.name(), text, out),
            None => io::copy(&mut file, out).map(|_| ()),
        }
    })
}

/// File names by process: `rank0.pickle`, or `process123.pickle` without a rank. If several processes have the same rank,
/// their names include the process ID.
fn names(reports: &[&Report]) -> Vec<String> {
    let name = |report: &Report| report.name().replace(' ', "");
    let named = reports.iter().map(|report| {
        let own = name(report);
        match reports.iter().filter(|other| name(other) == own).count() {
            1 => format!("{own}.pickle"),
            _ => format!("{own}-process{}.pickle", report.pid),
        }
    });
    named.collect()
}

/// Removes an earlier run's snapshots, which would look like those of other ranks of this run.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_ours) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether this could be a name that [`names`] created.
fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(name) = name.strip_suffix(".pickle") else { return false };
    let Some(rank) = name.strip_prefix("rank") else {
        return name.strip_prefix("process").is_some_and(is_number);
    };
    match rank.split_once("-process") {
        Some((rank, process)) => is_number(rank) && is_number(process),
        None => is_number(rank),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: Option<u32>, pid: u32) -> Report {
        let analysis = serde_json::json!({
            "pid": pid, "rank": rank, "alone": false, "state": "ended", "torch": "2.15.0", "cuda": "13.2",
            "standin": true, "started": true, "steps": 3, "failures": 0, "failed_step": 0, "devices": [],
            "cudnn_search": false, "libraries": [], "error": null,
        });
        serde_json::from_value(analysis).expect("a report")
    }

    #[test]
    fn every_process_has_a_file_of_its_own_though_two_say_that_they_are_the_same_rank() {
        let reports =
            [report(None, 7), report(None, 8), report(Some(0), 9), report(Some(0), 10), report(Some(1), 11)];
        let names = names(&reports.each_ref());
        let wanted = ["process7", "process8", "rank0-process9", "rank0-process10", "rank1"];
        assert_eq!(names, wanted.map(|name| format!("{name}.pickle")));
        assert!(names.iter().all(|name| is_ours(name)));
    }

    #[test]
    fn only_what_an_earlier_run_kept_is_cleared() {
        let folder = tempfile::tempdir().expect("a folder");
        let others =
            ["rank.pickle", "rank0.json", "rank0-oom.pickle", "rank1-2.pickle", "process.pickle", "x.pickle"];
        for name in ["rank12.pickle", "rank0-process34.pickle", "process5.pickle"].iter().chain(&others) {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        clear(folder.path()).expect("cleared");
        let left =
            fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let left: std::collections::BTreeSet<_> = left.collect();
        assert_eq!(left, others.map(Into::into).into());
    }
}
