//! The options that all kinds of training share.

use std::path::PathBuf;

use clap::Args;
use plimsoll::checkpoint::Budget;
use plimsoll::dist::World;
use plimsoll::parallel::Shard;

use super::device::DeviceArgs;
use super::job::{Job, Length, Precision};
use super::parallel::ParallelArgs;
use super::plan::{Goal, Gpus};
use super::saves::SaveArgs;
use super::task::Task;
use super::techniques::{self, Techniques};
use crate::bytes;
use crate::exit::{Exit, Failure};
use crate::techniques::Allowed;

#[derive(Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) parallel: ParallelArgs,
    /// Do not train: simulate one rank for each way to share the work among these GPUs, such as 16xH200, and print the
    /// fastest way that fits
    #[arg(long, value_name = "NxGPU", help_heading = "Ranks",
          conflicts_with_all = ["parallel", "reproducible", "capture", "device", "capacity", "save", "save_async", "resume", "snapshot", "log", "timeline", "activations", "offload", "accumulate", "step_in_backward", "offload_optimizer"], group = "search")]
    pub(super) plan: Option<Gpus>,
    /// With --plan: what to look for
    #[arg(long, value_enum, default_value = "fit", help_heading = "Ranks", requires = "plan")]
    pub(super) goal: Goal,
    /// The data type of matrix products and convolutions
    #[arg(long = "dtype", value_enum, value_name = "TYPE", default_value_t = Precision::Float32)]
    precision: Precision,
    /// Random seed: the same seed gives the same result, bit for bit
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads that prepare batches; 0 prepares them between steps
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=256))]
    workers: u16,
    /// On a GPU, capture the training step after three steps and replay it from then on: same results, less work for
    /// the host. No effect on other devices
    #[arg(long)]
    pub(super) capture: bool,
    /// What the network's blocks may keep for the backward pass, such as 400MiB; the rest is computed again. `auto` keeps as little as
    /// possible while each block runs at most twice
    #[arg(long, value_name = "SIZE|auto", value_parser = techniques::budget, help_heading = "Less memory", group = "budget")]
    activations: Option<Budget>,
    /// With --activations or --fit: on a GPU, move activations to pinned host memory instead of recomputing them, up to
    /// this many bytes and as far as the copies overlap with computation
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive, help_heading = "Less memory", requires = "budget")]
    offload: Option<u64>,
    /// Train on each batch in N parts, one after the other, and add up their gradients
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..),
          help_heading = "Less memory")]
    accumulate: u32,
    /// Update each parameter in the backward pass, as soon as its gradient is complete, and free the gradient. With `train gpt`,
    /// it needs --clip 0
    #[arg(long, help_heading = "Less memory")]
    step_in_backward: bool,
    /// On a GPU, keep the optimizer's state in pinned host memory between steps
    #[arg(long, help_heading = "Less memory")]
    offload_optimizer: bool,
    /// Reserve at most this many bytes, with the fastest combination of the techniques above; found by simulated runs
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive, help_heading = "Less memory", groups = ["budget", "search"],
          conflicts_with_all = ["activations", "accumulate", "memory_limit", "plan"])]
    pub(super) fit: Option<u64>,
    /// With --fit or --plan: how much techniques may change losses and parameters. `changed` also tries --dtype bfloat16 and
    /// --optimizer adamw8bit
    #[arg(long, value_enum, default_value = "rounding", help_heading = "Less memory", requires = "search")]
    pub(super) numbers: Allowed,
    #[command(flatten)]
    pub(super) saves: SaveArgs,
    /// Save the memory history, for PyTorch's viewer; also when memory runs out. With several ranks, only rank 0 saves it
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) snapshot: Option<PathBuf>,
    /// How many events the snapshot keeps; when there are more, the oldest are dropped
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "snapshot", help_heading = "Output",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) snapshot_entries: u32,
    /// Write the memory history to a log as it happens: suits long runs, and survives a crash. With several ranks,
    /// only rank 0 writes it
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot", help_heading = "Output")]
    pub(super) log: Option<PathBuf>,
    /// With `--device sim:GPU`: write the estimated timeline of the last training step, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) timeline: Option<PathBuf>,
    /// Do not let `plimsoll top` watch this run
    #[arg(long, help_heading = "Output")]
    pub(super) no_live: bool,
    /// Print the result as JSON
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Settings {
    /// Checks that each rank has complete parameters, as an option needs.
    ///
    /// # Errors
    /// If ranks share parameters, or `--plan` tries ways in which they do.
    pub(super) fn wants_whole_parameters(&self, option: &str) -> Result<(), Failure> {
        let is_alone = self.plan.as_ref().is_none_or(Gpus::is_one);
        if self.parallel.shard() == Shard::Nothing && self.parallel.tensor() == 1 && is_alone {
            return Ok(());
        }
        let message = format!(
            "{option} needs complete parameters on each rank: it does not work with --parallel shard, tp=N or a --plan of several GPUs; use ddp"
        );
        Err(Failure::new(Exit::Usage, message))
    }

    /// A job with these settings.
    pub(super) fn job(&self, task: Box<dyn Task>, length: Length, batch_size: usize, lr: f64) -> Job {
        let workers = usize::from(self.workers);
        let Settings { seed, capture, .. } = *self;
        let timeline = self.timeline.is_some();
        let group = World::single().group().clone();
        let (shard, reproducible) = (Shard::Nothing, None);
        Job {
            task,
            length,
            batch_size,
            lr,
            seed,
            workers,
            is_on_host: self.device.is_cpu() && self.plan.is_none(),
            capture,
            timeline,
            group,
            shard,
            replicate: 1,
            tensor: 1,
            reproducible,
            techniques: Techniques {
                activations: self.activations,
                offload: self.offload,
                accumulate: self.accumulate as usize,
                bfloat16: self.precision == Precision::Bfloat16,
                adamw_8bit: false,
                step_in_backward: self.step_in_backward,
                offload_optimizer: self.offload_optimizer,
            },
            fitted: None,
        }
    }
}
