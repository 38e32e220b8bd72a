//! The allocator behind a lock: [`DeviceMemory`].
//!
//! The core decides everything; a call here takes the lock, calls the core, and releases the lock. Two kinds
//! of callbacks are called with the lock released, so that they may call the allocator: those that can free
//! memory before the device is asked, and those that observe an [`OutOfMemory`]. With
//! `release_lock_on_cudamalloc`, so is the device when it allocates a segment. Names are PyTorch's where there is one.
//!
//! | file | contents |
//! |---|---|
//! | `device.rs` | the driver, with a lock of its own |
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
