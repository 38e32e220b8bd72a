//! Values that are known without computing: data that the host sent to a device, until work that could change it runs
//! there.
//!
//! Libraries send a few numbers to the device, pass them through a collective and read them back at once:
//! `DistributedDataParallel` agrees on its buckets in this way and fails on zeros. So small uploads are kept, follow
//! copies and collectives, and are dropped at the next kernel launch. A read waits for values that other ranks send; if
//! those ranks are not other processes, or do not run, their values are assumed to equal this rank's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::exchange::Message;
use crate::lock::locked;

/// Longer uploads are not kept: they are data, not coordination.
const MOST_BYTES: usize = 1 << 20;

/// Known values by device address. Ranges do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    known: BTreeMap<u64, Known>,
}

/// The known content of a range.
#[derive(Debug, Clone)]
enum Known {
    /// The bytes.
    Here(Vec<u8>),
    /// This many bytes of a rank's message, from this offset.
    Sent { message: Message, begin: usize, bytes: usize },
}

impl Known {
    fn len(&self) -> usize {
        match self {
            Known::Here(known) => known.len(),
            Known::Sent { bytes, .. } => *bytes,
        }
    }

    /// The part of `bytes` bytes from `offset`, if the range contains it.
    fn part(&self, offset: usize, bytes: usize) -> Option<Known> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.len())?;
        Some(match self {
            Known::Here(known) => Known::Here(known[offset..end].to_vec()),
            Known::Sent { message, begin, .. } => {
                Known::Sent { message: message.clone(), begin: begin + offset, bytes }
            }
        })
    }

    /// The bytes. Waits if another rank sends them; they may turn out to be unknown.
    fn bytes(self, until: Instant) -> Option<Vec<u8>> {
        match self {
            Known::Here(known) => Some(known),
            Known::Sent { message, begin, bytes } => {
                message.read(until)?.get(begin..begin + bytes).map(<[u8]>::to_vec)
            }
        }
    }
}

static RECENT: Mutex<Recent> = Mutex::new(Recent { known: BTreeMap::new() });

/// Whether any value is known; if not, launches need not take the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Locks the known values.
pub(crate) fn recent() -> MutexGuard<'static, Recent> {
    locked(&RECENT)
}

/// The values at an address, if all are known. Does not block other threads while it waits for other ranks.
pub(crate) fn known(from: u64, bytes: usize, until: Instant) -> Option<Vec<u8>> {
    let pieces = recent().find(from, bytes)?;
    pieces.into_iter().try_fold(Vec::new(), |mut all, piece| {
        all.extend(piece.bytes(until)?);
        Some(all)
    })
}

/// Called when work ran that may have written to any address.
pub(crate) fn forget_all() {
    if ANY.swap(false, Ordering::Relaxed) {
        recent().known.clear();
    }
}

impl Recent {
    /// Called when the host sent these bytes to an address.
    pub(super) fn sent(&mut self, to: u64, bytes: &[u8]) {
        self.forget(to, bytes.len());
        if bytes.len() <= MOST_BYTES {
            self.set(to, Known::Here(bytes.to_vec()));
        }
    }

    /// Called when a rank sends these bytes to an address.
    pub(crate) fn expected(&mut self, to: u64, message: Message, bytes: usize) {
        self.forget(to, bytes);
        if bytes <= MOST_BYTES {
            self.set(to, Known::Sent { message, begin: 0, bytes });
        }
    }

    /// Called when bytes were copied between device addresses.
    pub(crate) fn moved(&mut self, to: u64, from: u64, bytes: usize) {
        let known = self.find(from, bytes);
        self.forget(to, bytes);
        let mut to = to;
        for piece in known.unwrap_or_default() {
            let bytes = piece.len() as u64;
            self.set(to, piece);
            to += bytes;
        }
    }

    fn set(&mut self, to: u64, known: Known) {
        if known.len() > 0 {
            self.known.insert(to, known);
            ANY.store(true, Ordering::Relaxed);
        }
    }

    /// The content at an address, in adjacent pieces, if all of it is known.
    fn find(&self, from: u64, bytes: usize) -> Option<Vec<Known>> {
        let (mut pieces, mut found) = (Vec::new(), 0);
        while found < bytes {
            let from = from.checked_add(found as u64)?;
            let (begin, known) = self.known.range(..=from).next_back()?;
            let offset = usize::try_from(from - begin).ok()?;
            let left = known.len().checked_sub(offset).filter(|left| *left > 0)?;
            let piece = known.part(offset, left.min(bytes - found))?;
            found += piece.len();
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// Called when something else was written to these addresses. Every piece that overlaps them is dropped
    /// completely.
    fn forget(&mut self, to: u64, bytes: usize) {
        let end = to.saturating_add(bytes as u64);
        let hit = |(begin, known): (&u64, &Known)| (begin + known.len() as u64 > to).then_some(*begin);
        // Pieces do not overlap each other: only the last ones that start before `end` can reach beyond `to`.
        let hits: Vec<u64> = self.known.range(..end).rev().map_while(hit).collect();
        hits.iter().for_each(|begin| drop(self.known.remove(begin)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::Recent;

    fn read(recent: &Recent, from: u64, bytes: usize) -> Option<Vec<u8>> {
        let pieces = recent.find(from, bytes)?;
        Some(pieces.into_iter().flat_map(|piece| piece.bytes(Instant::now()).unwrap()).collect())
    }

    #[test]
    fn what_was_sent_is_read_back_and_moves_on() {
        let mut recent = Recent::default();
        recent.sent(1000, &[1, 2, 3, 4]);
        recent.moved(2000, 1001, 2);
        assert_eq!(read(&recent, 1000, 4), Some(vec![1, 2, 3, 4]));
        assert_eq!(read(&recent, 2000, 2), Some(vec![2, 3]));
        assert_eq!(read(&recent, 2000, 3), None);
    }

    #[test]
    fn pieces_that_lie_side_by_side_are_read_and_moved_as_one() {
        let mut recent = Recent::default();
        recent.sent(1000, &[1, 2]);
        recent.sent(1002, &[3, 4]);
        recent.sent(1005, &[5]);
        recent.moved(2000, 1001, 3);
        assert_eq!(read(&recent, 1000, 4), Some(vec![1, 2, 3, 4]));
        assert_eq!(read(&recent, 2000, 3), Some(vec![2, 3, 4]));
        assert_eq!((read(&recent, 1000, 5), read(&recent, 1001, 5)), (None, None), "a gap between them");
    }

    #[test]
    fn a_piece_that_is_written_to_in_part_is_unknown() {
        let mut recent = Recent::default();
        recent.sent(1000, &[1; 8]);
        recent.sent(1008, &[2; 8]);
        recent.moved(1004, 5000, 4);
        assert_eq!((read(&recent, 1000, 4), read(&recent, 1008, 8)), (None, Some(vec![2; 8])));
        recent.sent(1000, &[3; 16]);
        assert_eq!(read(&recent, 1012, 4), Some(vec![3; 4]));
    }
}
