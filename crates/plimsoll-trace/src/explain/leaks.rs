//! Finds out whether memory grows, at which lines, and whether that is a leak: [`Leaks`], from the lifetimes of
//! blocks and the program's steps.
//!
//! A rising level is not yet a leak: a larger batch also raises the level, and so does a cache that is replaced by a
//! larger cache. Leaked memory is never freed. So each line has two series ([`Course`]): its live bytes at the end of
//! each step, and the bytes of each step's blocks that are still live at the end of the last step. `judge.rs` derives a
//! verdict from these series. `sawtooth.rs` recognizes memory of many steps that is freed at once. `pattern.rs` names
//! the kind of program that leaks in this way.

mod growth;
mod judge;
mod pattern;
mod rows;
mod sawtooth;

use std::collections::BTreeMap;

use plimsoll_alloc::Category;

use super::origin::{Name, Origins};
use super::purposes::Purposes;
use super::steps::{Source, Steps};
use crate::snapshot::{FrameId, LifeIndex, Snapshot, StackId};
use crate::timeline::Timeline;
pub use growth::Growth;
pub use judge::Verdict;
pub use pattern::Pattern;
use rows::{Release, Rows, add};
use sawtooth::Frees;

/// The growth in one device's recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaks {
    /// All live memory as one course. Its verdict is [`Verdict::Leaking`] if a line leaks, unless an equal amount of
    /// older memory was freed.
    pub whole: Course,
    /// Every place with a block that outlived a step. The leaking places come first, largest first; then the places
    /// that [keep something of each step](Course::kept_of_each); then the other places, by live bytes at the end. If
    /// there are very many places, only those that allocated the most are included.
    pub lines: Vec<Line>,
    /// The kind of leak.
    pub pattern: Option<Pattern>,
    /// The leaked blocks of one step, the last one whose leaks are known, in the order of their allocation.
    pub sample: Vec<LifeIndex>,
}

/// A place in the program, as precisely as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The user's line.
    Line(FrameId),
    /// An operator that no line of Python called, such as a derivative.
    Operator(Name),
    /// A stack in which no such line and no operator was found.
    Stack(StackId),
    /// No stack was recorded.
    Unknown,
}

impl Place {
    /// The place where the blocks of a stack are requested.
    pub fn of(stack: Option<StackId>, origins: &Origins) -> Self {
        let origin = origins.get(stack);
        match (origin.line, origin.operator, stack) {
            (Some(line), _, _) => Self::Line(line),
            (_, Some(operator), _) => Self::Operator(operator),
            (_, _, Some(stack)) if stack != StackId::EMPTY => Self::Stack(stack),
            _ => Self::Unknown,
        }
    }
}

/// The maximum number of entries in the series of all lines; an entry is 16 bytes.
const MOST_ENTRIES: usize = 1 << 21;

/// One place and its live bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The place.
    pub place: Place,
    /// The library line that it calls, in the stack of its first block that outlives a step.
    pub inner: Option<FrameId>,
    /// The operator that requested all blocks of the place, if it is the same for all.
    pub operator: Option<Name>,
    /// The place's bytes, step by step.
    pub course: Course,
    /// The pattern of this line alone.
    pub pattern: Option<Pattern>,
}

/// A series of bytes, step by step, and the verdict about it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Course {
    /// The verdict.
    pub verdict: Verdict,
    /// The confidence, in the words of [`Why::confidence`](super::Why::confidence).
    pub confidence: &'static str,
    /// Live bytes after each step.
    pub held: Vec<u64>,
    /// The bytes of each step's blocks that are still live after the last step.
    pub kept: Vec<u64>,
    /// How much of each step's memory remains.
    pub growth: Growth,
}

impl Course {
    /// If there are too few steps for a verdict, the bytes of a step that are still live at the end, as the minimum
    /// over the later steps. `None` unless some bytes of every step, including the first, are still live.
    pub fn kept_of_each(&self) -> Option<u64> {
        let (first, others) = self.kept.split_first().filter(|_| self.verdict == Verdict::TooFewSteps)?;
        let (least, most) = (*others.iter().min()?, *others.iter().max()?);
        (*first > 0 && least > 0 && most / 2 <= least && (others.len() > 1 || first / 2 <= least))
            .then_some(least)
    }
}

