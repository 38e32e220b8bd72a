//! PyTorch's caching allocator as a state machine: requests in, addresses and events out.
//!
//! Nothing here accesses memory, files, threads or clocks. Addresses are numbers that a [`Driver`] returns;
//! the same requests and the same driver results give the same addresses on any machine. Every change is sent
//! to an [`Observer`] as an [`Event`], and all statistics are computed there, outside the placement logic.
//!
//! The files, in the order of a request's path:
//!
//! | file | contents |
//! |---|---|
//! | `request.rs`, `category.rs` | a request ([`Request`], [`Category`]) and its result ([`Allocation`]) |
//! | `config/`, `size.rs`, `bytes.rs` | options and their configuration string, rounding, human-readable sizes |
//! | `allocator.rs` | [`Allocator`]: malloc, free, retag, limits |
//! | `search.rs`, `free_set.rs`, `free_set/` | which cached block serves a request; best-fit order |
//! | `pool.rs`, `block.rs`, `pieces.rs` | the pools and their free sets; the blocks; splitting and merging |
//! | `address.rs` | allocation at a given address; the segment of a block |
//! | `cache_miss.rs` | the steps to get memory when no cached block fits |
//! | `grow.rs`, `expandable.rs` | allocating device memory: by segment, by page |
//! | `release.rs`, `collect.rs` | freeing device memory: on demand, by age (garbage collection) |
//! | `streams.rs`, `capture.rs` | blocks used on several streams, and events; graph captures |
//! | `private.rs`, `segment_allocator.rs` | private pools; private pools with their own segment allocator |
//! | `adopt.rs` | importing state from a recording |
//! | `checkpoint.rs` | saving and restoring a private pool's layout |
//! | `error.rs`, `out_of_memory.rs` | [`Error`]; [`OutOfMemory`] with its figures and the cause |
//! | `driver.rs`, `driver_suite.rs` | the device interface; a test suite for drivers |
//! | `sim.rs`, `limit.rs`, `fail_nth.rs` | the simulated device; wrappers |
//! | `event.rs`, `stats.rs`, `stats/`, `ledger.rs`, `history.rs` | events; statistics; allocations by owner; a ring buffer of events |
//! | `segment.rs`, `explain.rs`, `check.rs` | snapshots of the state; how a request would be served; consistency checks |
//! | `shared.rs`, `shared/`, `lock.rs` | [`DeviceMemory`]: the allocator for many threads; its lock |
//! | `schedules.rs` | tests of the handles under every thread schedule of small programs |
//! | `pinned.rs`, `pinned/` | [`PinnedMemory`]: page-locked host memory, a separate allocator |
//!
//! Note [Differences from PyTorch]: where PyTorch 2.15's order is undefined, ours is ascending: events by
//! stream id, private pools by pool id, segments of a checkpoint by address. Where PyTorch corrupts itself or
//! asserts, ours stays consistent: a piece of a segment is never released, even if `max_split_size` was lowered
//! at run time (`release.rs`); a private pool is removed when it has no segment (`private.rs`), and is
//! not emptied during a capture (`release.rs`). A use on another stream that was recorded before a capture
//! still counts if it is recorded again in the capture (`streams.rs`), also if `graph_capture_record_stream_reuse`
//! finds the uses in the capture done (`capture.rs`); a block used in two captures waits for their end (PyTorch
//! asserts). One difference is deliberate, an option that is off by default: Note [No search after the
//! release] in `cache_miss.rs`.
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

mod address;
mod adopt;
mod allocator;
mod block;
mod bytes;
mod cache_miss;
mod capture;
mod category;
mod check;
mod checkpoint;
mod collect;
mod config;
mod driver;
pub mod driver_suite;
mod error;
mod event;
mod expandable;
mod explain;
mod fail_nth;
mod free_set;
mod grow;
mod history;
mod ledger;
mod limit;
mod lock;
mod out_of_memory;
mod pieces;
mod pinned;
mod pool;
mod private;
mod release;
mod request;
#[cfg(test)]
mod schedules;
mod search;
mod segment;
mod segment_allocator;
mod shared;
mod sim;
mod size;
mod stats;
mod streams;

pub use address::AddressError;
pub use adopt::{AdoptError, Adoption, Piece, PieceState, Waiting};
pub use allocator::{Allocator, CacheLookup, CacheMiss, CallbackResult};
pub use bytes::Bytes;
pub use category::{Category, CategoryBytes};
pub use check::Violation;
pub use checkpoint::{Checkpoint, CheckpointError, Restored};
pub use config::{
    CaptureTest, Config, ConfigError, ConfigProblem, ConfigWarning, InvalidOption, NotApplicable, Parsed,
    PinnedConfig, Reserve, RoundupRest, Setting, TieOrder, WarningKind,
};
pub use driver::{Captured, Driver, DriverError, EventId, MemoryInfo, NodeId};
pub use error::Error;
pub use event::{DeviceRange, Event, LiveBlock, Observer, SplitChange};
pub use explain::{Candidate, Explanation, Verdict};
pub use fail_nth::FailNth;
pub use history::{Action, Clock, Entry, History, HistoryOptions};
pub use ledger::{Ledger, Owner};
pub use limit::Limit;
pub use out_of_memory::{Conclusion, OutOfMemory};
pub use pinned::{
    DeviceStream, DurationStat, During, PinnedAllocation, PinnedAllocator, PinnedDriver, PinnedError,
    PinnedEvent, PinnedMemory, PinnedObserver, PinnedRequest, PinnedSegment, PinnedState, PinnedStats,
    SimHost, Timed,
};
pub use pool::PoolKind;
pub use private::PoolError;
pub use request::{Addr, Allocation, LabelId, PoolId, Request, StackId, StreamId, Tag};
pub use segment::{BlockState, CacheInfo, Segment, SegmentBlock};
pub use segment_allocator::SegmentAllocator;
pub use shared::{Callers, DeviceMemory, Gauges, Pool, PoolGuard, Recording, Redirect};
pub use sim::{Sim, SimDriver};
pub use stats::{PoolStats, Stat, Stats};
