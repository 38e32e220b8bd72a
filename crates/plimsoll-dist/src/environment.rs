//! Reads this process's rank from the variables that torchrun, srun, mpirun and others set. It does not open a
//! connection.

use std::fmt;

use crate::error::{Error, Result};
use crate::nodelist::{hosts, tasks_per_node};
use crate::record::fnv;

/// The program that started the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, or `plimsoll train --ranks`, which sets the same variables.
    Torchrun,
    /// Anything else that sets `RANK` and `WORLD_SIZE`, as PyTorch's `env://` expects.
    Env,
    /// SLURM's `srun`.
    Slurm,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpirun` of MPICH or Intel MPI.
    Mpich,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "torchrun",
            Launcher::Env => "RANK and WORLD_SIZE",
            Launcher::Slurm => "srun (SLURM_PROCID)",
            Launcher::OpenMpi => "Open MPI (OMPI_COMM_WORLD_RANK)",
            Launcher::Mpich => "MPICH (PMI_RANK)",
        })
    }
}

/// The process that hosts the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The launcher; every rank is a client.
    Launcher,
    /// Rank 0.
    FirstRank,
}

/// The place of one process in a job, as described by its launcher.
///
/// ```
/// use plimsoll_dist::Environment;
/// let variables = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];
/// let read = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
/// let environment = Environment::read(&read)?.expect("a launcher");
/// assert_eq!((environment.rank, environment.size, environment.local_rank), (1, 2, 1));
/// # Ok::<(), plimsoll_dist::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The launcher that started the process.
    pub launcher: Launcher,
    /// Its rank, counted from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Its rank among the processes of this host, counted from 0.
    pub local_rank: usize,
    /// The number of ranks on this host.
    pub local_size: usize,
    /// The host on which the store listens.
    pub address: String,
    /// The port on which the store listens.
    pub port: u16,
    /// The process that hosts the store.
    pub store_host: StoreHost,
    /// The prefix of this run's keys in the store. A restart has a different one.
    pub run: String,
}

/// A function that reads a variable: [`std::env::var`], or a table in tests.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The rank and size according to one launcher.
struct Source {
    launcher: Launcher,
    rank: usize,
    size: usize,
    local: Option<(usize, usize)>,
}

impl Environment {
    /// Reads this process's variables. Returns `None` if no launcher set any, or if it started a single process and set no
    /// address.
    ///
    /// # Errors
    /// The same errors as [`Environment::read`].
    pub fn of_process() -> Result<Option<Environment>> {
        Environment::read(&|name| std::env::var(name).ok())
    }

