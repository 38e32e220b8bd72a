//! The live bytes at the end of each step, as a few rows with bars.

use std::fmt::Write;

/// The maximum number of rows.
const MOST_ROWS: usize = 20;
/// Characters of the longest bar.
const BAR: u64 = 40;

/// Consecutive steps, by the first and last index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fold {
    first: usize,
    last: usize,
    /// Live bytes at the end of the last of these steps.
    held: u64,
}

/// One row for each run of steps with equal ends; if there are too many runs, one row per fixed number of steps.
fn folded(held: &[u64]) -> Vec<Fold> {
    let mut folds: Vec<Fold> = Vec::new();
    for (place, &held) in held.iter().enumerate() {
        match folds.last_mut() {
            Some(fold) if fold.held == held => fold.last = place,
            _ => folds.push(Fold { first: place, last: place, held }),
        }
    }
    if folds.len() <= MOST_ROWS {
        return folds;
    }
    let wide = held.len().div_ceil(MOST_ROWS);
    let groups = held.chunks(wide).enumerate().filter_map(|(nth, group)| {
        let first = nth * wide;
        group.last().map(|&held| Fold { first, last: first + group.len() - 1, held })
    });
    groups.collect()
}

/// The rows of the staircase. Bars start at the lowest level, and a full bar is at least a twentieth of the highest level.
pub(super) fn render(
    out: &mut String,
    held: &[u64],
    size: impl Fn(u64) -> String,
    change: impl Fn(i128) -> String,
) {
    let (least, most) = (held.iter().min().copied().unwrap_or(0), held.iter().max().copied().unwrap_or(0));
    let whole = (most - least).max(most / 20).max(1);
    let mut before: Option<u64> = None;
    for Fold { first, last, held } in folded(held) {
        let steps = if first == last {
            format!("step {}", first + 1)
        } else {
            format!("steps {} to {}", first + 1, last + 1)
        };
        let changed = before.map_or_else(String::new, |before| change(i128::from(held) - i128::from(before)));
        before = Some(held);
        let length = u128::from(held - least) * u128::from(BAR) / u128::from(whole);
        let bar = "█".repeat(usize::try_from(length).unwrap_or_default());
        let row = format!("  {:>12}  {changed:>13}  {steps:<20}  {bar}", size(held));
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{}", row.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(held: &[u64], expected: &[(usize, usize, u64)]) {
        let folds: Vec<_> = folded(held).iter().map(|fold| (fold.first, fold.last, fold.held)).collect();
        assert_eq!(folds, expected);
    }

    #[test]
    fn steps_that_end_alike_are_one_row() {
        check(&[7, 9, 9, 9, 8, 9], &[(0, 0, 7), (1, 3, 9), (4, 4, 8), (5, 5, 9)]);
        check(&[], &[]);
    }

    #[test]
    fn many_steps_are_at_most_twenty_rows_and_the_last_is_shown_as_it_is() {
        let rising: Vec<u64> = (0..61).collect();
        let folds = folded(&rising);
        assert!(folds.len() <= MOST_ROWS, "{}", folds.len());
        assert_eq!((folds[0].first, folds[folds.len() - 1].last, folds[folds.len() - 1].held), (0, 60, 60));
        assert!(folds.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
    }

    #[test]
    fn a_bar_is_what_is_held_above_the_least() {
        let mut out = String::new();
        render(&mut out, &[100, 150, 200], |bytes| bytes.to_string(), |bytes| format!("{bytes:+}"));
        let bars: Vec<usize> = out.lines().map(|row| row.matches('█').count()).collect();
        assert_eq!(bars, [0, 20, 40], "{out}");
        assert!(out.contains("+50"), "{out}");
    }

    #[test]
    fn a_change_of_little_is_no_long_bar() {
        let mut out = String::new();
        render(&mut out, &[1_000_000, 1_000_001], |bytes| bytes.to_string(), |bytes| bytes.to_string());
        assert_eq!(out.matches('█').count(), 0, "{out}");
    }
}
