//! Softmax and its logarithm over the last dimension of `[rows, cols]`.
//!
//! Each row is shifted by its maximum first, as in PyTorch, so that nothing overflows.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;

/// `out[r, c]` = exp(src[r, c]) / sum of exp(src[r, ..]).
pub fn softmax<T: Float>(cols: usize, src: &[T], out: &mut [T]) {
    rows(
        cols,
        src,
        out,
        #[inline(always)]
        |src, out| {
            let max = row_max(src);
            for (out, &x) in out.iter_mut().zip(src) {
                *out = (x - max).exp();
            }
            let scale = T::of(1.0) / row_sum(out);
            for out in out {
                *out *= scale;
            }
        },
    );
}

/// `out[r, c]` = src[r, c] - ln(sum of exp(src[r, ..])).
pub fn log_softmax<T: Float>(cols: usize, src: &[T], out: &mut [T]) {
    rows(
        cols,
        src,
        out,
        #[inline(always)]
        |src, out| {
            let max = row_max(src);
            for (out, &x) in out.iter_mut().zip(src) {
                *out = (x - max).exp();
            }
            let log_sum = row_sum(out).ln();
            for (out, &x) in out.iter_mut().zip(src) {
                *out = x - max - log_sum;
            }
        },
    );
}

/// The gradient of [`softmax`] from its output `y`: y * (grad - sum of grad * y).
pub fn softmax_backward<T: Float>(cols: usize, grad: &[T], y: &[T], out: &mut [T]) {
    assert_eq!(y.len(), out.len(), "softmax_backward: y and out differ in length");
    rows_at(
        cols,
        grad,
        out,
        #[inline(always)]
        |at, grad, out| {
            let y = &y[at..][..cols];
            for ((out, &g), &y) in out.iter_mut().zip(grad).zip(y) {
                *out = g * y;
            }
            let dot = row_sum(out);
            for ((out, &g), &y) in out.iter_mut().zip(grad).zip(y) {
                *out = y * (g - dot);
            }
        },
    );
}

/// The gradient of [`log_softmax`] from its output `y`: grad - y.exp() * sum of grad.
pub fn log_softmax_backward<T: Float>(cols: usize, grad: &[T], y: &[T], out: &mut [T]) {
    assert_eq!(y.len(), out.len(), "log_softmax_backward: y and out differ in length");
    rows_at(
        cols,
        grad,
        out,
        #[inline(always)]
        |at, grad, out| {
            let sum = row_sum(grad);
            for ((out, &g), &y) in out.iter_mut().zip(grad).zip(&y[at..]) {
                *out = g - y.exp() * sum;
            }
        },
    );
}

fn rows<T: Float>(cols: usize, src: &[T], out: &mut [T], row: impl Fn(&[T], &mut [T]) + Sync) {
    rows_at(
        cols,
        src,
        out,
        #[inline(always)]
        |_, src, out| row(src, out),
    );
}

/// Runs `row(offset, src row, out row)` for every row, in parallel pieces of complete rows.
fn rows_at<T: Float>(cols: usize, src: &[T], out: &mut [T], row: impl Fn(usize, &[T], &mut [T]) + Sync) {
    assert_eq!(src.len(), out.len(), "softmax: src and out differ in length");
    assert!(cols > 0 || out.is_empty(), "softmax over {cols} columns of {} elements", out.len());
    assert!(
        out.is_empty() || out.len().is_multiple_of(cols),
        "softmax: {} elements in rows of {cols}",
        out.len()
    );
    let cols = cols.max(1);
    // An exponential costs as much as about ten moves, hence the smaller pieces.
    for_each_piece(out, (PIECE / 8 / cols).max(1) * cols, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                let src = src[start..].chunks_exact(cols);
                for (i, (out, src)) in piece.chunks_exact_mut(cols).zip(src).enumerate() {
                    row(start + i * cols, src, out);
                }
            },
        );
    });
}

