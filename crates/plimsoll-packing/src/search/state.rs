//! A partial packing with a lower bound on each unplaced buffer's offset ([`State`]), and how to undo its changes.

use std::ops::Range;

use super::instance::{Instance, NONE};

/// No bound: larger than any offset.
pub(super) const NEVER: u64 = u64::MAX >> 1;

/// The section in which a partial packing was found to be impossible.
pub(super) struct Conflict(pub(super) usize);

/// The smallest end that an unplaced buffer of a section can have, its owner, and the smallest end of the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) first: u64,
    pub(super) owner: u32,
    pub(super) second: u64,
}

pub(super) enum Change {
    Bound(u32, u64),
    Low(u32, u64),
    Ends(u32, Ends),
    Floor(u32, u64),
    Placed(u32),
    Capacity(u32, u64),
}

pub(super) struct State<'a> {
    pub(super) of: &'a Instance,
    /// The highest end that the unplaced buffers of each section may have.
    pub(super) capacity: Vec<u64>,
    /// For each unplaced buffer, the lowest offset that it can still have; for a placed one, its offset.
    pub(super) bound: Vec<u64>,
    /// The highest end of the placed buffers that each buffer overlaps in time.
    pub(super) low: Vec<u64>,
    pub(super) placed: Vec<bool>,
    /// The highest end of the placed buffers of each section.
    pub(super) floor: Vec<u64>,
    /// The sum of the sizes of the unplaced buffers of each section.
    pub(super) rest: Vec<u64>,
    pub(super) ends: Vec<Ends>,
    /// How many unplaced buffers are in this section and the next one.
    pub(super) crossing: Vec<u32>,
    /// The buffers of each section; the unplaced ones come first.
    pub(super) members: Vec<Vec<u32>>,
    pub(super) unplaced: Vec<u32>,
    /// For each buffer, the section that had the smallest end next to it at the last check.
    pub(super) hint: Vec<u32>,
    /// The next buffer with the same size and sections.
    next_twin: Vec<u32>,
    pub(super) trail: Vec<Change>,
    pub(super) queue: Vec<u32>,
    pub(super) queued: Vec<bool>,
}

