//! LU factorization with partial pivoting, as LAPACK's `getrf`: systems of equations, and determinants.

use super::matrices::{
    BLOCK, Failure, Part, STRIP, for_each_matrix, product, scratch_len, subtract, subtract_scaled,
};
use super::triangular::{Triangle, substitute};
use crate::number::Float;
use crate::parallel::Pieces;
use crate::simd::vectorize;

const LOWER: Triangle = Triangle { upper: false, unit: true };
const UPPER: Triangle = Triangle { upper: true, unit: false };

/// The scratch memory of this file's functions for matrices `[n, n]` with `k` right-hand sides.
pub fn lu_scratch_len<T>(count: usize, n: usize, k: usize) -> usize {
    scratch_len::<T>(count, n.max(k), scratch_of_one(n, k))
}

/// A copy of the matrix, and a product.
fn scratch_of_one(n: usize, k: usize) -> usize {
    let trailing = if n > BLOCK { STRIP.min(n) * n } else { 0 };
    n * n + trailing.max(BLOCK * k)
}

/// The result of a factorization, besides the factors.
struct Factored {
    /// Whether an odd number of rows were swapped.
    is_odd: bool,
    /// The first pivot that is zero.
    zero: Option<usize>,
}

impl Factored {
    /// The determinant of the swaps.
    fn sign(&self) -> f64 {
        if self.is_odd { -1.0 } else { 1.0 }
    }
}

/// Factors `a`, `[n, n]`, in place, and swaps the rows of `x`, `[n, k]`, in the same way.
fn factor<T: Float>(a: &mut [T], n: usize, x: &mut [T], k: usize, scratch: &mut [T]) -> Factored {
    let mut factored = Factored { is_odd: false, zero: None };
    for first in (0..n).step_by(BLOCK) {
        let end = (first + BLOCK).min(n);
        vectorize(
            #[inline(always)]
            || factor_columns(a, n, (first, end), (x, k), &mut factored),
        );
        let cols = n - end;
        for strip in (end..n).step_by(STRIP) {
            let rows = STRIP.min(n - strip);
            let left = Part { elements: &a[strip * n + first..], row: n };
            let right = Part { elements: &a[first * n + end..], row: n };
            product([rows, end - first, cols], (left, right), [false; 2], scratch);
            for (row, what) in
                a[strip * n..].chunks_exact_mut(n).zip(scratch[..rows * cols].chunks_exact(cols))
            {
                subtract(&mut row[end..], cols, what, cols);
            }
        }
    }
    factored
}

/// Factors the columns from `first` to `end`, and computes the rows of the upper factor to their right.
#[inline(always)]
fn factor_columns<T: Float>(
    a: &mut [T],
    n: usize,
    (first, end): (usize, usize),
    (x, k): (&mut [T], usize),
    factored: &mut Factored,
) {
    for at in first..end {
        // A NaN counts as the largest, so that it reaches the result.
        let size = |row: usize| a[row * n + at].wide().abs();
        let (mut pivot, mut largest) = (at, size(at));
        for row in at + 1..n {
            let size = size(row);
            if size > largest || size.is_nan() && !largest.is_nan() {
                (pivot, largest) = (row, size);
            }
        }
        if pivot != at {
            swap_rows(a, n, at, pivot);
            swap_rows(x, k, at, pivot);
            factored.is_odd = !factored.is_odd;
        }
        let (above, below) = a.split_at_mut((at + 1) * n);
        let own = &above[at * n..];
        if own[at] == T::of(0.0) {
            factored.zero = factored.zero.or(Some(at));
            continue;
        }
        for row in below.chunks_exact_mut(n) {
            row[at] = row[at] / own[at];
            let by = row[at];
            subtract_scaled(&mut row[at + 1..end], &own[at + 1..end], by);
        }
    }
    for at in first..end {
        let (above, rest) = a.split_at_mut(at * n);
        let own = &mut rest[..n];
        for (row, other) in (first..at).zip(above[first * n..].chunks_exact(n)) {
            let by = own[row];
            subtract_scaled(&mut own[end..], &other[end..], by);
        }
    }
}

fn swap_rows<T>(a: &mut [T], cols: usize, upper: usize, lower: usize) {
    let (above, below) = a.split_at_mut(lower * cols);
    above[upper * cols..][..cols].swap_with_slice(&mut below[..cols]);
}

/// Solves with the factors in `a`, whose rows were already swapped in `x`.
fn substitute_both<T: Float>(a: &[T], n: usize, x: &mut [T], k: usize, scratch: &mut [T]) {
    let a = Part { elements: a, row: n };
    substitute(a, LOWER, n, x, k, scratch);
    substitute(a, UPPER, n, x, k, scratch);
}

/// Solves `a x = b` for `count` matrices `[n, n]` and right-hand sides `[n, k]`. `x` has the right-hand sides, and gets the solutions.
///
/// # Errors
/// The first singular matrix, with the pivot that is zero.
pub fn solve<T: Float>(
    count: usize,
    a: &[T],
    (n, k): (usize, usize),
    x: &mut [T],
    scratch: &mut [f32],
) -> Result<(), Failure> {
    if n == 0 {
        return Ok(());
    }
    // Matrices without right-hand sides are factored too, because they may be singular.
    for_each_matrix::<T, _>(
        count,
        Pieces::of(x, n * k),
        scratch,
        scratch_of_one(n, k),
        |matrix, x: &mut [T], scratch| {
            let (lu, rest) = scratch.split_at_mut(n * n);
            lu.copy_from_slice(&a[matrix * n * n..][..n * n]);
            match factor(lu, n, x, k, rest).zero {
                Some(at) => Err(at),
                None if k == 0 => Ok(()),
                None => {
                    substitute_both(lu, n, x, k, rest);
                    Ok(())
                }
            }
        },
    )
}

