//! Pinned host memory: page-locked staging buffers, which a device copies from and to while the host goes on.
//!
//! Pinning is slow and copies are asynchronous, so freed blocks are kept, and one is used again only when
//! every stream that was told to use it has passed the event recorded at its free. Blocks are never split or
//! merged. As the device allocator, this one never touches memory: addresses are numbers of a [`HostDriver`],
//! and what happened is told to a [`PinnedObserver`]. As PyTorch: `CachingHostAllocatorImpl`.
//!
//! | file | what it holds |
//! |---|---|
//! | `request.rs` | what is asked ([`PinnedRequest`]) and what is answered ([`PinnedAllocation`]) |
//! | `allocator.rs` | [`PinnedAllocator`]: alloc, record_event, free |
//! | `polling.rs` | where a block that was given back goes: its events, the cache, the system |
//! | `block.rs`, `pool.rs`, `size.rs` | a block's life; buckets and waiting events; rounding |
//! | `captures.rs` | pools that graph captures own |
//! | `reserve.rs` | the segment that is pinned up front |
//! | `driver.rs`, `sim.rs` | the seam, and a simulated host |
//! | `event.rs`, `stats.rs` | what happened, PyTorch's 28 statistics |
//! | `segment.rs`, `check.rs` | a picture of the state, and whether it is sound |
//! | `error.rs`, `memory.rs` | what can go wrong; [`PinnedMemory`], the allocator behind a lock |
//!
//! The options are [`PinnedConfig`](crate::PinnedConfig). Of these, `use_background_threads` does not apply
//! (no thread lives here; events are polled at each request), and `use_cuda_host_register`,
//! `num_register_threads` and `free_catch_all` are for the driver and its caller to heed.

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
mod sim;
mod size;
mod stats;

pub use allocator::PinnedAllocator;
pub use driver::{HostDriver, Timed};
pub use error::PinnedError;
pub use event::{PinnedEvent, PinnedObserver};
pub use memory::PinnedMemory;
pub use request::{DeviceStream, During, PinnedAllocation, PinnedRequest};
pub use segment::{PinnedSegment, PinnedState};
pub use sim::SimHost;
pub use stats::{DurationStat, PinnedStats};
