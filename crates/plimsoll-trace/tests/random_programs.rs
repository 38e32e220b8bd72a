//! Random programs run on our allocator with its history on. From the histories, snapshots are made. The timeline and
//! the replay must show the true events, even if the history began late or its ring overflowed.

use plimsoll_alloc::{
    Action as Ours, Addr, Allocation, Allocator, BlockState as State, Config, Entry, Error, Event as Notice,
    History, HistoryOptions, PoolKind, Request, StreamId, TieOrder,
};
use plimsoll_trace::pressure::Pressure;
use plimsoll_trace::replay::Replay;
use plimsoll_trace::snapshot::{Action, Block, BlockState, Event, Segment, SegmentType, Setting, Snapshot};
use plimsoll_trace::timeline::{Level, Timeline};
use plimsoll_trace::whatif::WhatIf;

use crate::busy::Busy;

/// Pseudo-random numbers, the same on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }

    fn bytes(&mut self) -> u64 {
        match self.below(8) {
            0..3 => 1 + self.below(4 << 10),
            3 => 1 + self.below(1 << 20),
            4..6 => 1 + self.below(6 << 20),
            6 => 1 + self.below(24 << 20),
            _ => 512 << self.below(15),
        }
    }
}

type World = Allocator<Busy, (History, Vec<Notice>)>;

/// Runs a program of `steps` steps. The history keeps at most `max_entries` entries.
fn run(seed: u64, config: &Config, steps: u64, max_entries: usize) -> World {
    let mut dice = Dice(seed);
    let mut history = History::default();
    let mut ticks = 0;
    let clock = Box::new(move || {
        ticks += 1;
        ticks
    });
    history.record(HistoryOptions { max_entries, ..HistoryOptions::default() }, clock);
    let device = Busy::with_capacity((100 + dice.below(300)) << 20);
    let mut world = Allocator::new(config.clone(), device, (history, Vec::new()));
    let mut held: Vec<Allocation> = Vec::new();
    for _ in 0..steps {
        match dice.below(20) {
            0..9 => {
                let stream = StreamId(dice.below(4).saturating_sub(2));
                match world.malloc(Request { stream, ..Request::of(dice.bytes()) }) {
                    Ok(allocation) => held.push(allocation),
                    Err(Error::OutOfMemory(_)) => {
                        let half = held.len() / 2;
                        held.drain(half..).for_each(|allocation| world.free(allocation));
                    }
                    Err(why) => panic!("{why}"),
                }
            }
            9..17 if !held.is_empty() => {
                let nth = dice.below(held.len() as u64) as usize;
                world.free(held.swap_remove(nth));
            }
            17 if !held.is_empty() => {
                let nth = dice.below(held.len() as u64) as usize;
                world.record_stream(&held[nth], StreamId(9 + dice.below(2)));
            }
            18 => world.driver_mut().is_busy = dice.below(2) == 0,
            19 if dice.below(10) == 0 => {
                world.empty_cache().expect("a simulated device");
            }
            _ => {}
        }
    }
    world
}

fn event(entry: &Entry) -> Event {
    let action = match entry.action {
        Ours::Alloc => Action::Alloc,
        Ours::FreeRequested => Action::FreeRequested,
        Ours::FreeCompleted => Action::FreeCompleted,
        Ours::SegmentAlloc => Action::SegmentAlloc,
        Ours::SegmentFree => Action::SegmentFree,
        Ours::SegmentMap => Action::SegmentMap,
        Ours::SegmentUnmap => Action::SegmentUnmap,
        Ours::Oom { device_free_bytes } => {
            return Event::oom(entry.bytes, Some(device_free_bytes), entry.stream);
        }
        other => panic!("no program does {other}"),
    };
    Event::new(action, entry.addr, entry.bytes, entry.stream)
}

