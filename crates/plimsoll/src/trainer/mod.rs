//! The usual training loop: [`Trainer`]. If you write your own loop, you need nothing from here, except perhaps
//! [`backward_in_parts`].
//!
//! | file | contents |
//! |---|---|
//! | `error.rs` | why a training ended early |
//! | `parts.rs` | the gradients of a batch, in parts |
//! | `metrics.rs` | means of metrics over an epoch, computed on the device |
//! | `fitted.rs` | what a training returns |
//! | `saves.rs` | checkpoints, and resuming from one |
//! | `fit.rs` | the loop |

mod error;
mod fit;
mod fitted;
mod metrics;
mod parts;
mod saves;

use std::path::PathBuf;

use plimsoll_tensor::{Result, Tensor};

pub use error::TrainError;
pub use fitted::{EpochMetrics, Fitted, Progress};
pub use parts::backward_in_parts;

use crate::data::DataLoader;
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::optim::lr_scheduler::{Better, Curve};

/// Trains a model for some epochs, with validation, checkpoints, early stopping and a memory limit, and accounts for the memory
/// at the end. The model computes on the device of its parameters. One process trains; for several ranks, write the loop yourself.
///
/// Layers keep their modes: a layer that the program has set to evaluation mode, such as a frozen batch normalization,
/// stays in that mode. New layers are in training mode; call [`train`](Module::train) first if the model has been
/// evaluated. The device's peaks are reset at the beginning.
///
/// The trainer prints nothing. [`Trainer::on_progress`] and [`Trainer::on_epoch`] receive the progress, which can be
/// printed as it is.
///
/// ```
/// use std::sync::Arc;
///
/// use plimsoll::data::{DataLoader, Digits, Split};
/// use plimsoll::nn::{Flatten, Linear, Module, ReLU, Scope, Sequential};
/// use plimsoll::optim::{AdamW, AdamWOptions};
/// use plimsoll::{DType, Device, Trainer};
///
/// let device = Device::cpu();
/// let split = Split::at(Arc::new(Digits::new(1, 600)), 500)?;
/// let (train, test) = (DataLoader::new(split.train, 50)?.shuffle(1), DataLoader::new(split.test, 50)?);
/// let model = Sequential::new(&Scope::new(&device, 1))
///     .add("flatten", Flatten::new)?
///     .add("fc1", |s| Linear::new(s, 784, 64))?
///     .add("relu", ReLU::new)?
///     .add("fc2", |s| Linear::new(s, 64, 10))?;
/// let mut adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-3, ..AdamWOptions::default() });
/// let fitted = Trainer::new(&model, &mut adamw)
///     .epochs(4)
///     .memory_limit(64 << 20)
///     .validate(&test, |batch| {
///         let logits = model.forward(&batch[0])?;
///         let accuracy = logits.argmax(1)?.eq(&batch[1])?.to_dtype(DType::F32)?.mean()?;
///         Ok(vec![("loss", logits.cross_entropy(&batch[1])?), ("accuracy", accuracy)])
///     })
///     .early_stopping(2)
///     .on_epoch(|epoch| eprintln!("{epoch}"))
///     .fit(&train, |batch| model.forward(&batch[0])?.cross_entropy(&batch[1]))?;
/// assert!(fitted.epochs[0].metric("val_accuracy") > Some(0.3));
/// println!("{fitted}");
/// # Ok::<(), plimsoll::TrainError>(())
/// ```
pub struct Trainer<'a> {
    model: &'a dyn Module,
    optimizer: &'a mut dyn Optimizer,
    options: Options<'a>,
}

/// Scalars by name.
type Metrics = Vec<(&'static str, Tensor)>;

/// Computes metrics of a batch.
type Evaluate<'a> = Box<dyn FnMut(&[Tensor]) -> Result<Metrics> + 'a>;

/// Shows a report of the training.
type Show<'a, R> = Box<dyn FnMut(&R) + 'a>;

/// How a trainer trains.
struct Options<'a> {
    epochs: u64,
    memory_limit: Option<u64>,
    parts: usize,
    max_norm: Option<f64>,
    captures: bool,
    validation: Option<(&'a DataLoader, Evaluate<'a>)>,
    each_step: Option<Box<dyn Curve + 'a>>,
    each_epoch: Option<Box<dyn Curve + 'a>>,
    monitor: Option<(String, Better)>,
    patience: Option<u64>,
    folder: Option<PathBuf>,
    save_every: Option<u64>,
    resumes: bool,
    on_progress: Option<Show<'a, Progress>>,
    on_epoch: Option<Show<'a, EpochMetrics>>,
}

