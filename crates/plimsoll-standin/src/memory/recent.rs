//! Values that are known although nothing computes: what the host sent to a device, until anything runs there
//! that could have changed it.
//!
//! Libraries send a few numbers to the device, pass them through a collective and read them back at once:
//! `DistributedDataParallel` agrees on its buckets in this way, and takes zeros ill. So small uploads are
//! kept, follow copies and collectives, and are forgotten at the next launch of any kernel. What other ranks
//! hold is taken to be what this one holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Longer uploads are not kept: they are data, not agreements.
const MOST_BYTES: usize = 1 << 20;

/// By device address: the bytes that are there. Ranges do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    known: BTreeMap<u64, Vec<u8>>,
}

static RECENT: Mutex<Recent> = Mutex::new(Recent { known: BTreeMap::new() });

/// Whether anything is known, so that launches need not take the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// What is known now, until the guard is dropped.
pub(crate) fn recent() -> MutexGuard<'static, Recent> {
    RECENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Something ran that may have written anywhere.
pub(crate) fn forget_all() {
    if ANY.swap(false, Ordering::Relaxed) {
        recent().known.clear();
    }
}

impl Recent {
    /// The host sent these bytes to an address.
    pub(super) fn sent(&mut self, to: u64, bytes: &[u8]) {
        self.forget(to, bytes.len());
        if !bytes.is_empty() && bytes.len() <= MOST_BYTES {
            self.known.insert(to, bytes.to_vec());
            ANY.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes went from one device address to another.
    pub(crate) fn moved(&mut self, to: u64, from: u64, bytes: usize) {
        match self.read(from, bytes) {
            Some(known) => self.sent(to, &known),
            None => self.forget(to, bytes),
        }
    }

    /// The bytes at an address, if all of them are known.
    pub(super) fn read(&self, from: u64, bytes: usize) -> Option<Vec<u8>> {
        let (begin, known) = self.known.range(..=from).next_back()?;
        let offset = usize::try_from(from - begin).ok()?;
        known.get(offset..offset.checked_add(bytes)?).map(<[u8]>::to_vec)
    }

    /// Something else was written to these addresses. A piece that is hit is forgotten whole.
    fn forget(&mut self, to: u64, bytes: usize) {
        let end = to.saturating_add(bytes as u64);
        let hit = |(begin, known): (&u64, &Vec<u8>)| (begin + known.len() as u64 > to).then_some(*begin);
        // They do not overlap: the last that begin before `end` are the ones that can reach beyond `to`.
        let hits: Vec<u64> = self.known.range(..end).rev().map_while(hit).collect();
        hits.iter().for_each(|begin| drop(self.known.remove(begin)));
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn what_was_sent_is_read_back_and_moves_on() {
        let mut recent = Recent::default();
        recent.sent(1000, &[1, 2, 3, 4]);
        recent.moved(2000, 1001, 2);
        assert_eq!(recent.read(1000, 4), Some(vec![1, 2, 3, 4]));
        assert_eq!(recent.read(2000, 2), Some(vec![2, 3]));
        assert_eq!(recent.read(2000, 3), None);
    }

    #[test]
    fn a_piece_that_is_written_to_in_part_is_unknown() {
        let mut recent = Recent::default();
        recent.sent(1000, &[1; 8]);
        recent.sent(1008, &[2; 8]);
        recent.moved(1004, 5000, 4);
        assert_eq!((recent.read(1000, 4), recent.read(1008, 8)), (None, Some(vec![2; 8])));
        recent.sent(1000, &[3; 16]);
        assert_eq!(recent.read(1012, 4), Some(vec![3; 4]));
    }
}
