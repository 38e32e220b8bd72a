//! Losses that reduce to one number: negative log likelihood and mean squared error.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;

/// The reduction of a loss over many elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Divided by the number of elements (or rows).
    Mean,
    /// Added up.
    Sum,
    /// No reduction.
    None,
}

impl Reduction {
    /// The weight of each of `n` elements. A mean over no elements is NaN, as in PyTorch.
    pub fn weight(self, n: usize) -> f64 {
        match self {
            Self::Mean => 1.0 / n as f64,
            Self::Sum | Self::None => 1.0,
        }
    }

    fn finish<T: Float>(self, sum: f64, n: usize) -> T {
        match self {
            Self::Mean => T::of(sum / n as f64),
            Self::Sum | Self::None => T::of(sum),
        }
    }
}

/// A class index that is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadTarget {
    pub row: usize,
    pub value: i64,
    pub cols: usize,
}

/// The target of a row that is ignored: the default of PyTorch's losses.
pub const IGNORED: i64 = -100;

/// Returns minus the mean (or sum) of `log_probs[row, targets[row]]` over the rows that are not
/// ignored.
///
/// # Errors
/// The first target outside `0..cols` that is not [`IGNORED`].
pub fn nll_loss<T: Float>(
    cols: usize,
    log_probs: &[T],
    targets: &[i64],
    reduction: Reduction,
) -> Result<T, BadTarget> {
    assert_eq!(log_probs.len(), targets.len() * cols, "nll_loss: {} rows of {cols}", targets.len());
    let (mut sum, mut counted) = (0.0, 0);
    for (row, value) in counting(targets) {
        sum -= log_probs[row * cols + column(row, value, cols)?].wide();
        counted += 1;
    }
    Ok(reduction.finish(sum, counted))
}

/// Writes the gradient of [`nll_loss`], times `grad` of the loss: one entry per row, 0 elsewhere.
///
/// # Errors
/// The same errors as [`nll_loss`]; `out` is then partially written.
pub fn nll_loss_backward<T: Float>(
    cols: usize,
    grad: T,
    targets: &[i64],
    reduction: Reduction,
    out: &mut [T],
) -> Result<(), BadTarget> {
    assert_eq!(out.len(), targets.len() * cols, "nll_loss_backward: {} rows of {cols}", targets.len());
    let entry = T::of(-(grad.wide() * reduction.weight(counting(targets).count())));
    crate::elementwise::strided::fill(out, T::default());
    for (row, value) in counting(targets) {
        out[row * cols + column(row, value, cols)?] = entry;
    }
    Ok(())
}

/// The rows that are not ignored, with their targets.
fn counting(targets: &[i64]) -> impl Iterator<Item = (usize, i64)> {
    targets.iter().copied().enumerate().filter(|&(_, value)| value != IGNORED)
}

fn column(row: usize, value: i64, cols: usize) -> Result<usize, BadTarget> {
    usize::try_from(value).ok().filter(|&column| column < cols).ok_or(BadTarget { row, value, cols })
}

/// Returns the mean (or sum) of `(input - target)²`.
pub fn mse_loss<T: Float>(input: &[T], target: &[T], reduction: Reduction) -> T {
    assert_eq!(input.len(), target.len(), "mse_loss: input and target differ in length");
    // At most 64 parts, whose sums are added in order; `reduce/sum.rs` explains why blocks are added in
    // `f64`.
    let part_len = input.len().div_ceil(64).max(PIECE);
    let mut parts = [0f64; 64];
    for_each_piece(&mut parts[..input.len().div_ceil(part_len)], 1, |part, sum| {
        let range = part * part_len..input.len().min((part + 1) * part_len);
        let (input, target) = (&input[range.clone()], &target[range]);
        vectorize(
            #[inline(always)]
            || {
                for (input, target) in input.chunks(1024).zip(target.chunks(1024)) {
                    sum[0] += squares(input, target).wide();
                }
            },
        );
    });
    reduction.finish(parts.iter().sum(), input.len())
}

