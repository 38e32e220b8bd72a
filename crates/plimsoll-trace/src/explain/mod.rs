//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod device;
mod failure;
mod holders;
mod origin;
mod passes;
mod purpose;

pub use device::DeviceExplanation;
pub use failure::{Cause, Failure};
pub use holders::{Holders, Line, Purposed, Share};
pub use origin::{Doing, Name, Origin, Origins};
pub use passes::{Pass, PassKind, Passes};
pub use purpose::{Purpose, Purposes, Why};
