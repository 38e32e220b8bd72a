//! Blocks that come and go, event by event: [`Flow`], one walk over a timeline, for code that keeps sums along the
//! way.

use crate::snapshot::{EventIndex, LifeIndex};
use crate::timeline::Timeline;

/// A block that comes, or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Comes(LifeIndex),
    Goes(LifeIndex),
}

/// When each life ends, which [`Timeline::lives`] does not have in order.
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

/// A block that ends in the event of its birth, because another overlaps it, is never live.
fn is_held_at_all(timeline: &Timeline, index: LifeIndex, end: EventIndex) -> bool {
    timeline.lives[index.index()].born < Some(end)
}

/// The changes of a timeline, from before its first event on.
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

    /// Draws what has changed up to an event; what is drawn leaves exactly the blocks that are held after it.
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
