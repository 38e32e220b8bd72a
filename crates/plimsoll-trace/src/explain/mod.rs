//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod origin;
mod passes;
mod purpose;
mod state;

pub use origin::{Doing, Name, Origin, Origins};
pub use passes::{Pass, PassKind, Passes};
pub use purpose::{Purpose, Purposes, Why};
pub use state::{BytesByUse, Piece, SegmentState, State, States, Use};
