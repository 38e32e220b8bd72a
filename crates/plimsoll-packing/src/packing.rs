//! The result, a [`Packing`], and the check that it is valid.

use std::collections::BTreeMap;

use crate::buffer::check_buffers;
use crate::{Buffer, Error};

/// An offset for each buffer, in the order of the buffers, and the size of the arena that they need.
///
/// ```
/// use plimsoll_packing::{Buffer, Effort, pack};
///
/// let buffers = [Buffer { lower: 0, upper: 2, size: 512 }, Buffer { lower: 2, upper: 4, size: 1024 }];
/// let packing = pack(&buffers, Effort::default())?;
/// assert_eq!((packing.bytes, packing.offsets.as_slice()), (1024, [0, 0].as_slice()));
/// packing.check(&buffers)?;
/// # Ok::<(), plimsoll_packing::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Where each buffer begins.
    pub offsets: Vec<u64>,
    /// The end of the last buffer.
    pub bytes: u64,
}

impl Packing {
    /// The packing with these offsets.
    pub(crate) fn new(buffers: &[Buffer], offsets: Vec<u64>) -> Packing {
        let ends = buffers.iter().zip(&offsets).map(|(buffer, offset)| offset + buffer.size);
        let bytes = ends.max().unwrap_or(0);
        Packing { offsets, bytes }
    }

    /// Checks that buffers that are alive at the same time share no bytes, and that none ends after the arena. Takes `n
    /// log n` time.
    ///
    /// # Errors
    ///
    /// [`Error::WrongLength`], [`Error::OutsideArena`], [`Error::Overlap`], and the errors of
    /// [`lower_bound`](crate::lower_bound).
    pub fn check(&self, buffers: &[Buffer]) -> Result<(), Error> {
        check_buffers(buffers)?;
        if self.offsets.len() != buffers.len() {
            return Err(Error::WrongLength { buffers: buffers.len(), offsets: self.offsets.len() });
        }
        for (index, (buffer, offset)) in buffers.iter().zip(&self.offsets).enumerate() {
            if offset.checked_add(buffer.size).is_none_or(|end| end > self.bytes) {
                return Err(Error::OutsideArena { index, bytes: self.bytes });
            }
        }
        let solid = (0..buffers.len()).filter(|&index| buffers[index].size > 0);
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
        for index in solid {
            events.push((buffers[index].upper, false, index));
            events.push((buffers[index].lower, true, index));
        }
        events.sort_unstable();
        // Buffers that are alive, by offset. As long as none overlap, comparing a new one with its neighbours is enough.
        let mut live: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, begins, index) in events {
            let offset = self.offsets[index];
            if !begins {
                live.remove(&offset);
                continue;
            }
            let below = live.range(..=offset).next_back();
            if let Some((&at, &first)) = below.filter(|&(&at, &first)| at + buffers[first].size > offset) {
                debug_assert!(at <= offset);
                return Err(Error::Overlap { first, second: index });
            }
            let above = live.range(offset..).next();
            if let Some((_, &second)) = above.filter(|&(&at, _)| offset + buffers[index].size > at) {
                return Err(Error::Overlap { first: index, second });
            }
            live.insert(offset, index);
        }
        Ok(())
    }
}
