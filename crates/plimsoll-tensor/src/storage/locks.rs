//! The locks of all storages of one operation. No address is read without them.
//!
//! [`Locks::take`] first brings back bytes that are not on their device, with no lock held, and keeps them there
//! until the locks are dropped. Storages that are on their device cost only their lock.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_alloc::Addr;
use smallvec::SmallVec;

use super::moves::Guard;
use super::{AWAY, Storage};
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

/// Storages, each with whether it is only read.
type Wanted<'a> = SmallVec<[(&'a Storage, bool); 4]>;

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
        fill(&mut wanted, writes.map(|storage| (storage, false)));
        fill(&mut wanted, reads.map(|storage| (storage, true)));
        sort(&mut wanted);
        // Writers sort before readers of the same storage, so the write lock is kept.
        wanted.dedup_by_key(|(storage, _)| storage.id());
        self.lock(&wanted);
        if wanted.iter().all(|(storage, _)| storage.is_here()) {
            return Ok(());
        }
        self.make_resident(&wanted, op)
    }

    fn lock(&mut self, wanted: &Wanted<'a>) {
        let held = wanted.iter().map(|&(storage, reads)| match reads {
            true => Held::Reading(storage.0.lock.read().unwrap_or_else(PoisonError::into_inner)),
            false => Held::Writing(storage.0.lock.write().unwrap_or_else(PoisonError::into_inner)),
        });
        fill(&mut self.0, held);
    }

    #[cold]
    fn make_resident(&mut self, wanted: &Wanted<'a>, op: &'static str) -> Result<()> {
        self.0.clear();
        let mut resident = Vec::new();
        for (storage, _) in wanted {
            resident.push(storage.guard(op)?);
        }
        loop {
            self.lock(wanted);
            if wanted.iter().all(|(storage, _)| storage.is_here()) {
                self.0.extend(resident.into_iter().map(Held::Resident));
                return Ok(());
            }
            // A copy to or from pinned memory has begun in the meantime.
            self.0.clear();
            for (storage, _) in wanted {
                storage.make_resident(op)?;
            }
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
    let key = |&(storage, reads): &(&Storage, bool)| (storage.id(), reads);
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
