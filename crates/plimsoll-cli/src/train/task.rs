//! The data and network of a training run: [`Task`]. `mnist/`, `gpt/` and `image/` each implement it; the
//! loop (`run.rs`), the checkpoints and the reports use only this.

use plimsoll::checkpoint::Checkpointer;
use plimsoll::data::{DataError, DataLoader};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::Optimizer;
use plimsoll::{Result, Tensor};
use serde_json::{Map, Value};

use super::stop::Stop;
use super::techniques::Techniques;

/// A kind of training: its data, its network, and the names of its results.
pub(crate) trait Task {
    /// The name on the command line: `mnist`.
    fn name(&self) -> &'static str;

    /// The data in words, for the first line of progress: `900 images of generated digits, testing on 100`.
    fn announcement(&self) -> String;

    /// The training samples, in the order of training.
    ///
    /// # Errors
    /// If the batch size is 0.
    fn training(&self, batch_size: usize, seed: u64) -> std::result::Result<DataLoader, DataError>;

    /// The test samples.
    ///
    /// # Errors
    /// If the batch size is 0.
    fn testing(&self, batch_size: usize) -> std::result::Result<DataLoader, DataError>;

    /// Host bytes of the data set.
    fn data_set_bytes(&self) -> u64;

    /// The network, with initial values.
    ///
    /// # Errors
    /// If memory runs out.
    fn network(&self, scope: &Scope) -> Result<Box<dyn Network>>;

    /// The optimizer of the network's parameters, with those of the techniques that are the optimizer's.
    ///
    /// # Errors
    /// If the parameters cannot be trained with these techniques.
    fn optimizer(
        &self,
        parameters: Vec<Tensor>,
        lr: f64,
        techniques: &Techniques,
    ) -> Result<Box<dyn Optimizer>>;

    /// Whether the optimizer is AdamW, whose moments can have 8 bits.
    fn has_adamw(&self) -> bool {
        false
    }

    /// The factor of the learning rate at a step, counted from 0. All epochs together have `horizon` steps.
    fn schedule(&self, step: u64, horizon: u64) -> f64;

    /// The maximum norm of all gradients together, if they are clipped.
    fn clip(&self) -> Option<f64> {
        None
    }

    /// The unit that throughput is measured in.
    fn unit(&self) -> Unit;

    /// The metric of the test.
    fn metric(&self) -> Metric;

    /// Fields of the JSON that describe the job.
    fn describe(&self) -> Map<String, Value>;

    /// The options that must agree with a checkpoint's, by their names on the command line, and a checksum of the
    /// data.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn identity(&self) -> std::result::Result<Identity, DataError>;

    /// Whether the network consists of blocks that can be checkpointed.
    fn has_blocks(&self) -> bool {
        false
    }

    /// Whether the parts of a batch have the gradients of the whole batch: a network with batch statistics does not.
    fn has_exact_parts(&self) -> bool {
        true
    }

    /// Small files that are saved next to the weights: names and contents.
    fn companions(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Options that use less memory, suggested after a run out of memory.
    fn smaller(&self) -> &'static str {
        "a smaller --batch-size"
    }
}

/// A network in training.
pub(crate) trait Network {
    /// Its parameters and buffers, under PyTorch's names.
    fn module(&self) -> &dyn Module;

    /// Its parameters and buffers, mutable, so that parameters can be replaced.
    fn module_mut(&mut self) -> &mut dyn Module;

    /// From now on, this decides what blocks keep for the backward pass. Does nothing if the network has no blocks.
    fn checkpoint_within(&mut self, checkpointer: Checkpointer) {
        let _ = checkpointer;
    }

    /// The mean loss of a batch.
    ///
    /// # Errors
    /// If memory runs out.
    fn loss(&self, batch: &[Tensor]) -> Result<Tensor>;

    /// The [`Metric`] of a batch, summed over its samples; `None` on a device without values.
    ///
    /// # Errors
    /// If memory runs out.
    fn score(&self, batch: &[Tensor]) -> Result<Option<f64>>;

    /// A sample from the trained network, if the task has any.
    ///
    /// # Errors
    /// If memory runs out.
    fn sample(&self, stop: &Stop) -> Result<Option<Sampled>> {
        let _ = stop;
        Ok(None)
    }
}

/// A text that a network generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sampled {
    /// The text that the network continued.
    pub(crate) prompt: String,
    /// The prompt with the generated text.
    pub(crate) text: String,
}

/// The unit of throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Its plural: `images`.
    pub(crate) plural: &'static str,
    /// The number of units in a sample.
    pub(crate) per_sample: u64,
}

/// The metric of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// The fraction of images that are classified correctly.
    Accuracy,
    /// The mean loss on the validation data.
    Loss,
}

/// The identity of a job: see [`Task::identity`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Identity {
    /// Options and their values.
    pub(crate) options: Map<String, Value>,
    /// A checksum of the data.
    pub(crate) data: u64,
}

/// Continues a checksum of bytes (FNV-1a).
pub(crate) fn checksum(so_far: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.into_iter().fold(so_far, step)
}

/// The start value of a [`checksum`].
pub(crate) const CHECKSUM_START: u64 = 0xcbf2_9ce4_8422_2325;
