//! `--save` and `--resume`: a folder with the checkpoint of a run and the weights for other programs.
//!
//! `checkpoint.safetensors` has everything that a run needs to resume, and `checkpoint-previous.safetensors` is the checkpoint
//! before it. `model.safetensors` has only the weights, under PyTorch's names. Each file is replaced atomically, so the last
//! good ones survive however the run ends. Only one run at a time can save into a folder.
//!
//! Ranks that have parts of the model save together, each its rows, into a folder for each step. `loaded.rs` finds the checkpoint
//! to resume from, and `facts.rs` is what it has besides tensors.

mod facts;
mod loaded;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll::optim::OptimizerState;
use plimsoll::parallel::Shard;
use plimsoll::serialize::{
    self, Checkpoint, DistributedCheckpoint, FolderLock, SerializeError, StateDict, check_shared,
    checkpoints_in,
};
use plimsoll::{Device, ProcessGroup};
use plimsoll_trace::output::replace;
use serde_json::{Value, json};

use self::facts::Facts;
pub(super) use self::facts::Progress;
pub(super) use self::loaded::Loaded;
use self::loaded::{Named, newest, same};
use super::job::{Error, Job};
use crate::exit::{Exit, Failure};

/// The file that a run resumes from.
const CHECKPOINT: &str = "checkpoint.safetensors";
/// The previous checkpoint, used if the newest one is damaged.
const PREVIOUS: &str = "checkpoint-previous.safetensors";
/// The file that makes a folder of several ranks a checkpoint.
const MANIFEST: &str = "checkpoint.json";
/// The link to the newest of these folders.
const LATEST: &str = "latest";
/// The weights alone.
const WEIGHTS: &str = "model.safetensors";
/// The key in a checkpoint for everything that is not a tensor.
const KEY: &str = "train";
/// The key in a checkpoint for the device's random generator.
const GENERATOR: &str = "device";

/// Where to save, and what to resume from.
#[derive(Args)]
pub(crate) struct SaveArgs {
    /// Save checkpoints and weights into this folder: every --save-every steps, at the end, and on Ctrl-C or SIGTERM
    #[arg(long, value_name = "DIR", help_heading = "Saving")]
    save: Option<PathBuf>,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value_t = 250, help_heading = "Saving",
          value_parser = clap::value_parser!(u64).range(1..))]
    save_every: u64,
    /// Resume, bit for bit, from the checkpoint in this folder, or from this checkpoint file [default: the folder of --save].
    /// Without --save, the run also saves into this folder
    #[arg(long, value_name = "DIR", num_args = 0..=1, help_heading = "Saving")]
    #[expect(clippy::option_option, reason = "an option that can be given with or without a value")]
    resume: Option<Option<PathBuf>>,
    /// Replace another run's checkpoint, and existing files of --snapshot and --log
    #[arg(long, help_heading = "Saving")]
    pub(super) force: bool,
}

/// A folder that a run saves to.
pub(crate) struct Saves {
    folder: PathBuf,
    every: u64,
    facts: Facts,
    companions: Vec<(&'static str, String)>,
    checkpoint: Option<Loaded>,
    /// Whether the checkpoint there was written by this run, or is the one it resumed from.
    is_own: bool,
    failure: Option<SerializeError>,
    /// Held by the rank that writes; the others only load.
    lock: Option<FolderLock>,
    /// The step of the checkpoint in the folder, if this run wrote it or resumed from it.
    last_step: Option<u64>,
    /// The step of the last attempt to save, which is the same on all ranks.
    tried_step: Option<u64>,
}

/// The tensors of a save.
pub(super) enum Tensors {
    /// All, which one rank writes.
    Whole(StateDict, OptimizerState),
    /// The rows of this rank, which writes them together with the others.
    Rows(Box<DistributedCheckpoint>),
}

/// The content of a save.
pub(super) struct Saved<'a> {
    pub(super) tensors: Tensors,
    pub(super) device: &'a Device,
    pub(super) progress: &'a Progress,
}

impl SaveArgs {
    /// The folder that the options name, checked to be writable, and the checkpoint to resume from. Changes nothing in the
    /// folder.
    pub(super) fn open(&self, job: &Job, device: &Device) -> Result<Option<Saves>, Failure> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let from = match &self.resume {
            None => None,
            Some(Some(folder)) => Some(folder),
            Some(None) => Some(self.save.as_ref().ok_or_else(|| {
                usage("--resume needs a checkpoint: name its folder, or give --save DIR".to_owned())
            })?),
        };
        let named = from.map(|from| Named::of(from));
        let from = named.as_ref().map(|named| named.run.as_path());
        let Some(folder) = self.save.as_deref().or(from) else { return Ok(None) };
        if !device.has_values() {
            return Err(usage(format!(
                "{} computes no values, so there is nothing to save or to resume from: leave --save and --resume out, or \
                 use --device cpu",
                device.name()
            )));
        }
        let facts = Facts::of(job)?;
        let is_first = job.group.rank() == 0;
        let open = || named.as_ref().map(|named| Loaded::open(&named.path, &facts)).transpose();
        // The other ranks look for it when they are known to see the same folder.
        let mut checkpoint = if is_first { open()? } else { None };
        let is_same = from.is_some_and(|from| from == folder || same(from, folder));
        if let Some(there) = newest(folder).filter(|_| !is_same && !self.force) {
            return Err(usage(format!(
                "{} already exists: add --resume to continue from it, --force to replace it, or save to another folder",
                there.display()
            )));
        }
        let lock = match is_first {
            true => {
                writable(folder)?;
                let lock = FolderLock::of(folder);
                Some(lock.map_err(|why| Failure::new(Exit::Usage, format!("--save: {why}")))?)
            }
            false => None,
        };
        if job.shard != Shard::Nothing || job.tensor > 1 {
            shared(folder, &job.group)?;
        }
        if !is_first {
            checkpoint = open()?;
        }
        let companions = job.task.companions();
        // A run that resumes from the previous checkpoint replaces the newest one, even at the same step.
        let starts_here = is_same && named.as_ref().is_some_and(|named| named.is_newest);
        let last_step = checkpoint.as_ref().filter(|_| starts_here).map(|it| it.progress.step);
        Ok(Some(Saves {
            folder: folder.to_owned(),
            every: self.save_every,
            facts,
            companions,
            is_own: is_same,
            failure: None,
            last_step,
            tried_step: last_step,
            checkpoint,
            lock,
        }))
    }
}

