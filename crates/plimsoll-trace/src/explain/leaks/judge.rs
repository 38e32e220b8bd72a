//! The verdict about a series of byte counts, one per step. Nothing here depends on the program.

use super::growth::{Growth, fit, growth, sum, warm};
use super::sawtooth::Teeth;
use super::{Course, Line};

/// The verdict about a series of byte counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Verdict {
    /// There are too few steps to judge a series that grows, or no step is known.
    #[default]
    TooFewSteps,
    /// The series does not grow: the level is the same after each step, or goes up and down for no known reason.
    Steady,
    /// The series grew only in the first steps, as optimizer state and workspaces do, or by decreasing amounts.
    WarmingUp,
    /// The series falls.
    Falling,
    /// The series rises for some steps, until Python's garbage collector frees reference cycles.
    HeldUntilGc,
    /// The series rises for some steps, until a line of the program frees the memory of these steps.
    HeldUntilCleared,
    /// The series goes up and down with the bytes that each step requests.
    FollowsBatchSize,
    /// The series grows, but each block is freed and replaced by a larger block, as in a cache grown by `cat`.
    GrowingCache,
    /// Memory is added in every step, or every few steps, and never freed.
    Leaking,
}

impl Verdict {
    /// The verdict's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooFewSteps => "too few steps to tell",
            Self::Steady => "steady",
            Self::WarmingUp => "warming up",
            Self::Falling => "falling",
            Self::HeldUntilGc => "held until gc",
            Self::HeldUntilCleared => "held until cleared",
            Self::FollowsBatchSize => "follows batch size",
            Self::GrowingCache => "a cache that grows",
            Self::Leaking => "leaking",
        }
    }
}

/// The input for a verdict, in addition to the series.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    /// Bytes that the rest of the program requests in each step; if the series is all memory, all requested bytes.
    pub asked: &'a [u64],
    /// With fewer judged steps than this, nothing is called a leak.
    pub fewest: usize,
    /// For each step, the bytes that are live after it and still live after the next step.
    pub lasting: &'a [u64],
    /// If the blocks of several steps are freed at once, the cause of these frees.
    pub teeth: Option<Teeth>,
    /// Whether all blocks come from `cat`.
    pub is_cat: bool,
    /// Whether the series belongs to one line.
    pub is_line: bool,
    /// Whether the series includes blocks that a program allocates once, in its first steps, and keeps.
    pub is_first_use: bool,
}

/// Sets the growth and the verdict of a course.
pub(super) fn judge(course: &mut Course, about: &About<'_>) {
    course.growth = growth(&course.kept);
    course.verdict = verdict(course, about);
}

fn verdict(course: &Course, about: &About<'_>) -> Verdict {
    let Course { held, growth, .. } = course;
    let (Some(&first), Some(&last)) = (held.first(), held.last()) else { return Verdict::TooFewSteps };
    let warm = warm(held.len());
    match about.teeth {
        Some(Teeth::Collector(_)) => return Verdict::HeldUntilGc,
        Some(Teeth::Cleared(_)) => return Verdict::HeldUntilCleared,
        None if is_leak(course, about) => return Verdict::Leaking,
        None => {}
    }
    let settled = held.get(warm..).unwrap_or_default();
    // Frees at the end of a program do not make the level fall.
    let judged = settled.split_last().map_or(settled, |(_, judged)| judged);
    if settled.len() > 3 {
        match moves(settled, &about.asked[warm..], about.is_cat) {
            // Growth by blocks that remain is neither a cache nor caused by the batch. There are too few steps to call
            // it a leak.
            Some(Verdict::GrowingCache | Verdict::FollowsBatchSize)
                if is_made_of_what_stays(course, warm) =>
            {
                return Verdict::TooFewSteps;
            }
            Some(verdict) => return verdict,
            None if falls(judged) => return Verdict::Falling,
            None => {}
        }
    } else if held.len() < 2 || growth.grew > 0 || held[held.len() - 2] < last {
        return Verdict::TooFewSteps;
    }
    // A change of less than 1 % does not count.
    let early = settled.first().unwrap_or(&last).saturating_sub(first);
    let grew_early = early > last / 100;
    let slows =
        growth.grew > 0 && settled.iter().min().is_some_and(|least| last.saturating_sub(*least) > last / 100);
    let most = judged.iter().max().copied().unwrap_or(last);
    let is_high = judged.last().is_none_or(|&end| end >= most - most / 50);
    let is_first_use = about.is_first_use && (about.is_line || settled.len() < 4);
    if is_high && (is_first_use || grew_early || slows) { Verdict::WarmingUp } else { Verdict::Steady }
}

