//! The options of `predict`: [`PredictArgs`]. `plan` makes the options of its runs from them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::assume::Assumption;
use super::gpu::{Target, Workspaces};
use super::node::Machine;
use super::placeholder::Placeholder;
use super::view::Writes;
use crate::bytes;
use crate::exit::{Exit, Failure};
use crate::shown::Shown;
use crate::techniques::Set;

#[derive(Clone, Args)]
#[command(after_help = AFTER_HELP, override_usage = "plimsoll predict [OPTIONS] -- COMMAND...")]
pub(crate) struct PredictArgs {
    /// The GPU: a name (--list prints them), a memory size (24GiB), a MIG slice (H100:3g.40gb), properties
    /// (custom:memory=48GiB,cc=8.9,sms=142), or a row of `plimsoll calibrate` [default: this machine's]
    #[arg(long, value_name = "NAME|SIZE|FILE.json")]
    pub(super) gpu: Option<String>,
    /// Compute capability, such as 8.9, if --gpu is a memory size [default: that of the listed GPU with the closest size]
    #[arg(long, value_name = "X.Y")]
    pub(super) cc: Option<String>,
    /// Number of GPUs that the program sees
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) devices: u32,
    /// With --rank: number of machines in the job, each with --devices GPUs
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rank", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) nodes: u32,
    /// Run only this rank of a job with --nodes times --devices ranks: needs neither torchrun nor the other ranks
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
    /// Memory that a process uses on each GPU outside PyTorch's allocator, not counting NCCL's memory; with 0, NCCL's memory is
    /// ignored too [default: computed from what the program uses]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub(super) context: Option<u64>,
    /// Memory that other programs use on each GPU [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub(super) others: Option<u64>,
    /// Host memory that the program may use on the machine that will run it
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    pub(super) host_memory: Option<u64>,
    /// Size of /dev/shm on the machine that will run the program; Docker's default is 64MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub(super) shm: Option<u64>,
    /// How to compute the workspaces of cuDNN (convolutions, recurrent networks, batch normalization, CTC loss) and cuFFT
    #[arg(long, value_name = "HOW", value_enum, default_value = "library")]
    pub(super) cudnn_workspace: Workspaces,
    /// Stop training after this many steps of every optimizer. If the training loops over a DataLoader, the code after
    /// the loop still runs; otherwise the program ends after these steps [default: 3; more if steps are fast and a part
    /// of the loop has not run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Run the program to its end
    #[arg(long, conflicts_with = "steps")]
    pub(super) whole: bool,
    /// Value to use instead of zero for what this line reads from the GPU; max is the largest possible value, half is
    /// half of it
    #[arg(long, value_name = "FILE:LINE=VALUE|max|half", value_parser = Assumption::parse)]
    pub(super) assume: Vec<Assumption>,
    /// Allocator settings, as in PYTORCH_ALLOC_CONF
    #[arg(long, value_name = "SETTINGS")]
    pub(super) alloc_conf: Option<String>,
    /// Apply techniques that use less memory, such as checkpoint,chunked-loss (`plimsoll run --help` lists them)
    #[arg(long, value_name = "SET", value_parser = Set::parse)]
    pub(super) with: Option<Set>,
    /// Stop the program after this time, such as 90s or 5m, and report what happened up to then
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
    /// Search this range for the largest value that fits; the value replaces {NAME} in the command
    #[arg(long, value_name = "NAME=FROM..TO", value_parser = Placeholder::parse)]
    pub(super) find: Option<Placeholder>,
    /// Save a snapshot of the process that decides the verdict, for `explain`, `leaks`, `diff` and other commands; DIR/
    /// saves one for each process
    #[arg(long, value_name = "OUT.pickle|DIR/", conflicts_with = "find")]
    pub(super) snapshot: Option<PathBuf>,
    /// Also write a page for a browser: one file that needs no network
    #[arg(long, value_name = "OUT.html", conflicts_with = "find")]
    pub(super) html: Option<PathBuf>,
    #[command(flatten)]
    pub(super) writes: Writes,
    /// Overwrite existing files; in a folder of snapshots, replace all snapshots of an earlier run
    #[arg(short, long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) shown: Shown,
    /// Print all tables and limits, not just one screen
    #[arg(long, conflicts_with = "verdict_only")]
    pub(super) full: bool,
    /// Print only the verdict
    #[arg(short = 'q', long = "quiet")]
    pub(super) verdict_only: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// The program and its arguments, after `--`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "list")]
    pub(super) command: Vec<OsString>,
    /// Print the known GPUs
    #[arg(long)]
    pub(super) list: bool,
    /// More environment variables for the program (set by `plan`)
    #[arg(skip)]
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// Discard the program's own output (set by `plan` for its later runs)
    #[arg(skip)]
    pub(super) quiet: bool,
}

const AFTER_HELP: &str = "\
The program's own output goes to stderr. Values read from the GPU are 0 (1 if the program divides by them or takes their
logarithm), unless they are known (such as a mask copied from the CPU) or set by --assume; the report lists the lines where
such a value decides a size or a branch. The program sees its own changes to files, but the disk stays as it is; only new
files in caches of downloads and compilers (HF_HOME, TORCH_HOME, XDG_CACHE_HOME) are kept. Tensor files (.pt, .npy,
.safetensors ...) are kept only if they are downloads: below a folder `hub`, or in HF_HUB_CACHE. A loop that waits for a
value may never end: use --timeout.

Ctrl-C or SIGTERM stops the program and reports what happened up to then; a second one kills it. All processes of the
program end with the run. The program runs in its own process group: Ctrl-C does not reach it, so no handler saves a model
full of zeros, and Ctrl-Z does not stop it. A file or pipe on stdin is passed on; a terminal is not.

Exit codes: 0 it fits; 4 it does not fit, or there is no answer, for example because the run was stopped early; 5 the
program failed for another reason.

Examples:
  plimsoll predict --gpu H100 -- python train.py --batch-size 32
  plimsoll predict --devices 2 -- torchrun --nproc-per-node 2 train.py
  plimsoll predict --nodes 8 --devices 8 --rank 0 -- python train.py
  plimsoll predict --gpu 24GiB --cc 8.9 --find 'BATCH=1..512' -- python train.py --batch-size {BATCH}";

impl PredictArgs {
    /// The GPU that the options describe.
    ///
    /// # Errors
    /// If the name is unknown, the compute capability is invalid, or the device is smaller than the context.
    pub(super) fn target(&self) -> Result<Target, Failure> {
        let target =
            Target::of(self.gpu.as_deref(), self.cc.as_deref(), self.context, self.others.unwrap_or(0))?;
        if self.devices > 1 && target.listed.card.contains(" MIG ") {
            return Err(Failure::new(
                Exit::Usage,
                "--devices: a process sees one MIG slice, and slices do not communicate",
            ));
        }
        let machine = Machine {
            memory_bytes: self.host_memory,
            is_this: false,
            is_left: false,
            shm_bytes: self.shm,
            alike: self.rank.map(|_| self.devices),
        };
        Ok(target.with_devices(self.devices, self.cudnn_workspace).in_machine(machine))
    }
}

/// Parses a duration: `90`, `90s`, `5m`, `2h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return Err(format!("`{unit}` is not a unit; use s, m or h")),
    };
    let number: u64 = number.parse().map_err(|_| "not a time; use for example 90s".to_owned())?;
    let seconds = number.checked_mul(scale).filter(|&seconds| (1..1 << 31).contains(&seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "must be more than 0, and less than 60 years".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_with_their_units() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "5 parsecs", "-1", "1e9", "99999999999999999999", "9999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
