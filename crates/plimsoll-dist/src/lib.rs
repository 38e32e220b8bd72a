//! Processes that train together, without tensors: how each learns its rank, finds the others, exchanges bytes with them, and
//! is told when one of them dies.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `record.rs` | one collective, and a record of the last ones: [`Call`], [`Record`] |
//! | `error.rs` | what can go wrong: [`Error`], and the rank that is lost: [`Lost`] |
//! | `nodelist.rs` | SLURM's lists of hosts and of tasks |
//! | `environment.rs` | which rank this process is, by the variables of its launcher: [`Environment`] |
//! | `store/` | PyTorch's TCPStore: [`store::Server`] and [`store::Client`] |
//! | `monitor.rs` | whether all ranks are alive: [`Health`] |
//! | `transport/` | how bytes get from rank to rank: [`Transport`] |
//! | `communicator.rs` | collectives of bytes: [`Communicator`] |
//! | `world.rs` | joins the other ranks and connects to them: [`World`] |
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
