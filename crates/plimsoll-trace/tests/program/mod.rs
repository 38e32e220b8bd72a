//! Recordings written by hand: a program that requests memory from named lines, step by step.

use std::collections::BTreeSet;

use plimsoll_alloc::{Addr, StreamId};
use plimsoll_trace::explain::{DeviceExplanation, Leaks, Options, Origins, Passes, Purposes, Steps};
use plimsoll_trace::snapshot::{
    Action, Annotation, Block, BlockState, Event, Frame, FrameId, Segment, SegmentType, Setting, Snapshot,
    StackId, Stage,
};
use plimsoll_trace::timeline::Timeline;

/// Finds the steps and leaks of a snapshot's first device.
pub(crate) fn explain(snapshot: &Snapshot) -> (Steps, Leaks) {
    let timeline = Timeline::of(snapshot, 0);
    let origins = Origins::of(snapshot);
    let passes = Passes::of(snapshot, snapshot.trace(0), &origins);
    let purposes = Purposes::of(snapshot, &timeline, &origins, &passes, true);
    let steps = Steps::of(snapshot, 0, &origins, &passes);
    let leaks = Leaks::of(snapshot, &timeline, &origins, &purposes, &steps);
    (steps, leaks)
}

const USER: (&str, &str) = ("/home/me/train.py", "main");
const MODULE: (&str, &str) = ("/x/site-packages/torch/nn/modules/module.py", "_call_impl");
const ENGINE: (&str, &str) = ("", "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)");
const OPTIMIZER: (&str, &str) = ("/x/site-packages/torch/optim/adam.py", "step");

/// A block that can be freed.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    addr: Addr,
    bytes: u64,
}

/// A program that records its own trace.
#[derive(Default)]
pub(crate) struct Program {
    snapshot: Snapshot,
    trace: Vec<Event>,
    /// The number of blocks so far. Each gets a different address.
    blocks: u64,
    is_timed: bool,
    is_bare: bool,
}

impl Program {
    /// A program that has held a model since before the recording.
    pub(crate) fn training() -> Self {
        let mut program = Self::default();
        program.alloc("model", 1 << 20);
        program
    }

    /// A program whose events are a microsecond apart, from zero.
    pub(crate) fn timed() -> Self {
        Self { is_timed: true, ..Self::default() }
    }

    /// Like [`timed`](Self::timed), for a program of our own runtime.
    pub(crate) fn of_our_runtime() -> Self {
        let mut program = Self::timed();
        program.snapshot.settings.push(("plimsoll".to_owned(), Setting::Map(Vec::new())));
        program
    }

    /// A program that records no stacks.
    pub(crate) fn without_stacks() -> Self {
        Self { is_bare: true, ..Self::default() }
    }

    fn stack(&mut self, frames: &[(&str, &str)]) -> Option<StackId> {
        let texts = &mut self.snapshot.texts;
        let stacks = &mut self.snapshot.stacks;
        let ids: Vec<FrameId> = frames
            .iter()
            .filter_map(|(file, name)| {
                let (filename, name) = (texts.intern(file)?, texts.intern(name)?);
                stacks.frame(Frame { filename, name, line: 1, fx: None })
            })
            .collect();
        stacks.stack(&ids)
    }

    fn event(&mut self, action: Action, held: &Held, stack: Option<StackId>) {
        let mut event = Event::new(action, held.addr, held.bytes, StreamId(0));
        event.stack = stack;
        if self.is_timed {
            event.time_us = (self.trace.len() as u64).into();
        }
        self.trace.push(event);
    }

    fn ask(&mut self, frames: &[(&str, &str)], bytes: u64) -> Held {
        self.blocks += 1;
        let held = Held { addr: Addr(self.blocks << 30), bytes };
        let stack = if self.is_bare { None } else { self.stack(frames) };
        self.event(Action::Alloc, &held, stack);
        held
    }

    /// Requests memory from a function of the user's code.
    pub(crate) fn alloc(&mut self, function: &str, bytes: u64) -> Held {
        self.ask(&[("/home/me/train.py", function), USER], bytes)
    }

    /// Requests memory from inside a module's call.
    pub(crate) fn alloc_in_module(&mut self, function: &str, bytes: u64) -> Held {
        self.ask(&[("/home/me/model.py", function), MODULE, USER], bytes)
    }

