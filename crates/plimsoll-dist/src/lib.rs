//! Processes that train together, below tensors: who they are, how they meet, how bytes get from one to the other, and what
//! they learn when one of them dies.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `record.rs` | a collective, and the last ones: [`Call`], [`Record`] |
//! | `error.rs` | what can go wrong: [`Error`], and the rank that is lost: [`Lost`] |
//! | `nodelist.rs` | SLURM's lists of hosts and of tasks |
//! | `environment.rs` | which rank this process is, by the variables of its launcher: [`Environment`] |
//! | `store/` | PyTorch's TCPStore: [`store::Server`] and [`store::Client`] |
//! | `monitor.rs` | whether all ranks live: [`Health`] |
//! | `transport/` | how bytes get from rank to rank: [`Transport`] |
//! | `communicator.rs` | collectives of bytes: [`Communicator`] |
//! | `world.rs` | all ranks, met and connected: [`World`] |
//!
//! The words are PyTorch's and MPI's: a *rank* is one process (in tests, one thread), the *world* all of them, a *collective* a
//! call that every rank makes.

#![forbid(unsafe_code)]

mod communicator;
mod environment;
mod error;
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
