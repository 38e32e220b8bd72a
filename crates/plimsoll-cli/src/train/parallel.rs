//! `--parallel`: the ranks that train together. A launcher's environment variables show whether this process is one of
//! several; `spawn.rs` is the launcher of `--ranks`.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use plimsoll::dist::{Environment, JoinOptions, Member, World};
use plimsoll::parallel::{Reproducible, Shard};
use plimsoll::{Device, Error};
use plimsoll_trace::render::words::counted;

use super::device::DeviceArgs;
use crate::exit::{Exit, Failure};
use crate::output;

/// How long a rank may take to end by itself after another one failed.
const GRACE: Duration = Duration::from_secs(1);
/// If joining takes longer than this, the program says what it is waiting for.
const PATIENCE: Duration = Duration::from_secs(3);

/// The options for ranks: how many there are, and how they share the work.
#[derive(Args)]
pub(crate) struct ParallelArgs {
    /// Train on several ranks: processes started by torchrun, srun, mpirun or --ranks
    ///
    /// `ddp` is data parallel: each rank has the whole model and an equal part of every batch; gradients are averaged. `shard`
    /// also divides the model's state over the ranks (see --shard); `shard=N` checks that there are N ranks.
    /// `replicate=R,shard=S` shards over groups of S ranks, such as those of a host, and averages the gradients of R groups
    /// (HSDP). `tp=N` lets N ranks share each layer and the tokens between layers (tensor and sequence parallel); `dp=D,tp=T`
    /// averages the gradients of D groups of T such ranks. GPUs communicate through NCCL, CPUs through sockets
    #[arg(long, value_name = "ddp|shard[=N]|replicate=R,shard=S|tp=N|dp=D,tp=T", help_heading = "Ranks")]
    parallel: Option<Parallel>,
    /// With `--parallel shard`: what to shard over the ranks [default: parameters]
    #[arg(long, value_parser = shards(), value_name = "WHAT", requires = "parallel", help_heading = "Ranks")]
    shard: Option<Shard>,
    /// Start N processes on this machine, each a rank; their stderr is prefixed with [rank N]
    #[arg(long, value_name = "N", requires = "parallel", conflicts_with = "sim_ranks", help_heading = "Ranks",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// With `--device sim`: simulate the memory of one of N ranks
    #[arg(long, value_name = "N", requires = "parallel", help_heading = "Ranks",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sim_ranks: Option<u32>,
    /// Give bit-identical results on any number of ranks that divides LANES, including one: each batch runs in LANES equal passes, whose
    /// gradients are added in a fixed order. LANES is a power of two
    #[arg(long, value_name = "LANES", num_args = 0..=1, require_equals = true, default_missing_value = "8",
          help_heading = "Ranks", value_parser = clap::value_parser!(u16).range(1..=1024))]
    reproducible: Option<u16>,
}

/// How ranks share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parallel {
    /// Each rank has the whole model.
    Ddp,
    /// Each rank has a part of the model. All ranks form one group, of this size if one is given.
    Shard(Option<usize>),
    /// The `shard` ranks of a group share a model, and there are `replicate` groups.
    Hybrid { replicate: usize, shard: usize },
    /// The `tensor` ranks of a group share each layer, and there are `data` groups, or one if `data` is not given.
    Tensor { data: Option<usize>, tensor: usize },
}

impl FromStr for Parallel {
    type Err = String;

    fn from_str(text: &str) -> Result<Parallel, String> {
        let dims = text.split(',').map(|dim| match dim.split_once('=') {
            None => Ok((dim, None)),
            Some((name, size)) => match size.parse() {
                Ok(size) if size > 0 => Ok((name, Some(size))),
                _ => Err(format!("`{size}` is not a number of ranks: use {name}=N")),
            },
        });
        match dims.collect::<Result<Vec<(&str, Option<usize>)>, String>>()?[..] {
            [("ddp", None)] => Ok(Parallel::Ddp),
            [("shard", size)] => Ok(Parallel::Shard(size)),
            [("replicate", Some(replicate)), ("shard", Some(shard))] => {
                Ok(Parallel::Hybrid { replicate, shard })
            }
            [("tp", Some(tensor))] => Ok(Parallel::Tensor { data: None, tensor }),
            [("dp", Some(data)), ("tp", Some(tensor))] => Ok(Parallel::Tensor { data: Some(data), tensor }),
            _ => Err("use ddp, shard, shard=N, replicate=R,shard=S, tp=N or dp=D,tp=T".to_owned()),
        }
    }
}