impl<'a> Trainer<'a> {
    /// Trains this model with this optimizer, for one epoch unless [`Trainer::epochs`] says otherwise.
    pub fn new(model: &'a dyn Module, optimizer: &'a mut dyn Optimizer) -> Trainer<'a> {
        let options = Options {
            epochs: 1,
            memory_limit: None,
            parts: 1,
            max_norm: None,
            captures: false,
            validation: None,
            each_step: None,
            each_epoch: None,
            monitor: None,
            patience: None,
            folder: None,
            save_every: None,
            resumes: false,
            on_progress: None,
            on_epoch: None,
        };
        Trainer { model, optimizer, options }
    }

    /// Trains for this many passes over the data.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Trainer<'a> {
        self.options.epochs = epochs;
        self
    }

    /// Limits the device's reserved memory to this many bytes, as [`Device::set_memory_limit`](crate::Device::set_memory_limit)
    /// does. The limit stays after the training.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Trainer<'a> {
        self.options.memory_limit = Some(bytes);
        self
    }

    /// Computes the gradients of each batch in this many parts, as [`backward_in_parts`] does: less memory for activations, and
    /// the same step up to rounding if the loss is a mean over the samples.
    #[must_use]
    pub fn accumulate(mut self, parts: usize) -> Trainer<'a> {
        self.options.parts = parts;
        self
    }

    /// Scales the gradients of a step so that their 2-norm is at most `max_norm`, as
    /// [`clip_grad_norm_`](crate::optim::clip_grad_norm_) does.
    #[must_use]
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Trainer<'a> {
        self.options.max_norm = Some(max_norm);
        self
    }

    /// Captures the step after some runs and then replays it: see [`CapturedStep`](crate::CapturedStep). It has no effect on
    /// synchronous devices, such as the host.
    #[must_use]
    pub fn capture(mut self) -> Trainer<'a> {
        self.options.captures = true;
        self
    }

    /// After each epoch, computes metrics over these batches, with the model in evaluation mode and without gradients. `evaluate`
    /// returns scalars by name, each a mean over the batch's samples; their means over all samples are called `val_` and the name.
    /// A metric that only some batches have is a mean over the samples of those batches.
    #[must_use]
    pub fn validate(
        mut self,
        batches: &'a DataLoader,
        evaluate: impl FnMut(&[Tensor]) -> Result<Vec<(&'static str, Tensor)>> + 'a,
    ) -> Trainer<'a> {
        self.options.validation = Some((batches, Box::new(evaluate)));
        self
    }

    /// Sets the learning rate along a curve, which advances after each step.
    #[must_use]
    pub fn schedule_each_step(mut self, curve: impl Curve + 'a) -> Trainer<'a> {
        self.options.each_step = Some(Box::new(curve));
        self
    }

    /// Sets the learning rate along a curve, which advances after each epoch.
    #[must_use]
    pub fn schedule_each_epoch(mut self, curve: impl Curve + 'a) -> Trainer<'a> {
        self.options.each_epoch = Some(Box::new(curve));
        self
    }

    /// Decides by this metric which epoch is the best: `loss`, or a metric of the validation such as `val_accuracy`. Without this
    /// call, it is the smallest `val_loss`, or the smallest `loss` if the validation has none.
    #[must_use]
    pub fn monitor(mut self, metric: &str, better: Better) -> Trainer<'a> {
        self.options.monitor = Some((metric.to_owned(), better));
        self
    }

    /// Ends the training when the best epoch is this many epochs ago.
    #[must_use]
    pub fn early_stopping(mut self, patience: u64) -> Trainer<'a> {
        self.options.patience = Some(patience);
        self
    }

    /// After each epoch, saves into this folder what the training needs to resume (`checkpoint.safetensors`) and, if it is the
    /// best so far, the model (`best.safetensors`). Only one process can save into a folder at a time.
    #[must_use]
    pub fn save_to(mut self, folder: impl Into<PathBuf>) -> Trainer<'a> {
        self.options.folder = Some(folder.into());
        self
    }

    /// Also saves after this many steps, within an epoch.
    #[must_use]
    pub fn save_every(mut self, steps: u64) -> Trainer<'a> {
        self.options.save_every = Some(steps);
        self
    }

    /// Continues, bit for bit, from the checkpoint in the folder of [`Trainer::save_to`], if there is one. Without this call, a
    /// folder that has a checkpoint is an error. The options must be the same, except for the number of epochs and the patience.
    /// Random numbers of devices other than the model's are not part of a checkpoint.
    #[must_use]
    pub fn resume(mut self) -> Trainer<'a> {
        self.options.resumes = true;
        self
    }

    /// Calls `show` during an epoch, at most once a second. Reading the loss for it waits for the device.
    #[must_use]
    pub fn on_progress(mut self, show: impl FnMut(&Progress) + 'a) -> Trainer<'a> {
        self.options.on_progress = Some(Box::new(show));
        self
    }

    /// Calls `show` after each epoch, when it has been saved.
    #[must_use]
    pub fn on_epoch(mut self, show: impl FnMut(&EpochMetrics) + 'a) -> Trainer<'a> {
        self.options.on_epoch = Some(Box::new(show));
        self
    }

    /// Trains on these batches. `loss` computes the loss of one batch, given as one tensor for each field of the data set; it is a
    /// scalar, usually a mean over the samples. On a simulated device the training runs to its end without values: there are no
    /// metrics, so all epochs run, and nothing can be saved.
    ///
    /// # Errors
    /// The errors of `loss` and of the data; a model without parameters, or with parameters on several ranks; a monitored metric
    /// that does not exist; a folder that cannot be written, is in use, or has a checkpoint that this training does not resume
    /// from. If a checkpoint cannot be written, the training ends with that error, and the last checkpoint is unchanged.
    pub fn fit(
        self,
        batches: &DataLoader,
        loss: impl FnMut(&[Tensor]) -> Result<Tensor>,
    ) -> std::result::Result<Fitted, TrainError> {
        fit::Fit::new(self, batches)?.run(batches, loss)
    }
}
