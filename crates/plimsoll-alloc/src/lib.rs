//! PyTorch's caching allocator as a state machine: requests in, addresses and events out.
//!
//! Nothing here accesses memory, files, threads or clocks. Addresses are numbers that a [`Driver`] returns;
//! the same requests and the same driver results give the same addresses on any machine. Every change is sent
//! to an [`Observer`] as an [`Event`], and all statistics are computed there, outside the placement logic.
//!
//! The files, from the bottom up; a file uses only those above it:
//!
//! | file | contents |
//! |---|---|
//! | `category.rs`, `request.rs`, `bytes.rs` | a request ([`Request`], [`Category`]); human-readable sizes |
//! | `size.rs`, `config/`, `rounding.rs` | fixed sizes; the options and their configuration string; rounding |
//! | `driver.rs`, `driver_suite.rs` | the device interface; a test suite for drivers |
//! | `limit.rs`, `sim.rs`, `fail_nth.rs` | the simulated device; wrappers |
//! | `event.rs` | events, and the interface of those that observe them |
//! | `out_of_memory.rs`, `error.rs` | [`OutOfMemory`] with its figures and the cause; [`Error`] |
//! | `segment.rs`, `violation.rs` | a snapshot of the state; a broken invariant |
//! | `stats.rs`, `stats/`, `ledger.rs`, `history.rs` | statistics; allocations by owner; a ring buffer of events |
//! | `check.rs` | consistency checks of the statistics |
//! | `stream_uses.rs`, `ranges.rs` | uses of blocks on other streams; address space of expandable segments |
//! | `block.rs`, `allocation.rs` | the blocks; the caller's handle to an allocated block ([`Allocation`]) |
//! | `adopt.rs` | a segment of a recording, for an import |
//! | `free_set.rs`, `free_set/` | cached blocks in best-fit order |
//! | `pools.rs`, `pools/` | the pools: which cached block serves a request, splitting and merging, pages |
//! | `explain.rs` | how a request would be served |
//! | `heap.rs` | the pools, the reserved bytes, and the events of their changes |
//! | `checkpoint.rs` | saving and restoring a private pool's layout |
//! | `private.rs`, `segment_allocator.rs` | private pools; private pools with their own segment allocator |
//! | `memory_limit.rs` | the limit on the reserved bytes |
//! | `source.rs`, `source/` | device memory: expandable segments, releasing, garbage collection |
//! | `capture.rs`, `pending.rs`, `pending/` | graph captures; freed blocks that wait for other streams, and events |
//! | `packed.rs`, `packed/` | [`PackedAllocator`]: another policy, which stitches blocks from pages |
//! | `allocator.rs`, `allocator/` | [`Allocator`]: combines the parts above; the calls that it offers |
//! | `lock.rs`, `shared.rs`, `shared/` | [`DeviceMemory`]: the allocator for many threads; its lock |
//! | `pinned.rs`, `pinned/` | [`PinnedMemory`]: page-locked host memory, a separate allocator |
//! | `schedules.rs` | tests of the handles under every thread schedule of small programs |
//!
//! A request's path: `allocator.rs` rounds it and asks `pools/search.rs` for a cached block; `heap.rs` allocates that block
//! and sends the event. If none fits, `allocator/cache_miss.rs` has the steps to get memory, from `source.rs`.
//!
//! Note [Differences from PyTorch]: where PyTorch 2.15's order is undefined, ours is ascending: events by stream id,
//! private pools by pool id, segments of a checkpoint by address. In some cases PyTorch corrupts its state or asserts,
//! and ours stays consistent. A piece of a segment is never released, even if `max_split_size` was lowered at run time
//! (`source/release.rs`). A private pool is removed when it has no segment (`private.rs`), and is not emptied during a
//! capture (`allocator/release.rs`). A use on another stream that was recorded before a capture still counts if it is
//! recorded again in the capture (`stream_uses.rs`), even if `graph_capture_record_stream_reuse` finds that the uses in
//! the capture are done (`pending.rs`). A block used in two captures waits for the end of both (PyTorch asserts). One
//! difference is deliberate, and behind an option that is off by default: Note [No search after the release] in
//! `allocator/cache_miss.rs`.
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

mod adopt;
mod allocation;
mod allocator;
mod block;
mod bytes;
mod capture;
mod category;
mod check;
mod checkpoint;
mod config;
mod driver;
pub mod driver_suite;
mod error;
mod event;
mod explain;
mod fail_nth;
mod free_set;
mod heap;
mod history;
mod ledger;
mod limit;
mod lock;
mod memory_limit;
mod out_of_memory;
mod packed;
mod pending;
mod pinned;
mod pools;
mod private;
mod ranges;
mod request;
mod rounding;
#[cfg(test)]
mod schedules;
mod segment;
mod segment_allocator;
mod shared;
mod sim;
mod size;
mod source;
mod stats;
mod stream_uses;
mod violation;

pub use adopt::{AdoptError, Adoption, Piece, PieceState, Waiting};
pub use allocation::Allocation;
pub use allocator::{Allocator, CacheLookup, CacheMiss, CallbackResult};
pub use bytes::Bytes;
pub use category::{Category, CategoryBytes};
pub use checkpoint::{Checkpoint, Restored};
pub use config::{
    CaptureTest, Config, ConfigError, ConfigProblem, ConfigWarning, InvalidOption, NotApplicable, Parsed,
    PinnedConfig, Reserve, RoundupRest, Setting, TieOrder, WarningKind,
};
pub use driver::{Captured, Driver, DriverError, EventId, MemoryInfo, NodeId};
pub use error::{AddressError, CheckpointError, Error, PoolError};
pub use event::{DeviceRange, Event, LiveBlock, Observer, SplitChange};
pub use explain::{Candidate, Explanation, Verdict};
pub use fail_nth::FailNth;
pub use history::{Action, Clock, Entry, History, HistoryOptions};
pub use ledger::{Ledger, Owner};
pub use limit::Limit;
pub use out_of_memory::{Conclusion, OutOfMemory};
pub use packed::{PackedAllocation, PackedAllocator, PackedCalls, PackedWaiting};
pub use pinned::{
    DeviceStream, DurationStat, During, PinnedAllocation, PinnedAllocator, PinnedDriver, PinnedError,
    PinnedEvent, PinnedMemory, PinnedObserver, PinnedRequest, PinnedSegment, PinnedState, PinnedStats,
    SimHost, Timed,
};
pub use request::{Addr, LabelId, PoolId, Request, StackId, StreamId, Tag};
pub use segment::{BlockState, CacheInfo, Segment, SegmentBlock};
pub use segment_allocator::SegmentAllocator;
pub use shared::{Callers, DeviceMemory, Gauges, Pool, PoolGuard, Recording, Redirect};
pub use sim::{Sim, SimDriver};
pub use size::PoolKind;
pub use stats::{PoolStats, Stat, Stats};
pub use violation::Violation;
