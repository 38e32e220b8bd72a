//! Muon: makes the momentum of a matrix nearly orthogonal with five Newton–Schulz steps.
//!
//! PyTorch iterates in `bfloat16`. Here the products are computed in `f32` and every result is rounded to `bfloat16`
//! where PyTorch rounds it, so both follow the same iteration.

use super::super::number::Float;
use super::super::parallel::{PIECE, for_each_piece2};
use super::clip::sum_of_squares;
use crate::matmul::{MatmulShape, MatrixStrides, matmul};

/// The dependence of Muon's learning rate on the shape of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LrAdjustment {
    /// Times the square root of rows over columns, if it is above 1 (Jordan's original).
    #[default]
    Original,
    /// Times 0.2 · the square root of the larger size: the update's RMS then matches AdamW's.
    MatchRmsAdamW,
    /// Times the square root of rows over columns.
    SpectralUnclamped,
}

/// One step of Muon on one matrix, as `torch.optim.Muon` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the parameter itself.
    pub weight_decay: f64,
    /// Momentum factor.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Coefficients of the Newton–Schulz polynomial.
    pub coefficients: (f64, f64, f64),
    /// The smallest norm to divide by.
    pub eps: f64,
    /// Number of Newton–Schulz iterations.
    pub iterations: u32,
    /// The dependence of the learning rate on the shape.
    pub adjustment: LrAdjustment,
}

/// The number of columns for which a product is computed at a time.
const COLUMNS: usize = 256;

/// The smaller size, then the larger.
fn sizes(shape: &[usize]) -> (usize, usize) {
    match shape {
        &[rows, columns] => (rows.min(columns), rows.max(columns)),
        other => unreachable!("muon: a parameter of shape {other:?}"),
    }
}

/// Scratch memory for the matrix, two square matrices and a block of columns.
pub(super) fn scratch_len(shape: &[usize]) -> usize {
    let (m, n) = sizes(shape);
    m * n + 2 * m * m + m * n.min(COLUMNS)
}

pub(super) fn flops(step: &MuonStep, shape: &[usize]) -> u64 {
    let (m, n) = sizes(shape);
    let iteration = 2 * (2 * m * m * n + m * m * m) as u64;
    u64::from(step.iterations) * iteration + 8 * (m * n) as u64
}

/// Rounds to `bfloat16`, to nearest, ties to even.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Interpolates from `a` to `b` by `weight`, with PyTorch's formula.
#[inline(always)]
fn lerp<T: Float>(a: T, b: T, weight: f64) -> T {
    if weight.abs() < 0.5 { a + T::of(weight) * (b - a) } else { b - (b - a) * (T::ONE - T::of(weight)) }
}

/// Moves a matrix along the nearly orthogonal part of its momentum. Only that part is computed in `bfloat16`.
pub(super) fn muon_step<T: Float>(
    options: &MuonStep,
    shape: &[usize],
    (param, grad): (&mut [T], &[T]),
    buffer: &mut [T],
    scratch: &mut [f32],
) {
    assert_eq!(param.len(), grad.len(), "muon: parameter and gradient differ in length");
    if param.is_empty() {
        return;
    }
    let [rows, columns] = [shape[0], shape[1]];
    let (m, n) = sizes(shape);
    let momentum = options.momentum;
    let (x, scratch) = scratch.split_at_mut(m * n);
    buffer.iter_mut().zip(grad).for_each(|(b, &g)| *b = lerp(*b, g, 1.0 - momentum));
    // A tall matrix is transposed to a wide one.
    let is_tall = rows > columns;
    let place = |at: usize| if is_tall { at % columns * rows + at / columns } else { at };
    for (at, (&b, &g)) in buffer.iter().zip(grad).enumerate() {
        x[place(at)] = rounded((if options.nesterov { lerp(g, b, momentum) } else { b }).wide() as f32);
    }
    orthogonalize(options, x, (m, n), scratch);
    let ratio = rows as f64 / columns as f64;
    let adjusted = options.lr
        * match options.adjustment {
            LrAdjustment::Original => ratio.max(1.0).sqrt(),
            LrAdjustment::MatchRmsAdamW => 0.2 * (n as f64).sqrt(),
            LrAdjustment::SpectralUnclamped => ratio.sqrt(),
        };
    let (keep, adjusted) = (T::of(1.0 - options.lr * options.weight_decay), T::of(adjusted));
    let update = |at: usize| T::of(f64::from(x[place(at)]));
    param.iter_mut().enumerate().for_each(|(at, p)| *p = keep * *p - adjusted * update(at));
}

