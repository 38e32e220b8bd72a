//! From rows of bytes to a verdict, without knowledge of programs.

use super::{Course, Line};

/// What to think of a row of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Verdict {
    /// It grows, or nothing is known of it, and there are too few steps to say more.
    #[default]
    TooFewSteps,
    /// It does not grow: the same is held at the end of each step, or it goes up and down for no reason found.
    Steady,
    /// It grew in the first steps and then no more, as an optimizer's state and libraries' scratch do; or ever
    /// less.
    WarmingUp,
    /// It goes up and down with the bytes that each step asks for.
    FollowsBatchSize,
    /// It grows, but each block is given back and replaced by a larger one: a cache grown by `cat`, for one.
    GrowingCache,
    /// Every few steps something is added that is never given back.
    Leaking,
}

impl Verdict {
    /// The verdict in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooFewSteps => "too few steps to tell",
            Self::Steady => "steady",
            Self::WarmingUp => "warming up",
            Self::FollowsBatchSize => "follows batch size",
            Self::GrowingCache => "a cache that grows",
            Self::Leaking => "leaking",
        }
    }
}

/// How much of each step stays. The first steps, one to three, in which programs warm up, are not looked at, nor
/// is the last, of which nothing can be said.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Growth {
    /// The first step that counts, from zero: the first in which something was added that stays; where there is
    /// none, the first that is looked at.
    pub from: usize,
    /// How many steps count, that one included.
    pub steps: usize,
    /// In how many of them something was added that stays.
    pub grew: usize,
    /// All that was added in them and stays.
    pub bytes: u64,
    /// What most of the growing steps added; the larger where two are as many.
    pub usual_bytes: u64,
    /// Bytes per step by a straight line through the sums.
    pub slope: f64,
    /// How well that line fits, from 0 to 1.
    pub r_squared: f64,
}

/// What a verdict needs to know beside the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    /// Bytes that the rest of the program asks for in each step; of the whole, all bytes.
    pub asked: &'a [u64],
    /// With fewer judged steps nothing is called a leak.
    pub fewest: usize,
    /// Whether all blocks come from `cat`.
    pub is_cat: bool,
    /// Whether the row is one line's.
    pub is_line: bool,
    /// Whether blocks were made in the first steps that a program makes once and keeps.
    pub is_first_use: bool,
}

/// The first step that is judged, of so many.
pub(super) fn warm(steps: usize) -> usize {
    match steps {
        0..6 => 1,
        6..10 => 2,
        _ => 3,
    }
}

/// Gives a course its growth and its verdict.
pub(super) fn judge(course: &mut Course, about: &About<'_>) {
    course.growth = growth(&course.kept);
    course.verdict = verdict(course, about);
}

fn growth(kept: &[u64]) -> Growth {
    let last = kept.len().saturating_sub(1);
    let warm = warm(kept.len()).min(last);
    let from = warm + kept[warm..last].iter().position(|&bytes| bytes > 0).unwrap_or(0);
    let judged = &kept[from..last];
    let sums: Vec<f64> = judged
        .iter()
        .scan(0u64, |sum, &bytes| {
            *sum = sum.saturating_add(bytes);
            Some(*sum as f64)
        })
        .collect();
    let places: Vec<f64> = (0..judged.len()).map(|place| place as f64).collect();
    let (slope, r) = fit(&places, &sums);
    let mut sizes: Vec<u64> = judged.iter().copied().filter(|&bytes| bytes > 0).collect();
    sizes.sort_unstable();
    let runs = sizes.chunk_by(|a, b| a == b);
    Growth {
        from,
        steps: judged.len(),
        grew: sizes.len(),
        bytes: sum(&sizes),
        usual_bytes: runs.max_by_key(|run| run.len()).map_or(0, |run| run[0]),
        slope,
        r_squared: r * r,
    }
}

/// Least squares: the slope, and Pearson's correlation; zeros where one of the rows is constant.
fn fit(xs: &[f64], ys: &[f64]) -> (f64, f64) {
    let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len().max(1) as f64;
    let (mean_x, mean_y) = (mean(xs), mean(ys));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in xs.iter().zip(ys) {
        let (dx, dy) = (x - mean_x, y - mean_y);
        (xx, yy, xy) = (xx + dx * dx, yy + dy * dy, xy + dx * dy);
    }
    if xx > 0.0 && yy > 0.0 { (xy / xx, xy / (xx * yy).sqrt()) } else { (0.0, 0.0) }
}

