//! What does not change during a search: sizes, sections, and which buffers overlap in time ([`Instance`]).

use std::ops::Range;

use crate::Buffer;
use crate::sections::Sections;

/// Means that there is no such buffer.
pub(super) const NONE: u32 = u32::MAX;

pub(super) struct Instance {
    pub(super) size: Vec<u64>,
    pub(super) span: Vec<Range<u32>>,
    pub(super) sections: usize,
    /// The buffers of each section.
    pub(super) members: Vec<Vec<u32>>,
    /// The buffers that overlap each buffer in time.
    pub(super) neighbours: Vec<Vec<u32>>,
    /// The previous buffer with the same size and the same sections, or `NONE`. Such buffers are placed in this order.
    pub(super) twin: Vec<u32>,
}

impl Instance {
    pub(super) fn new(buffers: &[Buffer]) -> Instance {
        let sections = Sections::new(buffers);
        let mut members = vec![Vec::new(); sections.count];
        for (index, span) in sections.of.iter().enumerate() {
            for section in span.clone() {
                members[section as usize].push(index as u32);
            }
        }
        let n = buffers.len();
        let mut neighbours = vec![Vec::new(); n];
        for (index, span) in sections.of.iter().enumerate() {
            // The buffers of the first section, and those that begin later.
            let first = span.start as usize;
            neighbours[index].extend(members[first].iter().copied().filter(|&it| it as usize != index));
            for section in span.clone().skip(1) {
                let new =
                    members[section as usize].iter().filter(|&&it| sections.of[it as usize].start == section);
                neighbours[index].extend(new);
            }
        }
        let mut order: Vec<u32> = (0..n as u32).collect();
        let key = |it: u32| {
            (sections.of[it as usize].start, sections.of[it as usize].end, buffers[it as usize].size, it)
        };
        order.sort_unstable_by_key(|&it| key(it));
        let mut twin = vec![NONE; n];
        for pair in order.windows(2) {
            let (a, b) = (key(pair[0]), key(pair[1]));
            if (a.0, a.1, a.2) == (b.0, b.1, b.2) {
                twin[pair[1] as usize] = pair[0];
            }
        }
        let size = buffers.iter().map(|buffer| buffer.size).collect();
        Instance { size, span: sections.of, sections: sections.count, members, neighbours, twin }
    }

    pub(super) fn span(&self, buffer: u32) -> Range<usize> {
        let span = &self.span[buffer as usize];
        span.start as usize..span.end as usize
    }
}