/// The number of lanes in which a row is folded, since the compiler does not reorder a fold by
/// itself.
const LANES: usize = 16;

#[inline(always)]
pub(crate) fn row_max<T: Float>(row: &[T]) -> T {
    let larger = |a: T, b: T| if a > b { a } else { b };
    let (blocks, rest) = row.as_chunks::<LANES>();
    let max = rest.iter().copied().fold(T::LOWEST, larger);
    let Some((first, blocks)) = blocks.split_first() else { return max };
    let mut lanes = *first;
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], block[i]);
        }
    }
    lanes.into_iter().fold(max, larger)
}

/// Sums in `f64`, since rows may be long.
#[inline(always)]
pub(crate) fn row_sum<T: Float>(row: &[T]) -> T {
    let (blocks, rest) = row.as_chunks::<LANES>();
    let sum: f64 = rest.iter().copied().map(T::wide).sum();
    let Some((first, blocks)) = blocks.split_first() else { return T::of(sum) };
    let mut lanes = first.map(T::wide);
    for block in blocks {
        for i in 0..LANES {
            lanes[i] += block[i].wide();
        }
    }
    T::of(lanes.iter().sum::<f64>() + sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    const SHAPES: [(usize, usize); 6] = [(0, 5), (1, 1), (64, 10), (3, 33), (100, 257), (1, 5000)];

    fn expected_softmax(row: &[f32]) -> Vec<f64> {
        let exps: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
        let sum: f64 = exps.iter().sum();
        exps.into_iter().map(|x| x / sum).collect()
    }

    #[test]
    fn rows_match_the_reference() {
        for (n, cols) in SHAPES {
            let src: Vec<f32> = random(n * cols, 1).into_iter().map(|x| x * 10.0).collect();
            let expected: Vec<f64> = src.chunks(cols).flat_map(expected_softmax).collect();
            let found = on_any_threads(|| {
                let mut out = vec![0.0; n * cols];
                softmax(cols, &src, &mut out);
                out
            });
            assert_close(&found, &expected.iter().map(|&x| x as f32).collect::<Vec<_>>(), 1e-6);
            let mut out = vec![0.0; n * cols];
            log_softmax(cols, &src, &mut out);
            assert_close(&out, &expected.iter().map(|x| x.ln() as f32).collect::<Vec<_>>(), 1e-6);
        }
    }

    #[test]
    fn gradients_match_their_formulas() {
        for (n, cols) in SHAPES {
            let (src, grad) = (random(n * cols, 1), random(n * cols, 2));
            let (mut y, mut out) = (vec![0.0; n * cols], vec![0.0; n * cols]);
            let mut expected = vec![];
            for (row, grad) in src.chunks(cols).zip(grad.chunks(cols)) {
                let (p, sum) = (expected_softmax(row), grad.iter().map(|&g| f64::from(g)).sum::<f64>());
                expected.extend(p.iter().zip(grad).map(|(p, &g)| (f64::from(g) - p * sum) as f32));
            }
            log_softmax(cols, &src, &mut y);
            log_softmax_backward(cols, &grad, &y, &mut out);
            assert_close(&out, &expected, 2e-6);
            expected.clear();
            for (row, grad) in src.chunks(cols).zip(grad.chunks(cols)) {
                let p = expected_softmax(row);
                let dot: f64 = p.iter().zip(grad).map(|(p, &g)| p * f64::from(g)).sum();
                expected.extend(p.iter().zip(grad).map(|(p, &g)| (p * (f64::from(g) - dot)) as f32));
            }
            softmax(cols, &src, &mut y);
            softmax_backward(cols, &grad, &y, &mut out);
            assert_close(&out, &expected, 2e-6);
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut out = [0.0; 2];
        softmax(2, &[1000.0, 1000.0], &mut out);
        assert_eq!(out, [0.5, 0.5]);
    }
}
