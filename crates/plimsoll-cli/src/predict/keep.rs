//! `--snapshot`: what is kept of a run's snapshots. A file is that of the process that decides, a folder those of all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::answer::Outcome;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::sink::Sink;

/// Where snapshots go.
pub(super) enum Keep {
    One(Sink),
    All { folder: PathBuf, force: bool },
}

impl Keep {
    /// Reads the argument: what is a folder, or ends as one, is meant to be one.
    ///
    /// # Errors
    /// Snapshots that are there already, unless `force` allows to replace them.
    pub(super) fn of(path: &Path, force: bool) -> Result<Keep, Failure> {
        if !path.is_dir() && !path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            let sink = Sink::new(path.to_path_buf(), force);
            return sink.check().map(|()| Keep::One(sink));
        }
        // Those of another run would be taken for ranks of this one.
        let is_snapshot = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|ending| ending == "pickle"))
        };
        if !force && fs::read_dir(path).is_ok_and(|mut entries| entries.any(is_snapshot)) {
            let message = format!(
                "{} has snapshots already: add --force to replace them, or name another folder",
                path.display()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(Keep::All { folder: path.to_path_buf(), force })
    }

    /// Writes them, and notes in the explanation where its own is.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, outcome: &mut Outcome) -> Result<(), Failure> {
        let told = outcome.judged.as_mut().and_then(|judged| judged.told.as_mut());
        match self {
            Keep::One(sink) => told.map_or(Ok(()), |told| {
                told.explained.file = sink.name();
                copy(&told.snapshot, sink)
            }),
            Keep::All { folder, force } => {
                let made = fs::create_dir_all(folder);
                made.map_err(|why| Failure::new(Exit::Unreadable, format!("{}: {why}", folder.display())))?;
                let own = told.map(|told| (told.snapshot.clone(), &mut told.explained.file));
                let (own, mut file) = own.unzip();
                let mut written = 0;
                for report in &outcome.reports {
                    let Some(snapshot) = &report.snapshot else { continue };
                    let name = format!("{}.pickle", report.name().replace(' ', ""));
                    let sink = Sink::new(folder.join(name), *force);
                    copy(snapshot, &sink)?;
                    written += 1;
                    if let Some(file) = file.as_mut().filter(|_| own.as_ref() == Some(snapshot)) {
                        **file = sink.name();
                    }
                }
                if written > 1 {
                    let folder = folder.display();
                    output::progress(&format!("`plimsoll explain {folder}` puts the {written} side by side"));
                }
                Ok(())
            }
        }
    }
}

fn copy(snapshot: &Path, sink: &Sink) -> Result<(), Failure> {
    sink.write(|out| io::copy(&mut File::open(snapshot)?, out).map(|_| ()))
}
