//! The ranks of a job: [`init_from_env`] joins what torchrun, srun or mpirun has started. The processes, the store and the sockets
//! are the crate `plimsoll-dist`; here they become a [`ProcessGroup`] of tensors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_tensor::{self as tensor, ProcessGroup, Result};

pub use plimsoll_dist::{Environment, Error, Health, JoinOptions, Launcher, Lost, Member, StoreHost, store};

/// The name of the operation in errors.
const NAME: &str = "init_from_env";

/// All ranks of a job, as one of them sees them. Dropping it leaves the job.
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
    /// Where torchrun looks for the error of a rank.
    error_file: Option<PathBuf>,
}

/// Joins the ranks that a launcher has started, by the variables that it has set: torchrun's, SLURM's, Open MPI's, MPICH's, or
/// `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. Without any, the world is this process alone. As
/// `torch.distributed.init_process_group(init_method="env://")`.
///
/// `PLIMSOLL_COLLECTIVE_TIMEOUT_S` is how long a collective waits for a rank, by default 300 s (the first one four times as long).
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
/// [`Distributed`](tensor::Error::Distributed): variables that are missing or disagree, a store that cannot be reached, ranks that do not come.
pub fn init_from_env() -> Result<World> {
    let environment = Environment::of_process().map_err(distributed)?;
    World::join(environment, JoinOptions::default())
}

impl World {
    /// Joins as this environment says; without one, the world is this process alone. [`init_from_env`] reads the process's own.
    ///
    /// # Errors
    /// As [`init_from_env`]; ranks that were given other `options`.
    pub fn join(environment: Option<Environment>, mut options: JoinOptions) -> Result<World> {
        let Some(environment) = environment else { return Ok(World::single()) };
        if let Ok(text) = std::env::var("PLIMSOLL_COLLECTIVE_TIMEOUT_S") {
            let seconds = text.parse().map_err(|_| {
                tensor::Error::argument(
                    NAME,
                    format!("PLIMSOLL_COLLECTIVE_TIMEOUT_S={text} is no number of seconds"),
                )
            })?;
            options.collective_timeout = Duration::from_secs(seconds);
        }
        let joined = plimsoll_dist::World::join(environment, &options).map_err(distributed)?;
        let group = ProcessGroup::new(Arc::clone(joined.communicator()));
        let error_file = std::env::var_os("TORCHELASTIC_ERROR_FILE").map(PathBuf::from);
        Ok(World { group, joined: Some(joined), error_file })
    }

    /// This process alone.
    pub fn single() -> World {
        World { group: ProcessGroup::threads(1).remove(0), joined: None, error_file: None }
    }

    /// Rank 0 of `size` that exist only in name, for a simulated device: [`ProcessGroup::simulated`].
    pub fn simulated(size: usize) -> World {
        World { group: ProcessGroup::simulated(0, size), joined: None, error_file: None }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// The collectives of all ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Which rank this is, and what started it; `None` for a process alone, or a simulated rank.
    pub fn environment(&self) -> Option<&Environment> {
        self.joined.as_ref().map(plimsoll_dist::World::environment)
    }

    /// Whether all ranks live: [`Health::wait`] waits for bad news. `None` for a process alone, or a simulated rank.
    pub fn health(&self) -> Option<&Arc<Health>> {
        self.joined.as_ref().map(plimsoll_dist::World::health)
    }

    /// Tells the other ranks, and torchrun's summary, that this one cannot go on: `why` is its error, in a sentence. A rank that
    /// ends with an error of its own calls this before it drops the world; otherwise the others learn only that it is gone.
    pub fn fail(&self, why: &str) {
        let Some(health) = self.health() else { return };
        health.fail(why);
        if let Some(path) = &self.error_file {
            let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let extra = serde_json::json!({ "py_callstack": "", "timestamp": time.as_secs().to_string() });
            let report = serde_json::json!({ "message": { "message": why, "extraInfo": extra } });
            // Without it torchrun's summary lacks the sentence; it is on stderr, too.
            let _ = std::fs::write(path, report.to_string());
        }
    }
}

fn distributed(source: Error) -> tensor::Error {
    tensor::Error::Distributed { op: NAME, source: Box::new(source) }
}
