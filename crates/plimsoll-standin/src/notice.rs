//! What a process is told of the stand-in that decides how far its figures can be relied on: what was taken to be so
//! (a workspace that is not documented), which calls were refused, and that something depends on values. Each is said
//! once: on stderr, and in a file of the process, `PID.notices`, where [`crate::settings::NOTICES`] names a folder.
//!
//! A line is written when it is known, so that it is there however the process ends, and a process that forks keeps
//! what it had told in its parent's file. A line is `assumed`, `refused` or `selected`, what it is about, and the
//! sentence's end, with tabs between.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::lock::locked;
use crate::settings;

/// What cuDNN's workspaces are told to be about.
pub const CUDNN: &str = "cuDNN";
/// What cuFFT's are told to be about.
pub const CUFFT: &str = "cuFFT";
/// What is told of a library whose workspaces are modelled.
pub const MODELLED: &str = "is assumed to need the workspaces of a model fitted to an H200";

/// What is told of cuDNN where it answered for itself.
pub const ASKED: &str =
    "chose its kernels and workspaces itself, for a description of the GPU instead of a GPU";

/// One thing that was told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// What kind of thing.
    pub kind: Kind,
    /// A library or a call, as `cuFFT` or `cudaIpcGetMemHandle`.
    pub about: String,
    /// What of it, the end of a sentence that begins with `about`.
    pub text: String,
}

/// The kinds of what is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something was taken to be so.
    Assumed,
    /// A call is not imitated.
    Refused,
    /// Something was selected by values of the device, all of which are zero.
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

    /// Nothing for a line that was cut off.
    fn parsed(line: &str) -> Option<Notice> {
        let (name, rest) = line.split_once('\t')?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name)?;
        let (about, text) = rest.split_once('\t')?;
        Some(Notice { kind, about: about.to_owned(), text: text.to_owned() })
    }
}

/// What a process has told in this folder, in order.
///
/// # Errors
///
/// The system's; that there is no file is none: nothing was told.
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

/// Tells that something was taken to be so.
pub(crate) fn assume(about: &str, text: &str) {
    once(Kind::Assumed, about, text);
}

/// Tells that a call was refused.
pub(crate) fn refuse(name: &str) {
    once(Kind::Refused, name, "is not supported by the stand-in");
}

/// Tells that something was refused, and why.
pub(crate) fn refuse_because(about: &str, why: &str) {
    once(Kind::Refused, about, why);
}

/// Tells that something was selected by values.
pub(crate) fn select() {
    once(
        Kind::Selected,
        "what is selected by values of the device",
        "is empty here, with all that is made of it: what `nonzero`, `unique`, a mask or `coalesce` leave, as for the \
         gradient of a sparse embedding",
    );
}

fn once(kind: Kind, about: &str, text: &str) {
    static TOLD: Mutex<BTreeSet<Notice>> = Mutex::new(BTreeSet::new());
    let notice = Notice { kind, about: about.to_owned(), text: text.to_owned() };
    let mut told = locked(&TOLD);
    if !told.contains(&notice) {
        settings::say(&format!("{about} {text}"));
        if let Some(folder) = settings::text(settings::NOTICES) {
            keep(&notice, Path::new(&folder));
        }
        told.insert(notice);
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
    fn what_is_told_is_read_back_and_a_cut_line_is_left_out() {
        let notice = Notice { kind: Kind::Refused, about: "cuCall".to_owned(), text: "is not".to_owned() };
        assert_eq!(Notice::parsed(notice.line().trim_end()), Some(notice));
        for line in ["", "refused", "refused\tcuCall", "meant\tcuCall\tis not"] {
            assert_eq!(Notice::parsed(line), None, "{line}");
        }
    }
}
