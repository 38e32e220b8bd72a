//! `--snapshot FILE`: the job's memory history, saved at its end or at the failed request, while its memory
//! is still allocated. `--log FILE`: the same history, written as it happens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::memory::{self, HistoryLog, HistoryOptions};
use plimsoll::{Bytes, Device};

use super::watch::Watch;
use crate::exit::{Exit, Failure};
use crate::output;

/// The file, and whether it was saved. Clones share the state.
#[derive(Clone)]
pub(crate) struct SnapshotFile(Arc<State>);

struct State {
    path: PathBuf,
    /// The number of events and bytes of the file, once it is saved.
    saved: Mutex<Option<io::Result<(usize, u64)>>>,
}

impl SnapshotFile {
    /// Starts recording, and ensures that the history is also saved if memory runs out.
    pub(crate) fn open(path: &Path, entries: u32, device: &Device) -> Result<Self, Failure> {
        // A missing folder is reported now rather than after hours of training.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if path.file_name().is_none() || folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
            let message = format!("--snapshot {}: give a file name in a folder that exists", path.display());
            return Err(Failure::new(Exit::Usage, message));
        }
        let file = Self(Arc::new(State { path: path.to_owned(), saved: Mutex::new(None) }));
        memory::record_history(
            device,
            HistoryOptions { max_entries: entries as usize, ..HistoryOptions::default() },
        );
        let failing = file.clone();
        device.on_out_of_memory(move |device| failing.save(device));
        Ok(file)
    }

    fn save(&self, device: &Device) {
        let State { path, saved } = &*self.0;
        let outcome = memory::save_snapshot(device, path)
            .and_then(|snapshot| Ok((snapshot.traces.iter().map(Vec::len).sum(), path.metadata()?.len())));
        *saved.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    /// Reports on stderr what was saved, and how to use it.
    pub(crate) fn report(&self) -> Result<(), Failure> {
        let path = self.0.path.display();
        match &*self.0.saved.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(Ok((events, bytes))) => {
                output::progress(&format!(
                    "snapshot: {events} events in {path} ({}); open it at https://pytorch.org/memory_viz or with\n  \
                     python -m torch.cuda._memory_viz trace_plot {path} -o {path}.html",
                    Bytes(*bytes)
                ));
                Ok(())
            }
            Some(Err(why)) => Err(Failure::new(Exit::Unreadable, format!("--snapshot {path}: {why}"))),
        }
    }

    /// The path of the file, if it was saved.
    pub(crate) fn saved(&self) -> Option<String> {
        let saved = self.0.saved.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*saved, Some(Ok(_))).then(|| self.0.path.display().to_string())
    }
}

/// A log being written.
pub(crate) struct LogFile {
    path: PathBuf,
    log: HistoryLog,
}

impl LogFile {
    /// Starts the log.
    pub(crate) fn open(path: &Path, device: &Device) -> Result<Self, Failure> {
        match memory::stream_history(device, path) {
            Ok(log) => Ok(Self { path: path.to_owned(), log }),
            Err(why) => Err(Failure::new(Exit::Usage, format!("--log {}: {why}", path.display()))),
        }
    }

    /// Ends the log, and reports on stderr what was written.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let path = self.path.display();
        let written = self.log.finish().and_then(|entries| Ok((entries, self.path.metadata()?.len())));
        match written {
            Ok((entries, bytes)) => {
                output::progress(&format!("log: {entries} events in {path} ({})", Bytes(bytes)));
                Ok(())
            }
            Err(why) => Err(Failure::new(Exit::Unreadable, format!("--log {path}: {why}"))),
        }
    }
}

impl Watch for Option<SnapshotFile> {
    fn end(&mut self, device: &Device) {
        if let Some(file) = self {
            file.save(device);
        }
    }
}
