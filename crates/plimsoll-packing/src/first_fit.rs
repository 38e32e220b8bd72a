//! Places buffers one after the other, each at the lowest offset that is free during its lifetime ([`FirstFit`]).

use crate::Buffer;
use crate::sections::Sections;

/// Placed buffers, by the sections in which they are alive.
pub(crate) struct FirstFit<'a> {
    buffers: &'a [Buffer],
    sections: &'a Sections,
    /// The buffers by their first section, and where each section begins in that list.
    by_start: Vec<u32>,
    starts: Vec<u32>,
    /// A binary tree over the sections. A buffer's bytes are listed in the largest subtrees that its lifetime fills. The lists are
    /// sorted, and ranges that touch are joined.
    tree: Vec<Vec<(u64, u64)>>,
    leaves: usize,
    offsets: Vec<Option<u64>>,
    busy: Vec<(u64, u64)>,
}

impl<'a> FirstFit<'a> {
    pub(crate) fn new(buffers: &'a [Buffer], sections: &'a Sections) -> FirstFit<'a> {
        let mut by_start: Vec<u32> = (0..buffers.len() as u32).collect();
        by_start.sort_by_key(|&it| sections.of[it as usize].start);
        let mut starts = vec![0u32; sections.count + 1];
        for span in &sections.of {
            starts[span.start as usize + 1] += 1;
        }
        for section in 0..sections.count {
            starts[section + 1] += starts[section];
        }
        let leaves = sections.count.next_power_of_two();
        let tree = vec![Vec::new(); 2 * leaves];
        let offsets = vec![None; buffers.len()];
        FirstFit { buffers, sections, by_start, starts, tree, leaves, offsets, busy: Vec::new() }
    }

    /// Places these buffers in this order. Returns the offsets of all buffers.
    pub(crate) fn add(&mut self, order: &[u32]) -> Vec<u64> {
        for &it in order {
            let offset = self.lowest(it);
            self.place(it, offset);
        }
        self.offsets.iter().map(|offset| offset.unwrap_or(0)).collect()
    }

    /// The lowest offset at which a buffer fits.
    fn lowest(&mut self, buffer: u32) -> u64 {
        let size = self.buffers[buffer as usize].size;
        let span = self.sections.of[buffer as usize].clone();
        let busy = &mut self.busy;
        busy.clear();
        let mut node = self.leaves + span.start as usize;
        while node > 0 {
            busy.extend_from_slice(&self.tree[node]);
            node /= 2;
        }
        let later = self.starts[span.start as usize + 1] as usize..self.starts[span.end as usize] as usize;
        for &other in &self.by_start[later] {
            if let Some(offset) = self.offsets[other as usize] {
                busy.push((offset, offset + self.buffers[other as usize].size));
            }
        }
        busy.sort();
        let mut at = 0;
        for &(offset, end) in busy.iter() {
            if offset >= at + size {
                break;
            }
            at = at.max(end);
        }
        at
    }

    pub(crate) fn place(&mut self, buffer: u32, offset: u64) {
        self.offsets[buffer as usize] = Some(offset);
        let entry = (offset, offset + self.buffers[buffer as usize].size);
        let span = self.sections.of[buffer as usize].clone();
        let (mut from, mut to) = (self.leaves + span.start as usize, self.leaves + span.end as usize);
        while from < to {
            if from % 2 == 1 {
                insert(&mut self.tree[from], entry);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                insert(&mut self.tree[to], entry);
            }
            from /= 2;
            to /= 2;
        }
    }
}

/// Adds a range of bytes to a sorted list, and joins it with those that it touches.
fn insert(list: &mut Vec<(u64, u64)>, (from, to): (u64, u64)) {
    let at = list.partition_point(|&it| it < (from, to));
    let joins_next = list.get(at).is_some_and(|next| next.0 == to);
    let joins_last = at > 0 && list[at - 1].1 == from;
    match (joins_last, joins_next) {
        (true, true) => list[at - 1].1 = list.remove(at).1,
        (true, false) => list[at - 1].1 = to,
        (false, true) => list[at].0 = from,
        (false, false) => list.insert(at, (from, to)),
    }
}
