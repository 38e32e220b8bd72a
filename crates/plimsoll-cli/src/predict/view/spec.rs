//! The options about the program's writes ([`Writes`]), and the supervisor's instructions ([`Spec`]).

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::caches::{self, Cache};
use crate::bytes;

/// How a program's writes are kept off the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// An overlay file system on each writable folder, in a mount namespace (Linux 5.11 with CAP_SYS_ADMIN, otherwise 6.6)
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
    pub(crate) isolation: Option<Isolation>,
    /// Let the program change and remove files
    #[arg(long, conflicts_with = "isolation")]
    pub(crate) allow_writes: bool,
    /// Limit on the total size of the files that the program writes; beyond it, writes fail with "no space left on device"
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = bytes::parse_positive)]
    pub(crate) scratch: u64,
    /// Files that the program sees with replaced content; the disk keeps the original
    #[arg(skip)]
    pub(crate) replaced: Vec<Replaced>,
}

/// A file with new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Writes {
    /// The isolations to try, in this order; empty if the program may write.
    pub(crate) fn isolations(&self) -> Vec<Isolation> {
        match self.isolation {
            _ if self.allow_writes => Vec::new(),
            Some(one) => vec![one],
            None => vec![Isolation::Overlay, Isolation::Redirect],
        }
    }
}

/// The supervisor's instructions, a file in the run's folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// How to keep the program's writes off the disk; `None` if it may write.
    pub(crate) isolation: Option<Isolation>,
    /// Whether the user chose this isolation, so that no other isolation is tried.
    pub(super) is_chosen: bool,
    /// The session's folder, through which the processes report. It is the same inside and outside the view.
    pub(crate) session: PathBuf,
    /// The run's folder inside the session's folder.
    pub(crate) run: PathBuf,
    pub(crate) scratch_bytes: u64,
    /// Folders in which new files are kept.
    pub(super) caches: Vec<Cache>,
    /// Files whose content is replaced in the view before the program starts.
    pub(super) replaced: Vec<Replaced>,
}

impl Spec {
    /// The instructions for a run in the run's folder.
    pub(crate) fn of(
        writes: &Writes,
        isolation: Option<Isolation>,
        is_chosen: bool,
        session: &Path,
        run: &Path,
    ) -> Spec {
        let home = std::env::home_dir();
        let caches = caches::folders(home.as_deref(), |name| std::env::var_os(name));
        let [session, run] = [session, run].map(Path::to_path_buf);
        let replaced = writes.replaced.clone();
        Spec { isolation, is_chosen, session, run, scratch_bytes: writes.scratch, caches, replaced }
    }
}
