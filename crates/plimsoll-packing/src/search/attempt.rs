//! A depth-first search with a limit ([`Attempt`]).
//!
//! Note [Place or delay]: a node chooses a buffer that can rest at its bound, below all unplaced buffers that it
//! overlaps. Either the buffer is placed there, or, in a packing in which no buffer can move down, it rests on one of
//! those unplaced buffers, so that its bound becomes the smallest end that they can have. No packing is visited twice.
//!
//! Note [Parts]: when no unplaced buffer connects two ranges of sections, each is packed on its own, and the decisions
//! in the first are not tried again if the second is impossible.
//!
//! Note [Jumps]: after a conflict, the search with jumps returns to the last decision whose buffer is alive near the
//! conflict. This can skip packings, so such an attempt never proves that there is none.

use std::ops::Range;

use super::choice::Ranking;
use super::propagate::Scratch;
use super::state::{Conflict, State};

/// How an attempt ended.
pub(super) enum Ending {
    /// With an offset for each buffer.
    Packed(Vec<u64>),
    /// There is no packing.
    Impossible,
    /// The limit was reached, or a jump skipped packings.
    Open,
}

enum Frame {
    /// A buffer was placed. Its alternative is to delay it.
    Placed { trail: usize, buffer: u32, sections: Range<usize> },
    /// A buffer was delayed because of a conflict in these sections.
    Delayed { buffer: u32, cause: Range<usize> },
    /// These parts remain, after the one that is packed now.
    Parts { rest: Vec<Range<usize>> },
}

enum Step {
    Enter(Range<usize>),
    Done,
    Fail,
}

pub(super) struct Attempt<'a, 'b> {
    state: State<'a>,
    ranking: &'b Ranking,
    /// The number of conflicts of each section.
    weight: &'b mut [u64],
    scratch: Scratch,
    frames: Vec<Frame>,
    /// The sections on which the last conflict depends.
    cause: Range<usize>,
    jumps: bool,
    jumped: bool,
    pub(super) nodes: u64,
}

impl<'a, 'b> Attempt<'a, 'b> {
    pub(super) fn new(state: State<'a>, ranking: &'b Ranking, weight: &'b mut [u64], jumps: bool) -> Self {
        let scratch = Scratch::default();
        Attempt {
            state,
            ranking,
            weight,
            scratch,
            frames: Vec::new(),
            cause: 0..0,
            jumps,
            jumped: false,
            nodes: 0,
        }
    }

    /// The number of buffers that the rules have looked at so far.
    pub(super) fn steps(&self) -> u64 {
        self.scratch.steps
    }

    pub(super) fn run(&mut self, nodes: u64, steps: u64) -> Ending {
        if self.state.propagate(&mut self.scratch).is_err() {
            return Ending::Impossible;
        }
        let rest = self.parts(&(0..self.weight.len()));
        self.frames.push(Frame::Parts { rest });
        let mut step = Step::Done;
        loop {
            step = match step {
                Step::Enter(_) if self.nodes >= nodes || self.steps() >= steps => return Ending::Open,
                Step::Enter(sections) => self.place(sections),
                Step::Done => match self.frames.last_mut() {
                    None => return Ending::Packed(std::mem::take(&mut self.state.bound)),
                    Some(Frame::Parts { rest }) if !rest.is_empty() => {
                        let part = rest.pop().unwrap_or_default();
                        self.open(part)
                    }
                    Some(_) => {
                        self.frames.pop();
                        Step::Done
                    }
                },
                Step::Fail => match self.frames.pop() {
                    None if self.jumped => return Ending::Open,
                    None => return Ending::Impossible,
                    Some(frame) => self.back(frame),
                },
            }
        }
    }

    /// Places the next buffer of these sections.
    fn place(&mut self, sections: Range<usize>) -> Step {
        let Some(buffer) = self.ranking.choose(&self.state, &sections) else { return Step::Done };
        self.nodes += 1;
        let trail = self.state.trail.len();
        self.frames.push(Frame::Placed { trail, buffer, sections: sections.clone() });
        let placed = self.state.place(buffer);
        if let Err(conflict) = placed.and_then(|()| self.state.propagate(&mut self.scratch)) {
            return self.fail(&conflict);
        }
        let span = self.state.of.span(buffer);
        if self.state.crossing[span.start..span.end - 1].contains(&0) {
            let rest = self.parts(&sections);
            self.frames.push(Frame::Parts { rest });
            return Step::Done;
        }
        Step::Enter(sections)
    }

    /// Continues after a conflict: with the alternative of this frame, or with the frame below it.
    fn back(&mut self, frame: Frame) -> Step {
        match frame {
            Frame::Parts { .. } => Step::Fail,
            Frame::Delayed { buffer, cause } => {
                let span = self.state.of.span(buffer);
                if meet(&span, &self.cause) {
                    self.cause = hull(&self.cause, &hull(&cause, &span));
                }
                Step::Fail
            }
            Frame::Placed { buffer, .. } if self.jumps && !meet(&self.state.of.span(buffer), &self.cause) => {
                self.jumped = true;
                Step::Fail
            }
            Frame::Placed { trail, buffer, sections } => {
                if self.jumps {
                    self.frames.push(Frame::Delayed { buffer, cause: self.cause.clone() });
                }
                self.nodes += 1;
                self.state.undo(trail);
                let end = self.state.smallest_end_beside(buffer);
                let raised = self.state.raise(buffer, end);
                match raised.and_then(|()| self.state.propagate(&mut self.scratch)) {
                    Ok(()) => Step::Enter(sections),
                    Err(conflict) => self.fail(&conflict),
                }
            }
        }
    }

    fn fail(&mut self, conflict: &Conflict) -> Step {
        self.weight[conflict.0] += 1;
        let spans = self.state.unplaced_of(conflict.0).iter().map(|&it| self.state.of.span(it));
        self.cause = spans.fold(conflict.0..conflict.0 + 1, |all, span| hull(&all, &span));
        Step::Fail
    }

    /// Begins a part. Buffers that are in all of its sections can be above all others, because everything above them
    /// can move down.
    fn open(&mut self, sections: Range<usize>) -> Step {
        let whole = |&it: &u32| self.state.of.span(it) == sections;
        let whole: Vec<u32> = self.state.unplaced_of(sections.start).iter().copied().filter(whole).collect();
        if whole.is_empty() {
            return Step::Enter(sections);
        }
        for buffer in whole {
            if let Err(conflict) = self.state.place_on_top(buffer) {
                return self.fail(&conflict);
            }
        }
        if let Err(conflict) = self.state.propagate(&mut self.scratch) {
            return self.fail(&conflict);
        }
        let rest = self.parts(&sections);
        self.frames.push(Frame::Parts { rest });
        Step::Done
    }

    /// The parts of these sections that no unplaced buffer connects. The part with the least slack is last, and is
    /// packed first.
    fn parts(&self, sections: &Range<usize>) -> Vec<Range<usize>> {
        let (mut parts, mut start) = (Vec::new(), sections.start);
        for section in sections.clone() {
            if section + 1 == sections.end || self.state.crossing[section] == 0 {
                if (start..=section).any(|section| self.state.unplaced[section] > 0) {
                    parts.push(start..section + 1);
                }
                start = section + 1;
            }
        }
        let slack = |part: &Range<usize>| part.clone().map(|section| self.state.slack(section)).min();
        parts.sort_by_key(|part| std::cmp::Reverse(slack(part)));
        parts
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn hull(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}