impl Leaks {
    /// Visits all blocks once, and the blocks of the sample step a second time.
    pub fn of(
        snapshot: &Snapshot,
        timeline: &Timeline,
        origins: &Origins,
        purposes: &Purposes,
        steps: &Steps,
    ) -> Self {
        let walk = Walk::of(snapshot, timeline, origins, purposes, steps);
        let fewest = match steps.source {
            Source::Requests(_) => 8,
            Source::Sizes(_) => 16,
            _ => 3,
        };
        let whole_lasting = walk.whole.lasting(steps.len());
        let about = judge::About {
            asked: &walk.asked,
            fewest,
            lasting: &whole_lasting,
            teeth: None,
            is_cat: false,
            is_line: true,
            is_first_use: false,
        };
        let frees = Frees::of(snapshot, timeline.device);
        let mut surest = None;
        let mut lines: Vec<Line> = Vec::new();
        let largest = walk.largest(MOST_ENTRIES / steps.len().max(1));
        let carried =
            pattern::carried(&largest.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(), steps.len());
        for ((place, rows), is_carried) in largest.into_iter().zip(carried) {
            let mut course = rows.course(steps.len());
            let operator = rows.operator.flatten();
            let is_cat = operator.is_some_and(|name| name.of(snapshot).starts_with("cat"));
            let mut asked = walk.asked.clone();
            for &(step, bytes) in &rows.asked {
                asked[step as usize] = asked[step as usize].saturating_sub(bytes);
            }
            let is_first_use = rows.is_first_use;
            let lasting = rows.lasting(steps.len());
            let teeth = sawtooth::find(snapshot, timeline.device, &frees, rows, &course.kept);
            let judged =
                judge::About { asked: &asked, lasting: &lasting, teeth, is_cat, is_first_use, ..about };
            judge::judge(&mut course, &judged);
            judge::tell_confidence(&mut course, steps.confidence, teeth);
            surest = surest.or(teeth);
            let is_steady = matches!(course.verdict, Verdict::Steady | Verdict::WarmingUp);
            let pattern = pattern::of_line(snapshot, &course, rows, operator)
                .or((is_carried && is_steady).then_some(Pattern::CarriedNumber));
            let inner = origins.get(rows.stack).package_line.filter(|_| matches!(place, Place::Line(_)));
            lines.push(Line { place, inner, operator, course, pattern });
        }
        let is_leaking = |line: &Line| line.course.verdict == Verdict::Leaking;
        lines.sort_by_key(|line| {
            let last = line.course.held.last().copied();
            let leak = is_leaking(line).then_some(line.course.growth.bytes);
            (std::cmp::Reverse((leak, line.course.kept_of_each(), last)), line.place)
        });

        let mut whole = walk.whole.course(steps.len());
        judge::judge(
            &mut whole,
            &judge::About { is_line: false, is_first_use: walk.whole.is_first_use, ..about },
        );
        judge::judge_whole(&mut whole, &lines, walk.went_away);
        judge::tell_confidence(&mut whole, steps.confidence, surest);
        let leaking: Vec<&Line> = lines.iter().filter(|line| is_leaking(line)).collect();
        let sample = pattern::sample(timeline, origins, steps, &leaking);
        let pattern = pattern::of_leak(snapshot, timeline, origins, purposes, steps, &sample);
        Self { whole, lines, pattern, sample }
    }

    /// The leaking lines: the first of [`lines`](Self::lines).
    pub fn leaking(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().take_while(|line| line.course.verdict == Verdict::Leaking)
    }

    /// If there are too few steps for a verdict: the lines that still keep something of every step at the end, with the
    /// bytes of each step.
    pub fn kept_of_each(&self) -> impl Iterator<Item = (&Line, u64)> {
        let is_open = self.whole.verdict == Verdict::TooFewSteps;
        self.lines
            .iter()
            .filter(move |_| is_open)
            .filter_map(|line| Some((line, line.course.kept_of_each()?)))
    }

    /// The growth of all leaking lines together, in bytes per step, rounded.
    pub fn bytes_per_step(&self) -> u64 {
        let per_step = |line: &Line| {
            let Growth { bytes, steps, .. } = line.course.growth;
            let steps = steps.max(1) as u64;
            bytes.saturating_add(steps / 2) / steps
        };
        self.leaking().map(per_step).fold(0, u64::saturating_add)
    }
}

