//! PyTorch's caching allocator as a pure state machine: requests in, addresses and events out.
//!
//! Nothing here touches memory, files, threads or time. Addresses are numbers that a [`Driver`] hands out;
//! the same requests and the same driver answers give the same addresses on any machine. What happened is
//! told to an [`Observer`] as [`Event`]s, and all statistics are computed there, outside the placement logic.
//!
//! Where to look, from a request's way through the house:
//!
//! | file | what it holds |
//! |---|---|
//! | `request.rs`, `category.rs` | what is asked ([`Request`], [`Category`]) and what is answered ([`Allocation`]) |
//! | `config.rs`, `size.rs`, `bytes.rs` | options, rounding, sizes for people to read |
//! | `allocator.rs` | [`Allocator`]: malloc, free, retag, limits |
//! | `pool.rs`, `block.rs`, `free_set.rs` | best fit, split and merge; the blocks; the order of the cached ones |
//! | `ladder.rs` | what happens when no cached block fits: the device, the release, the retry, the refusal |
//! | `error.rs` | [`Error`] and [`OutOfMemory`], which carries its numbers |
//! | `driver.rs`, `sim.rs`, `limit.rs`, `fail_nth.rs` | the device seam, the simulated device, wrappers |
//! | `event.rs`, `stats.rs`, `stats/`, `ledger.rs` | what happened, PyTorch's statistics, bytes by owner |
//! | `segment.rs`, `check.rs` | a picture of the state, and whether it is sound |
//! | `shared.rs`, `lock.rs` | [`DeviceMemory`]: the allocator for many threads; its one lock |
//!
//! ```
//! use plimsoll_alloc::{Allocator, Config, Request, SimDriver, Stats};
//!
//! let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Stats::default());
//! let x = allocator.malloc(Request::of(3 << 20))?;
//! assert_eq!((x.bytes(), allocator.reserved()), (3 << 20, 20 << 20)); // cut from a 20 MiB segment
//! allocator.free(x);
//! assert_eq!(allocator.observer().memory_stats()["allocated_bytes.all.peak"], 3 << 20);
//! # Ok::<(), plimsoll_alloc::Error>(())
//! ```

#![forbid(unsafe_code)]

mod allocator;
mod block;
mod bytes;
mod category;
mod check;
mod config;
mod driver;
mod error;
mod event;
mod fail_nth;
mod free_set;
mod ladder;
mod ledger;
mod limit;
mod lock;
mod pool;
mod request;
mod segment;
mod shared;
mod sim;
mod size;
mod stats;

pub use allocator::Allocator;
pub use bytes::Bytes;
pub use category::{Category, CategoryBytes};
pub use check::Violation;
pub use config::Config;
pub use driver::{Driver, DriverError, MemoryInfo};
pub use error::{Error, OutOfMemory};
pub use event::{Event, LiveBlock, Observer, SplitChange};
pub use fail_nth::FailNth;
pub use ledger::{Ledger, Owner};
pub use limit::Limit;
pub use pool::PoolKind;
pub use request::{Addr, Allocation, LabelId, Request, StreamId, Tag};
pub use segment::{BlockState, Segment, SegmentBlock};
pub use shared::DeviceMemory;
pub use sim::{Sim, SimDriver};
pub use stats::{PoolStats, Stat, Stats};
