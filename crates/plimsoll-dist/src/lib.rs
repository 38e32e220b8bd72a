//! Processes that train together: how each process finds its rank, how processes connect and exchange bytes, and how all of
//! them learn that one has died. This crate works on bytes; tensors are in `plimsoll-tensor`.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `record.rs` | a collective call, and the record of the latest ones: [`Call`], [`Record`] |
//! | `error.rs` | the errors: [`Error`]; a rank that is lost: [`Lost`] |
//! | `nodelist.rs` | parsing SLURM's lists of hosts and of tasks per node |
//! | `environment.rs` | the rank of this process, from the variables of its launcher: [`Environment`] |
//! | `store/` | PyTorch's TCPStore: [`store::Server`] and [`store::Client`] |
//! | `monitor.rs` | checks whether all ranks are alive: [`Health`] |
//! | `links.rs` | connections between pairs of ranks |
//! | `transport/` | sends bytes from rank to rank: [`Transport`] |
//! | `communicator.rs` | collectives of bytes: [`Communicator`] |
//! | `world.rs` | all ranks of a job, connected: [`World`] |
//!
//! The terms are PyTorch's and MPI's: a *rank* is one process (in tests, one thread), the *world* is all ranks together, and a
//! *collective* is a call that every rank makes.

#![forbid(unsafe_code)]

mod communicator;
mod environment;
mod error;
mod links;
mod monitor;
mod nodelist;
mod record;
pub mod store;
pub mod transport;
mod world;

pub use communicator::Communicator;
pub use environment::{Environment, Launcher, StoreHost};
pub use error::{Error, Lost, Result};
pub use monitor::{Health, Member};
pub use nodelist::{hosts, tasks_per_node};
pub use record::{Call, Content, Op, Record};
pub use transport::Transport;
pub use world::{JoinOptions, World};
