//! All small interleavings of two streams, two blocks and their frees. A block that a stream may still use must not be
//! reused. The test counts the uses of a block itself, independently of the allocator.

use plimsoll_alloc::{
    Addr, DeviceStream, PinnedAllocation, PinnedAllocator, PinnedConfig, PinnedRequest, SimHost, StreamId,
};

#[derive(Debug, Clone, Copy)]
enum Step {
    Alloc,
    Use { block: usize, stream: usize },
    Free { block: usize },
    Finish { stream: usize },
    Empty,
}

const STEPS: [Step; 10] = [
    Step::Alloc,
    Step::Use { block: 0, stream: 0 },
    Step::Use { block: 0, stream: 1 },
    Step::Use { block: 1, stream: 0 },
    Step::Use { block: 1, stream: 1 },
    Step::Free { block: 0 },
    Step::Free { block: 1 },
    Step::Finish { stream: 0 },
    Step::Finish { stream: 1 },
    Step::Empty,
];

/// The allocator, and a model of each stream.
struct World {
    pinned: PinnedAllocator<SimHost, ()>,
    live: Vec<PinnedAllocation>,
    /// The live blocks, each with a stream that uses it.
    used: Vec<(Addr, usize)>,
    /// The pending frees of each stream, in order: the freed blocks that it used.
    ahead: [Vec<Addr>; 2],
}

impl World {
    fn new() -> Self {
        let mut host = SimHost::with_capacity(1 << 20);
        (0..2).for_each(|nth| host.hold(stream(nth)));
        let pinned = PinnedAllocator::new(PinnedConfig::default(), host, ());
        Self { pinned, live: Vec::new(), used: Vec::new(), ahead: [Vec::new(), Vec::new()] }
    }

    /// Returns false if the step is impossible in this state.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Alloc => self.alloc(),
            Step::Use { block, stream } if block < self.live.len() => self.use_on(block, stream),
            Step::Free { block } if block < self.live.len() => self.free(block),
            Step::Finish { stream: nth } if !self.ahead[nth].is_empty() => {
                self.ahead[nth].remove(0);
                self.pinned.driver_mut().finish(stream(nth), 1);
            }
            Step::Empty => drop(self.pinned.empty_cache().unwrap()),
            _ => return false,
        }
        self.pinned.check().unwrap();
        true
    }

    fn alloc(&mut self) {
        let block = self.pinned.alloc(PinnedRequest::of(64)).unwrap();
        let addr = block.addr();
        assert!(self.live.iter().all(|other| other.addr() != addr), "{addr} is held twice");
        assert!(!self.ahead.iter().flatten().any(|&pending| pending == addr), "{addr} is still in use");
        self.live.push(block);
    }

    fn use_on(&mut self, block: usize, nth: usize) {
        let addr = self.live[block].addr();
        assert!(self.pinned.record_event(addr, stream(nth)));
        if !self.used.contains(&(addr, nth)) {
            self.used.push((addr, nth));
        }
    }

    fn free(&mut self, block: usize) {
        let block = self.live.remove(block);
        let addr = block.addr();
        for (_, nth) in self.used.extract_if(.., |(used, _)| *used == addr) {
            self.ahead[nth].push(addr);
        }
        self.pinned.free(block).unwrap();
    }
}

fn stream(nth: usize) -> DeviceStream {
    DeviceStream { device: nth as u32, stream: StreamId(7) }
}

/// Runs a program, which starts with one block and requests two more at its end. If all its steps were possible, also
/// runs every continuation of up to `more` steps. Returns the number of programs run.
fn explore(program: &mut Vec<Step>, more: usize) -> usize {
    let mut world = World::new();
    world.alloc();
    if !program.iter().all(|&step| world.step(step)) {
        return 0;
    }
    world.alloc();
    world.alloc();
    if more == 0 {
        return 1;
    }
    let continued = STEPS.iter().map(|&step| {
        program.push(step);
        let programs = explore(program, more - 1);
        program.pop();
        programs
    });
    1 + continued.sum::<usize>()
}

#[test]
fn a_block_with_a_pending_event_is_never_reused() {
    let programs = explore(&mut Vec::new(), 6);
    assert_eq!(programs, 47_015, "so many make sense");
}
