//! Storages that own no memory and use the memory of another storage: a *window* always does, a *lent* storage only while
//! operations read it.
//!
//! A lent storage holds values that are gathered from the rows of several ranks. It has no memory until an operation reads it.
//! Then its source gathers the values and returns the storage that contains them. It loses this memory when the memory is taken
//! back, or when this rank's rows change.

use std::sync::atomic::Ordering;

use plimsoll_alloc::Tag;

use super::{AWAY, Held, Lent, Source, Storage, WeakStorage};
use crate::error::{Error, Result};

impl Storage {
    /// A storage of `bytes`, gathered by `source` from these rows and those of other ranks.
    ///
    /// # Errors
    /// Another storage is already gathered from these rows.
    pub(crate) fn lent(rows: &Storage, bytes: u64, tag: Tag, source: Source) -> Result<Storage> {
        let storage = Storage::new(rows.device(), bytes, AWAY, rows.stream(), tag, Held::Lent);
        if rows.0.gathered.set(storage.downgrade()).is_err() {
            let message = "another tensor is already gathered from these rows";
            return Err(Error::argument("lent", message));
        }
        let lent = Lent { source, rows: rows.clone() };
        let _ = storage.0.lent.set(lent); // it was just made
        Ok(storage)
    }

    /// A storage that uses `bytes` of this one's memory from `start`. Both must not be used at the same time.
    ///
    /// # Errors
    /// This storage cannot be brought back to its device.
    pub(crate) fn window(&self, start: u64, bytes: u64) -> Result<Storage> {
        let guard = self.guard("window")?;
        let address = self.0.address.load(Ordering::Acquire) + start;
        let (device, stream) = (&self.0.device, self.stream());
        Ok(Storage::new(device, bytes, address, stream, self.tag(), Held::Borrowed(guard)))
    }

    /// Whether the storage is gathered from the rows of several ranks.
    pub(crate) fn is_lent(&self) -> bool {
        self.0.lent.get().is_some()
    }

    /// Whether a lent storage is gathered from these bytes.
    pub(crate) fn is_gathered(&self) -> bool {
        self.0.gathered.get().is_some()
    }

    /// The id of the lent storage that is gathered from these bytes, if any.
    pub(crate) fn gathered_id(&self) -> Option<usize> {
        self.0.gathered.get().map(WeakStorage::id)
    }

    /// # Errors
    /// It is lent: a change would be lost when the memory is taken back.
    pub(crate) fn may_be_written(&self, op: &'static str) -> Result<()> {
        if !self.is_lent() {
            return Ok(());
        }
        let message = "a complete parameter of a sharded model is read-only: change this rank's rows, which \
                       `FullyShardedDataParallel::parameters` returns";
        Err(Error::argument(op, message))
    }
}
