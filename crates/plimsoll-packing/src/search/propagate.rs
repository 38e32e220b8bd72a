//! Raises lower bounds until nothing changes, or finds a section in which the unplaced buffers cannot fit.

use super::instance::NONE;
use super::state::{Change, Conflict, Ends, NEVER, State};

/// An unplaced buffer in the section being examined.
#[derive(Clone, Copy)]
struct Entry {
    end: u64,
    size: u64,
    buffer: u32,
}

/// Lists that are kept between calls, so that nothing has to be allocated.
#[derive(Default)]
pub(super) struct Scratch {
    /// The unplaced buffers of a section, by their smallest end.
    entries: Vec<Entry>,
    by_bound: Vec<(u64, u64)>,
    /// How much the first buffers fill, together with the placed ones and the bytes that may be wasted.
    sums: Vec<u64>,
    raised: Vec<(u32, u64)>,
    /// How many buffers have been looked at.
    pub(super) steps: u64,
}

impl State<'_> {
    /// Applies the rules to all sections that changed.
    pub(super) fn propagate(&mut self, scratch: &mut Scratch) -> Result<(), Conflict> {
        let mut next = 0;
        while let Some(&section) = self.queue.get(next) {
            next += 1;
            let section = section as usize;
            self.queued[section] = false;
            if self.unplaced[section] == 0 && self.ends[section].owner == NONE {
                continue;
            }
            scratch.steps += 1 + u64::from(self.unplaced[section]);
            let highest = self.summarize(section, scratch);
            scratch.raised.clear();
            if highest + self.rest[section] > self.capacity[section] {
                self.fill_below(section, highest, scratch)?;
            }
            self.supported(section, scratch)?;
            for at in 0..scratch.raised.len() {
                let (buffer, bound) = scratch.raised[at];
                self.raise(buffer, bound)?;
            }
        }
        self.queue.clear();
        Ok(())
    }

    /// Sorts a section's unplaced buffers by their ends, and computes its `Ends` again. Returns the highest bound.
    fn summarize(&mut self, section: usize, scratch: &mut Scratch) -> u64 {
        let count = self.unplaced[section] as usize;
        let entries = &mut scratch.entries;
        entries.clear();
        let mut highest = 0;
        // The list is almost sorted, because it was sorted the last time.
        for at in 0..count {
            let buffer = self.members[section][at];
            let (bound, size) = (self.bound[buffer as usize], self.of.size[buffer as usize]);
            highest = highest.max(bound);
            let entry = Entry { end: bound + size, size, buffer };
            let mut to = at;
            entries.push(entry);
            while to > 0 && entries[to - 1].end > entry.end {
                entries[to] = entries[to - 1];
                to -= 1;
            }
            entries[to] = entry;
        }
        for (member, entry) in self.members[section].iter_mut().zip(entries.iter()) {
            *member = entry.buffer;
        }
        let ends = Ends {
            first: entries.first().map_or(NEVER, |it| it.end),
            owner: entries.first().map_or(NONE, |it| it.buffer),
            second: entries.get(1).map_or(NEVER, |it| it.end),
        };
        if ends != self.ends[section] {
            self.trail.push(Change::Ends(section as u32, self.ends[section]));
            self.ends[section] = ends;
        }
        highest
    }

    /// Apart from the bytes that may be wasted, the space below a buffer's offset in a section must be filled with
    /// other buffers: placed ones, or unplaced ones that can end there.
    fn fill_below(&self, section: usize, highest: u64, scratch: &mut Scratch) -> Result<(), Conflict> {
        let capacity = self.capacity[section];
        let Some(base) = capacity.checked_sub(self.rest[section]) else { return Err(Conflict(section)) };
        // The lowest possible end of the buffers that can begin below `base`, stacked on top of each other.
        let filled = base
            + scratch
                .entries
                .iter()
                .map(|it| if it.end - it.size <= base { it.size } else { 0 })
                .sum::<u64>();
        if highest > filled {
            self.bounds_in_order(section, base, filled, scratch)?;
        }
        let Scratch { entries, sums, raised, .. } = scratch;
        sums.clear();
        let mut sum = base;
        sums.extend(entries.iter().map(|it| {
            sum += it.size;
            sum
        }));
        for (at, entry) in entries.iter().enumerate() {
            let old = entry.end - entry.size;
            if old <= base {
                continue;
            }
            // The first buffers, by their ends, whose sizes are sufficient; the buffer itself is not one of them.
            let mut last = sums.partition_point(|&sum| sum < old);
            if last >= at {
                last = sums.partition_point(|&sum| sum < old + entry.size);
            }
            let mut bound = old;
            loop {
                let Some(other) = entries.get(last) else { return Err(Conflict(section)) };
                if last != at {
                    bound = bound.max(other.end);
                }
                if sums[last] - if last >= at { entry.size } else { 0 } >= bound {
                    break;
                }
                last += 1;
            }
            if bound + entry.size > capacity {
                return Err(Conflict(section));
            }
            if bound > old {
                raised.push((entry.buffer, bound));
            }
        }
        Ok(())
    }

    /// The space below the lowest bound of some buffers must be filled with the section's other buffers.
    fn bounds_in_order(
        &self,
        section: usize,
        base: u64,
        filled: u64,
        scratch: &mut Scratch,
    ) -> Result<(), Conflict> {
        let Scratch { entries, by_bound, .. } = scratch;
        by_bound.clear();
        let mut below = base;
        for entry in entries.iter() {
            let bound = entry.end - entry.size;
            if bound > filled { by_bound.push((bound, entry.size)) } else { below += entry.size }
        }
        by_bound.sort_unstable();
        for &(bound, size) in by_bound.iter() {
            if bound > below {
                return Err(Conflict(section));
            }
            below += size;
        }
        Ok(())
    }

    /// A buffer rests on another one. If its bound is not the end of a placed one, it rests on an unplaced one.
    fn supported(&mut self, section: usize, scratch: &mut Scratch) -> Result<(), Conflict> {
        let Scratch { entries, raised, .. } = scratch;
        for entry in entries.iter() {
            let bound = entry.end - entry.size;
            if bound > self.low[entry.buffer as usize] {
                let end = self.support(entry.buffer);
                if end >= NEVER {
                    return Err(Conflict(section));
                }
                if end > bound {
                    raised.push((entry.buffer, end));
                }
            }
        }
        Ok(())
    }

    /// The smallest end next to a buffer, if it is above the buffer's bound; otherwise some end that is not.
    fn support(&mut self, buffer: u32) -> u64 {
        let bound = self.bound[buffer as usize];
        let end = |ends: &Ends| if ends.owner == buffer { ends.second } else { ends.first };
        let hint = end(&self.ends[self.hint[buffer as usize] as usize]);
        if hint <= bound {
            return hint;
        }
        let mut smallest = NEVER;
        for section in self.of.span(buffer) {
            let end = end(&self.ends[section]);
            if end < smallest {
                smallest = end;
                self.hint[buffer as usize] = section as u32;
            }
            if end <= bound {
                break;
            }
        }
        smallest
    }
}
