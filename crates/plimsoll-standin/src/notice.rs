//! Notices: facts that limit the accuracy of a process's figures. These are assumptions (an undocumented workspace),
//! unsupported calls, and selections by device values. Each is reported once: on stderr, and in the process's file,
//! `PID.notices`, if [`crate::settings::NOTICES`] names a folder.
//!
//! A line is written at once, so that it is recorded no matter how the process ends. After a fork, earlier notices stay
//! in the parent's file. A line has three parts, separated by tabs: `assumed`, `refused` or `selected`; the subject; the
//! rest of the sentence.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::lock::locked;
use crate::settings;

/// The subject of notices about cuDNN's workspaces.
pub const CUDNN: &str = "cuDNN";
/// The subject of notices about cuFFT's workspaces.
pub const CUFFT: &str = "cuFFT";
/// The text for a library whose workspaces come from a model.
pub const MODELLED: &str = "is assumed to need the workspaces of a model fitted to an H200";

/// The text for cuDNN if it computed its own answers.
pub const ASKED: &str =
    "chose its kernels and workspaces itself, for a description of the GPU instead of a GPU";

/// A notice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// Its kind.
    pub kind: Kind,
    /// A library or a call, such as `cuFFT` or `cudaIpcGetMemHandle`.
    pub about: String,
    /// The rest of a sentence that begins with `about`.
    pub text: String,
}

/// The kinds of notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An assumption.
    Assumed,
    /// An unsupported call.
    Refused,
    /// A selection by device values, all of which are zero.
    Selected,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Assumed, Kind::Refused, Kind::Selected];

    fn name(self) -> &'static str {
        match self {
            Kind::Assumed => "assumed",
            Kind::Refused => "refused",
            Kind::Selected => "selected",
        }
    }
}

impl Notice {
    fn line(&self) -> String {
        format!("{}\t{}\t{}\n", self.kind.name(), self.about, self.text)
    }

    /// `None` for a truncated line.
    fn parsed(line: &str) -> Option<Notice> {
        let (name, rest) = line.split_once('\t')?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name)?;
        let (about, text) = rest.split_once('\t')?;
        Some(Notice { kind, about: about.to_owned(), text: text.to_owned() })
    }
}

/// The notices of a process in this folder, in order.
///
/// # Errors
///
/// I/O errors. A missing file is not an error: the process has no notices.
pub fn of_process(folder: &Path, pid: u32) -> io::Result<Vec<Notice>> {
    match fs::read_to_string(file(folder, pid)) {
        Ok(text) => Ok(text.lines().filter_map(Notice::parsed).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn file(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{pid}.notices"))
}

/// Reports an assumption.
pub(crate) fn assume(about: &str, text: &str) {
    once(Kind::Assumed, about, text);
}

/// Reports an unsupported call.
pub(crate) fn refuse(name: &str) {
    once(Kind::Refused, name, "is not supported by the stand-in");
}

/// Reports something unsupported, and why.
pub(crate) fn refuse_because(about: &str, why: &str) {
    once(Kind::Refused, about, why);
}

/// Reports a selection by device values.
pub(crate) fn select() {
    once(
        Kind::Selected,
        "a selection by values on the device",
        "is empty here, and so is everything computed from it: the results of `nonzero`, `unique`, a mask or `coalesce`, such \
         as the gradient of a sparse embedding",
    );
}

fn once(kind: Kind, about: &str, text: &str) {
    static REPORTED: Mutex<BTreeSet<Notice>> = Mutex::new(BTreeSet::new());
    let notice = Notice { kind, about: about.to_owned(), text: text.to_owned() };
    let mut reported = locked(&REPORTED);
    if !reported.contains(&notice) {
        settings::say(&format!("{about} {text}"));
        if let Some(folder) = settings::text(settings::NOTICES) {
            keep(&notice, Path::new(&folder));
        }
        reported.insert(notice);
    }
}

/// Writes a line to this process's file.
fn keep(notice: &Notice, folder: &Path) {
    let file = OpenOptions::new().create(true).append(true).open(file(folder, std::process::id()));
    if let Err(why) = file.and_then(|mut file| file.write_all(notice.line().as_bytes())) {
        settings::say(&format!("{}: {why}", folder.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_back_and_a_truncated_line_is_skipped() {
        let notice = Notice { kind: Kind::Refused, about: "cuCall".to_owned(), text: "is not".to_owned() };
        assert_eq!(Notice::parsed(notice.line().trim_end()), Some(notice));
        for line in ["", "refused", "refused\tcuCall", "meant\tcuCall\tis not"] {
            assert_eq!(Notice::parsed(line), None, "{line}");
        }
    }
}
