//! Pinned host memory: page-locked buffers that a device copies to and from asynchronously.
//!
//! Pinning is slow and copies are asynchronous, so freed blocks are cached, and a block is reused only when
//! the events recorded at its free are done on every stream that used it. Blocks are never split or
//! merged. Like the device allocator, this one never accesses memory: addresses are numbers from a [`PinnedDriver`],
//! and events go to a [`PinnedObserver`]. In PyTorch: `CachingHostAllocatorImpl`.
//!
//! | file | contents |
//! |---|---|
//! | `request.rs` | a request ([`PinnedRequest`]) and its result ([`PinnedAllocation`]) |
//! | `allocator.rs` | [`PinnedAllocator`]: its state |
//! | `polling.rs` | freeing a block: its events, the cache, the system |
//! | `serving.rs` | serving a request |
//! | `block.rs`, `pool.rs`, `size.rs` | a block's states; buckets and pending events; rounding |
//! | `captures.rs` | pools that graph captures own |
//! | `reserve.rs` | the segment that is pinned up front |
//! | `driver.rs`, `sim.rs` | the host interface; a simulated host |
//! | `event.rs`, `stats.rs` | events; PyTorch's 28 statistics |
//! | `segment.rs`, `check.rs` | snapshots of the state; consistency checks |
//! | `error.rs`, `memory.rs` | errors; [`PinnedMemory`], the allocator behind a lock |
//!
//! The options are [`PinnedConfig`](crate::PinnedConfig). `use_background_threads` has no effect (there is no
//! background thread; events are polled at each request). The driver and its caller decide what
//! `use_cuda_host_register`, `num_register_threads` and `free_catch_all` do.

mod allocator;
mod block;
mod captures;
mod check;
mod driver;
mod error;
mod event;
mod memory;
mod polling;
mod pool;
mod request;
mod reserve;
mod segment;
mod serving;
mod sim;
mod size;
mod stats;

pub use allocator::PinnedAllocator;
pub use driver::{PinnedDriver, Timed};
pub use error::PinnedError;
pub use event::{PinnedEvent, PinnedObserver};
pub use memory::PinnedMemory;
pub use request::{DeviceStream, During, PinnedAllocation, PinnedRequest};
pub use segment::{PinnedSegment, PinnedState};
pub use sim::SimHost;
pub use stats::{DurationStat, PinnedStats};
