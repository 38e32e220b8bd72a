//! The locks of all storages of one operation, without which no address is read.
//!
//! [`Locks::take`] brings back what is away first, with no lock held, and keeps it from leaving again until the locks
//! are dropped. What is on its device costs nothing more than its lock.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_alloc::Addr;
use smallvec::SmallVec;

use super::moves::Guard;
use super::{AWAY, Storage};
use crate::error::Result;

/// Locks of storages whose bytes are on their devices.
pub(crate) struct Locks<'a> {
    held: SmallVec<[Held<'a>; 6]>,
    /// Dropped after the locks.
    _resident: Vec<Guard>,
}

enum Held<'a> {
    Reading(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>),
    Writing(#[allow(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>),
}

/// A storage's id, whether it is only read, and the storage.
type Wanted<'a> = SmallVec<[(usize, bool, &'a Storage); 6]>;

impl<'a> Locks<'a> {
    /// Takes each storage's lock once, in the order of their ids: two operations that want the same
    /// storages cannot wait for each other. A poisoned lock guards no Rust value, so it is taken anyway.
    ///
    /// # Errors
    /// Bytes that cannot be brought back, for the operation `op`.
    pub(crate) fn take(
        reads: impl Iterator<Item = &'a Storage>,
        writes: impl Iterator<Item = &'a Storage>,
        op: &'static str,
    ) -> Result<Locks<'a>> {
        let mut wanted: Wanted<'a> = SmallVec::new();
        wanted.extend(writes.map(|storage| (storage.id(), false, storage)));
        wanted.extend(reads.map(|storage| (storage.id(), true, storage)));
        // Writers sort before readers of the same storage, so the stronger lock is the one kept.
        wanted.sort_unstable_by_key(|&(id, reads, _)| (id, reads));
        wanted.dedup_by_key(|&mut (id, ..)| id);
        let held = lock(&wanted);
        if wanted.iter().all(|(.., storage)| storage.is_here()) {
            return Ok(Locks { held, _resident: Vec::new() });
        }
        drop(held);
        Locks::bring_back(&wanted, op)
    }

    #[cold]
    fn bring_back(wanted: &Wanted<'a>, op: &'static str) -> Result<Locks<'a>> {
        let mut resident = Vec::new();
        for (.., storage) in wanted {
            resident.push(storage.guard(op)?);
        }
        loop {
            let held = lock(wanted);
            if wanted.iter().all(|(.., storage)| storage.is_here()) {
                return Ok(Locks { held, _resident: resident });
            }
            // A copy to or from pinned memory began meanwhile.
            drop(held);
            for (.., storage) in wanted {
                storage.bring_back(op)?;
            }
        }
    }

    /// Where a storage's bytes are; it is one of those that are locked.
    pub(crate) fn address(&self, storage: &Storage) -> Addr {
        assert!(!self.held.is_empty(), "an address is read under a lock");
        let address = storage.0.address.load(Ordering::Relaxed);
        assert!(address != AWAY, "bytes stay while they are locked");
        Addr(address)
    }
}

fn lock<'a>(wanted: &Wanted<'a>) -> SmallVec<[Held<'a>; 6]> {
    let held = wanted.iter().map(|&(_, reads, storage)| match reads {
        true => Held::Reading(storage.0.lock.read().unwrap_or_else(PoisonError::into_inner)),
        false => Held::Writing(storage.0.lock.write().unwrap_or_else(PoisonError::into_inner)),
    });
    held.collect()
}
