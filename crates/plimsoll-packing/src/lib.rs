//! Offline dynamic storage allocation: offsets for buffers with known lifetimes ([`pack`]).
//!
//! Each [`Buffer`] has a lifetime and a size. Buffers that are alive at the same time must not overlap, and the arena
//! that contains all of them should be as small as possible. It cannot be smaller than the maximum number of live
//! bytes, the [`lower_bound`]. The problem is NP-hard; for up to a few thousand buffers, the result is often optimal.
//!
//! The crate has no clock, no threads, no randomness and no hash tables: the same buffers get the same offsets on any machine.
//!
//! The files, from the bottom up; a file uses only those above it:
//!
//! | file | contents |
//! |---|---|
//! | `error.rs` | [`Error`]: buffers that cannot be packed, and packings that are wrong |
//! | `buffer.rs` | [`Buffer`], the checks of a list of buffers, [`lower_bound`] |
//! | `packing.rs` | [`Packing`], the result, and its check |
//! | `sections.rs` | time as a list of largest sets of buffers that are alive together |
//! | `order.rs` | the orders in which buffers are placed |
//! | `first_fit.rs` | the lowest free offset for one buffer after the other |
//! | `search.rs`, `search/` | the exact search for a packing within a capacity |
//! | `pack.rs` | [`pack`], [`pack_within`] and their [`Effort`] |
//!
//! ```
//! use plimsoll_packing::{Buffer, Effort, lower_bound, pack};
//!
//! // The second buffer is alive with each of the others, which may share their bytes.
//! let buffers = [
//!     Buffer { lower: 0, upper: 3, size: 1024 },
//!     Buffer { lower: 2, upper: 6, size: 512 },
//!     Buffer { lower: 4, upper: 8, size: 1024 },
//! ];
//! let packing = pack(&buffers, Effort::default())?;
//! assert_eq!(packing.bytes, lower_bound(&buffers)?);
//! assert_eq!(packing.offsets, [512, 0, 512]);
//! # Ok::<(), plimsoll_packing::Error>(())
//! ```

#![forbid(unsafe_code)]

mod buffer;
mod error;
mod first_fit;
mod order;
mod pack;
mod packing;
mod search;
mod sections;

pub use buffer::{Buffer, lower_bound, peak};
pub use error::Error;
pub use pack::{Effort, pack, pack_within};
pub use packing::Packing;