fn segment(ours: &plimsoll_alloc::Segment) -> Segment {
    let block = |block: &plimsoll_alloc::SegmentBlock| Block {
        address: block.addr,
        size: block.bytes,
        requested_size: block.requested_bytes.into(),
        state: match block.state {
            State::Active => BlockState::ActiveAllocated,
            State::Pending => BlockState::ActivePendingFree,
            State::Cached => BlockState::Inactive,
        },
        stack: None,
    };
    Segment {
        device: Some(0),
        address: ours.addr,
        total_size: ours.bytes,
        allocated_size: None.into(),
        active_size: None.into(),
        requested_size: None.into(),
        stream: ours.stream,
        segment_type: match ours.pool {
            PoolKind::Small => SegmentType::Small,
            PoolKind::Large => SegmentType::Large,
        },
        pool: None,
        is_expandable: Some(ours.is_expandable),
        stack: None,
        blocks: ours.blocks.iter().map(block).collect(),
    }
}

/// Makes the snapshot that PyTorch would write.
fn snapshot(world: &World) -> Snapshot {
    let text = Setting::Text(world.config().to_string());
    Snapshot {
        segments: world.segments().iter().map(segment).collect(),
        traces: vec![world.observer().0.entries().map(event).collect()],
        settings: vec![("PYTORCH_CUDA_ALLOC_CONF".to_owned(), text)],
        ..Snapshot::default()
    }
}

/// The true levels after each event that a history records.
fn levels(world: &World) -> Vec<Level> {
    let mut level = Level::default();
    let mut levels = vec![level];
    for event in &world.observer().1 {
        match event {
            Notice::Alloc { block, .. } => {
                level.allocated_bytes += block.bytes;
                level.active_bytes += block.bytes;
            }
            Notice::Free { block, .. } => level.allocated_bytes -= block.bytes,
            Notice::FreeCompleted { block, .. } => level.active_bytes -= block.bytes,
            Notice::SegmentAlloc { memory, .. } | Notice::SegmentMap { memory, .. } => {
                level.reserved_bytes += memory.bytes;
            }
            Notice::SegmentFree { memory, .. } | Notice::SegmentUnmap { memory } => {
                level.reserved_bytes -= memory.bytes;
            }
            Notice::OutOfMemory { .. } => {}
            _ => continue,
        }
        levels.push(level);
    }
    levels
}

/// The options for a seed; all options occur.
fn config(seed: u64) -> Config {
    let text = match seed % 5 {
        0 => "",
        1 => "expandable_segments:True",
        2 => "max_split_size_mb:20",
        3 => "roundup_power2_divisions:4",
        _ => "large_segment_size_mb:32",
    };
    let config = Config::parse(text).expect("options").config;
    config.with_tie_order(TieOrder::Address)
}

#[test]
fn a_recording_from_the_start_is_replayed_to_the_byte() {
    for seed in 0..200 {
        let world = run(seed, &config(seed), 400, usize::MAX);
        let (snapshot, truth) = (snapshot(&world), levels(&world));
        let mut timeline = Timeline::of(&snapshot, 0);
        assert_eq!((timeline.quality.conflicts(), timeline.quality.held_before), (0, 0), "seed {seed}");
        let replay = Replay::of(&snapshot, &mut timeline);
        assert!(replay.is_identical(), "seed {seed}: {replay:#?}");
        let found: Vec<Level> = timeline.curve(snapshot.trace(0)).map(|moment| moment.level).collect();
        assert!(truth[1..] == found, "seed {seed}: the levels differ");
        let peak = truth.iter().map(|level| level.allocated_bytes).max();
        assert_eq!(Some(timeline.peak_allocated.level.allocated_bytes), peak, "seed {seed}");
    }
}

#[test]
fn a_recording_from_the_start_is_simulated_as_it_was() {
    let mut simulated = 0;
    for seed in 0..300 {
        let world = run(seed, &config(seed), 120, usize::MAX);
        let snapshot = snapshot(&world);
        let mut timeline = Timeline::of(&snapshot, 0);
        Replay::of(&snapshot, &mut timeline);
        let answer = WhatIf::of(&snapshot, &timeline, &[]);
        if answer.recorded.retries > 0 || Pressure::of(&snapshot, &timeline).unclear > 0 {
            continue; // the device's free memory is known only if a request failed
        }
        assert_eq!(answer.rows[0].outcome, answer.recorded, "seed {seed}");
        simulated += 1;
    }
    assert!(simulated > 50, "{simulated} programs");
}