/// Parses `--shard`: what is divided among the ranks.
fn shards() -> impl TypedValueParser<Value = Shard> {
    let values = Shard::ALL.map(|shard| {
        PossibleValue::new(shard.name()).help(match shard {
            Shard::Nothing => "Nothing, like `--parallel ddp`",
            Shard::OptimizerState => "The optimizer's state (ZeRO-1)",
            Shard::Gradients => "Also gradients (ZeRO-2)",
            Shard::Parameters => "Also parameters (ZeRO-3, FSDP)",
        })
    });
    PossibleValuesParser::new(values).map(|name| Shard::from_name(&name).unwrap_or_default())
}

/// The role of this process.
pub(super) enum Start {
    /// A rank, with its device.
    Rank(Box<World>, Device),
    /// The launcher of this many ranks.
    Launcher(u16),
}

impl ParallelArgs {
    /// What is sharded over the ranks.
    pub(super) fn shard(&self) -> Shard {
        match self.parallel {
            None | Some(Parallel::Ddp | Parallel::Tensor { .. }) => Shard::Nothing,
            Some(Parallel::Shard(_) | Parallel::Hybrid { .. }) => self.shard.unwrap_or_default(),
        }
    }

    /// The number of groups of ranks that have a whole model each.
    pub(super) fn replicate(&self) -> usize {
        match self.parallel {
            Some(Parallel::Hybrid { replicate, .. }) => replicate,
            _ => 1,
        }
    }

    /// The number of ranks that share each layer.
    pub(super) fn tensor(&self) -> usize {
        match self.parallel {
            Some(Parallel::Tensor { tensor, .. }) => tensor,
            _ => 1,
        }
    }

