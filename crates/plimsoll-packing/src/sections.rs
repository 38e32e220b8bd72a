//! Time as a list of sections ([`Sections`]), each of which is a maximal set of buffers that are alive at the same
//! time.

use std::ops::Range;

use crate::Buffer;

/// Lifetimes as ranges of sections.
///
/// A section is a set of buffers that are alive at the same time and that is not part of another such set, so there are fewer
/// sections than times. Two buffers overlap in time if and only if they have a section in common.
#[derive(Clone, Debug)]
pub(crate) struct Sections {
    /// The number of sections.
    pub(crate) count: usize,
    /// The sections of each buffer.
    pub(crate) of: Vec<Range<u32>>,
}

impl Sections {
    pub(crate) fn new(buffers: &[Buffer]) -> Sections {
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
        for (index, buffer) in buffers.iter().enumerate() {
            events.push((buffer.upper, false, index));
            events.push((buffer.lower, true, index));
        }
        events.sort_unstable();
        let mut of = vec![0..0; buffers.len()];
        let (mut count, mut grows) = (0u32, false);
        for (_, begins, index) in events {
            if begins {
                // The first beginning after an end starts a section.
                count += u32::from(!grows);
                of[index].start = count - 1;
            } else {
                of[index].end = count;
            }
            grows = begins;
        }
        Sections { count: count as usize, of }
    }

    /// The sum of the sizes in each section.
    pub(crate) fn live(&self, buffers: &[Buffer]) -> Vec<u64> {
        let mut changes = vec![0i64; self.count + 1];
        for (buffer, sections) in buffers.iter().zip(&self.of) {
            changes[sections.start as usize] += buffer.size as i64;
            changes[sections.end as usize] -= buffer.size as i64;
        }
        let mut live = 0i64;
        changes[..self.count]
            .iter()
            .map(|change| {
                live += change;
                live as u64
            })
            .collect()
    }
}
