//! A training job and its outcome. `run.rs` has the loop.

use std::time::Duration;

use clap::ValueEnum;
use plimsoll::data::DataError;
use plimsoll::fit::{FitOptions, Numbers, Technique};
use plimsoll::memory::Report;
use plimsoll::parallel::{Bucket, Reproducible, Shard, ShardedUnit};
use plimsoll::serialize::SerializeError;
use plimsoll::{Device, ProcessGroup, TimelineSpan};

use super::stop::Signal;
use super::task::{Sampled, Task};
use super::techniques::{Chosen, Techniques};
use crate::exit::{Exit, Failure};

/// A training job, apart from the device it runs on.
pub(crate) struct Job {
    /// The data and the network.
    pub(crate) task: Box<dyn Task>,
    /// How long the job trains.
    pub(crate) length: Length,
    /// Samples per step, in total over all ranks.
    pub(crate) batch_size: usize,
    /// The learning rate, which [`Task::schedule`] changes.
    pub(crate) lr: f64,
    /// The seed of initial values and of the order of samples.
    pub(crate) seed: u64,
    /// Threads that prepare batches.
    pub(crate) workers: usize,
    /// Whether the device is the CPU.
    pub(crate) is_on_host: bool,
    /// Whether steps are captured and replayed.
    pub(crate) capture: bool,
    /// Whether the last step on a simulated GPU is recorded.
    pub(crate) timeline: bool,
    /// The ranks that train together; usually there is only one.
    pub(crate) group: ProcessGroup,
    /// The tensors that are sharded over the ranks.
    pub(crate) shard: Shard,
    /// The number of groups of ranks; each group has a whole model.
    pub(crate) replicate: usize,
    /// The number of ranks that share each layer, if it is more than 1.
    pub(crate) tensor: usize,
    /// The lanes of a batch, if results must not depend on the number of ranks.
    pub(crate) reproducible: Option<Reproducible>,
    /// The techniques that save memory.
    pub(crate) techniques: Techniques,
    /// How the techniques were found, if `--fit` chose them.
    pub(crate) fitted: Option<Chosen>,
}

impl Job {
    /// The number of equal parts of a batch, each of which is a separate pass. They are divided among the ranks; a rank
    /// runs its parts one after another.
    pub(super) fn lanes(&self) -> usize {
        self.reproducible.map_or(self.group.size() / self.tensor, |reproducible| reproducible.lanes)
    }

    /// Whether a batch can be trained on in parts, one after the other.
    pub(super) fn accumulates(&self) -> bool {
        self.group.size() == 1 && self.reproducible.is_none()
    }