/// Newton–Schulz iteration: moves the singular values of the `m` × `n` matrix `x` towards 1.
fn orthogonalize(options: &MuonStep, x: &mut [f32], (m, n): (usize, usize), scratch: &mut [f32]) {
    let (a, b, c) = options.coefficients;
    let [a, b, c] = [a, b, c].map(|x| x as f32);
    let norm = rounded((sum_of_squares(x).sqrt() as f32).max(options.eps as f32));
    x.iter_mut().for_each(|x| *x = rounded(*x / norm));
    let (gram, scratch) = scratch.split_at_mut(m * m);
    let (update, block) = scratch.split_at_mut(m * m);
    let (wide, square) = (MatrixStrides::row_major(m, n), MatrixStrides::row_major(m, m));
    for _ in 0..options.iterations {
        matmul(
            &MatmulShape { batch: 1, m, k: n, n: m },
            (x, wide),
            (x, wide.transposed()),
            None,
            (gram, square),
        );
        for_each_piece2((gram, update), PIECE, |_, gram, _| gram.iter_mut().for_each(|x| *x = rounded(*x)));
        matmul(
            &MatmulShape { batch: 1, m, k: m, n: m },
            (gram, square),
            (gram, square),
            None,
            (update, square),
        );
        for_each_piece2((update, gram), PIECE, |_, update, gram| {
            update.iter_mut().zip(gram).for_each(|(u, g)| *u = rounded(b * *g + c * *u));
        });
        // Computed in blocks of columns: a column of the result depends only on that column.
        for start in (0..n).step_by(COLUMNS) {
            let width = COLUMNS.min(n - start);
            let block = &mut block[..m * width];
            let columns = MatrixStrides { batch: m * n, row: n, col: 1 };
            let shape = MatmulShape { batch: 1, m, k: m, n: width };
            let of_block = MatrixStrides::row_major(m, width);
            matmul(&shape, (update, square), (&x[start..], columns), None, (block, of_block));
            for (row, product) in block.chunks_exact(width).enumerate() {
                let x = &mut x[row * n + start..][..width];
                x.iter_mut().zip(product).for_each(|(x, product)| *x = rounded(a * *x + product));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    #[test]
    fn rounding_is_bfloat16s() {
        for (x, expected) in [(1.0, 1.0), (1.0039, 1.0), (1.0117, 1.0156), (-3.0e-39, -3.02e-39)] {
            assert!((rounded(x) - expected).abs() <= expected.abs() * 1e-2, "{x}: {}", rounded(x));
            assert_eq!(rounded(x).to_bits() & 0xffff, 0);
        }
        assert!(rounded(f32::NAN).is_nan());
        assert_eq!(rounded(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn an_update_is_nearly_orthogonal_whatever_the_shape_and_the_threads() {
        for shape in [[8, 8], [8, 300], [300, 8], [1, 5], [5, 1]] {
            let len = shape[0] * shape[1];
            let options = MuonStep {
                lr: 1.0,
                weight_decay: 0.0,
                momentum: 0.0,
                nesterov: false,
                coefficients: (3.4445, -4.7750, 2.0315),
                eps: 1e-7,
                iterations: 5,
                adjustment: LrAdjustment::SpectralUnclamped,
            };
            let update = on_any_threads(|| {
                let (mut param, mut buffer) = (vec![0.0; len], vec![0.0; len]);
                let mut scratch = vec![f32::NAN; scratch_len(&shape)];
                muon_step(&options, &shape, (&mut param, &random(len, 3)), &mut buffer, &mut scratch);
                param
            });
            // Singular values are between 0.5 and 1.5, so their squares add up to about the smaller size.
            let (m, _) = sizes(&shape);
            let squares = sum_of_squares(&update) / (shape[0] as f64 / shape[1] as f64);
            assert!(squares > 0.2 * m as f64 && squares < 1.7 * m as f64, "{shape:?}: {squares}");
        }
    }
}
