//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod cached;
mod device;
mod failure;
mod fragmentation;
mod holders;
mod ledger;
mod origin;
mod passes;
mod purpose;
mod state;

pub use cached::CachedBytes;
pub use device::{DeviceExplanation, Options};
pub use failure::{Cause, Failure};
pub use fragmentation::{Fragmentation, Holder, Holes, Known, Pin, PoolOfHoles};
pub use holders::{Holders, Line, Purposed, Share};
pub use ledger::{DeviceBytes, Ledger, Part, Row};
pub use origin::{Doing, Name, Origin, Origins};
pub(crate) use origin::{is_library, is_python};
pub use passes::{Pass, PassKind, Passes};
pub use purpose::{Purpose, Purposes, Why};
pub use state::{BytesByUse, Piece, SegmentState, State, States, Use};