impl<'a> State<'a> {
    pub(super) fn new(of: &'a Instance, capacity: u64) -> State<'a> {
        let (n, sections) = (of.size.len(), of.sections);
        let mut next_twin = vec![NONE; n];
        for (index, &twin) in of.twin.iter().enumerate().filter(|&(_, &twin)| twin != NONE) {
            next_twin[twin as usize] = index as u32;
        }
        let mut rest = vec![0; sections];
        for (section, members) in of.members.iter().enumerate() {
            rest[section] = members.iter().map(|&it| of.size[it as usize]).sum();
        }
        let mut crossing = vec![0; sections];
        for span in &of.span {
            for section in span.start..span.end - 1 {
                crossing[section as usize] += 1;
            }
        }
        State {
            of,
            capacity: vec![capacity; sections],
            bound: vec![0; n],
            low: vec![0; n],
            placed: vec![false; n],
            floor: vec![0; sections],
            rest,
            ends: vec![Ends { first: 0, owner: NONE, second: 0 }; sections],
            crossing,
            members: of.members.clone(),
            unplaced: of.members.iter().map(|it| it.len() as u32).collect(),
            hint: of.span.iter().map(|span| span.start).collect(),
            next_twin,
            trail: Vec::new(),
            queue: (0..sections as u32).collect(),
            queued: vec![true; sections],
        }
    }

    pub(super) fn end(&self, buffer: u32) -> u64 {
        self.bound[buffer as usize] + self.of.size[buffer as usize]
    }

    pub(super) fn unplaced_of(&self, section: usize) -> &[u32] {
        &self.members[section][..self.unplaced[section] as usize]
    }

    /// The bytes that may still be wasted in a section.
    pub(super) fn slack(&self, section: usize) -> u64 {
        self.capacity[section].saturating_sub(self.floor[section] + self.rest[section])
    }

    /// The smallest end that an unplaced buffer overlapping this one can have.
    pub(super) fn smallest_end_beside(&self, buffer: u32) -> u64 {
        let ends = self.ends[self.of.span(buffer)].iter();
        ends.map(|ends| if ends.owner == buffer { ends.second } else { ends.first }).min().unwrap_or(NEVER)
    }

    /// Raises the lower bound of a buffer's offset.
    pub(super) fn raise(&mut self, buffer: u32, bound: u64) -> Result<(), Conflict> {
        let (mut buffer, mut bound) = (buffer, bound);
        loop {
            let index = buffer as usize;
            if self.bound[index] >= bound || self.placed[index] {
                return Ok(());
            }
            let span = self.of.span(buffer);
            if bound + self.of.size[index] > self.capacity[span.start] {
                return Err(Conflict(span.start));
            }
            self.trail.push(Change::Bound(buffer, self.bound[index]));
            self.bound[index] = bound;
            self.touch(span);
            if self.next_twin[index] == NONE {
                return Ok(());
            }
            bound += self.of.size[index];
            buffer = self.next_twin[index];
        }
    }

    fn touch(&mut self, span: Range<usize>) {
        for section in span {
            if !self.queued[section] {
                self.queued[section] = true;
                self.queue.push(section as u32);
            }
        }
    }

    /// Places a buffer at its lower bound, below all unplaced buffers that it overlaps.
    pub(super) fn place(&mut self, buffer: u32) -> Result<(), Conflict> {
        let (index, top) = (buffer as usize, self.end(buffer));
        let of = self.of;
        let span = of.span(buffer);
        self.remove(buffer);
        for section in span {
            self.trail.push(Change::Floor(section as u32, self.floor[section]));
            self.floor[section] = top;
        }
        for &other in &of.neighbours[index] {
            if self.placed[other as usize] {
                continue;
            }
            if self.low[other as usize] < top {
                self.trail.push(Change::Low(other, self.low[other as usize]));
                self.low[other as usize] = top;
            }
            self.raise(other, top)?;
        }
        Ok(())
    }

    /// Places a buffer above all others in these sections; it must be in all of them.
    pub(super) fn place_on_top(&mut self, buffer: u32) -> Result<(), Conflict> {
        let span = self.of.span(buffer);
        let offset = self.capacity[span.start].saturating_sub(self.of.size[buffer as usize]);
        if offset < self.bound[buffer as usize] {
            return Err(Conflict(span.start));
        }
        self.trail.push(Change::Bound(buffer, self.bound[buffer as usize]));
        self.bound[buffer as usize] = offset;
        for section in span {
            self.trail.push(Change::Capacity(section as u32, self.capacity[section]));
            self.capacity[section] = offset;
        }
        self.remove(buffer);
        Ok(())
    }

    /// Marks a buffer as placed.
    fn remove(&mut self, buffer: u32) {
        self.trail.push(Change::Placed(buffer));
        self.placed[buffer as usize] = true;
        let span = self.of.span(buffer);
        for section in span.clone() {
            self.rest[section] -= self.of.size[buffer as usize];
            self.unplaced[section] -= 1;
            let unplaced = &mut self.members[section][..=self.unplaced[section] as usize];
            if let Some(at) = unplaced.iter().position(|&it| it == buffer) {
                unplaced[at..].rotate_left(1);
            }
        }
        for section in span.start..span.end - 1 {
            self.crossing[section] -= 1;
        }
        self.touch(span);
    }

    /// Undoes all changes made since the trail had this length.
    pub(super) fn undo(&mut self, length: usize) {
        for section in self.queue.drain(..) {
            self.queued[section as usize] = false;
        }
        while self.trail.len() > length {
            match self.trail.pop() {
                Some(Change::Bound(buffer, bound)) => self.bound[buffer as usize] = bound,
                Some(Change::Low(buffer, low)) => self.low[buffer as usize] = low,
                Some(Change::Ends(section, ends)) => self.ends[section as usize] = ends,
                Some(Change::Floor(section, floor)) => self.floor[section as usize] = floor,
                Some(Change::Placed(buffer)) => self.take_back(buffer),
                Some(Change::Capacity(section, capacity)) => self.capacity[section as usize] = capacity,
                None => return,
            }
        }
    }

    fn take_back(&mut self, buffer: u32) {
        self.placed[buffer as usize] = false;
        let span = self.of.span(buffer);
        for section in span.clone() {
            self.rest[section] += self.of.size[buffer as usize];
            self.unplaced[section] += 1;
        }
        for section in span.start..span.end - 1 {
            self.crossing[section] += 1;
        }
    }
}
