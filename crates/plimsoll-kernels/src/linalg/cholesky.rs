//! The Cholesky factorization of symmetric positive-definite matrices.

use super::matrices::{BLOCK, Failure, Part, dot, for_each_matrix, product, scratch_len, subtract};
use crate::number::Float;
use crate::parallel::Pieces;
use crate::simd::vectorize;

/// The scratch memory of [`cholesky`].
pub fn cholesky_scratch_len<T>(count: usize, n: usize) -> usize {
    scratch_len::<T>(count, n, scratch_of_one(n))
}

fn scratch_of_one(n: usize) -> usize {
    if n > BLOCK { n * BLOCK } else { 0 }
}

/// `a = l · lᵀ` of `count` matrices `[n, n]`, of which only the lower triangle is read.
///
/// # Errors
/// The first matrix that is not positive-definite, with the row at which that shows.
pub fn cholesky<T: Float>(
    count: usize,
    a: &[T],
    n: usize,
    l: &mut [T],
    scratch: &mut [f32],
) -> Result<(), Failure> {
    if n == 0 {
        return Ok(());
    }
    l.copy_from_slice(a);
    for_each_matrix::<T, _>(
        count,
        Pieces::of(l, n * n),
        scratch,
        scratch_of_one(n),
        |_, l: &mut [T], scratch| {
            for first in (0..n).step_by(BLOCK) {
                let end = (first + BLOCK).min(n);
                let cols = end - first;
                if first > 0 {
                    // The columns before this block, in the rows from its first, times those of its own rows.
                    let left = Part { elements: &l[first * n..], row: n };
                    product([n - first, first, cols], (left, left), [false, true], scratch);
                    subtract_columns(&mut l[first * n..], n, first, scratch, cols);
                }
                vectorize(
                    #[inline(always)]
                    || factor_columns(l, n, first, end),
                )?;
            }
            for (i, row) in l.chunks_exact_mut(n).enumerate() {
                row[i + 1..].fill(T::of(0.0));
            }
            Ok(())
        },
    )
}

fn subtract_columns<T: Float>(rows: &mut [T], n: usize, first: usize, what: &[T], cols: usize) {
    for (row, what) in rows.chunks_exact_mut(n).zip(what.chunks_exact(cols)) {
        subtract(&mut row[first..first + cols], cols, what, cols);
    }
}

/// Factors the columns from `first` to `end`, in all rows from `first`.
#[inline(always)]
fn factor_columns<T: Float>(l: &mut [T], n: usize, first: usize, end: usize) -> Result<(), usize> {
    for i in first..n {
        let (above, rest) = l.split_at_mut(i * n);
        let row = &mut rest[..n];
        for j in first..end.min(i) {
            let other = &above[j * n..][..n];
            row[j] = (row[j] - dot(&row[first..j], &other[first..j])) / other[j];
        }
        if i < end {
            let left = row[i] - dot(&row[first..i], &row[first..i]);
            // A NaN is not positive either.
            if left.partial_cmp(&T::of(0.0)) != Some(std::cmp::Ordering::Greater) {
                return Err(i);
            }
            row[i] = left.sqrt();
        }
    }
    Ok(())
}
