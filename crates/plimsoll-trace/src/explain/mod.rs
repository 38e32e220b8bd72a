//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod cached;
mod compare;
mod device;
mod fragmentation;
mod holders;
pub mod leaks;
mod ledger;
mod lines;
mod modules;
mod origin;
mod passes;
mod purpose;
mod quality;
mod ranks;
mod sizes;
mod state;
mod steps;

pub use crate::failure::{Cause, Failure, Limit};
pub use cached::CachedBytes;
pub use compare::{Amount, Change, ChangedLine, Comparison, Totals};
pub use device::{DeviceExplanation, Options};
pub use fragmentation::{Fragmentation, Holder, Holes, Known, Pin, PoolOfHoles};
pub use holders::{Holders, Line, Purposed, Share};
pub use leaks::Leaks;
pub use ledger::{DeviceBytes, Ledger, Part, Row};
pub use origin::{Doing, Name, Origin, Origins};
pub(crate) use origin::{is_library, is_python};
pub use passes::{Pass, PassKind, Passes};
pub use purpose::{Purpose, Purposes, Why};
pub use quality::{DataQuality, Missing, NoStack, Stackless};
pub use ranks::{Across, LineAcross, Place, Rank, Ranks};
pub use state::{BytesByUse, Piece, SegmentState, State, States, Use};
pub use steps::{Source, Steps};