/// Makes the folder and tries to write to it now rather than after hours of training.
fn writable(folder: &Path) -> Result<(), Failure> {
    let trial = folder.join(format!(".plimsoll-{}", std::process::id()));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&trial, b""))
        .and_then(|()| fs::remove_file(&trial))
        .map_err(|why| {
            let message =
                format!("--save {}: cannot write there: {why}; name another folder", folder.display());
            Failure::new(Exit::Unreadable, message)
        })
}

/// Checks that all ranks see the folder, before hours of training.
fn shared(folder: &Path, group: &ProcessGroup) -> Result<(), Failure> {
    check_shared(folder, group).map_err(|why| match why {
        SerializeError::Tensor(error) => error.into(),
        other => Failure::new(Exit::Unreadable, format!("--save: {other}")),
    })
}

impl Saves {
    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Why the last attempt to save failed, if it did.
    pub(crate) fn failure(&self) -> Option<&SerializeError> {
        self.failure.as_ref()
    }

    /// The step of the checkpoint in the folder, if this run wrote it or resumed from it.
    pub(super) fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    /// The step of the last attempt to save. Ranks that save together must agree on it, even if it failed on one.
    pub(super) fn tried_step(&self) -> Option<u64> {
        self.tried_step
    }

    /// Whether a checkpoint is due after this many steps.
    pub(super) fn is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.every)
    }

    /// The checkpoint to resume from; `None` after the first call.
    pub(super) fn take_checkpoint(&mut self) -> Option<Loaded> {
        self.checkpoint.take()
    }

    /// Saves everything. Returns why that failed, if it did; the previous save stays intact.
    ///
    /// # Errors
    /// Another rank is lost.
    pub(super) fn save(&mut self, saved: Saved<'_>) -> Result<Option<String>, Error> {
        let step = saved.progress.step;
        self.tried_step = Some(step);
        let train = self.values(saved.progress);
        let outcome = match saved.tensors {
            Tensors::Rows(rows) => {
                let rows = rows.generator(GENERATOR, saved.device).value(KEY, train);
                self.write_together(&rows.keep(usize::from(self.is_own)), step)
            }
            Tensors::Whole(model, optimizer) if self.lock.is_some() => {
                let checkpoint = Checkpoint::default().model_state(&model).optimizer_state(optimizer);
                self.write(&checkpoint.generator(GENERATOR, saved.device).value(KEY, train), &model)
            }
            Tensors::Whole(..) => Ok(()),
        };
        match outcome {
            Ok(()) => {
                (self.is_own, self.last_step, self.failure) = (true, Some(step), None);
                Ok(None)
            }
            Err(SerializeError::Tensor(error)) if error.distributed().is_some() => Err(error.into()),
            Err(error) => {
                let message = error.to_string();
                self.failure = Some(error);
                Ok(Some(message))
            }
        }
    }

    /// Everything except tensors and random numbers.
    fn values(&self, progress: &Progress) -> Value {
        let Facts { task, options, data } = &self.facts;
        json!({ "task": task, "options": options, "data": data, "progress": progress })
    }

    /// Saves the model and the checkpoint as files, on one rank.
    fn write(&self, checkpoint: &Checkpoint, model: &StateDict) -> Result<(), SerializeError> {
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
    fn write_together(&self, rows: &DistributedCheckpoint, step: u64) -> Result<(), SerializeError> {
        rows.save(&self.folder, step)?;
        if self.lock.is_some() {
            self.retire_file();
            self.write_companions()?;
        }
        Ok(())
    }

    /// Writes the small files beside the weights, unless they are there.
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

    /// Also keeps the last checkpoint under the second name. If the file system has no hard links, none is
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

    /// After a checkpoint of one process: those of several ranks are old. The newest of them stays until the next checkpoint.
    /// What cannot be removed stays.
    fn retire_folders(&self) {
        let link = self.folder.join(LATEST);
        if fs::read_link(&link).is_ok() {
            let _ = fs::remove_file(link);
            return;
        }
        for folder in checkpoints_in(&self.folder) {
            // Without this file, what is left is not taken for a checkpoint.
            let _ = fs::remove_file(folder.join(MANIFEST)).and_then(|()| fs::remove_dir_all(&folder));
        }
    }

    /// After a checkpoint of several ranks: that of one process is the previous one, and its weights are old. What cannot be
    /// renamed or removed stays.
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
