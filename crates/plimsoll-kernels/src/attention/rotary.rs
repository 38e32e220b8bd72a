//! Rotary embedding: rotates pairs of a row's elements by an angle that depends on the row.

use crate::number::Float;
use crate::parallel::{Cut, PIECE, for_each_chunk};
use crate::simd::vectorize;

/// The elements of a row that form pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Each element of the first half with the corresponding one of the second half.
    Halves,
    /// Neighbours.
    Neighbours,
}

/// The rows of a strided tensor, to find the beginning of the n-th row.
pub struct Places<'a> {
    /// Sizes without the last dimension.
    pub shape: &'a [usize],
    pub strides: &'a [usize],
}

impl Places<'_> {
    #[inline(always)]
    fn of(&self, mut row: usize) -> usize {
        let mut at = 0;
        for (&size, &stride) in self.shape.iter().zip(self.strides).rev() {
            at += row % size * stride;
            row /= size;
        }
        at
    }
}

/// Rotates the first `2 · half` elements of each row of `cols` by `sign` times the angle, and copies the rest. The tables
/// have `half` values for each position along the last dimension of the rows.
pub fn rotate<T: Float>(
    (pairs, sign): (Pairs, f64),
    [rows, cols, half]: [usize; 3],
    (x, from): (&[T], Places<'_>),
    [cos, sin]: [&[T]; 2],
    (out, to): (&mut [T], Places<'_>),
) {
    let positions = from.shape.last().copied().unwrap_or(1).max(1);
    let out = Cut::new(out);
    let count = (PIECE / cols.max(1)).max(1);
    let sign = T::of(sign);
    for_each_chunk(rows.div_ceil(count), |chunk| {
        for row in chunk * count..rows.min((chunk + 1) * count) {
            let x = &x[from.of(row)..][..cols];
            // SAFETY: rows of the output do not overlap, and each belongs to one chunk.
            let out = unsafe { out.range(to.of(row), cols) };
            let at = row % positions * half;
            let (cos, sin) = (&cos[at..][..half], &sin[at..][..half]);
            vectorize(
                #[inline(always)]
                || match pairs {
                    Pairs::Halves => {
                        let ((a, b), (to_a, to_b)) = (x.split_at(half), out.split_at_mut(half));
                        for i in 0..half {
                            to_a[i] = a[i] * cos[i] - b[i] * (sign * sin[i]);
                            to_b[i] = b[i] * cos[i] + a[i] * (sign * sin[i]);
                        }
                    }
                    Pairs::Neighbours => {
                        for i in 0..half {
                            let (a, b) = (x[2 * i], x[2 * i + 1]);
                            out[2 * i] = a * cos[i] - b * (sign * sin[i]);
                            out[2 * i + 1] = b * cos[i] + a * (sign * sin[i]);
                        }
                    }
                },
            );
            out[2 * half..].copy_from_slice(&x[2 * half..]);
        }
    });
}
