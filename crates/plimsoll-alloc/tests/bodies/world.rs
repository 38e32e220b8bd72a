//! Every call of an allocator, in any order, under any options, on a device whose
//! streams lag and one of whose calls fails.

use plimsoll_alloc::{
    Allocation, Allocator, CacheLookup, CacheMiss, CallbackResult, Category, Checkpoint, Config, DriverError,
    FailNth, LabelId, Ledger, PoolId, Request, Stats, StreamId,
};

use super::Input;
use crate::programs::slow::Slow;
use crate::programs::{MIB, assert_sound};

const OPTIONS: [&str; 8] = [
    "",
    "expandable_segments:True",
    "expandable_segments:True,expandable_segments_reserve:0.4",
    "max_split_size_mb:20,max_non_split_rounding_mb:25",
    "roundup_power2_divisions:[1:4,4:2,>:8],large_segment_size_mb:12",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.7",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.9",
    "expandable_segments:True,max_split_size_mb:20,garbage_collection_threshold:0.5",
];
const POOLS: [PoolId; 4] = [PoolId::DEFAULT, PoolId(0, 1), PoolId(0, 2), PoolId(1, 0)];

/// The state is consistent after every step of any program, and in the end all memory is freed.
pub(crate) fn stays_sound(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    let mut nth = 0;
    while let Some(kind) = input.next() {
        world.step(kind, &mut input);
        nth += 1;
        assert_sound(&world.allocator, &format!("after step {nth} of kind {kind}"));
    }
    world.give_all_back();
}

