//! The file system as the program sees it: the program finds its own changes, but the disk does not change
//! ([`Writes`], [`Spec`]).
//!
//! A supervisor (`supervise.rs`), which is this program again, sets the view up and starts the user's program in it. It stays, so
//! that no process is left when this one is killed, and at the end it lists what would have been written.
//!
//! | file | contents |
//! |---|---|
//! | `supervise.rs` | the supervisor, and how a run ends |
//! | `overlay.rs` | an overlay on each writable folder, in a mount namespace |
//! | `namespace.rs` | the mount namespace, and what an overlay is made of |
//! | `places.rs` | which folders those are, from the table of mounts |
//! | `redirect.rs` | the same by a library that is loaded into the program, where there is no overlay |
//! | `caches.rs` | caches of downloads and compilers, in which new files stay |
//! | `written.rs` | the list of what would have been written |
//! | `view.py` | the same view for each fork that serves a trial of `plan` |

mod caches;
mod namespace;
mod overlay;
mod places;
mod redirect;
mod supervise;
mod written;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::bytes;

pub(crate) use self::supervise::run;
pub(super) use self::supervise::{ENDING, Ending};
pub(super) use self::written::{File, Kind, Written};

/// How a program's writes are kept off the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// An overlay on each writable folder, in a mount namespace (Linux 5.11 with CAP_SYS_ADMIN, otherwise 6.6)
    Overlay,
    /// A preloaded library that redirects writes to a private folder, backed by Landlock (Linux 5.19)
    Redirect,
}

impl Isolation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isolation::Overlay => "overlay",
            Isolation::Redirect => "redirect",
        }
    }
}

/// The options for files that the program writes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Writes {
    /// How to keep the program's writes off the disk [default: the first of these that works here]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) isolation: Option<Isolation>,
    /// Let the program change and remove files
    #[arg(long, conflicts_with = "isolation")]
    pub(super) allow_writes: bool,
    /// Limit on the files that the program writes; beyond it a write fails with "no space left on device"
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = bytes::parse_positive)]
    pub(super) scratch: u64,
}

impl Writes {
    /// What to try, in this order; empty where the program may write.
    pub(super) fn isolations(&self) -> Vec<Isolation> {
        match self.isolation {
            _ if self.allow_writes => Vec::new(),
            Some(one) => vec![one],
            None => vec![Isolation::Overlay, Isolation::Redirect],
        }
    }
}

/// The supervisor's instructions, a file in the run's folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Spec {
    /// `None`: the program may write.
    pub(super) isolation: Option<Isolation>,
    /// The session's folder, through which the processes report: it is the same inside and outside.
    pub(super) session: PathBuf,
    /// The run's folder in it.
    pub(super) run: PathBuf,
    pub(super) scratch_bytes: u64,
    /// Folders whose new files are kept.
    pub(super) caches: Vec<PathBuf>,
}

impl Spec {
    pub(super) fn of(writes: &Writes, isolation: Option<Isolation>, session: &Path, run: &Path) -> Spec {
        let home = std::env::home_dir();
        let caches = caches::folders(home.as_deref(), |name| std::env::var_os(name));
        let [session, run] = [session, run].map(Path::to_path_buf);
        Spec { isolation, session, run, scratch_bytes: writes.scratch, caches }
    }
}