/// The results of one walk over the blocks.
struct Walk {
    places: Vec<Place>,
    /// The rows of each place.
    rows: Vec<Rows>,
    whole: Rows,
    /// Bytes requested in each step.
    asked: Vec<u64>,
    /// Bytes that were live before the judged steps and that were freed by the end.
    went_away: u64,
}

impl Walk {
    fn of(
        snapshot: &Snapshot,
        timeline: &Timeline,
        origins: &Origins,
        purposes: &Purposes,
        steps: &Steps,
    ) -> Self {
        let (places, place_of) = places(snapshot, origins);
        let ends = &steps.boundaries;
        let count = ends.len() as u32;
        let warm = growth::warm(ends.len()) as u32;
        let mut walk = Self {
            rows: vec![Rows::default(); places.len()],
            places,
            whole: Rows::default(),
            asked: vec![0; ends.len()],
            went_away: 0,
        };
        let mut step = 0;
        for (index, life) in timeline.lives.iter().enumerate() {
            let rows = &mut walk.rows[place_of[life.stack.map_or(0, StackId::index)]];
            let birth = match life.born {
                Some(born) => {
                    while ends.get(step).is_some_and(|&end| end < born) {
                        step += 1;
                    }
                    let Some(&end) = ends.get(step) else { break };
                    walk.asked[step] = walk.asked[step].saturating_add(life.bytes);
                    add(&mut rows.asked, step as u32, life.bytes);
                    if life.freed.is_some_and(|freed| freed <= end) {
                        continue;
                    }
                    Some(step as u32)
                }
                None => None,
            };
            let death = life.freed.map_or(count, |freed| {
                let from = birth.unwrap_or(0) as usize;
                (from + ends[from..].partition_point(|&end| end < freed)) as u32
            });
            let origin = origins.get(life.stack);
            rows.operator = Some(
                rows.operator.map_or(origin.operator, |known| known.filter(|_| known == origin.operator)),
            );
            if birth.is_some_and(|step| step < warm) && death == count && !rows.is_first_use {
                let purpose = LifeIndex::new(index).and_then(|life| purposes.get(life).category);
                rows.is_first_use = matches!(
                    purpose,
                    Some(Category::OptimizerState | Category::Workspace | Category::Gradient)
                );
                walk.whole.is_first_use |= rows.is_first_use;
            }
            let is_sum = pattern::is_sum(snapshot, life, origin);
            if !origins.has_native()
                && let Some(step) = birth
                && let (is_direct, true) = pattern::number(snapshot, life, origin)
            {
                rows.numbers += 1;
                rows.numbers_replaced += usize::from(step + 1 == death);
                rows.direct_numbers += usize::from(is_direct);
                rows.first_number.get_or_insert(index);
            }
            if let (Some(birth), Some(at)) = (birth, life.freed.filter(|_| death < count)) {
                rows.releases.push(Release { at, birth, death, bytes: life.bytes });
            }
            rows.take(life, birth, death, count, is_sum);
            walk.whole.take(life, birth, death, count, is_sum);
            if birth.is_none_or(|step| step < warm) && death > warm && death < count {
                walk.went_away = walk.went_away.saturating_add(life.bytes);
            }
        }
        walk
    }
}

impl Walk {
    /// The places with blocks that outlived a step; if there are too many, only those that allocated the most.
    fn largest(&self, most: usize) -> Vec<(Place, &Rows)> {
        let places = self.places.iter().copied().zip(&self.rows);
        let mut places: Vec<(Place, &Rows)> = places.filter(|(_, rows)| rows.blocks > 0).collect();
        places.sort_by_key(|&(place, rows)| (std::cmp::Reverse(rows.bytes), place));
        places.truncate(most);
        places
    }
}

/// All places, and the place of each stack.
fn places(snapshot: &Snapshot, origins: &Origins) -> (Vec<Place>, Vec<usize>) {
    let mut numbers: BTreeMap<Place, usize> = BTreeMap::new();
    let mut places = Vec::new();
    let mut number = |stack: StackId| {
        let place = Place::of(Some(stack), origins);
        *numbers.entry(place).or_insert_with(|| {
            places.push(place);
            places.len() - 1
        })
    };
    // A block without a stack is treated as having the empty stack, which comes first.
    let of_stacks = (0..snapshot.stacks.len()).filter_map(StackId::new).map(&mut number).collect();
    (places, of_stacks)
}
