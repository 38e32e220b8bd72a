//! `--save` and `--resume`: a folder with the checkpoint of a run and the weights for other programs.
//!
//! `checkpoint.safetensors` has everything that a run needs to resume, and `checkpoint-previous.safetensors` is the checkpoint
//! before it. `model.safetensors` has only the weights, under PyTorch's names. Each file is replaced atomically, so the last
//! good ones survive however the run ends. Only one run at a time can save into a folder.
//!
//! With `--save-async`, a thread writes copies while training goes on.
//!
//! Ranks that have parts of the model save together: each writes its rows into one folder per step. `files.rs` writes
//! the files, `loaded.rs` finds the checkpoint to resume from, and `facts.rs` is what it has besides tensors.

mod facts;
mod files;
mod loaded;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll::optim::OptimizerState;
use plimsoll::parallel::Shard;
use plimsoll::serialize::{
    AsyncSave, Checkpoint, DistributedCheckpoint, FolderLock, SerializeError, StateDict, check_shared,
};
use plimsoll::{Device, ProcessGroup};
use serde_json::{Value, json};

use self::facts::Facts;
pub(super) use self::facts::Progress;
use self::files::Files;
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
    /// Save while training goes on: a thread writes copies of the tensors, which need as much host memory as the checkpoint
    #[arg(long, help_heading = "Saving")]
    save_async: bool,
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
    files: Files,
    every: u64,
    facts: Facts,
    checkpoint: Option<Loaded>,
    is_async: bool,
    /// The save that a thread writes. It ends before the lock does.
    saving: AsyncSave,
    /// The step of the save in progress.
    saving_step: Option<u64>,
    failure: Option<SerializeError>,
    /// Held by the rank that writes; the others only load.
    _lock: Option<FolderLock>,
    /// The step of the checkpoint in the folder, if this run wrote it or resumed from it.
    last_step: Option<u64>,
    /// The step of the last attempt to save, which is the same on all ranks.
    tried_step: Option<u64>,
}

/// The tensors of a save.
pub(super) enum Tensors {
    /// All tensors, which one rank writes.
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
        let Some(folder) = self.save.as_deref().or(from) else {
            return match self.save_async {
                true => Err(usage("--save-async needs a folder to save into: add --save DIR".to_owned())),
                false => Ok(None),
            };
        };
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
        // The other ranks look for the checkpoint later, once it is known that they see the same folder.
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
        let (folder, companions, is_own) = (folder.to_owned(), job.task.companions(), is_same);
        // A run that resumes from the previous checkpoint replaces the newest one, even at the same step.
        let starts_here = is_same && named.as_ref().is_some_and(|named| named.is_newest);
        let last_step = checkpoint.as_ref().filter(|_| starts_here).map(|it| it.progress.step);
        Ok(Some(Saves {
            files: Files { folder, companions, is_first, is_own },
            every: self.save_every,
            facts,
            is_async: self.save_async,
            saving: AsyncSave::default(),
            saving_step: None,
            failure: None,
            last_step,
            tried_step: last_step,
            checkpoint,
            _lock: lock,
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
        &self.files.folder
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

    /// Saves everything. With `--save-async`, it only starts the save. Call [`Saves::finish`] first. Returns why it
    /// failed, if it did; the previous save stays intact.
    ///
    /// # Errors
    /// If another rank is lost.
    pub(super) fn save(&mut self, saved: Saved<'_>) -> Result<Option<String>, Error> {
        let step = saved.progress.step;
        (self.tried_step, self.saving_step) = (Some(step), Some(step));
        match self.begin(saved, step) {
            Ok(()) if self.is_async => Ok(None),
            outcome => self.ended(outcome),
        }
    }

    /// Waits for the save in progress, if there is one. Returns why it failed, if it did.
    ///
    /// # Errors
    /// If another rank is lost.
    pub(super) fn finish(&mut self) -> Result<Option<String>, Error> {
        if self.saving_step.is_none() {
            return Ok(None);
        }
        let outcome = self.saving.wait().map(drop);
        self.ended(outcome)
    }

    /// Writes the files, or starts a thread that does.
    fn begin(&mut self, saved: Saved<'_>, step: u64) -> Result<(), SerializeError> {
        let (train, files, is_async) = (self.values(saved.progress), self.files.clone(), self.is_async);
        match saved.tensors {
            Tensors::Rows(rows) => {
                let rows = rows.generator(GENERATOR, saved.device).value(KEY, train);
                let rows = rows.keep(usize::from(files.is_own));
                let rows = if is_async { rows.stage()? } else { rows };
                self.run(move || files.write_together(&rows, step))
            }
            Tensors::Whole(mut model, mut optimizer) if files.is_first => {
                if is_async {
                    (model, optimizer) = (model.stage()?, optimizer.stage()?);
                }
                let checkpoint = Checkpoint::default().model_state(&model).optimizer_state(optimizer);
                let checkpoint = checkpoint.generator(GENERATOR, saved.device).value(KEY, train);
                self.run(move || files.write(&checkpoint, &model))
            }
            Tensors::Whole(..) => Ok(()),
        }
    }

    /// Runs `write`, with `--save-async` on a thread.
    fn run(
        &mut self,
        write: impl FnOnce() -> Result<(), SerializeError> + Send + 'static,
    ) -> Result<(), SerializeError> {
        if !self.is_async {
            return write();
        }
        let folder = self.files.folder.clone();
        self.saving.start(move || write().map(|()| folder))
    }

    /// Keeps the outcome of a save. Returns why it failed, if it did.
    fn ended(&mut self, outcome: Result<(), SerializeError>) -> Result<Option<String>, Error> {
        let step = self.saving_step.take().unwrap_or_default();
        match outcome {
            Ok(()) => {
                (self.files.is_own, self.last_step, self.failure) = (true, Some(step), None);
                Ok(None)
            }
            Err(SerializeError::Tensor(error)) if error.distributed().is_some() => Err(error.into()),
            Err(error) => {
                let message = format!("step {step}: {error}");
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
}
