//! Systems of equations with a triangular matrix, by substitution in blocks of rows.

use super::matrices::{BLOCK, Part, for_each_matrix, product, scratch_len, subtract, subtract_scaled};
use crate::number::Float;
use crate::parallel::Pieces;
use crate::simd::vectorize;

/// Which elements of a matrix are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triangle {
    /// The upper triangle, or the lower one.
    pub upper: bool,
    /// The diagonal is taken to be 1, and not read.
    pub unit: bool,
}

/// The scratch memory of [`solve_triangular`].
pub fn triangular_scratch_len<T>(count: usize, n: usize, k: usize) -> usize {
    scratch_len::<T>(count, n.max(k), BLOCK * k)
}

/// Solves `a x = b` for `count` triangular matrices `[n, n]` and right-hand sides `[n, k]`. `x` has the right-hand sides, and gets the
/// solutions. A zero on the diagonal leads to infinities.
pub fn solve_triangular<T: Float>(
    count: usize,
    (a, triangle): (&[T], Triangle),
    (n, k): (usize, usize),
    x: &mut [T],
    scratch: &mut [f32],
) {
    if n * k == 0 {
        return;
    }
    let done = for_each_matrix::<T, _>(
        count,
        Pieces::of(x, n * k),
        scratch,
        BLOCK * k,
        |matrix, x: &mut [T], scratch| {
            let a = Part { elements: &a[matrix * n * n..][..n * n], row: n };
            substitute(a, triangle, n, x, k, scratch);
            Ok(())
        },
    );
    debug_assert!(done.is_ok(), "a substitution does not fail");
}

/// Solves one system in place. `scratch` has room for [`BLOCK`] rows of `x`.
pub(super) fn substitute<T: Float>(
    a: Part<'_, T>,
    triangle: Triangle,
    n: usize,
    x: &mut [T],
    k: usize,
    scratch: &mut [T],
) {
    let blocks = n.div_ceil(BLOCK);
    for nth in 0..blocks {
        let block = if triangle.upper { blocks - 1 - nth } else { nth };
        let (first, end) = (block * BLOCK, ((block + 1) * BLOCK).min(n));
        let rows = end - first;
        // The rows that are solved, and this block's.
        let (solved, own, from) = match triangle.upper {
            true => {
                let (before, solved) = x.split_at_mut(end * k);
                (&*solved, &mut before[first * k..], end)
            }
            false => {
                let (solved, after) = x.split_at_mut(first * k);
                (&*solved, &mut after[..rows * k], 0)
            }
        };
        let known = solved.len() / k;
        if known > 0 {
            let left = Part { elements: &a.elements[first * a.row + from..], row: a.row };
            product([rows, known, k], (left, Part { elements: solved, row: k }), [false; 2], scratch);
            subtract(own, k, scratch, k);
        }
        let inner = Part { elements: &a.elements[first * a.row + first..], row: a.row };
        vectorize(
            #[inline(always)]
            || substitute_block(inner, triangle, rows, own, k),
        );
    }
}

#[inline(always)]
fn substitute_block<T: Float>(a: Part<'_, T>, triangle: Triangle, n: usize, x: &mut [T], k: usize) {
    for nth in 0..n {
        let i = if triangle.upper { n - 1 - nth } else { nth };
        let (before, rest) = x.split_at_mut(i * k);
        let (own, after) = rest.split_at_mut(k);
        let coefficients = &a.elements[i * a.row..];
        if triangle.upper {
            for (j, other) in (i + 1..n).zip(after.chunks_exact(k)) {
                subtract_scaled(own, other, coefficients[j]);
            }
        } else {
            for (j, other) in before.chunks_exact(k).enumerate() {
                subtract_scaled(own, other, coefficients[j]);
            }
        }
        if !triangle.unit {
            own.iter_mut().for_each(|x| *x = *x / coefficients[i]);
        }
    }
}
