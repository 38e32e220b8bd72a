//! Forged recordings: with any events and segments, every explanation terminates, and its sums are consistent.

use plimsoll_alloc::{Addr, StreamId};
use plimsoll_trace::explain::{
    AllocatorState, Comparison, DataQuality, DeviceAnalysis, DeviceExplanation, Fragmentation, Ledger,
    Options, Origins, Ranks,
};
use plimsoll_trace::snapshot::{
    Action, Block, BlockState, Event, EventIndex, Segment, SegmentType, Snapshot,
};

/// Marsaglia's xorshift: the same on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A few addresses, so that blocks collide, and extreme values.
    fn addr(&mut self) -> Addr {
        let near = self.below(40) * (512 << 10);
        Addr(self.one(&[near, near, near, near, 0, u64::MAX - 1, u64::MAX - (2 << 20), 1 << 63]))
    }

    fn bytes(&mut self) -> u64 {
        let near = (1 + self.below(50)) * (512 << 10);
        self.one(&[near, near, near, near, 0, 1, 2 << 20, 20 << 20, 1 << 63, u64::MAX - 1])
    }

    fn stream(&mut self) -> StreamId {
        StreamId(self.below(2))
    }

    fn event(&mut self) -> Event {
        let action = self.one(&Action::ALL);
        let (bytes, stream) = (self.bytes(), self.stream());
        if action == Action::Oom {
            let free = self.bytes();
            return Event::oom(bytes, self.one(&[None, Some(free)]), stream);
        }
        Event::new(action, self.addr(), bytes, stream)
    }

    fn segment(&mut self) -> Segment {
        let states = [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive];
        let blocks = (0..self.below(4)).map(|_| Block {
            address: self.addr(),
            size: self.bytes(),
            requested_size: self.bytes().into(),
            state: self.one(&states),
            stack: None,
        });
        let blocks = blocks.collect();
        Segment {
            device: Some(0),
            address: self.addr(),
            total_size: self.bytes(),
            allocated_size: None.into(),
            active_size: None.into(),
            requested_size: None.into(),
            stream: self.stream(),
            segment_type: self.one(&[SegmentType::Small, SegmentType::Large]),
            pool: None,
            is_expandable: self.one(&[None, Some(true), Some(false)]),
            stack: None,
            blocks,
        }
    }
}

#[test]
fn forged_recordings_are_explained_without_a_panic() {
    let mut dice = Dice(0x5eed);
    for round in 0..1500 {
        let trace: Vec<Event> = (0..dice.below(60)).map(|_| dice.event()).collect();
        let segments = (0..dice.below(6)).map(|_| dice.segment()).collect();
        let events = trace.len();
        let snapshot = Snapshot { traces: vec![trace], segments, ..Snapshot::default() };
        let origins = Origins::of(&snapshot);
        let explained =
            DeviceExplanation::of(&snapshot, 0, &origins, Options { infer: true, device_total_bytes: None });
        let analysis = DeviceAnalysis {
            snapshot: &snapshot,
            timeline: &explained.timeline,
            origins: &origins,
            purposes: &explained.purposes,
        };
        for after in [None, EventIndex::new(events / 2), explained.timeline.last(), EventIndex::new(events)] {
            let state = AllocatorState::of(&explained.timeline, snapshot.trace(0), after);
            for segment in &state.segments {
                let pieces = state.pieces_of(segment);
                assert!(
                    pieces.windows(2).all(|pair| pair[0].addr.0 + pair[0].bytes == pair[1].addr.0),
                    "{round}"
                );
                assert!(segment.bytes.sum() <= segment.memory.bytes, "{round}: {segment:?}");
            }
            let total = dice.bytes();
            let ledger = Ledger::of(&snapshot, &explained.timeline, after, dice.one(&[None, Some(total)]));
            assert!(
                ledger.device.outside.is_none() || ledger.device.rest >= ledger.device.outside,
                "{round}"
            );
            let steps = EventIndex::new(dice.below(60) as usize);
            let found = Fragmentation::of(analysis, steps.as_slice(), after);
            assert!((0.0..=1.0).contains(&found.all.fragmentation()), "{round}: {:?}", found.all);
        }
        assert!(Fragmentation::over_time(&snapshot, &explained.timeline, 20).len() <= 20);
        let same = Comparison::of(analysis, analysis);
        assert!(same.lines.iter().all(|row| row.bytes() == 0), "{round}");
        assert_eq!(Ranks::of(&[("a".to_owned(), analysis)]).ranks.len(), 1);
        let quality = DataQuality::of(analysis, &explained.passes);
        assert!(quality.stackless_bytes() <= quality.peak_bytes, "{round}");
    }
}