    /// Makes a request that fails.
    pub(crate) fn fails(&mut self, bytes: u64) {
        self.trace.push(Event::oom(bytes, None, StreamId(0)));
    }

    /// Frees a block.
    pub(crate) fn free(&mut self, held: Held) {
        self.event(Action::FreeRequested, &held, None);
        self.event(Action::FreeCompleted, &held, None);
    }

    /// Frees a block from a function of the user's code.
    pub(crate) fn free_at(&mut self, function: &str, held: Held) {
        let stack = self.stack(&[("/home/me/train.py", function), USER]);
        self.event(Action::FreeRequested, &held, stack);
        self.event(Action::FreeCompleted, &held, stack);
    }

    /// Runs a forward pass with two requests, both of which are freed.
    pub(crate) fn forward(&mut self, bytes: u64) {
        let batch = self.alloc("batch", bytes);
        let activation = self.alloc_in_module("layer", 2 * bytes);
        self.free(activation);
        self.free(batch);
    }

    /// Runs a forward pass, and a backward pass that frees its blocks.
    pub(crate) fn forward_backward(&mut self, bytes: u64) {
        let batch = self.alloc("batch", bytes);
        let activation = self.alloc_in_module("layer", 2 * bytes);
        let gradient = self.ask(&[ENGINE], 2 * bytes);
        for held in [activation, gradient, batch] {
            self.free(held);
        }
    }

    /// Runs an optimizer step, with scratch memory that is freed.
    pub(crate) fn optimizer(&mut self) {
        let scratch = self.ask(&[OPTIMIZER, USER], 2048);
        self.free(scratch);
    }

    /// Runs a training step.
    pub(crate) fn step(&mut self, bytes: u64) {
        self.forward_backward(bytes);
        self.optimizer();
    }

    /// Adds a scope of the program.
    pub(crate) fn scope(&mut self, name: &str, from_us: u64, to_us: u64) {
        let Some(name) = self.snapshot.texts.intern(name) else { return };
        for (stage, time_us) in [(Stage::Start, from_us), (Stage::End, to_us)] {
            let scope = Annotation { name, stage, device: Some(0), time_us: time_us.into() };
            self.snapshot.annotations.push(scope);
        }
    }

    /// Finds the steps and leaks of the program.
    pub(crate) fn explain(self) -> (Steps, Leaks) {
        explain(&self.finish())
    }

    /// Bytes, blocks and the caller's file of the graph that nobody uses.
    pub(crate) fn unused_graph(self) -> Option<(u64, usize, String)> {
        let snapshot = self.finish();
        let origins = Origins::of(&snapshot);
        let graph = DeviceExplanation::of(&snapshot, 0, &origins, Options::default()).unused_graph?;
        let file = |frame| snapshot.texts.get(snapshot.stacks.get_frame(frame).filename).to_owned();
        Some((graph.bytes, graph.blocks, graph.line.map(file).unwrap_or_default()))
    }

    /// Makes the snapshot. Each block that is live at the end gets a separate segment.
    fn finish(self) -> Snapshot {
        let mut snapshot = self.snapshot;
        let freed = self.trace.iter().filter(|event| event.action == Action::FreeRequested);
        let freed: BTreeSet<Option<Addr>> = freed.map(Event::addr).collect();
        let held = |event: &&Event| event.action == Action::Alloc && !freed.contains(&event.addr());
        for event in self.trace.iter().filter(held) {
            let address = event.addr().expect("no request failed");
            let size = event.size.next_multiple_of(512);
            let state = BlockState::ActiveAllocated;
            snapshot.segments.push(Segment {
                device: Some(0),
                address,
                total_size: size,
                allocated_size: size.into(),
                active_size: size.into(),
                requested_size: event.size.into(),
                stream: event.stream,
                segment_type: SegmentType::Large,
                pool: None,
                is_expandable: None,
                stack: None,
                blocks: vec![Block {
                    address,
                    size,
                    requested_size: event.size.into(),
                    state,
                    stack: event.stack,
                }],
            });
        }
        snapshot.traces = vec![self.trace];
        snapshot
    }
}
