//! Finds steps by repetition: one line makes requests again and again, at regular intervals.
//!
//! The loop over a model's layers also repeats. So a line counts only if it is outside all calls to modules. Without
//! stacks, requests are distinguished by size. A size counts only if most of the bytes that are requested between two
//! requests of this size are freed before the second of them: a forward pass that keeps its layers' outputs is not a
//! series of steps.

use std::collections::BTreeMap;

use super::{Source, Steps};
use crate::explain::origin::{Activity, Origins};
use crate::snapshot::{Action, Event, EventIndex, StackId};

/// Fewer repetitions than this do not count as a period.
const FEWEST: usize = 4;
/// Intervals that vary more than this do not count as a period.
const MOST_UNEVEN: f64 = 0.5;

/// The requests of one kind, by their index among all requests.
#[derive(Debug, Clone)]
struct Beats {
    count: usize,
    first: usize,
    last: usize,
    /// The sum of the squared intervals.
    squares: f64,
}

impl Beats {
    fn new(place: usize) -> Self {
        Self { count: 1, first: place, last: place, squares: 0.0 }
    }

    fn add(&mut self, place: usize) {
        self.squares += ((place - self.last) as f64).powi(2);
        self.last = place;
        self.count += 1;
    }

    /// Whether the requests of this kind occur often enough, and span more than half of all requests.
    fn reaches(&self, requests: usize) -> bool {
        self.count >= FEWEST && (self.last - self.first) * 2 >= requests
    }

    /// The standard deviation of the intervals, relative to their mean.
    fn unevenness(&self) -> f64 {
        let gaps = (self.count - 1) as f64;
        let mean = (self.last - self.first) as f64 / gaps;
        (self.squares / gaps - mean * mean).max(0.0).sqrt() / mean
    }
}

/// The steps that repeated requests show; `None` if no request repeats regularly.
pub(super) fn find(
    trace: &[Event],
    origins: &Origins,
    is_inside: &[bool],
    in_compiler: &[bool],
) -> Option<Steps> {
    let has_stacks = trace.iter().any(|event| event.stack.is_some_and(|stack| stack != StackId::EMPTY));
    if has_stacks {
        let is_outside = |stack: &StackId| {
            !is_inside[stack.index()] && origins.get(Some(*stack)).activity == Activity::Forward
        };
        // A compiler's own requests do not repeat with the program.
        let runs = |event: &Event| event.stack.is_none_or(|stack| !in_compiler[stack.index()]);
        let (stack, boundaries, confidence) = beat(trace, |event| event.stack.filter(is_outside), runs)?;
        Some(Steps { boundaries, source: Source::Requests(stack), confidence })
    } else {
        let (bytes, boundaries, _) = beat(trace, |event| Some(event.size), |_| true)?;
        let steps = Steps { boundaries, source: Source::Sizes(bytes), confidence: "a guess" };
        lets_go(trace, &steps.boundaries).then_some(steps)
    }
}

/// Finds regularly repeated requests. A loop has several lines, so a kind of request counts only if another kind
/// occurs as often. Of these kinds, chooses the rarest, and among equally rare kinds the first. Returns the kind, the
/// event before each of its requests except the first, and the confidence. Consecutive requests of one kind count once.
/// Requests that `counts` rejects are ignored.
fn beat<K: Ord + Copy>(
    trace: &[Event],
    key: impl Fn(&Event) -> Option<K>,
    counts: impl Fn(&Event) -> bool,
) -> Option<(K, Vec<EventIndex>, &'static str)> {
    let asks = || {
        let is_one = |event: &Event| event.action == Action::Alloc && counts(event);
        let asks = trace.iter().enumerate().filter(move |(_, event)| is_one(event));
        let mut last = None;
        asks.map(|(index, event)| (index, key(event))).enumerate().map(move |(place, (index, key))| {
            let is_new = key != last;
            last = key;
            (place, index, key.filter(|_| is_new))
        })
    };
    let mut beats: BTreeMap<K, Beats> = BTreeMap::new();
    let mut requests = 0;
    for (place, _, key) in asks() {
        requests += 1;
        let Some(key) = key else { continue };
        beats.entry(key).and_modify(|beats| beats.add(place)).or_insert_with(|| Beats::new(place));
    }
    beats.retain(|_, beats| beats.reaches(requests) && beats.unevenness() <= MOST_UNEVEN);
    // The last step may be incomplete, so the count of another kind may be smaller by one.
    let alike = |count: usize| beats.values().filter(|it| it.count == count || it.count + 1 == count).count();
    let rarest =
        |least: usize| beats.values().map(|it| it.count).filter(|&count| alike(count) >= least).min();
    let count = rarest(2).or_else(|| rarest(1))?;
    let of_count = beats.iter().filter(|(_, it)| it.count == count);
    let (&first, beats) = of_count.min_by_key(|(_, it)| it.first)?;
    let ones = asks().filter(|&(_, _, key)| key == Some(first)).skip(1);
    let ends = ones.filter_map(|(_, index, _)| EventIndex::new(index.checked_sub(1)?)).collect();
    let is_clear = beats.count >= 10 && beats.unevenness() <= 0.1;
    Some((first, ends, if is_clear { "likely" } else { "a guess" }))
}

/// Whether, in most steps, at least half of the requested bytes are freed.
fn lets_go(trace: &[Event], boundaries: &[EventIndex]) -> bool {
    let (mut asked, mut freed, mut begin, mut good) = (0u64, 0u64, 0, 0);
    for end in boundaries {
        for event in &trace[begin..=end.index()] {
            match event.action {
                Action::Alloc => asked = asked.saturating_add(event.size),
                Action::FreeRequested => freed = freed.saturating_add(event.size),
                _ => {}
            }
        }
        good += usize::from(freed >= asked / 2);
        (asked, freed, begin) = (0, 0, end.index() + 1);
    }
    good * 2 > boundaries.len()
}