#[test]
fn a_recording_of_nonsense_has_a_timeline_a_replay_and_a_simulation_all_the_same() {
    const ADDRS: [u64; 8] = [0, 1, 512, 0x20_0000, 0x140_0000, 1 << 62, u64::MAX - 511, u64::MAX];
    const SIZES: [u64; 8] = [0, 1, 512, 2 << 20, 20 << 20, 1 << 60, u64::MAX - 511, u64::MAX];
    for seed in 0..2000 {
        let mut dice = Dice(seed);
        let mut pick = |from: &[u64]| match dice.below(3) {
            0 => from[dice.below(from.len() as u64) as usize],
            _ => (1 + dice.below(64)) << (9 + dice.below(14)),
        };
        let places: Vec<(u64, u64)> = (0..400).map(|_| (pick(&ADDRS), pick(&SIZES))).collect();
        let mut places = places.into_iter();
        let mut snapshot = snapshot(&run(seed, &config(seed), 30, usize::MAX));
        let events = snapshot.traces[0].clone().into_iter().flat_map(|real| {
            let (addr, bytes) = places.next().unwrap_or((512, 512));
            let action = Action::ALL[dice.below(10) as usize];
            [real, Event::new(action, Addr(addr), bytes, StreamId(dice.below(2)))]
        });
        snapshot.traces[0] = events.collect();
        for segment in &mut snapshot.segments {
            if let Some((addr, bytes)) = places.next().filter(|_| dice.below(3) == 0) {
                (segment.address, segment.total_size) = (Addr(addr), bytes);
            }
            for block in &mut segment.blocks {
                if let Some((addr, bytes)) = places.next().filter(|_| dice.below(4) == 0) {
                    (block.address, block.size) = (Addr(addr), bytes);
                }
            }
        }
        let mut timeline = Timeline::of(&snapshot, 0);
        let replay = Replay::of(&snapshot, &mut timeline);
        let answer = WhatIf::of(&snapshot, &timeline, &["expandable_segments:True"]);
        assert!(!replay.is_identical() || timeline.quality.events < 8, "seed {seed}");
        assert_eq!(answer.rows.len(), 2, "seed {seed}");
    }
}

#[test]
fn a_recording_that_lost_its_beginning_is_replayed_within_what_cannot_be_known() {
    let (mut inexact, mut waiting, mut conflicts) = (0, 0, 0);
    for seed in 0..400 {
        let world = run(seed, &config(seed), 500, 20 + seed as usize);
        let (snapshot, truth) = (snapshot(&world), levels(&world));
        let mut timeline = Timeline::of(&snapshot, 0);
        assert_eq!(timeline.quality.conflicts(), 0, "seed {seed}: {:?}", timeline.quality);
        let replay = Replay::of(&snapshot, &mut timeline);
        // If the size of a block is unknown, the space after it may be too small for the block that ours places there.
        assert!(replay.is_identical() || replay.inexact > 0, "seed {seed}: {replay:#?}");
        assert!(
            replay.ends_as_shown && replay.unplaced + replay.stray_segments == 0,
            "seed {seed}: {replay:#?}"
        );
        conflicts += replay.conflicts;
        (inexact, waiting) = (inexact + replay.inexact, waiting + timeline.waiting_before.len());
        let truth = &truth[truth.len() - snapshot.trace(0).len() - 1..];
        let found = std::iter::once(timeline.start)
            .chain(timeline.curve(snapshot.trace(0)).map(|moment| moment.level));
        for (nth, (truth, found)) in truth.iter().zip(found).enumerate() {
            let about = |truth: u64, found: u64| found <= truth && truth <= found + replay.inexact_bytes;
            let is_known = truth.reserved_bytes == found.reserved_bytes
                && about(truth.allocated_bytes, found.allocated_bytes)
                && about(truth.active_bytes, found.active_bytes);
            assert!(is_known, "seed {seed}, event {nth}: {truth:?}, found {found:?}, {replay:?}");
        }
    }
    assert!(conflicts < 10, "{conflicts} conflicts in all");
    assert!(inexact > 0 && waiting > 0, "the cases that matter are met: {inexact}, {waiting}");
}