fn verdict(course: &Course, about: &About<'_>) -> Verdict {
    let Course { held, growth, .. } = course;
    let (Some(&first), Some(&last)) = (held.first(), held.last()) else { return Verdict::TooFewSteps };
    let warm = warm(held.len());
    if is_leak(course, about.fewest) {
        return Verdict::Leaking;
    }
    let settled = held.get(warm..).unwrap_or_default();
    if settled.len() > 3 {
        match moves(settled, &about.asked[warm..], about.is_cat) {
            // What grows by blocks that stay is no cache; there are too few steps to call it a leak.
            Some(Verdict::GrowingCache)
                if sum(&course.kept[warm..held.len() / 2]) > last.saturating_sub(first) / 4 =>
            {
                return Verdict::TooFewSteps;
            }
            Some(verdict) => return verdict,
            None => {}
        }
    } else if held.len() < 2 || growth.grew > 0 || held[held.len() - 2] < last {
        return Verdict::TooFewSteps;
    }
    // A hundredth is nothing.
    let early = settled.first().unwrap_or(&last).saturating_sub(first);
    let grew_early = early > last / 100;
    let slows =
        growth.grew > 0 && settled.iter().min().is_some_and(|least| last.saturating_sub(*least) > last / 100);
    if about.is_first_use && (about.is_line || settled.len() < 4) || grew_early || slows {
        Verdict::WarmingUp
    } else {
        Verdict::Steady
    }
}

/// Whether something is added again and again, along a straight line that does not flatten, and what the line
/// holds grows by it.
fn is_leak(course: &Course, fewest: usize) -> bool {
    let Course { held, growth, .. } = course;
    // What begins late could be another warming up.
    let fewest = if growth.from > warm(held.len()) { fewest.max(5) } else { fewest };
    if growth.steps < fewest || growth.grew < 3 || growth.r_squared < 0.9 {
        return false;
    }
    let early = sum(&course.kept[growth.from..growth.from + growth.steps / 2]);
    let late = growth.bytes.saturating_sub(early);
    let rose = held[held.len() - 1].saturating_sub(held[growth.from - 1]);
    late >= early / 3 && rose >= growth.bytes / 2
}

fn sum(row: &[u64]) -> u64 {
    row.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

/// What a row does that does not leak and yet moves; `None` if it stands still or moves for no known reason.
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
    // What follows the batch varies with the rest of the program, which varies at least half as much.
    let (least_asked, most_asked) = (asked.iter().min()?, asked.iter().max()?);
    let asked_varies = (most_asked - least_asked) >= (most - least) / 2;
    let asked: Vec<f64> = asked.iter().map(|&bytes| bytes as f64).collect();
    let (_, with_asked) = fit(&asked, &level);

    if asked_varies && with_asked >= 0.8 {
        return Some(Verdict::FollowsBatchSize);
    }
    grows.then_some(Verdict::GrowingCache)
}

/// What the lines say of the whole: everything leaks if a line does, unless as much that was there is gone;
/// and what moves does so as the lines that move most.
pub(super) fn judge_whole(whole: &mut Course, lines: &[Line], went_away: u64) {
    let of = |verdict: Verdict| lines.iter().filter(move |line| line.course.verdict == verdict);
    let leaked = of(Verdict::Leaking).fold(0u64, |sum, line| sum.saturating_add(line.course.growth.bytes));
    let moved =
        |verdict: Verdict| of(verdict).fold(0u64, |sum, line| sum.saturating_add(range(&line.course.held)));
    let (caches, batches) = (moved(Verdict::GrowingCache), moved(Verdict::FollowsBatchSize));
    whole.verdict = match whole.verdict {
        _ if leaked > 0 && leaked / 2 >= went_away => Verdict::Leaking,
        Verdict::Leaking if leaked > 0 => Verdict::Steady,
        Verdict::GrowingCache | Verdict::FollowsBatchSize if batches > caches => Verdict::FollowsBatchSize,
        Verdict::GrowingCache | Verdict::FollowsBatchSize if caches > 0 => Verdict::GrowingCache,
        verdict => verdict,
    };
}

/// The difference between the most and the least of the settled steps.
fn range(held: &[u64]) -> u64 {
    let settled = held.get(warm(held.len())..).unwrap_or_default();
    settled.iter().max().zip(settled.iter().min()).map_or(0, |(most, least)| most - least)
}

/// How sure a verdict is, by the number of steps and how alike they are; never surer than the steps themselves.
pub(super) fn tell_confidence(course: &mut Course, of_steps: &'static str) {
    let Growth { steps, grew, r_squared, .. } = course.growth;
    let settled = course.held.len().saturating_sub(warm(course.held.len()) + 1);
    let steps = if course.verdict == Verdict::Leaking { steps } else { settled };
    let is_certain = of_steps == "certain" && steps >= 10;
    let is_likely = of_steps != "a guess" && steps >= 5;
    course.confidence = match course.verdict {
        Verdict::TooFewSteps => "unknown",
        Verdict::Leaking if is_certain && grew * 10 >= steps * 9 && r_squared >= 0.99 => "certain",
        Verdict::Leaking if is_likely && r_squared >= 0.95 => "likely",
        Verdict::Steady | Verdict::WarmingUp if is_certain => "certain",
        Verdict::Steady | Verdict::WarmingUp | Verdict::GrowingCache if is_likely => "likely",
        Verdict::FollowsBatchSize if is_likely => "likely",
        _ => "a guess",
    };
}