    /// Reads the environment from variables. Returns `None` if no launcher set any.
    ///
    /// torchrun's variables take precedence over all others, because torchrun is often started by `srun`. If the variables of two
    /// other launchers are set, they must agree. `MASTER_ADDR` and `MASTER_PORT` take precedence over an address or port derived
    /// from a launcher's variables.
    ///
    /// # Errors
    /// If a variable is missing or not a number, the rank is not below the size, or two launchers disagree.
    pub fn read(read: Read<'_>) -> Result<Option<Environment>> {
        let mut sources = Vec::from_iter(torchrun(read)?);
        if sources.is_empty() {
            for source in [env, slurm, open_mpi, mpich] {
                sources.extend(source(read)?);
            }
        }
        let Some(first) = sources.first() else { return Ok(None) };
        if let Some(other) = sources.iter().find(|other| (other.rank, other.size) != (first.rank, first.size))
        {
            let says =
                |source: &Source| format!("{} says rank {} of {}", source.launcher, source.rank, source.size);
            return Err(wrong(format!(
                "{}, but {}: start the program with one of them, or unset the variables of the other",
                says(first),
                says(other)
            )));
        }
        let Source { launcher, rank, size, .. } = *first;
        if size == 0 || rank >= size {
            return Err(wrong(format!(
                "{launcher} says rank {rank} of {size}: ranks are numbered from 0 to the size minus one"
            )));
        }
        let local = sources.iter().find_map(|source| source.local);
        let (local_rank, local_size) = local.unwrap_or((rank, size));
        if size == 1 && launcher != Launcher::Torchrun && read("MASTER_ADDR").is_none() {
            return Ok(None);
        }
        let (address, port) = place(read, launcher, size == local_size)?;
        let agent =
            read("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let is_agents = launcher == Launcher::Torchrun && agent;
        let store_host = if is_agents { StoreHost::Launcher } else { StoreHost::FirstRank };
        let or_none = |name: &str| read(name).unwrap_or_else(|| "none".to_owned());
        let run = format!(
            "/plimsoll/{}/{}/",
            or_none("TORCHELASTIC_RUN_ID"),
            or_none("TORCHELASTIC_RESTART_COUNT")
        );
        Ok(Some(Environment { launcher, rank, size, local_rank, local_size, address, port, store_host, run }))
    }
}

fn torchrun(read: Read<'_>) -> Result<Option<Source>> {
    if read("TORCHELASTIC_RUN_ID").is_none() {
        return Ok(None);
    }
    let [rank, size] = ["RANK", "WORLD_SIZE"].map(|name| required(read, name, "torchrun"));
    let [local_rank, local_size] =
        ["LOCAL_RANK", "LOCAL_WORLD_SIZE"].map(|name| required(read, name, "torchrun"));
    Ok(Some(Source {
        launcher: Launcher::Torchrun,
        rank: rank?,
        size: size?,
        local: Some((local_rank?, local_size?)),
    }))
}

fn env(read: Read<'_>) -> Result<Option<Source>> {
    if read("RANK").is_none() || read("WORLD_SIZE").is_none() {
        return Ok(None);
    }
    let (rank, size) = (required(read, "RANK", "env://")?, required(read, "WORLD_SIZE", "env://")?);
    let local = number(read, "LOCAL_RANK")?.zip(number(read, "LOCAL_WORLD_SIZE")?);
    Ok(Some(Source { launcher: Launcher::Env, rank, size, local }))
}

fn slurm(read: Read<'_>) -> Result<Option<Source>> {
    let (Some(rank), Some(size)) = (number(read, "SLURM_PROCID")?, number(read, "SLURM_STEP_NUM_TASKS")?)
    else {
        return Ok(None);
    };
    if size < 2 {
        return Ok(None); // a batch script, or a single task that starts others
    }
    let local_rank = required(read, "SLURM_LOCALID", "srun")?;
    let local_size = match read("SLURM_STEP_TASKS_PER_NODE") {
        None => size,
        Some(text) => {
            let list = tasks_per_node(&text);
            let list = list
                .ok_or_else(|| wrong(format!("SLURM_STEP_TASKS_PER_NODE={text} is not a list of tasks")))?;
            let node = number(read, "SLURM_NODEID")?.unwrap_or(0);
            *list.get(node).ok_or_else(|| {
                wrong(format!("SLURM_NODEID={node} is not in SLURM_STEP_TASKS_PER_NODE={text}"))
            })?
        }
    };
    Ok(Some(Source { launcher: Launcher::Slurm, rank, size, local: Some((local_rank, local_size)) }))
}

fn open_mpi(read: Read<'_>) -> Result<Option<Source>> {
    if read("OMPI_COMM_WORLD_RANK").is_none() {
        return Ok(None);
    }
    let get = |name| required(read, name, "Open MPI");
    let (rank, size) = (get("OMPI_COMM_WORLD_RANK")?, get("OMPI_COMM_WORLD_SIZE")?);
    let local = (get("OMPI_COMM_WORLD_LOCAL_RANK")?, get("OMPI_COMM_WORLD_LOCAL_SIZE")?);
    Ok(Some(Source { launcher: Launcher::OpenMpi, rank, size, local: Some(local) }))
}

fn mpich(read: Read<'_>) -> Result<Option<Source>> {
    if read("PMI_RANK").is_none() {
        return Ok(None);
    }
    let (rank, size) = (required(read, "PMI_RANK", "MPICH")?, required(read, "PMI_SIZE", "MPICH")?);
    let local = number(read, "MPI_LOCALRANKID")?.zip(number(read, "MPI_LOCALNRANKS")?);
    Ok(Some(Source { launcher: Launcher::Mpich, rank, size, local }))
}

/// The address and port at which the store listens.
fn place(read: Read<'_>, launcher: Launcher, is_one_host: bool) -> Result<(String, u16)> {
    let address = match read("MASTER_ADDR") {
        Some(address) => Some(address),
        None if launcher == Launcher::Slurm => {
            read("SLURM_STEP_NODELIST").map(|list| first_host(&list)).transpose()?
        }
        None if is_one_host && launcher != Launcher::Torchrun => Some("127.0.0.1".to_owned()),
        None => None,
    };
    let port = match read("MASTER_PORT") {
        Some(port) => Some(
            port.parse().map_err(|_| wrong(format!("MASTER_PORT={port} is not a port: use 1 to 65535")))?,
        ),
        None => chosen_port(read, launcher)?,
    };
    let missing = |name: &str| {
        wrong(format!(
            "{launcher}: set {name}: MASTER_ADDR is the host of rank 0, and MASTER_PORT a free port there"
        ))
    };
    Ok((address.ok_or_else(|| missing("MASTER_ADDR"))?, port.ok_or_else(|| missing("MASTER_PORT"))?))
}

/// A port computed from the job's id: all ranks of a job compute the same port, and other jobs on the host most likely
/// compute a different one.
fn chosen_port(read: Read<'_>, launcher: Launcher) -> Result<Option<u16>> {
    let chosen = match launcher {
        Launcher::Slurm => {
            let job = required(read, "SLURM_JOB_ID", "srun")? as u64;
            let step = number(read, "SLURM_STEP_ID")?.unwrap_or(0) as u64;
            job.wrapping_mul(7).wrapping_add(step)
        }
        Launcher::OpenMpi | Launcher::Mpich => match read("PMIX_NAMESPACE").or_else(|| read("PMI_JOBID")) {
            None => return Ok(None),
            Some(name) => fnv(0, name.as_bytes()),
        },
        Launcher::Torchrun | Launcher::Env => return Ok(None),
    };
    Ok(u16::try_from(20_000 + chosen % 20_000).ok())
}

fn first_host(list: &str) -> Result<String> {
    let first = hosts(list).and_then(|hosts| hosts.into_iter().next());
    first.ok_or_else(|| wrong(format!("SLURM_STEP_NODELIST={list} is not a list of hosts")))
}

fn number(read: Read<'_>, name: &str) -> Result<Option<usize>> {
    let parsed = |text: String| text.parse().map_err(|_| wrong(format!("{name}={text} is not a number")));
    read(name).map(parsed).transpose()
}

fn required(read: Read<'_>, name: &str, launcher: &str) -> Result<usize> {
    number(read, name)?
        .ok_or_else(|| wrong(format!("{launcher} started this process, but {name} is not set")))
}

fn wrong(why: String) -> Error {
    Error::Environment(why)
}
