//! Converts PyTorch's dictionaries to a snapshot, and a snapshot to these dictionaries.
//!
//! The pickle machine and `json.rs` pass values on as they read them. [`Objects`] turns the values into records with
//! the fields in `fields.rs` (`forward.rs` reads the fields of anomaly mode), and `assemble.rs` builds the
//! [`Snapshot`]. `write.rs` writes a snapshot.

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

/// Reads a pickle to its end. `grant` limits the memory for reading.
///
/// # Errors
/// If the input is not a pickled snapshot; the error has the offset.
pub(crate) fn read(input: impl Read, grant: &Grant) -> Result<Snapshot, SnapshotError> {
    let mut objects = Objects::new(grant).map_err(|why| SnapshotError { at: None, why })?;
    let read = pickle::read(input, &mut objects);
    let made = read.and_then(|(end, top)| objects.assemble(top).map_err(|why| (end, why)));
    made.map_err(|(at, why)| SnapshotError::at(at, why))
}
