//! Finds the pool of events that do not record it: [`PoolsBySegment`].
//!
//! Segments record their pool since PyTorch 2.1, events only since 2.12. A block's pool is the pool of the segment
//! around it, from the time when that segment was allocated. Before, the address belonged to another segment.

use plimsoll_alloc::{Addr, PoolId};

use crate::snapshot::{Action, Event, PoolIndex, Pools, Segment};

/// The segments of private pools in a snapshot, in address order; empty if events record their pools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PoolsBySegment(Vec<Private>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Private {
    from: Addr,
    to: Addr,
    pool: PoolIndex,
    /// The index of the event that allocated the segment; 0 if the segment existed before the first event, or is
    /// expandable.
    since: usize,
}

impl PoolsBySegment {
    /// `about_memory` are the indices of the segment events.
    pub(super) fn of(pools: &Pools, segments: &[&Segment], trace: &[Event], about_memory: &[u32]) -> Self {
        if trace.iter().any(|event| event.pool.is_some()) {
            return Self::default();
        }
        let mut private: Vec<Private> = segments
            .iter()
            .filter_map(|segment| {
                let pool = segment.pool.filter(|&pool| pools.get(pool) != PoolId::DEFAULT)?;
                Some(Private { from: segment.address, to: segment.end(), pool, since: 0 })
            })
            .collect();
        private.sort_by_key(|segment| segment.from);
        for &nth in about_memory {
            let event = &trace[nth as usize];
            if event.action == Action::SegmentAlloc
                && let Some(addr) = event.addr()
                && let Ok(place) = private.binary_search_by_key(&addr, |segment| segment.from)
            {
                private[place].since = nth as usize;
            }
        }
        Self(private)
    }

    /// The pool of an event's block, given the event's index and address. `recorded` is the pool in the event itself,
    /// if any.
    pub(crate) fn at(&self, recorded: Option<PoolIndex>, addr: Addr, nth: usize) -> Option<PoolIndex> {
        if recorded.is_some() || self.0.is_empty() {
            return recorded;
        }
        let below = self.0.partition_point(|segment| segment.from <= addr);
        let around = self.0[..below].last().filter(|it| addr < it.to && it.since <= nth);
        around.map(|segment| segment.pool)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::StreamId;

    use super::*;
    use crate::snapshot::{SegmentType, Snapshot};

    #[test]
    fn what_lay_at_an_address_before_the_segment_came_is_of_no_private_pool() {
        let mut snapshot = Snapshot::default();
        let pool = snapshot.pools.intern(PoolId(1, 0)).unwrap();
        let segment = Segment {
            device: None,
            address: Addr(0x4000),
            total_size: 0x2000,
            allocated_size: None.into(),
            active_size: None.into(),
            requested_size: None.into(),
            stream: StreamId(0),
            segment_type: SegmentType::Large,
            pool: Some(pool),
            is_expandable: Some(false),
            stack: None,
            blocks: Vec::new(),
        };
        let event = |action| Event::new(action, Addr(0x4000), 0x2000, StreamId(0));
        let trace = [Action::SegmentAlloc, Action::SegmentFree, Action::SegmentAlloc].map(event);
        let recorded = PoolsBySegment::of(&snapshot.pools, &[&segment], &trace, &[0, 1, 2]);
        let at = |addr, nth| recorded.at(None, Addr(addr), nth);
        assert_eq!([at(0x5000, 1), at(0x5000, 2), at(0x6000, 2)], [None, Some(pool), None]);
        let before = PoolsBySegment::of(&snapshot.pools, &[&segment], &[], &[]);
        assert_eq!(before.at(None, Addr(0x4000), 0), Some(pool));
    }
}
