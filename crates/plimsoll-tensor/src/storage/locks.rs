//! The locks of all storages of one operation. Addresses are read only under these locks.
//!
//! [`Locks::take`] first brings back bytes that are not on their device, with no lock held, and keeps them there
//! until the locks are dropped. Storages that are on their device cost only their lock.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_alloc::Addr;
use smallvec::SmallVec;

use super::{AWAY, Guard, Storage};
use crate::error::Result;
use crate::few::fill;

/// Locks of storages whose bytes are on their devices.
pub(crate) struct Locks<'a>(List<'a>);

type List<'a> = SmallVec<[Held<'a>; 4]>;

#[allow(dead_code, reason = "held for its drop")]
enum Held<'a> {
    Reading(RwLockReadGuard<'a, ()>),
    Writing(RwLockWriteGuard<'a, ()>),
    /// Keeps the bytes on their device; dropped after the locks.
    Resident(Guard),
}

/// Storages, each with whether it is only read, and its place among the operands.
type Wanted<'a> = SmallVec<[(&'a Storage, bool, usize); 4]>;

impl<'a> Locks<'a> {
    /// An empty set of locks.
    pub(crate) fn new() -> Locks<'a> {
        Locks(List::new())
    }

    /// Takes each storage's lock once, in the order of their ids: two operations on the same storages cannot
    /// deadlock. The lock guards no Rust value, so a poisoned lock is taken anyway.
    ///
    /// # Errors
    /// Bytes that cannot be brought back; the error names the operation `op`.
    pub(crate) fn take(
        &mut self,
        reads: impl Iterator<Item = &'a Storage>,
        writes: impl Iterator<Item = &'a Storage>,
        op: &'static str,
    ) -> Result<()> {
        let mut wanted = Wanted::new();
        fill(&mut wanted, writes.enumerate().map(|(at, storage)| (storage, false, at)));
        let written = wanted.len();
        fill(&mut wanted, reads.enumerate().map(|(at, storage)| (storage, true, written + at)));
        sort(&mut wanted);
        // Writers sort before readers of the same storage, so the write lock is kept.
        wanted.dedup_by_key(|(storage, ..)| storage.id());
        self.lock(&wanted);
        if wanted.iter().all(|(storage, ..)| storage.is_here()) {
            return Ok(());
        }
        self.make_resident(&wanted, op)
    }

    fn lock(&mut self, wanted: &Wanted<'a>) {
        let held = wanted.iter().map(|&(storage, reads, _)| match reads {
            true => Held::Reading(storage.0.lock.read().unwrap_or_else(PoisonError::into_inner)),
            false => Held::Writing(storage.0.lock.write().unwrap_or_else(PoisonError::into_inner)),
        });
        fill(&mut self.0, held);
    }

    #[cold]
    fn make_resident(&mut self, wanted: &Wanted<'a>, op: &'static str) -> Result<()> {
        self.0.clear();
        // All storages are marked as in use before the first one is brought back, because bringing one back may take memory
        // from another. They are brought back in the order of the operands, which is the same on all ranks; the order of ids
        // is not.
        let resident: Vec<Guard> = wanted.iter().map(|(storage, ..)| storage.stay()).collect();
        let mut in_order: SmallVec<[(usize, &Storage); 4]> =
            wanted.iter().map(|&(storage, _, at)| (at, storage)).collect();
        in_order.sort_unstable_by_key(|(at, _)| *at);
        in_order.iter().try_for_each(|(_, storage)| storage.make_resident(op))?;
        loop {
            self.lock(wanted);
            if wanted.iter().all(|(storage, ..)| storage.is_here()) {
                self.0.extend(resident.into_iter().map(Held::Resident));
                return Ok(());
            }
            // A copy to or from pinned memory has begun in the meantime.
            self.0.clear();
            in_order.iter().try_for_each(|(_, storage)| storage.make_resident(op))?;
        }
    }

    /// The address of a storage, which must be one of the locked ones.
    pub(crate) fn address(&self, storage: &Storage) -> Addr {
        assert!(!self.0.is_empty(), "an address is read under a lock");
        let address = storage.0.address.load(Ordering::Relaxed);
        assert!(address != AWAY, "bytes stay while they are locked");
        Addr(address)
    }
}

/// Sorts by id, with writers of a storage first. Most operations have three storages or fewer.
fn sort(wanted: &mut Wanted<'_>) {
    let key = |&(storage, reads, at): &(&Storage, bool, usize)| (storage.id(), reads, at);
    if wanted.len() > 4 {
        return wanted.sort_unstable_by_key(key);
    }
    for end in 1..wanted.len() {
        for i in (1..=end).rev() {
            if key(&wanted[i - 1]) <= key(&wanted[i]) {
                break;
            }
            wanted.swap(i - 1, i);
        }
    }
}
