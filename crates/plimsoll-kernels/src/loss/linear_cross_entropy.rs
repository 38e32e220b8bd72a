//! Cross entropy of a projection, computed for a few rows at a time. Their logits are overwritten with their gradients,
//! from which the gradients of the inputs are computed, before the next rows are projected.

use super::cross_entropy::{Coefficients, log_sum};
use super::nll::BadTarget;
use crate::matmul::gemm::gemm;
use crate::matmul::{MatmulShape, MatrixStrides, matmul};
use crate::number::Float;
use crate::parallel::{Cut, Pieces, for_each_chunk, for_each_cut, for_each_piece};
use crate::simd::vectorize;

/// The sizes of a projection: `rows x dim` against `classes x dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection {
    pub rows: usize,
    pub dim: usize,
    pub classes: usize,
}

impl Projection {
    /// The number of rows that are processed at a time: their logits take as much memory as the input, but there are
    /// enough rows for efficient products.
    fn chunk(&self) -> usize {
        let rows = (self.rows * self.dim).checked_div(self.classes).unwrap_or(1);
        (rows / 16 * 16).clamp(64, 1024).min(self.rows.max(1))
    }
}

/// Floats of scratch memory that [`linear_cross_entropy`] needs: the logits and losses of a chunk.
pub fn linear_cross_entropy_scratch_len(size: &Projection) -> usize {
    size.chunk() * (size.classes + 1)
}

/// The destinations for the gradients of the mean or sum: of `x`, of the weight and of the bias.
pub type Gradients<'a, T> = [Option<&'a mut [T]>; 3];

/// Returns the sum of the losses of `x · weightᵀ + bias`, divided by the sum of the targets' weights if `mean`. Writes the
/// gradients.
///
/// # Errors
/// The first target that is neither a class nor ignored.
pub fn linear_cross_entropy<T: Float>(
    size: &Projection,
    of: &Coefficients<'_, T>,
    mean: bool,
    [x, weight]: [&[T]; 2],
    bias: Option<&[T]>,
    mut to: Gradients<'_, T>,
    scratch: &mut [T],
) -> Result<f64, BadTarget> {
    let &Projection { rows, dim, classes } = size;
    let divisor = if mean { of.total(rows)? } else { of.total(rows).map(|_| 1.0)? };
    let scale = T::of(1.0 / divisor);
    to.iter_mut()
        .skip(1)
        .flatten()
        .for_each(|gradient| crate::elementwise::strided::fill(gradient, T::default()));
    let wanted = to.iter().any(Option::is_some);
    let (logits, losses) = scratch.split_at_mut(size.chunk() * classes);
    let mut sum = 0f64;
    for first in (0..rows).step_by(size.chunk()) {
        let count = size.chunk().min(rows - first);
        let x = &x[first * dim..][..count * dim];
        let (logits, losses) = (&mut logits[..count * classes], &mut losses[..count]);
        let shape = MatmulShape { batch: 1, m: count, k: dim, n: classes };
        let strides = MatrixStrides::row_major;
        let turned = strides(classes, dim).transposed();
        matmul(&shape, (x, strides(count, dim)), (weight, turned), bias, (logits, strides(count, classes)));
        loss_and_gradient(of, first, logits, losses, wanted.then_some(scale));
        sum += losses.iter().map(|&loss| loss.wide()).sum::<f64>();
        if let Some(to_x) = &mut to[0] {
            let shape = MatmulShape { batch: 1, m: count, k: classes, n: dim };
            let to_x = (&mut to_x[first * dim..][..count * dim], strides(count, dim));
            matmul(&shape, (logits, strides(count, classes)), (weight, strides(classes, dim)), None, to_x);
        }
        if let Some(to_weight) = &mut to[1] {
            add_product(logits, x, [count, classes, dim], to_weight);
        }
        if let Some(to_bias) = &mut to[2] {
            add_rows(logits, to_bias);
        }
    }
    Ok(sum / divisor)
}

/// Computes the losses of the rows from `first` onward and, if there is a scale, replaces their logits by their gradients.
fn loss_and_gradient<T: Float>(
    of: &Coefficients<'_, T>,
    first: usize,
    logits: &mut [T],
    losses: &mut [T],
    scale: Option<T>,
) {
    let classes = of.classes;
    const ROWS: usize = 4;
    let (chunks, cut) =
        (losses.len().div_ceil(ROWS), (Pieces::of(losses, ROWS), Pieces::of(logits, ROWS * classes)));
    for_each_cut(chunks, cut, |chunk, (losses, logits)| {
        let start = chunk * ROWS;
        vectorize(
            #[inline(always)]
            || {
                for (i, loss) in losses.iter_mut().enumerate() {
                    let (position, row) = (first + start + i, &mut logits[i * classes..][..classes]);
                    let [max, log] = log_sum(row);
                    *loss = of.loss(position, (row, 1), max, log);
                    if let Some(scale) = scale {
                        of.gradient(position, [max, log], scale, row);
                    }
                }
            },
        );
    });
}

/// Classes in a block of the weight's gradient.
const BLOCK: usize = 512;

/// `to[c, d] += sum over rows of g[row, c] · x[row, d]`.
fn add_product<T: Float>(g: &[T], x: &[T], [rows, classes, dim]: [usize; 3], to: &mut [T]) {
    assert_eq!([g.len(), x.len(), to.len()], [rows * classes, rows * dim, classes * dim], "add_product");
    let to = Cut::new(to);
    for_each_chunk(classes.div_ceil(BLOCK), |chunk| {
        let first = chunk * BLOCK;
        let count = BLOCK.min(classes - first);
        // SAFETY: the lengths were checked; different chunks write different rows.
        unsafe {
            gemm(
                [count, rows, dim],
                (g.as_ptr().add(first), MatrixStrides::row_major(rows, classes).transposed()),
                (x.as_ptr(), MatrixStrides::row_major(rows, dim)),
                (to.pointer().add(first * dim), MatrixStrides::row_major(count, dim)),
                true,
            );
        }
    });
}

/// `to[c] += sum over rows of g[row, c]`.
fn add_rows<T: Float>(g: &[T], to: &mut [T]) {
    let classes = to.len();
    for_each_piece(to, 4096, |start, to| {
        vectorize(
            #[inline(always)]
            || {
                for row in g.chunks_exact(classes) {
                    to.iter_mut().zip(&row[start..]).for_each(|(sum, &x)| *sum += x);
                }
            },
        );
    });
}
