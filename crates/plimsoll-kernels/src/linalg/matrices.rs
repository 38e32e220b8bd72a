//! The loop over a batch of matrices, with scratch memory for each thread, and the sums that factorizations are made of.

use std::sync::{Mutex, PoisonError};

use crate::matmul::{MatmulShape, MatrixStrides, matmul};
use crate::number::Float;
use crate::parallel::{Cuts, for_each_cut_with, scratch_workers};

/// The width of a block. A product of blocks is worth a call of `matmul`.
pub const BLOCK: usize = 64;

/// Rows of a product that is subtracted at once.
pub(super) const STRIP: usize = 256;

/// A matrix of a batch that has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its place in the batch.
    pub matrix: usize,
    /// The row and column at which the algorithm stopped, from 0.
    pub at: usize,
}

/// Floats of scratch memory that one thread needs for `elements` elements. Even, so that 64-bit numbers are aligned.
fn floats_of<T>(elements: usize) -> usize {
    (elements * size_of::<T>()).div_ceil(size_of::<f32>()).next_multiple_of(2)
}

/// Floats of scratch memory for a batch, if a matrix of at most `side` rows and columns needs `elements` elements.
pub(super) fn scratch_len<T>(count: usize, side: usize, elements: usize) -> usize {
    let workers = if side > BLOCK { count.min(1) } else { scratch_workers(count).min(count) };
    workers * floats_of::<T>(elements)
}

/// Runs `body(matrix, piece, scratch)` for each matrix of a batch, and returns the first failure. `body` returns the row at which it
/// failed.
pub(super) fn for_each_matrix<T: Float, C: Cuts>(
    count: usize,
    cut: C,
    scratch: &mut [f32],
    elements: usize,
    body: impl Fn(usize, C::Piece, &mut [T]) -> Result<(), usize> + Sync,
) -> Result<(), Failure> {
    let first: Mutex<Option<Failure>> = Mutex::new(None);
    for_each_cut_with(count, cut, scratch, floats_of::<T>(elements), |matrix, piece, scratch| {
        // An empty slice need not be aligned for 64-bit numbers.
        let scratch = if elements == 0 { &mut [] } else { bytemuck::cast_slice_mut::<f32, T>(scratch) };
        if let Err(at) = body(matrix, piece, &mut scratch[..elements]) {
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            if first.is_none_or(|found| matrix < found.matrix) {
                *first = Some(Failure { matrix, at });
            }
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// `y -= by · x`.
#[inline(always)]
pub(super) fn subtract_scaled<T: Float>(y: &mut [T], x: &[T], by: T) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = *y - by * x;
    }
}

/// The number of partial sums of a product, which fill one or two registers.
const LANES: usize = 8;

/// The product of two vectors.
#[inline(always)]
pub(super) fn dot<T: Float>(a: &[T], b: &[T]) -> T {
    let len = a.len().min(b.len());
    let ((a, a_rest), (b, b_rest)) = (a[..len].as_chunks::<LANES>(), b[..len].as_chunks::<LANES>());
    let mut sums = [T::of(0.0); LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] = a[i].times_plus(b[i], sums[i]);
        }
    }
    let rest: T = a_rest.iter().zip(b_rest).map(|(&a, &b)| a * b).sum();
    sums.into_iter().sum::<T>() + rest
}

/// A matrix inside a larger one: its first element and the distance of its rows.
#[derive(Clone, Copy)]
pub(super) struct Part<'a, T> {
    pub(super) elements: &'a [T],
    pub(super) row: usize,
}

/// `out = a · b` of `[m, k]` and `[k, n]`, row-major; `transposed` says which of `a` and `b` are stored as their transposes.
pub(super) fn product<T: Float>(
    [m, k, n]: [usize; 3],
    (a, b): (Part<'_, T>, Part<'_, T>),
    transposed: [bool; 2],
    out: &mut [T],
) {
    let out = &mut out[..m * n];
    if k == 0 || out.is_empty() {
        return out.fill(T::of(0.0));
    }
    let strides = |part: Part<'_, T>, transposed: bool| {
        let plain = MatrixStrides { batch: 0, row: part.row, col: 1 };
        if transposed { plain.transposed() } else { plain }
    };
    let shape = MatmulShape { batch: 1, m, k, n };
    let (left, right) = (strides(a, transposed[0]), strides(b, transposed[1]));
    let whole = MatrixStrides::row_major(m, n);
    matmul(&shape, (a.elements, left), (b.elements, right), None, (out, whole));
}

/// Subtracts a row-major matrix of `cols` columns from rows with a distance of `row` elements.
pub(super) fn subtract<T: Float>(from: &mut [T], row: usize, what: &[T], cols: usize) {
    for (from, what) in from.chunks_mut(row.max(1)).zip(what.chunks_exact(cols.max(1))) {
        for (from, &what) in from.iter_mut().zip(what) {
            *from = *from - what;
        }
    }
}
