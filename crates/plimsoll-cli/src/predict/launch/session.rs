//! The resources that all runs of one command share: [`Session`].

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::signals::Signals;
use super::{host, standin};
use crate::exit::Failure;
use crate::predict::view::Isolation;
use crate::scratch::{Scratch, unreadable};

/// The resources that all runs share.
pub(crate) struct Session {
    /// The shared library of the simulated GPU (plimsoll-standin).
    standin: PathBuf,
    /// The library that counts memory on the host; `None` if this build does not contain it.
    host: Option<PathBuf>,
    /// The folder that contains the runs' folders.
    folder: Scratch,
    pub(super) signals: Signals,
    /// The first isolation that worked on this machine.
    pub(super) isolation: OnceLock<Option<Isolation>>,
}

impl Session {
    /// Finds the shared library, creates the folder, and starts to catch signals.
    ///
    /// # Errors
    /// If the library is missing or has another version, or the folder cannot be created.
    pub(crate) fn begin() -> Result<Session, Failure> {
        let folder = Scratch::begin()?;
        let standin = standin::find(folder.path())?;
        let host = host::installed(folder.path())?;
        let signals = Signals::hear(folder.path().to_path_buf()).map_err(|why| unreadable(&why))?;
        Ok(Session { standin, host, folder, signals, isolation: OnceLock::new() })
    }

    /// The shared library.
    pub(crate) fn standin(&self) -> &Path {
        &self.standin
    }

    /// The library that counts memory on the host; `None` if this build does not contain it.
    pub(crate) fn host(&self) -> Option<&Path> {
        self.host.as_deref()
    }

    /// Ends a run that another thread has started, like Ctrl-C.
    pub(crate) fn interrupt(&self) {
        self.signals.raise();
    }

    /// The folder that contains the runs' folders; deleted on drop.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}