    /// Checks whether ranks can share layers, if the options request it. `sizes` are the options that their number must
    /// divide; `None` if the network has no such layers.
    pub(super) fn shares(
        &self,
        sizes: Option<[(&'static str, usize); 2]>,
        captures: bool,
    ) -> Result<(), Failure> {
        let Some(Parallel::Tensor { tensor, .. }) = self.parallel else { return Ok(()) };
        let not = |option: &str| format!("--parallel tp=N does not work with {option}");
        let message = match sizes {
            _ if self.shard.is_some() => not("--shard: ranks that share layers have parts of them already"),
            _ if self.reproducible.is_some() => not("--reproducible: its sums depend on the number of ranks"),
            _ if captures => not("--capture"),
            None => "--parallel tp=N works with `train gpt`: no other network has layers that ranks share"
                .to_owned(),
            Some(sizes) => match sizes.iter().find(|(_, size)| !size.is_multiple_of(tensor)) {
                None => return Ok(()),
                Some((option, size)) => {
                    format!(
                        "{option} {size} is not a multiple of the {tensor} ranks of --parallel tp={tensor} that share each layer"
                    )
                }
            },
        };
        Err(Failure::new(Exit::Usage, message))
    }

    /// Checks whether ranks can share a vocabulary of this size, if the options request it. The last rank has
    /// the fewest tokens.
    pub(super) fn shares_vocabulary(&self, size: usize) -> Result<(), Failure> {
        let tensor = self.tensor();
        if size.div_ceil(tensor) * (tensor - 1) < size {
            return Ok(());
        }
        let message = format!(
            "a vocabulary of {size} is too small for the {tensor} ranks of --parallel tp={tensor}: the last one would have no part of it"
        );
        Err(Failure::new(Exit::Usage, message))
    }

    /// The lanes of a batch, if there are any.
    pub(super) fn reproducible(&self) -> Option<Reproducible> {
        self.reproducible.map(|lanes| Reproducible { lanes: usize::from(lanes) })
    }

    /// # Errors
    /// If the number of ranks does not match the options.
    fn fits(&self, batch_size: usize, ranks: usize) -> Result<(), Failure> {
        if let Some(Parallel::Shard(Some(size))) = self.parallel
            && size != ranks
        {
            let message = format!(
                "--parallel shard={size}, but there are {}: all ranks form one group, so N must be the number of ranks",
                counted(ranks as u64, "rank")
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        if let Some(Parallel::Hybrid { replicate, shard }) = self.parallel
            && replicate.checked_mul(shard) != Some(ranks)
        {
            let message = format!(
                "--parallel replicate={replicate},shard={shard}, but there are {}: the product of R and S must be the number of ranks",
                counted(ranks as u64, "rank")
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        if let Some(Parallel::Tensor { data, tensor }) = self.parallel
            && data.unwrap_or(1).checked_mul(tensor) != Some(ranks)
        {
            let there = counted(ranks as u64, "rank");
            let message = match data {
                None => format!(
                    "--parallel tp={tensor}, but there are {there}: use dp=D,tp={tensor}, where the product of D and {tensor} is the number of ranks"
                ),
                Some(data) => format!(
                    "--parallel dp={data},tp={tensor}, but there are {there}: the product of D and T must be the number of ranks"
                ),
            };
            return Err(Failure::new(Exit::Usage, message));
        }
        let Some(Reproducible { lanes }) = self.reproducible() else {
            return divides(batch_size, ranks / self.tensor());
        };
        if !lanes.is_power_of_two() || !lanes.is_multiple_of(ranks) {
            let message = format!(
                "--reproducible={lanes} with {}: the number of lanes must be a power of two and a multiple of the number of ranks",
                counted(ranks as u64, "rank")
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        if !batch_size.is_multiple_of(lanes) {
            let message = format!(
                "--batch-size {batch_size} must be a multiple of the {lanes} lanes of --reproducible"
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(())
    }

    /// Joins the other ranks, unless they must be started first. `batch_size` is the total of all ranks.
    pub(super) fn start(
        &self,
        device: &DeviceArgs,
        batch_size: usize,
        captures: bool,
    ) -> Result<Start, Failure> {
        let usage = |message: String| Err(Failure::new(Exit::Usage, message));
        let environment = Environment::of_process().map_err(|source| {
            Failure::from(Error::Distributed { op: "--parallel", source: Box::new(source) })
        })?;
        if self.reproducible.is_some() && captures {
            return usage("--capture does not work with --reproducible".to_owned());
        }
        if self.parallel.is_none() {
            self.fits(batch_size, 1)?;
            return match environment {
                Some(Environment { rank, size, launcher, .. }) if size > 1 => usage(format!(
                    "this is rank {rank} of {size} according to {launcher}: add --parallel ddp to train together, or unset the launcher's \
                     variables"
                )),
                _ => Ok(Start::Rank(Box::new(World::single()), device.open(0)?)),
            };
        }
        if device.is_numbered_gpu() {
            return usage(
                "each rank uses its own GPU: add --device cuda, and choose GPUs with CUDA_VISIBLE_DEVICES"
                    .to_owned(),
            );
        }
        if let (Some(Parallel::Shard(_) | Parallel::Hybrid { .. }), true) = (self.parallel, captures) {
            return usage("--capture works with --parallel ddp, not with shard".to_owned());
        }
        if let (Some(Parallel::Ddp), Some(_)) = (self.parallel, self.shard) {
            return usage(
                "--shard is for --parallel shard: with ddp each rank has the whole model".to_owned(),
            );
        }
        if !device.has_values() {
            let Some(ranks) = self.sim_ranks else {
                return usage("on a simulated device add --sim-ranks N: no processes are started".to_owned());
            };
            self.fits(batch_size, ranks as usize)?;
            return Ok(Start::Rank(Box::new(World::simulated(ranks as usize)), device.open(0)?));
        }
        if self.sim_ranks.is_some() {
            return usage(
                "--sim-ranks is for `--device sim`: --ranks starts processes on the CPU".to_owned(),
            );
        }
        match (environment, self.ranks) {
            (None, None) => usage(
                "--parallel needs ranks: add --ranks N, or start the program with torchrun, srun or mpirun"
                    .to_owned(),
            ),
            (None, Some(ranks)) => {
                self.fits(batch_size, usize::from(ranks))?;
                if device.is_cuda() {
                    rank_gpu(0, usize::from(ranks))?;
                }
                Ok(Start::Launcher(ranks))
            }
            (Some(Environment { size, launcher, .. }), Some(ranks)) if size != usize::from(ranks) => {
                usage(format!("--ranks {ranks}, but {launcher} started {size}: leave --ranks out"))
            }
            (Some(environment), _) => {
                self.fits(batch_size, environment.size)?;
                let gpu = match device.is_cuda() {
                    true => rank_gpu(environment.local_rank, environment.local_size)?,
                    false => 0,
                };
                let device = device.open(gpu)?;
                let words: Vec<String> =
                    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
                let name = match device.pci_bus_id() {
                    Some(bus) => format!("{} at {bus}", device.name()),
                    None => device.name().to_owned(),
                };
                let options =
                    JoinOptions { options: words.join(" "), device: name, ..JoinOptions::default() };
                let world = joined(environment, options)?;
                each_has_a_gpu(world.members())?;
                Ok(Start::Rank(Box::new(world), device))
            }
        }
    }
}

/// Joins the other ranks. If that takes long, says what it is waiting for.
fn joined(environment: Environment, options: JoinOptions) -> Result<World, Failure> {
    let Environment { size, address, port, .. } = &environment;
    let waits = format!(
        "waiting for all {size} ranks to join through {address}:{port}, for at most {} s",
        options.timeout.as_secs()
    );
    let (joined, over) = mpsc::channel::<()>();
    let reminder = thread::spawn(move || {
        if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            output::progress(&waits);
        }
    });
    let world = World::join(Some(environment), options);
    drop(joined);
    // The thread returns nothing.
    let _ = reminder.join();
    Ok(world?)
}

/// The number of a rank's GPU: its local rank, or 0 if the launcher makes only one GPU visible to each rank.
fn rank_gpu(local_rank: usize, local_size: usize) -> Result<u32, Failure> {
    let count = Device::cuda_count()?;
    match u32::try_from(local_rank) {
        Ok(number) if local_size <= count as usize => Ok(number),
        _ if count == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() => Ok(0),
        _ => {
            let message = format!(
                "{local_size} ranks on this machine, and {}: start as many ranks as there are GPUs",
                counted(u64::from(count), "GPU")
            );
            Err(Failure::new(Exit::Usage, message))
        }
    }
}

/// Returns an error if two ranks share a GPU.
fn each_has_a_gpu(members: &[Member]) -> Result<(), Failure> {
    let gpu = |member: &Member| {
        let (_, bus) = member.device.split_once(" at ")?;
        Some((member.host.clone(), bus.to_owned()))
    };
    for (rank, member) in members.iter().enumerate() {
        let Some(own) = gpu(member) else { continue };
        if let Some(other) = members[..rank].iter().position(|other| gpu(other).as_ref() == Some(&own)) {
            let message = format!(
                "ranks {other} and {rank} of {} both use the GPU at {}: make the launcher give each rank its own GPU",
                own.0, own.1
            );
            return Err(Failure::new(Exit::Usage, message));
        }
    }
    Ok(())
}

/// # Errors
/// If the number of ranks does not divide the batch size.
pub(super) fn divides(batch_size: usize, ranks: usize) -> Result<(), Failure> {
    if batch_size.is_multiple_of(ranks) {
        return Ok(());
    }
    let message =
        format!("--batch-size {batch_size} is the total of all ranks, and must be a multiple of {ranks}");
    Err(Failure::new(Exit::Usage, message))
}

/// While it exists, this process ends if another rank fails.
pub(super) struct Watched(Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Ends this process if another rank fails while this one is too busy to notice.
pub(super) fn end_with_others(world: &World) -> Watched {
    let is_over = Arc::new(AtomicBool::new(false));
    let watched = Watched(Arc::clone(&is_over));
    let (Some(health), own) = (world.health().cloned(), world.rank()) else { return watched };
    thread::spawn(move || {
        let Some(lost) = health.wait().filter(|lost| lost.rank != own) else { return };
        // A rank that waits in a collective notices the failure itself, and reports it in more detail.
        thread::sleep(GRACE);
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        output::failure(&Failure::new(Exit::RankLost, lost.to_string()), None);
        end_now(Exit::RankLost);
    });
    watched
}

/// Called after another rank is lost. The ranks learn from a store which rank was lost; rank 0 may host that store, so
/// it waits a moment before it ends.
pub(super) fn let_others_read(world: &World) {
    if world.rank() == 0 {
        thread::sleep(GRACE / 5);
    }
}

/// Ends this process immediately. The thread that computes cannot be interrupted, and a GPU that waits for a lost rank would
/// also block an orderly exit.
pub(super) fn end_now(exit: Exit) -> ! {
    signal_hook::low_level::exit(exit as i32)
}

/// Tells the other ranks why this one ends, unless one of them is the cause.
pub(super) fn tell(world: &World, failure: &Failure) {
    if failure.exit != Exit::RankLost {
        world.fail(failure.message.lines().next().unwrap_or_default());
    }
}