    /// Why this job cannot use a technique, if it cannot.
    fn refusal(&self, technique: Technique) -> Option<&'static str> {
        let has_whole_parameters = self.shard == Shard::Nothing && self.tensor == 1;
        match technique {
            Technique::Activations if !self.task.has_blocks() => Some(
                "--activations is for networks of blocks: `train gpt`, and `train image --model resnet18` or `resnet50`",
            ),
            Technique::Activations if self.tensor > 1 => Some(
                "--activations does not work with layers that ranks share (`--parallel tp=N`): use --checkpoint",
            ),
            Technique::Accumulate if !self.accumulates() => Some(
                "--accumulate is for one rank, without --reproducible: more ranks already have smaller parts of a batch",
            ),
            Technique::AdamW8bit if !self.task.has_adamw() => {
                Some("--optimizer adamw8bit is for `train gpt`")
            }
            Technique::AdamW8bit if !has_whole_parameters => Some(
                "--optimizer adamw8bit needs complete parameters on each rank: it does not work with --parallel shard or tp=N; use ddp",
            ),
            Technique::StepInBackward if !self.accumulates() => Some(
                "--step-in-backward is for one rank, without --reproducible: several ranks add up gradients before a step",
            ),
            Technique::StepInBackward if self.task.clip().is_some() => Some(
                "--step-in-backward updates parameters before the norm of all gradients is known: add --clip 0",
            ),
            Technique::StepInBackward if self.capture => {
                Some("--step-in-backward does not work with --capture")
            }
            Technique::OffloadOptimizer if self.is_on_host => Some(
                "--offload-optimizer is for GPUs: on the CPU, the optimizer's state is in host memory already",
            ),
            Technique::OffloadOptimizer if self.capture => Some(
                "--offload-optimizer does not work with --capture: a replay moves nothing between the GPU and the host",
            ),
            Technique::OffloadOptimizer if !has_whole_parameters => Some(
                "--offload-optimizer needs complete parameters on each rank: it does not work with --parallel shard or tp=N; use ddp",
            ),
            _ => None,
        }
    }

    /// The techniques that a search may add to those of this job.
    pub(super) fn fit_options(&self, numbers: Numbers) -> FitOptions {
        FitOptions {
            techniques: Technique::all().filter(|technique| self.refusal(*technique).is_none()).collect(),
            base: self.techniques,
            numbers,
            most_parts: self.batch_size,
            has_exact_parts: self.task.has_exact_parts(),
        }
    }

    /// Checks the techniques against the rest of the job.
    ///
    /// # Errors
    /// If this job cannot use one of the techniques.
    pub(super) fn check_techniques(&self) -> Result<(), Failure> {
        let wrong = |message: &str| Err(Failure::new(Exit::Usage, message));
        if let Some(refused) = self.techniques.iter().find_map(|technique| self.refusal(technique)) {
            return wrong(refused);
        }
        if let Some((one, other, why)) = self.techniques.conflict() {
            return wrong(&format!("--{one} does not work with --{other}: {why}"));
        }
        if self.techniques.offload.is_some() && self.capture {
            return wrong(
                "--offload does not work with --capture: a replay moves nothing between the GPU and the host",
            );
        }
        if self.techniques.accumulate > self.batch_size {
            return wrong("--accumulate has more parts than --batch-size has samples: use fewer parts");
        }
        Ok(())
    }

    /// Its ranks on a device; simulated if the device computes nothing.
    pub(super) fn group_on(&self, device: &Device) -> ProcessGroup {
        match device.has_values() {
            true => self.group.clone(),
            false => ProcessGroup::simulated(self.group.rank(), self.group.size()),
        }
    }

    /// The place where the job runs, in words: `cpu`, `2 ranks of cpu`.
    pub(super) fn place(&self, device: &Device) -> String {
        match self.group.size() {
            1 => device.name().to_owned(),
            ranks => format!("{ranks} ranks of {}", device.name()),
        }
    }
}

/// The shared results of several ranks.
#[derive(Clone, Debug)]
pub(crate) struct Together {
    /// The tensors that were sharded over the ranks.
    pub(crate) shard: Shard,
    /// The number of groups of ranks that have a whole model each.
    pub(crate) replicate: usize,
    /// The number of ranks that share each layer, if it is more than 1.
    pub(crate) tensor: usize,
    /// The gradient buckets, if gradients are not sharded.
    pub(crate) buckets: Vec<Bucket>,
    /// The sharded units.
    pub(crate) units: Vec<ShardedUnit>,
    /// The size of the slots in which units are gathered.
    pub(crate) slot_bytes: u64,
    /// Bytes that a rank sends in a step.
    pub(crate) sent_bytes_per_step: u64,
    /// Allocated and reserved bytes at the peak of each rank.
    pub(crate) peaks: Vec<(u64, u64)>,
}

/// How long a job trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length {
    /// Passes over the training samples, if given.
    pub(crate) epochs: Option<u64>,
    /// The number of epochs if neither `epochs` nor `steps` is given.
    pub(crate) default_epochs: u64,
    /// Steps, if given. The job ends after them, even in the middle of an epoch.
    pub(crate) steps: Option<u64>,
}

impl Length {
    /// The number of epochs. If `epochs` is not set, `steps` can raise it but never lower it. So a learning
    /// rate that decays over all epochs does not depend on where a run is cut off.
    pub(super) fn epochs(&self, steps_per_epoch: u64) -> u64 {
        let needed = self.steps.map_or(0, |steps| steps.div_ceil(steps_per_epoch.max(1)));
        self.epochs.unwrap_or(self.default_epochs.max(needed))
    }

