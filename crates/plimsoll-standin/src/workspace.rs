//! Undocumented workspaces: no bytes, or a model's, as configured; both are reported. Each process records its
//! workspace requests in a file, so that they can be replayed without them.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::lock::locked;
use crate::notice;
use crate::settings::{self, Workspaces};

/// A workspace that a library requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workspace {
    /// Its address when it was used; `None` if that is unknown.
    pub address: Option<u64>,
    /// The requested bytes.
    pub bytes: u64,
}

/// The distinct workspaces of a process, from this folder.
///
/// # Errors
///
/// I/O errors. A missing file is not an error: no library requested a workspace.
pub fn of_process(folder: &Path, pid: u32) -> io::Result<BTreeSet<Workspace>> {
    let text = match fs::read_to_string(file(folder, pid)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    Ok(text.lines().filter_map(Workspace::parsed).collect())
}

impl Workspace {
    fn line(self) -> String {
        format!("{} {}\n", self.address.unwrap_or(0), self.bytes)
    }

    /// `None` for a truncated line.
    fn parsed(line: &str) -> Option<Workspace> {
        let (address, bytes) = line.split_once(' ')?;
        let address = address.parse().ok()?;
        Some(Workspace { address: (address > 0).then_some(address), bytes: bytes.parse().ok()? })
    }
}

fn file(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{pid}.workspaces"))
}

/// Bytes of an undocumented workspace: from a model, or none.
pub(crate) fn asked(library: &str, model: impl FnOnce() -> u64) -> u64 {
    let bytes = modelled(library, model);
    note(None, bytes);
    bytes
}

/// The same as [`asked`], for a workspace that is recorded later, when it is used.
pub(crate) fn modelled(library: &str, model: impl FnOnce() -> u64) -> u64 {
    match Workspaces::wanted() {
        Workspaces::None => none(library),
        Workspaces::Model | Workspaces::Library => {
            notice::assume(library, notice::MODELLED);
            model()
        }
    }
}

/// Reports no workspace, for a library without a model.
pub(crate) fn none(library: &str) -> u64 {
    notice::assume(library, "is assumed to need no workspace; on a GPU it needs some");
    0
}

/// Records a workspace, once.
pub(crate) fn note(address: Option<u64>, bytes: u64) {
    static NOTED: Mutex<BTreeSet<Workspace>> = Mutex::new(BTreeSet::new());
    let workspace = Workspace { address, bytes };
    if bytes == 0 || !locked(&NOTED).insert(workspace) {
        return;
    }
    let Some(folder) = settings::text(settings::NOTICES) else { return };
    let path = file(Path::new(&folder), std::process::id());
    let file = OpenOptions::new().create(true).append(true).open(path);
    if let Err(why) = file.and_then(|mut file| file.write_all(workspace.line().as_bytes())) {
        settings::say(&format!("{folder}: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_back_and_a_cut_line_is_left_out() {
        for address in [None, Some(0x7000_0000_0000)] {
            let workspace = Workspace { address, bytes: 53_592_743 };
            assert_eq!(Workspace::parsed(workspace.line().trim_end()), Some(workspace));
        }
        for line in ["", "12", "12 ", "a 5"] {
            assert_eq!(Workspace::parsed(line), None, "{line}");
        }
    }
}
