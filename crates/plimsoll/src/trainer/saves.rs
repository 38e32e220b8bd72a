//! The folder that a training saves to: [`Saves`].

use std::path::{Path, PathBuf};

use plimsoll_tensor::Device;
use serde_json::{Value, json};

use super::error::TrainError;
use super::fitted::EpochMetrics;
use crate::data::LoaderState;
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::serialize::{self, Checkpoint, FolderLock, SerializeError};

/// What a training resumes from.
const CHECKPOINT: &str = "checkpoint.safetensors";
/// The model after the best epoch.
const BEST: &str = "best.safetensors";
/// The name of the device's random generator in a checkpoint.
const GENERATOR: &str = "device";
/// The name of everything else in a checkpoint.
const VALUE: &str = "trainer";

/// A folder with the checkpoint of a training. While this exists, no other process saves there.
pub(super) struct Saves {
    folder: PathBuf,
    _lock: FolderLock,
}

/// A checkpoint to resume from.
pub(super) struct Saved {
    checkpoint: Checkpoint,
    pub(super) state: State,
}

/// The progress of a training, without its tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Steps so far.
    pub(super) steps: u64,
    /// The epochs so far.
    pub(super) epochs: Vec<EpochMetrics>,
    /// The position in the epoch that has begun.
    pub(super) loader: Option<LoaderState>,
    /// The sum of that epoch's losses, each multiplied by its samples, and their number.
    pub(super) loss_sum: f64,
    pub(super) samples: f64,
    /// The positions of the schedulers that advance after each step and after each epoch; null without one.
    pub(super) schedulers: [Value; 2],
}

impl Saves {
    /// Opens a folder, which is made if it does not exist, and the checkpoint in it. If there is one, the training must resume.
    pub(super) fn open(folder: &Path, resumes: bool) -> Result<(Saves, Option<Saved>), TrainError> {
        let failed = |source| SerializeError::Io { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = FolderLock::of(folder)?;
        let has = |file: &str| folder.join(file).try_exists().map_err(failed);
        let (has_checkpoint, has_best) = (has(CHECKPOINT)?, has(BEST)?);
        let refused = |file: &str, what: &str| {
            Err(TrainError::Options(format!(
                "{} already has {file}{what}, or save to another folder",
                folder.display()
            )))
        };
        if has_checkpoint && !resumes {
            return refused(CHECKPOINT, ": call `resume` to continue that training");
        }
        if has_best && !has_checkpoint {
            return refused(BEST, ", but no checkpoint to resume from: move it away");
        }
        let saved = has_checkpoint.then(|| Saved::open(folder.join(CHECKPOINT))).transpose()?;
        Ok((Saves { folder: folder.to_owned(), _lock: lock }, saved))
    }

    /// Replaces the checkpoint.
    pub(super) fn save(
        &self,
        model: &dyn Module,
        optimizer: &dyn Optimizer,
        device: &Device,
        state: &State,
    ) -> Result<(), SerializeError> {
        let checkpoint = Checkpoint::default().model(model).optimizer(optimizer).generator(GENERATOR, device);
        checkpoint.value(VALUE, state.to_json()).save(self.folder.join(CHECKPOINT))
    }

    /// Replaces the best model.
    pub(super) fn save_best(&self, model: &dyn Module) -> Result<(), SerializeError> {
        serialize::save(&model.state_dict(), self.folder.join(BEST))
    }
}

impl Saved {
    fn open(path: PathBuf) -> Result<Saved, SerializeError> {
        let checkpoint = Checkpoint::open(&path)?;
        let value = checkpoint.get(VALUE);
        let state = value.and_then(State::of_json).ok_or_else(|| {
            let what = if value.is_some() { "of another version of `Trainer`" } else { "not of a `Trainer`" };
            SerializeError::Format {
                path,
                message: format!("a checkpoint, but {what}: save to another folder"),
            }
        })?;
        Ok(Saved { checkpoint, state })
    }

    /// Loads the tensors and the generator.
    pub(super) fn load(
        &self,
        model: &dyn Module,
        optimizer: &mut dyn Optimizer,
        device: &Device,
    ) -> Result<(), SerializeError> {
        // Each loads all or nothing. A checkpoint of another model fails at the first.
        self.checkpoint.load_optimizer(optimizer)?;
        self.checkpoint.load_model(model)?;
        self.checkpoint.load_generator(GENERATOR, device)
    }
}

impl State {
    /// Sums are written as their bits, because JSON has no NaN.
    fn to_json(&self) -> Value {
        json!({
            "steps": self.steps,
            "epochs": self.epochs.iter().map(EpochMetrics::to_json).collect::<Vec<_>>(),
            "loader": self.loader,
            "loss_sum_bits": self.loss_sum.to_bits(),
            "samples": self.samples,
            "schedulers": self.schedulers,
        })
    }

    fn of_json(value: &Value) -> Option<State> {
        Some(State {
            steps: value["steps"].as_u64()?,
            epochs: value["epochs"].as_array()?.iter().map(EpochMetrics::of_json).collect::<Option<_>>()?,
            loader: serde_json::from_value(value["loader"].clone()).ok()?,
            loss_sum: f64::from_bits(value["loss_sum_bits"].as_u64()?),
            samples: value["samples"].as_f64()?,
            schedulers: serde_json::from_value(value["schedulers"].clone()).ok()?,
        })
    }
}
