//! Writing a save into the folder of a run: [`Files`]. This may be done by a thread.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll::serialize::{
    self, Checkpoint, DistributedCheckpoint, SerializeError, StateDict, checkpoints_in,
};
use plimsoll_trace::output::replace;

use super::{CHECKPOINT, LATEST, MANIFEST, PREVIOUS, WEIGHTS};

/// The folder that a run saves to.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    /// The small files next to the weights: name and text.
    pub(super) companions: Vec<(&'static str, String)>,
    /// Whether this rank writes the files that all ranks have in common.
    pub(super) is_first: bool,
    /// Whether this run wrote the checkpoint in the folder, or resumed from it.
    pub(super) is_own: bool,
}

impl Files {
    /// Saves the model and the checkpoint as files, on one rank.
    pub(super) fn write(&self, checkpoint: &Checkpoint, model: &StateDict) -> Result<(), SerializeError> {
        let path = self.folder.join(CHECKPOINT);
        if self.is_own {
            self.keep_previous(&path)?;
        }
        checkpoint.save(path)?;
        serialize::save(model, self.folder.join(WEIGHTS))?;
        self.write_companions()?;
        self.retire_folders();
        Ok(())
    }

    /// Saves this rank's rows, together with the other ranks.
    pub(super) fn write_together(
        &self,
        rows: &DistributedCheckpoint,
        step: u64,
    ) -> Result<(), SerializeError> {
        rows.save(&self.folder, step)?;
        if self.is_first {
            self.retire_file();
            self.write_companions()?;
        }
        Ok(())
    }

    /// Writes the small files next to the weights, unless they are there.
    fn write_companions(&self) -> Result<(), SerializeError> {
        for (name, text) in &self.companions {
            let path = self.folder.join(name);
            if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
                continue;
            }
            replace(&path, |out| out.write_all(text.as_bytes()))
                .map_err(|source| SerializeError::NotSaved { path, source })?;
        }
        Ok(())
    }

    /// Keeps the last checkpoint under a second name. If the file system has no hard links, none is
    /// kept.
    fn keep_previous(&self, path: &Path) -> Result<(), SerializeError> {
        let previous = self.folder.join(PREVIOUS);
        let link = self.folder.join(format!(".{PREVIOUS}-{}", std::process::id()));
        if fs::hard_link(path, &link).is_err() {
            return Ok(());
        }
        // If both names are links to the same file, a rename does nothing and leaves the first name.
        let renamed = fs::rename(&link, &previous);
        let _ = fs::remove_file(&link);
        renamed.map_err(|source| SerializeError::NotSaved { path: previous, source })
    }

    /// Called after a checkpoint of one process was saved: checkpoints of several ranks are then outdated. The newest
    /// of them stays until the next checkpoint. Files that cannot be removed stay.
    fn retire_folders(&self) {
        let link = self.folder.join(LATEST);
        if fs::read_link(&link).is_ok() {
            let _ = fs::remove_file(link);
            return;
        }
        for folder in checkpoints_in(&self.folder) {
            // Without this file, the remaining files do not count as a checkpoint.
            let _ = fs::remove_file(folder.join(MANIFEST)).and_then(|()| fs::remove_dir_all(&folder));
        }
    }

    /// Called after a checkpoint of several ranks was saved: the checkpoint of one process becomes the previous one,
    /// and its weights are outdated. Files that cannot be renamed or removed stay.
    fn retire_file(&self) {
        let file = self.folder.join(CHECKPOINT);
        if !file.exists() {
            return;
        }
        let _ = fs::remove_file(self.folder.join(WEIGHTS));
        let _ = match self.is_own {
            true => fs::rename(&file, self.folder.join(PREVIOUS)),
            false => fs::remove_file(&file),
        };
    }
}
