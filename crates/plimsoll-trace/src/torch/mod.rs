//! The meaning of PyTorch's dictionaries.
//!
//! The pickle machine and `json.rs` pass values on as they read them; [`Objects`] turns them into records
//! with the fields of `fields.rs` (`forward.rs` reads those of anomaly mode); `assemble.rs` builds the [`Snapshot`]. `write.rs` writes one.

mod assemble;
mod fields;
mod forward;
pub(crate) mod objects;
pub(crate) mod value;
mod write;

use std::io::Read;

use self::objects::Objects;
use crate::error::SnapshotError;
use crate::grant::Grant;
use crate::pickle;
use crate::snapshot::Snapshot;
pub use write::Sharing;
pub(crate) use write::write;

/// Reads a pickle to its end. `grant` bounds the memory it may use.
///
/// # Errors
/// Anything that is not a pickled snapshot, with its offset.
pub(crate) fn read(input: impl Read, grant: &Grant) -> Result<Snapshot, SnapshotError> {
    let mut objects = Objects::new(grant).map_err(|why| SnapshotError { at: None, why })?;
    let read = pickle::read(input, &mut objects);
    let made = read.and_then(|(end, top)| objects.assemble(top).map_err(|why| (end, why)));
    made.map_err(|(at, why)| SnapshotError::at(at, why))
}