/// The form of a determinant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Determinant {
    /// Its value.
    Value,
    /// Its sign and the logarithm of its magnitude.
    SignAndLog,
}

/// The determinants of `count` matrices `[n, n]`. `logs` is empty for [`Determinant::Value`].
pub fn determinants<T: Float>(
    (form, count): (Determinant, usize),
    a: &[T],
    n: usize,
    (out, logs): (&mut [T], &mut [T]),
    scratch: &mut [f32],
) {
    let width = usize::from(form == Determinant::SignAndLog);
    let cut = (Pieces::of(out, 1), Pieces::of(logs, width));
    let done =
        for_each_matrix::<T, _>(count, cut, scratch, scratch_of_one(n, 0), |matrix, (out, log), scratch| {
            let (lu, rest) = scratch.split_at_mut(n * n);
            lu.copy_from_slice(&a[matrix * n * n..][..n * n]);
            let factored = factor(lu, n, &mut [], 0, rest);
            let pivots = (0..n).map(|i| lu[i * n + i].wide());
            let sign = factored.sign();
            match form {
                Determinant::Value => out[0] = T::of(pivots.fold(sign, |product, pivot| product * pivot)),
                Determinant::SignAndLog => {
                    let signs = pivots.clone().map(|x| if x == 0.0 { 0.0 } else { x.signum() });
                    out[0] = T::of(signs.fold(sign, |product, sign| product * sign));
                    log[0] = T::of(pivots.map(|x| x.abs().ln()).sum());
                }
            }
            Ok(())
        });
    debug_assert!(done.is_ok(), "a determinant exists");
}

/// The derivatives of the determinants by the elements: the determinant times the transposed inverse. A singular matrix has finite
/// derivatives too: its pivots are the largest of all elements that are left, and pivots that are zero are replaced by the smallest number
/// that makes a difference.
pub fn cofactors<T: Float>(count: usize, a: &[T], n: usize, out: &mut [T], scratch: &mut [f32]) {
    if n == 0 {
        return;
    }
    let cut = Pieces::of(out, n * n);
    let done = for_each_matrix::<T, _>(
        count,
        cut,
        scratch,
        scratch_of_one(n, n),
        |matrix, out: &mut [T], scratch| {
            let (lu, rest) = scratch.split_at_mut(n * n);
            let a = &a[matrix * n * n..][..n * n];
            transpose(a, n, lu);
            identity(out, n);
            let factored = factor(lu, n, out, n, rest);
            if factored.zero.is_none() {
                let product = (0..n).fold(factored.sign(), |product, i| product * lu[i * n + i].wide());
                substitute_both(lu, n, out, n, rest);
                out.iter_mut().for_each(|x| *x = T::of(x.wide() * product));
            }
            if factored.zero.is_some() || out.iter().any(|x| !x.wide().is_finite()) {
                transpose(a, n, lu);
                cofactors_of_singular(lu, n, out, rest);
            }
            Ok(())
        },
    );
    debug_assert!(done.is_ok(), "a derivative exists");
}

/// [`cofactors`] of one matrix, whose transpose is in `a`, by LU with complete pivoting. As many pivots are zero as the rank is less than
/// `n`, and all of them come last, so the inverse has only one factor that is large.
fn cofactors_of_singular<T: Float>(a: &mut [T], n: usize, out: &mut [T], scratch: &mut [T]) {
    identity(out, n);
    let mut swapped_columns = Vec::with_capacity(n);
    let mut product = 1.0;
    let mut largest = 0.0;
    for at in 0..n {
        let size = |place: usize| a[place].wide().abs();
        let left = (at..n).flat_map(|row| (at..n).map(move |col| row * n + col));
        let pivot = left.reduce(|best, next| if size(next) > size(best) { next } else { best });
        let pivot = pivot.unwrap_or(at * n + at);
        let (row, col) = (pivot / n, pivot % n);
        if row != at {
            swap_rows(a, n, at, row);
            swap_rows(out, n, at, row);
            product = -product;
        }
        if col != at {
            a.chunks_exact_mut(n).for_each(|row| row.swap(at, col));
            product = -product;
        }
        swapped_columns.push(col);
        let (above, below) = a.split_at_mut((at + 1) * n);
        let own = &mut above[at * n..];
        if at == 0 {
            largest = own[0].wide().abs();
        }
        if own[at] == T::of(0.0) {
            own[at] = T::of(T::EPSILON * if largest == 0.0 { 1.0 } else { largest });
        }
        product *= own[at].wide();
        for row in below.chunks_exact_mut(n) {
            row[at] = row[at] / own[at];
            let by = row[at];
            subtract_scaled(&mut row[at + 1..], &own[at + 1..], by);
        }
    }
    substitute_both(a, n, out, n, scratch);
    // Columns that were swapped are rows of the inverse.
    for (at, &col) in swapped_columns.iter().enumerate().rev() {
        if at != col {
            swap_rows(out, n, at, col);
        }
    }
    out.iter_mut().for_each(|x| *x = T::of(x.wide() * product));
}

fn transpose<T: Float>(a: &[T], n: usize, to: &mut [T]) {
    for (at, to) in to.iter_mut().enumerate() {
        *to = a[at % n * n + at / n];
    }
}

fn identity<T: Float>(out: &mut [T], n: usize) {
    out.fill(T::of(0.0));
    out.iter_mut().step_by(n + 1).for_each(|x| *x = T::of(1.0));
}
