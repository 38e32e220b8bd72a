//! `--save` and `--resume`: a folder with the checkpoint of a run and the weights for other programs.
//!
//! `checkpoint.safetensors` has everything that a run needs to resume, and `checkpoint-previous.safetensors` is the checkpoint
//! before it. `model.safetensors` has only the weights, under PyTorch's names. Each file is replaced atomically, so the last
//! good files survive no matter how the run ends. Only one run at a time can save into a folder.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll::Device;
use plimsoll::data::LoaderState;
use plimsoll::nn::Module;
use plimsoll::optim::{Optimizer, OptimizerState};
use plimsoll::parallel::FullyShardedDataParallel;
use plimsoll::serialize::{self, Checkpoint, FolderLock, SerializeError, StateDict, Strict};
use plimsoll_trace::output::replace;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::job::{Error, Job};
use super::task::Identity;
use crate::exit::{Exit, Failure};

/// The file that a run resumes from.
const CHECKPOINT: &str = "checkpoint.safetensors";
/// The previous checkpoint, for use if the newest one is damaged.
const PREVIOUS: &str = "checkpoint-previous.safetensors";
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
    /// Resume, bit for bit, from the checkpoint in this folder, or from this checkpoint file [default: the folder of
    /// --save]; without --save, also save there
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
    /// Whether the checkpoint in the folder was written by this run, or is the one that it resumed from.
    is_own: bool,
    failure: Option<SerializeError>,
    /// The lock on the folder. Only the rank that writes holds it; the others only load.
    lock: Option<FolderLock>,
    /// The step of the checkpoint in the folder, if this run wrote it or resumed from it.
    last_step: Option<u64>,
    /// The step of the last attempt to save, which is the same on all ranks.
    tried_step: Option<u64>,
}

/// The description of its job that a checkpoint contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Facts {
    task: String,
    options: Map<String, Value>,
    data: u64,
}

/// The progress of a run, with its measurements: everything in a checkpoint except tensors and random generators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) step: u64,
    pub(super) epoch: u64,
    /// The position in the epoch; `None` at its beginning.
    pub(super) loader: Option<LoaderState>,
    /// The sum of this epoch's losses as the bits of a float, because JSON might round it.
    pub(super) loss_sum_bits: u64,
    /// The number of samples that were trained on in this epoch.
    pub(super) samples: u64,
    /// Mean losses of earlier epochs.
    pub(super) losses: Vec<f64>,
    /// Test results of earlier epochs.
    pub(super) scores: Vec<f64>,
}

/// The content of a save.
pub(super) struct Saved<'a> {
    pub(super) model: StateDict,
    pub(super) optimizer: OptimizerState,
    pub(super) device: &'a Device,
    pub(super) progress: &'a Progress,
}

/// A checkpoint to resume from.
pub(super) struct Loaded {
    file: Checkpoint,
    progress: Progress,
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
        // A file is itself a checkpoint, for example the previous one of a folder.
        let is_file = from.is_some_and(|from| from.is_file());
        let file = from.map(|from| if is_file { from.clone() } else { from.join(CHECKPOINT) });
        let from = from.map(|from| if is_file { folder_of(from) } else { from.as_path() });
        let Some(folder) = self.save.as_deref().or(from) else { return Ok(None) };
        if !device.has_values() {
            return Err(usage(format!(
                "{} computes no values, so there is nothing to save or to resume from: leave --save and --resume out, or \
                 use --device cpu",
                device.name()
            )));
        }
        let facts = Facts::of(job)?;
        let checkpoint = file.as_ref().map(|file| Loaded::open(file, &facts)).transpose()?;
        let there = folder.join(CHECKPOINT);
        let is_same = from.is_some_and(|from| from == folder || same(from, folder));
        if there.exists() && !is_same && !self.force {
            return Err(usage(format!(
                "{} already exists: add --resume to continue from it, --force to replace it, or save to another folder",
                there.display()
            )));
        }
        let lock = match job.group.rank() {
            0 => {
                writable(folder)?;
                let lock = FolderLock::of(folder);
                Some(lock.map_err(|why| Failure::new(Exit::Usage, format!("--save: {why}")))?)
            }
            _ => None,
        };
        let companions = job.task.companions();
        // A run that resumes from the previous checkpoint replaces the newest one, even at the same step.
        let starts_here = is_same && file.is_some_and(|file| file.ends_with(CHECKPOINT));
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

/// Whether both paths name the same folder.
fn same(left: &Path, right: &Path) -> bool {
    fs::canonicalize(left).ok().zip(fs::canonicalize(right).ok()).is_some_and(|(left, right)| left == right)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates the folder and tries to write to it now rather than after hours of training.
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

    /// Saves everything, on one rank. If it fails, the previous save stays intact.
    pub(super) fn save(&mut self, saved: &Saved<'_>) -> Result<(), String> {
        self.tried_step = Some(saved.progress.step);
        let outcome = if self.lock.is_some() { self.write(saved) } else { Ok(()) };
        let message = outcome.as_ref().map_err(ToString::to_string).map(|&()| ());
        if outcome.is_ok() {
            self.is_own = true;
            self.last_step = Some(saved.progress.step);
        }
        self.failure = outcome.err();
        message
    }

    fn write(&self, saved: &Saved<'_>) -> Result<(), SerializeError> {
        let Facts { task, options, data } = &self.facts;
        let train = json!({ "task": task, "options": options, "data": data, "progress": saved.progress });
        let path = self.folder.join(CHECKPOINT);
        let checkpoint = Checkpoint::default()
            .model_state(&saved.model)
            .optimizer_state(saved.optimizer.clone())
            .generator(GENERATOR, saved.device)
            .value(KEY, train);
        if self.is_own {
            self.keep_previous(&path)?;
        }
        checkpoint.save(path)?;
        serialize::save(&saved.model, self.folder.join(WEIGHTS))?;
        for (name, text) in &self.companions {
            let path = self.folder.join(name);
            replace(&path, |out| out.write_all(text.as_bytes()))
                .map_err(|source| SerializeError::NotSaved { path, source })?;
        }
        Ok(())
    }
}

impl Saves {
    /// Also keeps the last checkpoint under the second name. If the file system does not support hard
    /// links, it is not kept.
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
}

impl Facts {
    fn of(job: &Job) -> Result<Facts, Failure> {
        let Identity { mut options, data } = job.task.identity()?;
        options.insert("--batch-size".to_owned(), job.batch_size.into());
        if let Some(reproducible) = job.reproducible {
            options.insert("--reproducible".to_owned(), reproducible.lanes.into());
        }
        options.insert("--seed".to_owned(), job.seed.into());
        Ok(Facts { task: job.task.name().to_owned(), options, data })
    }