/// Whether the kept bytes grow linearly without flattening, and the memory that outlives a step grows with them.
fn is_leak(course: &Course, about: &About<'_>) -> bool {
    let Course { held, growth, .. } = course;
    // Growth that starts late may be a second warm-up.
    let is_late = growth.every.is_none() && growth.from > warm(held.len());
    let fewest = if is_late { about.fewest.max(5) } else { about.fewest };
    if growth.steps < fewest || growth.grew < 3 || growth.r_squared < 0.9 {
        return false;
    }
    let early = sum(&course.kept[growth.from..growth.from + growth.steps / 2]);
    let late = growth.bytes.saturating_sub(early);
    let rise = |row: &[u64]| {
        let before = growth.from.checked_sub(1).map_or(0, |step| row[step]);
        row[row.len() - 1].saturating_sub(before)
    };
    let rose = rise(held).max(rise(about.lasting));
    late >= early / 3 && rose >= growth.bytes / 2
}

/// Whether a level rose because of blocks from the first half of the settled steps that are still live.
fn is_made_of_what_stays(course: &Course, warm: usize) -> bool {
    let Course { held, kept, .. } = course;
    let rose = held[held.len() - 1].saturating_sub(held[0]);
    let settled = &held[warm..];
    let moved = settled.iter().max().zip(settled.iter().min()).map_or(0, |(most, least)| most - least);
    let half = warm + settled.len().div_ceil(2);
    let rose_early = held[half - 1].saturating_sub(held[warm.saturating_sub(1)]);
    rose >= moved / 2 && sum(&kept[warm..half]) > rose_early / 2
}

/// Whether a series falls by more than 2 %, and almost never rises.
fn falls(held: &[u64]) -> bool {
    let (Some(&first), Some(&last), Some(&most)) = (held.first(), held.last(), held.iter().max()) else {
        return false;
    };
    let level: Vec<f64> = held.iter().map(|&bytes| bytes as f64).collect();
    let places: Vec<f64> = (0..level.len()).map(|place| place as f64).collect();
    let rises = held.windows(2).any(|pair| pair[1].saturating_sub(pair[0]) > most / 500);
    held.len() > 3 && first.saturating_sub(last) > most / 50 && (!rises || fit(&places, &level).1 <= -0.9)
}

/// The verdict about a series that changes without leaking; `None` if the series is constant or changes for no known
/// reason.
fn moves(held: &[u64], asked: &[u64], is_cat: bool) -> Option<Verdict> {
    let level: Vec<f64> = held.iter().map(|&bytes| bytes as f64).collect();
    let places: Vec<f64> = (0..level.len()).map(|place| place as f64).collect();
    let (slope, over_time) = fit(&places, &level);
    let (least, most) = (held.iter().min()?, held.iter().max()?);
    if (most - least) * 50 < *most {
        return None;
    }
    let rises = held.windows(2).filter(|pair| pair[0] < pair[1]).count();
    let falls = held.windows(2).filter(|pair| pair[0] > pair[1]).count();
    let grows = slope > 0.0 && over_time >= 0.95 && rises * 2 >= held.len() && falls * 10 <= rises;
    if grows && is_cat {
        return Some(Verdict::GrowingCache);
    }
    // If memory follows the batch size, the requests of the rest of the program also vary, at least half as much.
    let (least_asked, most_asked) = (asked.iter().min()?, asked.iter().max()?);
    let asked_varies = (most_asked - least_asked) >= (most - least) / 2;
    let asked: Vec<f64> = asked.iter().map(|&bytes| bytes as f64).collect();
    let (_, with_asked) = fit(&asked, &level);

    if asked_varies && with_asked >= 0.8 {
        return Some(Verdict::FollowsBatchSize);
    }
    grows.then_some(Verdict::GrowingCache)
}

