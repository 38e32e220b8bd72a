//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod origin;

pub use origin::{Doing, Name, Origin, Origins};