    /// The differences between this job and the checkpoint's job, one line each.
    fn differences(&self, saved: &Facts) -> Vec<String> {
        if self.task != saved.task {
            return vec![format!("it belongs to `plimsoll train {}`", saved.task)];
        }
        let shown = |value: Option<&Value>| match value {
            None => "absent".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let mut found = Vec::new();
        let only_theirs = saved.options.keys().filter(|option| !self.options.contains_key(*option));
        for option in self.options.keys().chain(only_theirs) {
            let (ours, theirs) = (self.options.get(option), saved.options.get(option));
            if theirs != ours {
                found.push(format!(
                    "{option} is {} in the checkpoint and {} here",
                    shown(theirs),
                    shown(ours)
                ));
            }
        }
        if found.is_empty() && self.data != saved.data {
            found.push("the training data differ".to_owned());
        }
        found
    }
}

impl Loaded {
    /// Opens a checkpoint of the same job.
    fn open(path: &Path, ours: &Facts) -> Result<Loaded, Failure> {
        let unreadable = |message: String| Failure::new(Exit::Unreadable, message);
        if !path.exists() {
            return Err(unreadable(format!(
                "there is no {} to resume from: leave --resume out to start a new training, or name another folder",
                path.display()
            )));
        }
        let file = Checkpoint::open(path).map_err(|why| unreadable(why.to_string()))?;
        let no_run =
            || unreadable(format!("{} is a checkpoint, but not of `plimsoll train`", path.display()));
        let train = file.get(KEY).ok_or_else(no_run)?;
        let saved: Facts = serde_json::from_value(train.clone()).map_err(|_| no_run())?;
        let progress: Progress = serde_json::from_value(train["progress"].clone()).map_err(|_| no_run())?;
        let differences = ours.differences(&saved);
        if differences.is_empty() {
            return Ok(Loaded { file, progress });
        }
        let message = format!(
            "{} belongs to another job, and was not changed:\n  {}\ngive the options of that job, or leave --resume out and save \
             to another folder",
            path.display(),
            differences.join("\n  ")
        );
        Err(Failure::new(Exit::Usage, message))
    }

    /// Loads everything. Returns the progress of the run, and which tensors have NaN or infinite values.
    pub(super) fn load(
        self,
        module: &dyn Module,
        optimizer: &mut dyn Optimizer,
        device: &Device,
        sharded: Option<&FullyShardedDataParallel>,
    ) -> Result<(Progress, Vec<String>), Error> {
        match sharded {
            None => {
                self.file.load_model(module)?;
                self.file.load_optimizer(optimizer)?;
            }
            Some(sharded) => {
                sharded.load_state_dict(module, &self.file.model_source(), Strict::Yes)?;
                sharded.load_optimizer_state_dict(optimizer, &self.file.read_optimizer_state(device)?)?;
            }
        }
        self.file.load_generator(GENERATOR, device)?;
        Ok((self.progress, self.file.not_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(task: &str, layers: u64, data: u64) -> Facts {
        let options = [("--layers".to_owned(), layers.into())].into_iter().collect();
        Facts { task: task.to_owned(), options, data }
    }

    #[test]
    fn another_job_is_known_by_its_task_its_options_or_its_data() {
        let ours = facts("gpt", 4, 7);
        assert_eq!(ours.differences(&ours), Vec::<String>::new());
        assert_eq!(ours.differences(&facts("mnist", 4, 7)), ["it belongs to `plimsoll train mnist`"]);
        assert_eq!(ours.differences(&facts("gpt", 2, 8)), ["--layers is 2 in the checkpoint and 4 here"]);
        assert_eq!(ours.differences(&facts("gpt", 4, 8)), ["the training data differ"]);
        let none = Facts { options: Map::new(), ..facts("gpt", 4, 7) };
        assert_eq!(ours.differences(&none), ["--layers is absent in the checkpoint and 4 here"]);
    }
}
