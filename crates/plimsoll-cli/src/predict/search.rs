//! Finds the largest value that fits, with few runs. Memory grows about linearly with the batch, so two peaks
//! predict the largest value.

/// The relative precision of [`largest_above`] for large values: one part in this many.
const EXACT: u64 = 256;

/// A value that fits, and the peak of reserved bytes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    value: u64,
    peak_bytes: u64,
}

/// The largest value in `from..=to` that fits; `None` if none does. It assumes that if a value does not fit, no
/// larger value fits. `peak` runs the program with a value, and returns the peak in bytes if it fits.
///
/// # Errors
/// The same errors as `peak`.
pub(crate) fn largest<E>(
    from: u64,
    to: u64,
    capacity_bytes: u64,
    mut peak: impl FnMut(u64) -> Result<Option<u64>, E>,
) -> Result<Option<u64>, E> {
    let Some(peak_bytes) = peak(from)? else { return Ok(None) };
    if from == to || peak(to)?.is_some() {
        return Ok(Some(to));
    }
    let (mut good, mut bad) = (Point { value: from, peak_bytes }, to);
    let mut before: Option<Point> = None;
    // The number of consecutive runs that eliminated less than half of the range, because the guesses were wrong.
    let mut slow = 0;
    while bad - good.value > 1 {
        let width = bad - good.value;
        let value = match before {
            _ if slow >= 3 => good.value + width / 2,
            None => good.value + (width / 8).max(1),
            Some(before) => guess(before, good, capacity_bytes).clamp(good.value + 1, bad - 1),
        };
        match peak(value)? {
            Some(peak_bytes) => {
                before = Some(good);
                good = Point { value, peak_bytes };
            }
            None => bad = value,
        }
        slow = if slow < 3 && (bad - good.value) * 2 > width { slow + 1 } else { 0 };
    }
    Ok(Some(good.value))
}

/// The largest value from `own` to `most` that fits, accurate to one part in [`EXACT`]; `own` is known to fit, with
/// this peak. Unlike [`largest`], this tries large values only if the results of smaller values suggest that the large
/// ones fit.
///
/// # Errors
/// The same errors as `peak`.
pub(crate) fn largest_above<E>(
    (own, own_bytes): (u64, u64),
    most: u64,
    capacity_bytes: u64,
    mut peak: impl FnMut(u64) -> Result<Option<u64>, E>,
) -> Result<u64, E> {
    let mut before = Point { value: 0, peak_bytes: 0 };
    let mut good = Point { value: own, peak_bytes: own_bytes };
    // The smallest value that is known not to fit.
    let mut bad: Option<u64> = None;
    let mut runs = 0_u32;
    loop {
        let end = bad.unwrap_or(most.saturating_add(1));
        if end - good.value <= (good.value / EXACT).max(1) {
            return Ok(good.value);
        }
        let value = match (bad, runs) {
            (_, ..4) => guess(before, good, capacity_bytes),
            (Some(bad), _) => good.value + (bad - good.value) / 2,
            (None, _) => good.value.saturating_mul(2),
        };
        let value = value.clamp(good.value + 1, end - 1);
        runs += 1;
        match peak(value)? {
            Some(peak_bytes) => {
                before = good;
                good = Point { value, peak_bytes };
            }
            None => bad = Some(value),
        }
    }
}

/// The largest value that fits if the peak grows linearly through these two points.
fn guess(before: Point, good: Point, capacity_bytes: u64) -> u64 {
    let grown = good.peak_bytes.saturating_sub(before.peak_bytes).max(1);
    let left = capacity_bytes.saturating_sub(good.peak_bytes);
    let steps = u128::from(good.value - before.value) * u128::from(left) / u128::from(grown);
    good.value.saturating_add(u64::try_from(steps).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches, with `of` as the peak of a value. Returns the value that is found, and the number of runs.
    fn found(from: u64, to: u64, capacity_bytes: u64, of: impl Fn(u64) -> u64) -> (Option<u64>, u32) {
        let mut runs = 0;
        let value = largest::<()>(from, to, capacity_bytes, |value| {
            runs += 1;
            Ok(Some(of(value)).filter(|&peak_bytes| peak_bytes <= capacity_bytes))
        });
        (value.unwrap(), runs)
    }

    #[test]
    fn the_border_is_found_wherever_it_is() {
        for border in 0..=65 {
            let expected = if border == 0 { None } else { Some(border.min(64)) };
            let courses: [fn(u64) -> u64; 4] =
                [|value| value, |value| value * value, |value| value.div_ceil(10) * 10, |_| 7];
            for of in courses {
                let capacity_bytes = of(border);
                let steps = (1..=64).rfind(|&value| of(value) <= capacity_bytes);
                assert_eq!(found(1, 64, capacity_bytes, of).0, steps);
            }
            assert_eq!(found(1, 64, border, |value| value).0, expected);
        }
    }

    #[test]
    fn above_a_value_that_fits_the_border_is_found_in_few_runs() {
        let even = |value: u64| 1_000_000_000 + value * 40_000_000;
        let found = |own: u64, most: u64, capacity_bytes: u64, of: &dyn Fn(u64) -> u64| {
            let mut runs = 0;
            let value = largest_above::<()>((own, of(own)), most, capacity_bytes, |value| {
                assert!(value > own && value <= most, "{value} of {own}..{most}");
                runs += 1;
                Ok(Some(of(value)).filter(|&peak_bytes| peak_bytes <= capacity_bytes))
            });
            (value.expect("no error"), runs)
        };
        assert_eq!(found(8, 256, 9_000_000_000, &even).0, 200);
        assert!(found(8, 256, 9_000_000_000, &even).1 <= 4);
        assert_eq!(found(8, 256, 90_000_000_000, &even), (256, 1));
        assert_eq!(found(8, 8, 90_000_000_000, &even), (8, 0));
        // For stepwise and for faster-than-linear growth, the limit is found to one part in 256.
        let courses: [fn(u64) -> u64; 3] = [|it| it.div_ceil(100) * 100, |it| it * it, |_| 7];
        for of in courses {
            for border in [8_u64, 9, 100, 1000, 30_000] {
                let capacity_bytes = of(border);
                let exact = (8..=40_000).rfind(|&value| of(value) <= capacity_bytes).expect("the border");
                let (value, runs) = found(8, 40_000, capacity_bytes, &of);
                assert!(value <= exact && exact - value <= (value / EXACT).max(1), "{value} of {exact}");
                assert!(runs <= 60, "{border}: {runs} runs");
            }
        }
    }

    #[test]
    fn even_growth_needs_few_runs_and_any_growth_not_many() {
        let even = |value| 3_000_000_000 + value * 147_000_000;
        for capacity_bytes in [4_000_000_000, 24_000_000_000, 70_000_000_000] {
            let (value, runs) = found(1, 512, capacity_bytes, even);
            assert!(runs <= 7, "{value:?}: {runs} runs");
        }
        for border in 1..512 {
            let (value, runs) = found(1, 512, 1000, |value| if value > border { 2000 } else { 1 });
            assert!(value == Some(border) && runs <= 2 + 4 * 9, "{value:?}: {runs} runs");
        }
    }
}
