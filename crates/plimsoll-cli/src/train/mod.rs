//! `plimsoll train`: run a job on a device, then say whether it fits and where every byte went.
//!
//! `job.rs` is the training loop, the same on every device; `source.rs` its data; `smallest.rs` finds the
//! smallest limit by running the job on the simulated device; `progress.rs` shows it running, `snapshot.rs`
//! saves what happened to its memory, `report.rs` and `json.rs` say the result.

mod job;
mod json;
mod progress;
mod report;
mod smallest;
mod snapshot;
mod source;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use plimsoll::memory::live::{self, Live};
use plimsoll::{Bytes, Device, OutOfMemory, SimConfig};

use self::job::{Job, Optimizer};
use self::progress::Progress;
use self::snapshot::{LogFile, SnapshotFile};
use self::source::Want;
use crate::bytes;
use crate::exit::{Exit, Failure};
use crate::output;

/// What can be trained.
#[derive(Subcommand)]
pub(crate) enum What {
    /// A LeNet-class convolutional network on images of digits
    Mnist(MnistArgs),
}

/// Where to run.
#[derive(Clone, Debug)]
enum On {
    /// This machine's processors and memory.
    Cpu,
    /// A device that computes nothing and accounts for every byte.
    Sim,
    /// The same with the memory of a GPU.
    Like(SimConfig),
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> Result<On, String> {
        match (text, text.strip_prefix("sim:")) {
            ("cpu", _) => Ok(On::Cpu),
            ("sim", _) => Ok(On::Sim),
            (_, Some(gpu)) => SimConfig::like(gpu).map(On::Like).map_err(|error| error.to_string()),
            _ => Err("a device is `cpu`, `sim` or a simulated GPU such as `sim:H200`".to_owned()),
        }
    }
}

#[derive(Args)]
pub(crate) struct MnistArgs {
    /// Folder with MNIST's IDX files, plain or gzip [default: digits drawn by code]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How many digits to draw; nine in ten are for training
    #[arg(long, value_name = "N", default_value_t = 10_000, conflicts_with = "data",
          value_parser = clap::value_parser!(u32).range(10..))]
    images: u32,
    /// The most bytes to reserve, such as 64MiB [default: the whole device]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    memory_limit: Option<u64>,
    /// Where to run: `cpu`; `sim`, which computes nothing, accounts for every byte and reads files no further than their
    /// headers; or `sim:GPU`, such as sim:H200, the same with that GPU's memory
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: On,
    /// Memory of the simulated device, such as 80GiB [default: this machine's]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    capacity: Option<u64>,
    /// Passes over the training images
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Images per step
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// How to change the weights
    #[arg(long, value_enum, default_value_t = Optimizer::Sgd)]
    optimizer: Optimizer,
    /// Learning rate at the start; it falls to 0 along a cosine [default: 0.03 for sgd, 0.001 for adam]
    #[arg(long, value_name = "RATE", value_parser = learning_rate)]
    lr: Option<f64>,
    /// The same seed gives the same result, bit for bit
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads that prepare batches; 0 prepares them between steps
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=256))]
    workers: u16,
    /// Save what happened to the memory, for PyTorch's viewer; also when it runs out
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// How many events are kept for it; when there are more, the oldest go
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "snapshot",
          value_parser = clap::value_parser!(u32).range(1..))]
    snapshot_entries: u32,
    /// Write what happens to the memory into a log as it happens: for long runs, and whole up to a crash
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot")]
    log: Option<PathBuf>,
    /// Let nobody watch: `plimsoll top` does not find this run
    #[arg(long)]
    no_live: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("a learning rate is a number of 0 or more".to_owned()),
    }
}

impl What {
    /// Whether JSON was asked for.
    pub(crate) fn json(&self) -> bool {
        let What::Mnist(args) = self;
        args.json
    }
}

