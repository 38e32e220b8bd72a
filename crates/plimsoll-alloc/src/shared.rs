//! The allocator behind a lock: [`DeviceMemory`].
//!
//! All decisions are made in the core. A call here takes the lock, calls the core, and releases the lock. Two kinds of
//! callbacks run with the lock released, so that they may call the allocator: those that can free memory before new
//! device memory is allocated, and those that observe an [`OutOfMemory`]. With `release_lock_on_cudamalloc`, the lock
//! is also released while the device allocates a segment. Where PyTorch has a name for something, that name is used.
//!
//! | file | contents |
//! |---|---|
//! | `device.rs` | the driver, with its own lock |
//! | `redirect.rs`, `locations.rs`, `levels.rs` | which requests go to which pool; places in the program; the last steps |
//! | `state.rs` | the state behind the lock |
//! | `unlocked.rs` | a cache miss with the lock released while a segment is allocated |
//! | `memory.rs` | [`DeviceMemory`]: alloc, free, settings, callbacks |
//! | `pools.rs` | private pools as handles |
//! | `report.rs`, `gauges.rs` | statistics, snapshots and the history; the figures of a live view |

mod device;
mod gauges;
mod levels;
mod locations;
mod memory;
mod pools;
mod redirect;
mod report;
mod state;
mod unlocked;

pub use gauges::Gauges;
pub use memory::DeviceMemory;
pub use pools::{Pool, PoolGuard};
pub use redirect::Redirect;
pub use report::{Callers, Recording};
