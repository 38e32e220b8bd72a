//! The allocations and frees of blocks, event by event: [`Flow`]. It walks over a timeline once, for code that
//! maintains running sums.

use crate::snapshot::{EventIndex, LifeIndex};
use crate::timeline::Timeline;

/// A block is allocated or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Comes(LifeIndex),
    Goes(LifeIndex),
}

/// The events that end blocks' lifetimes ([`Life`](crate::timeline::Life)), in order; [`Timeline::lives`] is not sorted
/// by them.
pub(super) struct Ends(Vec<(EventIndex, LifeIndex)>);

impl Ends {
    pub(super) fn of(timeline: &Timeline) -> Self {
        let lives = (0..).map_while(LifeIndex::new).zip(&timeline.lives);
        let ends = lives.filter_map(|(index, life)| Some((life.freed?, index)));
        let mut ends: Vec<_> = ends.filter(|(end, index)| is_held_at_all(timeline, *index, *end)).collect();
        ends.sort_unstable();
        Self(ends)
    }
}

/// Whether a block is ever live. If another block overlaps it, its lifetime may end at the event that allocated it.
fn is_held_at_all(timeline: &Timeline, index: LifeIndex, end: EventIndex) -> bool {
    timeline.lives[index.index()].born < Some(end)
}

/// The changes of a timeline, starting before its first event.
pub(super) struct Flow<'a> {
    timeline: &'a Timeline,
    ends: &'a Ends,
    born: usize,
    ended: usize,
}

impl<'a> Flow<'a> {
    /// Begins before the first block.
    pub(super) fn new(timeline: &'a Timeline, ends: &'a Ends) -> Self {
        Self { timeline, ends, born: 0, ended: 0 }
    }

    /// Reports the changes up to an event. Together, the reported changes give exactly the blocks that are live after
    /// this event.
    pub(super) fn until(&mut self, after: Option<EventIndex>, mut tell: impl FnMut(Change)) {
        while let Some(life) = self.timeline.lives.get(self.born).filter(|life| life.born <= after) {
            let index = LifeIndex::new(self.born);
            self.born += 1;
            let is_held = |index| life.freed.is_none_or(|end| is_held_at_all(self.timeline, index, end));
            if let Some(index) = index.filter(|&index| is_held(index)) {
                tell(Change::Comes(index));
            }
        }
        while let Some(&(_, index)) = self.ends.0.get(self.ended).filter(|(end, _)| Some(*end) <= after) {
            self.ended += 1;
            tell(Change::Goes(index));
        }
    }
}