/// The sum of squared differences in 32 interleaved lanes.
#[inline(always)]
fn squares<T: Float>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::default(); 32];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..32 {
            lanes[i] += (a[i] - b[i]) * (a[i] - b[i]);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += (*a - *b) * (*a - *b);
    }
    lanes.into_iter().sum()
}

/// Writes the gradient of [`mse_loss`] with respect to `input`, times `grad` of the loss. The gradient
/// with respect to `target` is its negative.
pub fn mse_loss_backward<T: Float>(input: &[T], target: &[T], grad: T, reduction: Reduction, out: &mut [T]) {
    assert_eq!(input.len(), target.len(), "mse_loss_backward: input and target differ in length");
    assert_eq!(input.len(), out.len(), "mse_loss_backward: input and out differ in length");
    let scale = T::of(2.0 * grad.wide() * reduction.weight(input.len()));
    for_each_piece(out, PIECE, |at, out| {
        let (input, target) = (&input[at..], &target[at..]);
        vectorize(
            #[inline(always)]
            || {
                for ((out, x), t) in out.iter_mut().zip(input).zip(target) {
                    *out = (*x - *t) * scale;
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn the_likelihood_picks_each_rows_target() {
        let log_probs = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0];
        assert_eq!(nll_loss(3, &log_probs, &[2, 0], Reduction::Mean), Ok(3.5));
        assert_eq!(nll_loss(3, &log_probs, &[2, 0], Reduction::Sum), Ok(7.0));
        let mut grad = [9.0; 6];
        nll_loss_backward(3, 2.0, &[2, 0], Reduction::Mean, &mut grad).unwrap();
        assert_eq!(grad, [0.0, 0.0, -1.0, -1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_row_that_does_not_count_is_in_no_sum_and_no_mean() {
        let log_probs = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0];
        assert_eq!(nll_loss(3, &log_probs, &[IGNORED, 1], Reduction::Mean), Ok(5.0));
        let mut grad = [9.0; 6];
        nll_loss_backward(3, 2.0, &[IGNORED, 1], Reduction::Mean, &mut grad).unwrap();
        assert_eq!(grad, [0.0, 0.0, 0.0, 0.0, -2.0, 0.0]);
        assert!(nll_loss::<f32>(3, &log_probs, &[IGNORED; 2], Reduction::Mean).unwrap().is_nan());
        assert_eq!(nll_loss(3, &log_probs, &[IGNORED; 2], Reduction::Sum), Ok(0.0));
    }

    #[test]
    fn a_target_out_of_range_is_named() {
        for value in [-1, 3, i64::MAX] {
            let expected = BadTarget { row: 1, value, cols: 3 };
            assert_eq!(nll_loss(3, &[0.0; 6], &[0, value], Reduction::Mean), Err(expected));
            assert_eq!(nll_loss_backward(3, 1.0, &[0, value], Reduction::Mean, &mut [0.0; 6]), Err(expected));
        }
    }

    #[test]
    fn squared_errors_match_the_reference() {
        for len in [1, 31, 1000, 300_007] {
            let (x, t) = (random(len, 1), random(len, 2));
            let sum: f64 = x.iter().zip(&t).map(|(x, t)| f64::from(x - t).powi(2)).sum();
            let found =
                on_any_threads(|| vec![mse_loss(&x, &t, Reduction::Mean), mse_loss(&x, &t, Reduction::Sum)]);
            assert_close(&found, &[(sum / len as f64) as f32, sum as f32], 1e-6);
            let mut grad = vec![0.0; len];
            mse_loss_backward(&x, &t, 0.5, Reduction::Sum, &mut grad);
            assert_close(&grad, &x.iter().zip(&t).map(|(x, t)| x - t).collect::<Vec<_>>(), 1e-6);
        }
    }

    #[test]
    fn a_mean_of_nothing_is_nan_and_a_sum_zero() {
        assert!(mse_loss::<f32>(&[], &[], Reduction::Mean).is_nan());
        assert_eq!(mse_loss::<f32>(&[], &[], Reduction::Sum), 0.0);
        assert!(nll_loss::<f32>(3, &[], &[], Reduction::Mean).unwrap().is_nan());
    }
}