/// The verdict about all memory. It leaks if a line leaks, unless more than half as much older memory was freed.
/// Otherwise it gets the verdict of the lines that change most.
pub(super) fn judge_whole(whole: &mut Course, lines: &[Line], went_away: u64) {
    let of = |verdict: Verdict| lines.iter().filter(move |line| line.course.verdict == verdict);
    let leaked = of(Verdict::Leaking).fold(0u64, |sum, line| sum.saturating_add(line.course.growth.bytes));
    let moved =
        |verdict: Verdict| of(verdict).fold(0u64, |sum, line| sum.saturating_add(range(&line.course.held)));
    let (caches, batches) = (moved(Verdict::GrowingCache), moved(Verdict::FollowsBatchSize));
    let (by_gc, by_lines) = (moved(Verdict::HeldUntilGc), moved(Verdict::HeldUntilCleared));
    let most = whole.held.iter().max().copied().unwrap_or(0);
    let is_sawtooth = by_gc.saturating_add(by_lines) > most / 50
        && by_gc.saturating_add(by_lines) >= range(&whole.held) / 2
        && by_gc.max(by_lines) > caches.max(batches);
    whole.verdict = match whole.verdict {
        _ if leaked > 0 && leaked / 2 >= went_away => Verdict::Leaking,
        _ if is_sawtooth && by_gc >= by_lines => Verdict::HeldUntilGc,
        _ if is_sawtooth => Verdict::HeldUntilCleared,
        Verdict::Leaking if leaked > 0 => Verdict::Steady,
        Verdict::GrowingCache | Verdict::FollowsBatchSize if batches > caches => Verdict::FollowsBatchSize,
        Verdict::GrowingCache | Verdict::FollowsBatchSize if caches > 0 => Verdict::GrowingCache,
        verdict => verdict,
    };
    // If a line leaks only in every tenth step, its own series shows this; in the total, other growth may hide it.
    if whole.verdict == Verdict::Leaking
        && of(Verdict::Leaking).any(|line| line.course.growth.every.is_some())
    {
        let mut kept = vec![0_u64; whole.kept.len()];
        for line in of(Verdict::Leaking) {
            kept.iter_mut().zip(&line.course.kept).for_each(|(sum, &bytes)| *sum = sum.saturating_add(bytes));
        }
        whole.growth = growth(&kept);
    }
}

/// The largest minus the smallest level of the settled steps.
fn range(held: &[u64]) -> u64 {
    let settled = held.get(warm(held.len())..).unwrap_or_default();
    settled.iter().max().zip(settled.iter().min()).map_or(0, |(most, least)| most - least)
}

/// Whether the settled levels differ by at most 2 %. The level after the last step does not count, because a program
/// may have freed its memory by then.
fn is_flat(held: &[u64]) -> bool {
    let settled = held.get(warm(held.len())..held.len().saturating_sub(1)).unwrap_or_default();
    let (most, least) = (settled.iter().max().unwrap_or(&0), settled.iter().min().unwrap_or(&0));
    most - least <= most / 50
}

/// The confidence in a verdict, from the number of steps and their similarity. It is never higher than the confidence
/// in the steps themselves.
pub(super) fn tell_confidence(course: &mut Course, of_steps: &'static str, teeth: Option<Teeth>) {
    let Growth { steps, grew, r_squared, every, .. } = course.growth;
    let settled = course.held.len().saturating_sub(warm(course.held.len()) + 1);
    let steps = if course.verdict == Verdict::Leaking { steps } else { settled };
    let is_certain = of_steps == "certain" && steps >= 10;
    let is_likely = of_steps != "a guess" && steps >= 5;
    course.confidence = match course.verdict {
        Verdict::TooFewSteps => "unknown",
        Verdict::Leaking if every.is_some() && grew < 4 => "a guess",
        Verdict::Leaking if is_certain && grew * 10 >= steps * 9 && r_squared >= 0.99 => "certain",
        Verdict::Leaking if is_likely && r_squared >= 0.95 => "likely",
        Verdict::Falling if is_certain => "certain",
        Verdict::Steady | Verdict::WarmingUp if is_certain && is_flat(&course.held) => "certain",
        Verdict::Steady | Verdict::WarmingUp | Verdict::Falling | Verdict::GrowingCache if is_likely => {
            "likely"
        }
        Verdict::FollowsBatchSize if is_likely => "likely",
        Verdict::HeldUntilGc | Verdict::HeldUntilCleared if is_likely => match teeth {
            Some(Teeth::Collector(sure) | Teeth::Cleared(sure)) => sure,
            None => "a guess",
        },
        _ => "a guess",
    };
}