    /// The number of steps.
    pub(super) fn steps(&self, steps_per_epoch: u64) -> u64 {
        let all = self.epochs(steps_per_epoch).saturating_mul(steps_per_epoch);
        self.steps.map_or(all, |steps| steps.min(all))
    }
}

/// The data type in which products are computed. Parameters, gradients and the optimizer's state are always `float32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// 32 bits throughout
    #[default]
    #[value(name = "float32", alias = "f32", alias = "fp32")]
    Float32,
    /// Autocast: matrix products and convolutions in bfloat16; weights, gradients and optimizer state stay float32
    #[value(name = "bfloat16", alias = "bf16")]
    Bfloat16,
}

/// The position of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The current epoch, counted from 0.
    pub(crate) epoch: u64,
    /// The number of epochs.
    pub(crate) epochs: u64,
    /// Steps done.
    pub(crate) step: u64,
    /// The number of steps.
    pub(crate) steps: u64,
}

/// Why a job has no outcome.
#[derive(Debug)]
pub(crate) enum Error {
    /// The data could not be read.
    Data(DataError),
    /// A tensor operation failed, most likely because memory ran out.
    Tensor(plimsoll::Error),
    /// The checkpoint could not be loaded.
    Load(SerializeError),
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Error {
        Error::Data(error)
    }
}

impl From<plimsoll::Error> for Error {
    fn from(error: plimsoll::Error) -> Error {
        Error::Tensor(error)
    }
}

impl From<SerializeError> for Error {
    fn from(error: SerializeError) -> Error {
        match error {
            SerializeError::Tensor(error) => Error::Tensor(error),
            other => Error::Load(other),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Data(error) => error.into(),
            Error::Tensor(error) => error.into(),
            Error::Load(error) => Failure::new(Exit::Unreadable, error.to_string()),
        }
    }
}

/// The result of a job that finished or was ended by a signal.
pub(crate) struct Outcome {
    /// The device's memory report. Memory outside the allocator is the maximum seen during the job.
    pub(crate) memory: Report,
    /// Bytes of the parameters' and buffers' blocks.
    pub(crate) parameters: u64,
    /// The number of elements in all parameters.
    pub(crate) parameter_count: u64,
    /// Host bytes of the data set, which are outside the allocator.
    pub(crate) data_set_bytes: u64,
    /// The maximum host bytes of batches in preparation, also outside the allocator.
    pub(crate) batches_bytes: u64,
    /// The number of steps taken, including those before the checkpoint that the run resumed from.
    pub(crate) steps: u64,
    /// The number of steps planned.
    pub(crate) planned_steps: u64,
    /// The test metric after each epoch, summed over its samples. Empty on a device without values.
    pub(crate) scores: Vec<f64>,
    /// The number of test samples.
    pub(crate) tested: usize,
    /// Mean loss of each epoch; empty on a device without values.
    pub(crate) losses: Vec<f64>,
    /// Time spent training and testing in this process.
    pub(crate) elapsed: Duration,
    /// Units ([`Task::unit`]) trained on per second; `None` if no step was taken, or the device computes
    /// nothing.
    pub(crate) units_per_second: Option<f64>,
    /// The estimated time of the last training step, on a simulated GPU.
    pub(crate) estimated_step: Option<Duration>,
    /// The timeline of that step; empty unless it was requested.
    pub(crate) timeline: Vec<TimelineSpan>,
    /// The text that the trained network generated.
    pub(crate) sample: Option<Sampled>,
    /// The signal that ended the run, if one did.
    pub(crate) signal: Option<Signal>,
    /// The shared results of the ranks, if there are several.
    pub(crate) together: Option<Together>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cut_epochs_short_and_extend_only_the_default() {
        let length = |epochs, steps| Length { epochs, default_epochs: 5, steps };
        let both = |length: Length| (length.epochs(100), length.steps(100));
        assert_eq!(both(length(None, None)), (5, 500));
        assert_eq!(both(length(Some(2), None)), (2, 200));
        assert_eq!(both(length(None, Some(120))), (5, 120));
        assert_eq!(both(length(None, Some(501))), (6, 501));
        assert_eq!(both(length(Some(2), Some(501))), (2, 200));
        assert_eq!(length(Some(u64::MAX), None).steps(100), u64::MAX);
    }
}