/// Runs the job; the result is text for stdout.
pub(crate) fn run(what: &What) -> Result<String, Failure> {
    let What::Mnist(args) = what;
    let device = device(args)?;
    let job = job(args)?;
    let file = args.snapshot.as_ref().map(|path| SnapshotFile::open(path, args.snapshot_entries, &device));
    let file = file.transpose()?;
    let log = args.log.as_ref().map(|path| LogFile::open(path, &device)).transpose()?;
    let mut watch = (Progress::new(&job, &device), file.clone());
    let live = if args.no_live { None } else { serve(&device) };
    let outcome = job.run(&device, &mut watch);
    drop(live);
    watch.0.finish();
    // A job that ran out says so first, even if its snapshot could not be saved.
    let saved = file.as_ref().map_or(Ok(()), SnapshotFile::report).and(log.map_or(Ok(()), LogFile::finish));
    match outcome {
        Ok(outcome) => {
            saved?;
            Ok(if args.json {
                json::result(&job, &outcome, file.as_ref())
            } else {
                report::text(&job, &outcome)
            })
        }
        Err(job::Error::Data(error)) => Err(error.into()),
        Err(job::Error::Tensor(error)) => match error.out_of_memory() {
            Some(report) => {
                if let Err(failure) = saved {
                    output::progress(&failure.message);
                }
                Err(out_of_memory(&job, args, &device, report, file.as_ref()))
            }
            None => Err(error.into()),
        },
    }
}

/// Lets `plimsoll top` watch. That it cannot is no reason not to train.
fn serve(device: &Device) -> Option<Live> {
    let why = match live::serve(device) {
        Ok(live) => return Some(live),
        Err(why) => why,
    };
    output::progress(&format!("`plimsoll top` cannot watch this run: {why}"));
    None
}

fn device(args: &MnistArgs) -> Result<Device, Failure> {
    let device = match (&args.device, args.capacity) {
        (On::Cpu, None) => Device::cpu(),
        (On::Cpu, Some(_)) => {
            let message = "--capacity is the size of a simulated device: add `--device sim`, or bound this one \
                           with `--memory-limit`";
            return Err(Failure::new(Exit::Usage, message));
        }
        (On::Like(gpu), Some(_)) => {
            let message = format!(
                "--capacity is the size of `--device sim`; {} has {}: leave one of the two out, or bound it with \
                 `--memory-limit`",
                gpu.name,
                Bytes(gpu.capacity_bytes)
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        (On::Like(gpu), None) => Device::sim(gpu.clone()),
        (On::Sim, Some(capacity)) => Device::sim(SimConfig::new(capacity)),
        (On::Sim, None) => Device::sim(SimConfig::new(Device::cpu().memory_info().total_bytes)),
    };
    device.set_memory_limit(args.memory_limit);
    Ok(device)
}

fn job(args: &MnistArgs) -> Result<Job, Failure> {
    let want = if matches!(args.device, On::Cpu) { Want::Values } else { Want::Shapes };
    Ok(Job {
        data: match &args.data {
            Some(dir) => source::read(dir, want)?,
            None => source::drawn(args.seed, args.images as usize)?,
        },
        epochs: args.epochs,
        batch_size: args.batch_size as usize,
        optimizer: args.optimizer,
        lr: args.lr.unwrap_or(args.optimizer.default_lr()),
        seed: args.seed,
        workers: usize::from(args.workers),
    })
}

/// The failure of a job that ran out, with the smallest limit that would have passed.
fn out_of_memory(
    job: &Job,
    args: &MnistArgs,
    device: &Device,
    report: &OutOfMemory,
    file: Option<&SnapshotFile>,
) -> Failure {
    output::progress("out of memory; looking for the smallest limit that would have passed");
    let sim = match &args.device {
        On::Like(gpu) => gpu.clone(),
        On::Cpu | On::Sim => SimConfig::new(0),
    };
    let smallest = smallest::limit(job, sim, device.memory_info().total_bytes);
    Failure {
        exit: Exit::OutOfMemory,
        message: report::out_of_memory(report, smallest.as_ref()),
        json: Some(json::out_of_memory(job, report, smallest.as_ref(), file)),
    }
}
