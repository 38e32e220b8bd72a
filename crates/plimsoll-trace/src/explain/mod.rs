//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod cached;
mod fragmentation;
mod ledger;
mod origin;
mod passes;
mod purpose;
mod state;

pub use cached::CachedBytes;
pub use fragmentation::{Fragmentation, Holder, Holes, Known, Pin, PoolOfHoles};
pub use ledger::{DeviceBytes, Ledger, Part, Row};
pub use origin::{Doing, Name, Origin, Origins};
pub use passes::{Pass, PassKind, Passes};
pub use purpose::{Purpose, Purposes, Why};
pub use state::{BytesByUse, Piece, SegmentState, State, States, Use};
