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
//! | `config/`, `size.rs`, `bytes.rs` | options and their configuration string, rounding, sizes for people to read |
//! | `allocator.rs` | [`Allocator`]: malloc, free, retag, limits |
//! | `search.rs`, `free_set.rs`, `free_set/` | which cached block serves a request; the order in which they are tried |
//! | `pool.rs`, `block.rs`, `pieces.rs` | the pools and their sets; the blocks; how they are cut and merged |
//! | `address.rs` | memory at a given address; the segment around a block |
//! | `ladder.rs` | what is tried, in which order, when no cached block fits |
//! | `grow.rs`, `expandable.rs` | memory from the device: by the segment, by the page |
//! | `release.rs`, `collect.rs` | memory back to the device: on demand, by age |
//! | `streams.rs`, `capture.rs` | blocks that several streams use, and events; what a capture changes |
//! | `private.rs`, `segment_allocator.rs` | private pools; those with a source of segments of their own |
//! | `adopt.rs` | state taken over from a recording |
//! | `checkpoint.rs` | a private pool's layout, taken down and brought back |
//! | `error.rs`, `out_of_memory.rs` | [`Error`]; [`OutOfMemory`] with its numbers and what follows from them |
//! | `driver.rs`, `driver_suite.rs` | the device seam; what every driver must do, for drivers' tests |
//! | `sim.rs`, `limit.rs`, `fail_nth.rs` | the simulated device, wrappers |
//! | `event.rs`, `stats.rs`, `stats/`, `ledger.rs`, `history.rs` | what happened: counted, by owner, kept in a ring |
//! | `segment.rs`, `explain.rs`, `check.rs` | a picture of the state, why it would answer so, whether it is sound |
//! | `shared.rs`, `shared/`, `lock.rs` | [`DeviceMemory`]: the allocator for many threads; its one lock |
//! | `schedules.rs` | the handles under every schedule of small programs (tests) |
//! | `pinned.rs`, `pinned/` | [`PinnedMemory`]: page-locked staging memory of the host, an allocator of its own |
//!
//! Note [Differences from PyTorch]: where PyTorch 2.15 has no defined order, ours is ascending: events by
//! stream id, private pools by pool id, segments of a checkpoint by address. Where PyTorch corrupts itself or
//! asserts, ours stays sound: a piece of a segment is never released, although `max_split_size` was lowered
//! at run time (`release.rs`); a private pool is forgotten when it holds no segment (`private.rs`), and is
//! not emptied during a capture (`release.rs`). A use on another stream that was recorded before a capture
//! still counts if it is recorded again within (`streams.rs`), also where `graph_capture_record_stream_reuse`
//! finds the uses within past (`capture.rs`); a block used in two captures waits for their end (PyTorch
//! asserts). And one is deliberate, an option that is off by default: Note [No search after the
//! release] in `ladder.rs`.
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
mod ladder;
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
pub use allocator::{Allocator, GivenBack, Step, Unserved};
pub use bytes::Bytes;
pub use category::{Category, CategoryBytes};
pub use check::Violation;
pub use checkpoint::{Checkpoint, CheckpointError, Restored};
pub use config::{
    CaptureTest, Config, ConfigError, ConfigProblem, ConfigWarning, InvalidOption, NotApplicable, Parsed,
    PinnedConfig, Reserve, RoundupRest, Setting, Slip, TieOrder,
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
    DeviceStream, DurationStat, During, HostDriver, PinnedAllocation, PinnedAllocator, PinnedError,
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
