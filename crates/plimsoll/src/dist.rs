//! The ranks of a job: [`init_from_env`] joins the processes that torchrun, srun or mpirun has started. The crate `plimsoll-dist`
//! has the launchers' variables, the store and the sockets. This file makes a [`ProcessGroup`] for tensors from them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_tensor::{self as tensor, ProcessGroup, Result};

pub use plimsoll_dist::{Environment, Error, Health, JoinOptions, Launcher, Lost, Member, StoreHost, store};

/// The name of the operation in errors.
const NAME: &str = "init_from_env";

/// All ranks of a job, as seen from one of them. Dropping it leaves the job.
///
/// ```
/// use plimsoll::dist::World;
/// let world = World::single();
/// assert_eq!((world.rank(), world.size()), (0, 1));
/// ```
#[derive(Debug)]
pub struct World {
    group: ProcessGroup,
    joined: Option<plimsoll_dist::World>,
    /// The file in which torchrun looks for the error of a rank.
    error_file: Option<PathBuf>,
}

/// Joins the ranks that a launcher has started. It reads the variables of torchrun, SLURM, Open MPI or MPICH, or `RANK`,
/// `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. If no launcher has set any, the world is only this process. Like
/// `torch.distributed.init_process_group(init_method="env://")`.
///
/// `PLIMSOLL_COLLECTIVE_TIMEOUT_S` sets how many seconds a collective waits for a rank. The default is 300. The first collective
/// waits four times as long.
///
/// ```
/// use plimsoll::dist;
/// use plimsoll::{Device, ReduceOp, Tensor};
/// let world = dist::init_from_env()?; // one rank here; N under `torchrun --nproc-per-node N`
/// let x = Tensor::ones(&[4], &Device::cpu())?;
/// world.group().all_reduce(&x, ReduceOp::Sum)?;
/// assert_eq!(x.to_vec::<f32>()?, [world.size() as f32; 4]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// [`Distributed`](tensor::Error::Distributed): variables are missing or disagree, the store cannot be reached, or some ranks do
/// not join in time.
pub fn init_from_env() -> Result<World> {
    let environment = Environment::of_process().map_err(distributed)?;
    World::join(environment, JoinOptions::default())
}

impl World {
    /// Joins the job that `environment` describes. For `None`, the world is only this process. [`init_from_env`] reads the
    /// environment of this process instead.
    ///
    /// # Errors
    /// The same errors as [`init_from_env`]; also if another rank has different `options`.
    pub fn join(environment: Option<Environment>, mut options: JoinOptions) -> Result<World> {
        let Some(environment) = environment else { return Ok(World::single()) };
        if let Ok(text) = std::env::var("PLIMSOLL_COLLECTIVE_TIMEOUT_S") {
            let seconds = text.parse().map_err(|_| {
                tensor::Error::argument(
                    NAME,
                    format!("PLIMSOLL_COLLECTIVE_TIMEOUT_S={text} is not a number of seconds"),
                )
            })?;
            options.collective_timeout = Duration::from_secs(seconds);
        }
        let joined = plimsoll_dist::World::join(environment, &options).map_err(distributed)?;
        let group = ProcessGroup::new(Arc::clone(joined.communicator()));
        let error_file = std::env::var_os("TORCHELASTIC_ERROR_FILE").map(PathBuf::from);
        Ok(World { group, joined: Some(joined), error_file })
    }

    /// A world of only this process.
    pub fn single() -> World {
        World { group: ProcessGroup::threads(1).remove(0), joined: None, error_file: None }
    }

    /// Rank 0 of `size` simulated ranks, for a simulated device: [`ProcessGroup::simulated`].
    pub fn simulated(size: usize) -> World {
        World { group: ProcessGroup::simulated(0, size), joined: None, error_file: None }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// The group of all ranks, for collectives.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// This rank's environment, with its launcher. `None` for a single process or a simulated rank.
    pub fn environment(&self) -> Option<&Environment> {
        self.joined.as_ref().map(plimsoll_dist::World::environment)
    }

    /// All ranks, in rank order, as they introduced themselves. Empty for a single process or a simulated rank.
    pub fn members(&self) -> &[Member] {
        self.joined.as_ref().map_or(&[], plimsoll_dist::World::members)
    }

    /// Whether all ranks are alive. [`Health::wait`] waits for a failure. `None` for a single process or a simulated rank.
    pub fn health(&self) -> Option<&Arc<Health>> {
        self.joined.as_ref().map(plimsoll_dist::World::health)
    }

    /// Tells the other ranks that this one cannot continue, and writes the error for torchrun's summary. `why` is the error, in a
    /// sentence. A rank that ends because of its own error should call this before it drops the world. Otherwise the others learn
    /// only that it has disappeared.
    pub fn fail(&self, why: &str) {
        let Some(health) = self.health() else { return };
        health.fail(why);
        if let Some(path) = &self.error_file {
            let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let extra = serde_json::json!({ "py_callstack": "", "timestamp": time.as_secs().to_string() });
            let report = serde_json::json!({ "message": { "message": why, "extraInfo": extra } });
            // If this fails, torchrun's summary lacks the sentence, but it is still on stderr.
            let _ = std::fs::write(path, report.to_string());
        }
    }
}

impl AsRef<ProcessGroup> for World {
    fn as_ref(&self) -> &ProcessGroup {
        &self.group
    }
}

fn distributed(source: Error) -> tensor::Error {
    tensor::Error::Distributed { op: NAME, source: Box::new(source) }
}
