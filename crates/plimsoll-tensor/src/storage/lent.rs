//! Storages without memory of their own. They use the memory of another storage: a *window* always, a *lent* storage only while
//! operations read it.
//!
//! A lent storage holds values that are gathered from the rows of several ranks. It is away until an operation reads it. Then its
//! source gathers the values and returns the storage that has them. It goes away again when it is taken back, or when this rank's
//! rows change.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use plimsoll_alloc::{Addr, Tag};

use super::backing::Backing;
use super::moves::Restoring;
use super::{AWAY, Storage};
use crate::error::{Error, Result};

/// Gathers the bytes of a lent storage. Returns the storage that has them.
pub(crate) type Source = Arc<dyn Fn() -> Result<Storage> + Send + Sync>;

/// What a lent storage is gathered from.
pub(super) struct Lent {
    source: Source,
    /// This rank's part.
    rows: Storage,
}

impl Storage {
    /// A storage of `bytes`, gathered by `source` from these rows and those of other ranks.
    ///
    /// # Errors
    /// Another storage is already gathered from these rows.
    pub(crate) fn lent(rows: &Storage, bytes: u64, tag: Tag, source: Source) -> Result<Storage> {
        let storage = Storage::new(rows.device(), bytes, AWAY, rows.stream(), tag, Backing::Lent);
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
        Ok(Storage::new(device, bytes, address, stream, self.tag(), Backing::Borrowed(guard)))
    }

    /// Whether it is gathered from the rows of several ranks.
    pub(crate) fn is_lent(&self) -> bool {
        self.0.lent.get().is_some()
    }

    /// Whether a lent storage is gathered from these bytes.
    pub(crate) fn is_gathered(&self) -> bool {
        self.0.gathered.get().is_some()
    }

    /// The rows of this rank that a lent storage is gathered from.
    pub(super) fn rows(&self) -> Option<&Storage> {
        self.0.lent.get().map(|lent| &lent.rows)
    }

    /// Gathers the bytes of a lent storage.
    pub(super) fn gather(&self) -> Result<()> {
        let Some(lent) = self.0.lent.get() else { unreachable!("only a lent storage has this backing") };
        let _once = Restoring::begin(self)?;
        let slot = (lent.source)()?;
        if slot.bytes() < self.bytes() || slot.device() != self.device() {
            let (bytes, needed) = (slot.bytes(), self.bytes());
            let message = format!("its source gave {bytes} bytes, not {needed} on the same device");
            return Err(Error::argument("lent", message));
        }
        let guard = slot.guard("lent")?;
        let at = Addr(slot.0.address.load(Ordering::Acquire));
        self.settle(Backing::Borrowed(guard), at, slot.stream(), |backing| matches!(backing, Backing::Lent));
        Ok(())
    }

    /// Takes the memory from a lent storage, whose next reader gathers the bytes again. Returns false, and does nothing, if an
    /// operation is about to read it.
    pub(crate) fn take_back(&self) -> bool {
        let writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let mut account = self.account();
        let taken = match account.backing {
            Backing::Borrowed(_) if account.guards == 0 => {
                self.0.address.store(AWAY, Ordering::Release);
                std::mem::replace(&mut account.backing, Backing::Lent)
            }
            Backing::Lent => Backing::Lent,
            _ => return false,
        };
        drop((account, writing));
        taken.free(&self.0.device);
        true
    }

    /// # Errors
    /// It is lent: a change would be lost when the memory is taken back.
    pub(crate) fn may_be_written(&self, op: &'static str) -> Result<()> {
        if !self.is_lent() {
            return Ok(());
        }
        let message = "a whole parameter of a sharded model is only read: change this rank's rows, which \
                       `FullyShardedDataParallel::parameters` returns";
        Err(Error::argument(op, message))
    }
}
