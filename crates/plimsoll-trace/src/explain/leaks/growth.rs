//! How much of each step's memory remains: [`Growth`], from the bytes of each step's blocks that are still live at
//! the end.

/// How much of each step's memory remains. The first one to three steps, in which programs warm up, do not count,
/// and neither does the last.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Growth {
    /// The first step that counts, numbered from zero. It is the first step that left something, or else the first step
    /// after the warm-up.
    pub from: usize,
    /// The number of steps that count, including the step `from`.
    pub steps: usize,
    /// The number of these steps that left something.
    pub grew: usize,
    /// The total bytes that these steps left.
    pub bytes: u64,
    /// The number of bytes that the most growing steps left; among equally frequent numbers, the largest.
    pub usual_bytes: u64,
    /// The distance between growing steps, if it is regular and more than one step.
    pub every: Option<usize>,
    /// Bytes per step: the slope of a straight line fitted to the running total.
    pub slope: f64,
    /// How well the straight line fits, from 0 to 1.
    pub r_squared: f64,
}

/// The first step that counts, given the number of steps.
pub(super) fn warm(steps: usize) -> usize {
    match steps {
        0..6 => 1,
        6..10 => 2,
        _ => 3,
    }
}

/// The growth in one series: growth at regular intervals or, if there is none, everything added after the first steps.
pub(super) fn growth(kept: &[u64]) -> Growth {
    periodic(kept).unwrap_or_else(|| steady(kept))
}

/// Growth at regular intervals of several steps. The first steps count as well, because the period shows in them too.
fn periodic(kept: &[u64]) -> Option<Growth> {
    let last = kept.len().checked_sub(1)?;
    let grown: Vec<usize> = (0..last).filter(|&step| kept[step] > 0).collect();
    // In the first step, the same line may allocate other things.
    [&grown[..], grown.get(1..)?].into_iter().find_map(|grown| {
        let every = period(grown, last)?;
        let sizes = || grown.iter().map(|&step| kept[step]);
        let (least, most) = (sizes().min()?, sizes().max()?);
        if most / 2 > least {
            return None;
        }
        let growth = of_steps(kept, grown[0], last, grown);
        Some(Growth { every: Some(every), ..growth })
    })
}

/// The distance between the steps in `grown`, if it is regular up to the step `last`; each distance may be
/// off by a tenth.
fn period(grown: &[usize], last: usize) -> Option<usize> {
    if grown.len() < 3 {
        return None;
    }
    let gaps = || grown.windows(2).map(|pair| pair[1] - pair[0]);
    let (least, most) = (gaps().min()?, gaps().max()?);
    let every = (grown[grown.len() - 1] - grown[0] + (grown.len() - 1) / 2) / (grown.len() - 1);
    let is_even = least > 1 && least + every / 10 >= every && most <= every + every / 10;
    (is_even && last - grown[grown.len() - 1] <= every + every / 10).then_some(every)
}

/// Growth of everything added after the first steps.
fn steady(kept: &[u64]) -> Growth {
    let last = kept.len().saturating_sub(1);
    let warm = warm(kept.len()).min(last);
    let from = warm + kept[warm..last].iter().position(|&bytes| bytes > 0).unwrap_or(0);
    let judged: Vec<usize> = (from..last).collect();
    of_steps(kept, from, last, &judged)
}

/// Growth from the step `from` on, with a straight line fitted to the running total after the steps in `fitted`.
fn of_steps(kept: &[u64], from: usize, last: usize, fitted: &[usize]) -> Growth {
    let sums: Vec<f64> = fitted
        .iter()
        .scan(0u64, |sum, &step| {
            *sum = sum.saturating_add(kept[step]);
            Some(*sum as f64)
        })
        .collect();
    let places: Vec<f64> = fitted.iter().map(|&step| step as f64).collect();
    let (slope, r) = fit(&places, &sums);
    let mut sizes: Vec<u64> = kept[from..last].iter().copied().filter(|&bytes| bytes > 0).collect();
    sizes.sort_unstable();
    let runs = sizes.chunk_by(|a, b| a == b);
    Growth {
        from,
        steps: last - from,
        grew: sizes.len(),
        bytes: sum(&sizes),
        usual_bytes: runs.max_by_key(|run| run.len()).map_or(0, |run| run[0]),
        every: None,
        slope,
        r_squared: r * r,
    }
}

/// Least squares: the slope and Pearson's correlation; zeros if one of the series is constant.
pub(super) fn fit(xs: &[f64], ys: &[f64]) -> (f64, f64) {
    let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len().max(1) as f64;
    let (mean_x, mean_y) = (mean(xs), mean(ys));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in xs.iter().zip(ys) {
        let (dx, dy) = (x - mean_x, y - mean_y);
        (xx, yy, xy) = (xx + dx * dx, yy + dy * dy, xy + dx * dy);
    }
    if xx > 0.0 && yy > 0.0 { (xy / xx, xy / (xx * yy).sqrt()) } else { (0.0, 0.0) }
}

pub(super) fn sum(row: &[u64]) -> u64 {
    row.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks `every` and `grew`, for 512 bytes added at these steps.
    fn check(grown: &[usize], steps: usize, expected: (Option<usize>, usize)) {
        let kept: Vec<u64> = (0..steps).map(|step| if grown.contains(&step) { 512 } else { 0 }).collect();
        let found = growth(&kept);
        assert_eq!((found.every, found.grew), expected, "{grown:?} of {steps}");
    }

    #[test]
    fn what_is_added_at_even_distances_has_a_period() {
        check(&[0, 10, 20], 30, (Some(10), 3));
        check(&[5, 15, 26, 36], 45, (Some(10), 4));
        check(&[1, 3, 5, 7, 9], 11, (Some(2), 5));
    }

    #[test]
    fn what_stops_or_comes_unevenly_or_with_each_step_has_none() {
        check(&[0, 10, 20], 40, (None, 2)); // a period of 10 would have continued
        check(&[3, 5, 15, 18], 20, (None, 4));
        check(&[4, 5, 6, 7], 9, (None, 4));
        check(&[0, 10], 15, (None, 1));
    }
}