struct World {
    allocator: Allocator<FailNth<Slow>, (Stats, Ledger)>,
    live: Vec<Allocation>,
    /// A request between its two halves: the cache lookup and the continuation.
    miss: Option<CacheMiss>,
    checkpoint: Option<Checkpoint>,
    captures: u32,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let config = Config::parse(OPTIONS[input.below(8) as usize]).expect("an option string").config;
        let why = match input.below(2) {
            0 => DriverError::OutOfMemory,
            _ => DriverError::Failed("unplugged".into()),
        };
        // 0 means that no call fails.
        let driver = FailNth::new(Slow::with_capacity(96 * MIB), input.below(256), why);
        let observer = (Stats::new(&config), Ledger::default());
        let allocator = Allocator::new(config, driver, observer);
        Self { allocator, live: Vec::new(), miss: None, checkpoint: None, captures: 0 }
    }

    /// Runs one step. A call may fail, but must leave a consistent state.
    fn step(&mut self, kind: u64, input: &mut Input<'_>) {
        match kind {
            0..90 => self.alloc(input),
            90..160 => self.free(input),
            160..180 => self.use_on(input),
            180..190 => self.retag(input),
            190..196 => drop(self.allocator.empty_cache()),
            196..200 => self.allocator.set_memory_limit(Some(input.below(128) * MIB)),
            200..202 => self.allocator.set_memory_limit(None),
            202..206 => self.configure(input),
            206..236 => self.pool(kind - 206, POOLS[input.below(4) as usize]),
            236..240 => self.half_a_request(input),
            240..244 => self.begin_capture(),
            244..248 => self.end_capture(),
            248..250 => self.restore(),
            250 => self.allocator.mark_snapshot(),
            251 => self.allocator.observer_mut().0.reset_peak(),
            252 => self.allocator.observer_mut().0.reset_accumulated(),
            253 => self.allocator.observer_mut().1.reset_peak(),
            254 => drop(self.allocator.set_memory_fraction(input.below(110) as f64 / 100.0)),
            _ => drop(self.allocator.explain(request(input))),
        }
    }

    fn alloc(&mut self, input: &mut Input<'_>) {
        self.live.extend(self.allocator.malloc(request(input)));
    }

    /// Starts a request, or resumes the one that was started.
    fn half_a_request(&mut self, input: &mut Input<'_>) {
        if let Some(miss) = self.miss.take() {
            let callbacks = [CallbackResult::NothingFreed, CallbackResult::Freed][input.below(2) as usize];
            self.live.extend(self.allocator.resume(miss, callbacks));
            return;
        }
        match self.allocator.start(request(input)) {
            Ok(CacheLookup::Hit(allocation)) => self.live.push(allocation),
            Ok(CacheLookup::Miss(miss)) => self.miss = Some(miss),
            Err(_) => {}
        }
    }

    fn nth(&self, input: &mut Input<'_>) -> Option<usize> {
        let nth = input.below(256) as usize;
        nth.checked_rem(self.live.len())
    }

    fn free(&mut self, input: &mut Input<'_>) {
        if let Some(nth) = self.nth(input) {
            let allocation = self.live.remove(nth);
            self.allocator.free(allocation);
        }
    }

    fn use_on(&mut self, input: &mut Input<'_>) {
        if let Some(nth) = self.nth(input) {
            self.allocator.record_stream(&self.live[nth], StreamId(input.below(4)));
        }
    }

    fn retag(&mut self, input: &mut Input<'_>) {
        if let Some(nth) = self.nth(input) {
            let label = LabelId(input.below(5) as u32);
            self.allocator.retag(&self.live[nth], Category::ALL[label.0 as usize], label);
        }
    }

    fn configure(&mut self, input: &mut Input<'_>) {
        let parsed = Config::parse(OPTIONS[input.below(8) as usize]).expect("an option string");
        self.allocator.set_config(parsed.config);
    }

    fn pool(&mut self, kind: u64, id: PoolId) {
        match kind {
            0..8 => drop(self.allocator.create_pool(id)),
            8..14 => drop(self.allocator.release_pool(id)),
            14..17 => drop(self.allocator.empty_pool(id)),
            17..20 => drop(self.allocator.begin_allocate_to_pool(id)),
            20..23 => drop(self.allocator.end_allocate_to_pool(id)),
            23 => self.allocator.set_use_on_oom(id, true),
            24 => self.allocator.set_use_on_oom(id, false),
            25 => self.allocator.set_no_split(id),
            _ => self.checkpoint = self.allocator.checkpoint(id).ok().or(self.checkpoint.take()),
        }
    }

    fn begin_capture(&mut self) {
        self.allocator.begin_capture();
        self.captures += 1;
    }

    fn end_capture(&mut self) {
        if self.captures > 0 {
            self.allocator.end_capture();
            self.captures -= 1;
        }
    }

    /// Restores a pool to a checkpoint; the allocations of freed blocks are dropped.
    fn restore(&mut self) {
        let Some(checkpoint) = &self.checkpoint else { return };
        if let Ok(restored) = self.allocator.restore(checkpoint) {
            self.live.retain(|allocation| !restored.freed.contains(&allocation.addr()));
            self.live.extend(restored.held);
        }
    }

    fn give_all_back(mut self) {
        while self.captures > 0 {
            self.end_capture();
        }
        for id in POOLS {
            let _ = self.allocator.end_allocate_to_pool(id);
            while self.allocator.release_pool(id).is_ok() {}
        }
        self.live.drain(..).for_each(|allocation| self.allocator.free(allocation));
        // The injected failure may come only now, in the release itself.
        let _ = self.allocator.empty_cache();
        assert!(self.allocator.empty_cache().is_ok(), "a device fails once");
        assert_sound(&self.allocator, "the end");
        assert_eq!(
            self.allocator.reserved(),
            0,
            "all memory can be released: {:?}",
            self.allocator.segments()
        );
    }
}

fn request(input: &mut Input<'_>) -> Request {
    let (bytes, stream) = (input.size(), StreamId(input.below(3)));
    // Three of four requests name no pool.
    let pool = POOLS[input.below(16).saturating_sub(12) as usize];
    Request { stream, pool, ..Request::of(bytes) }
}
