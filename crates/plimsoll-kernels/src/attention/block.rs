//! Blocks for the tile kernel: loading rows from strided heads, and products of blocks.

use super::super::convert::Compute;
use super::super::number::Float;
use super::super::simd::vectorize;
use super::super::tile::{Depth, NARROW, ROWS, Start, Tile, WIDE};
use super::super::transpose::transpose;
use crate::dtype::DType;
use crate::random::philox::{Dropout, GROUP};

/// Columns of a block whose rows have `dim` elements, rounded up to complete tiles.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(NARROW)
}

/// Rows of a head, `step` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
    /// The first element of the first row.
    pub(super) first: usize,
    pub(super) step: usize,
}

/// Copies `rows` rows of `dim` elements, times `scale`, to rows of [`padded`] columns, followed by zeros.
#[inline(always)]
pub(super) fn load<T: Scored>(from: Rows<'_>, (rows, dim): (usize, usize), scale: T, block: &mut [T]) {
    if dim == 0 {
        return;
    }
    let convert = T::load(from.dtype);
    for (row, to) in block.chunks_exact_mut(padded(dim)).take(rows).enumerate() {
        let (to, rest) = to.split_at_mut(dim);
        convert(from.bytes, from.first + row * from.step, 1, to);
        if scale != T::ONE {
            to.iter_mut().for_each(|x| *x *= scale);
        }
        rest.fill(T::default());
    }
}

/// The left factor of a product: `rows` rows, `row` numbers apart, with `depth` terms that are `step` apart.
#[derive(Clone, Copy)]
pub(super) struct LeftFactor<'a, T> {
    pub(super) data: &'a [T],
    pub(super) row: usize,
    pub(super) step: usize,
}

/// How a product treats the old values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    Replace,
    Add,
}

/// A compute type of scores.
pub(super) trait Scored: Float + Compute {
    /// `out[i, j] (+)= sum over t < depth of left[i, t] · right[t, j]` for `rows` rows and `cols` columns, rounded up to
    /// complete tiles. The distances between rows of `right` and `out` are given.
    fn product(
        sizes: [usize; 3],
        left: LeftFactor<'_, Self>,
        right: (&[Self], usize),
        out: (&mut [Self], usize),
        into: Into,
    );

    /// Transposes a block of `rows x dim` to rows that are `stride` apart.
    fn turn(block: &[Self], size: (usize, usize), out: &mut [Self], stride: usize);

    /// Multiplies a row by dropout's factors, starting with a given group.
    fn drop(dropout: &Dropout, group: u64, row: &mut [Self]);
}

impl Scored for f32 {
    #[inline(always)]
    fn product(
        [rows, depth, cols]: [usize; 3],
        left: LeftFactor<'_, f32>,
        (right, right_stride): (&[f32], usize),
        (out, out_stride): (&mut [f32], usize),
        into: Into,
    ) {
        let start = match into {
            Into::Replace => Start::Columns(&[0.0; WIDE]),
            Into::Add => Start::Accumulate,
        };
        let depth =
            Depth { counts: [1, 1, depth], a_strides: [0, 0, left.step], b_strides: [0, 0, right_stride] };
        for row in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - row);
            let a_rows: [usize; ROWS] = std::array::from_fn(|i| (row + i) * left.row);
            let mut col = 0;
            while col < cols {
                let width = if cols - col > NARROW { WIDE } else { NARROW };
                let c_rows: [usize; ROWS] = std::array::from_fn(|i| (row + i) * out_stride + col);
                let tile = Tile { a: left.data, b: &right[col..], depth, width, start };
                tile.run(&a_rows[..count], out, &c_rows[..count]);
                col += width;
            }
        }
    }

    fn turn(block: &[f32], (rows, dim): (usize, usize), out: &mut [f32], stride: usize) {
        transpose((rows, dim), (block, padded(dim)), (out, stride));
    }

    #[inline(always)]
    fn drop(dropout: &Dropout, group: u64, row: &mut [f32]) {
        dropout.apply(group, row);
    }
}

/// The number of columns of an `f64` tile.
const COLUMNS: usize = NARROW / 2;

impl Scored for f64 {
    fn product(
        [rows, depth, cols]: [usize; 3],
        left: LeftFactor<'_, f64>,
        right: (&[f64], usize),
        out: (&mut [f64], usize),
        into: Into,
    ) {
        vectorize(
            #[inline(always)]
            || {
                let mut row = 0;
                while row < rows {
                    for col in (0..cols.next_multiple_of(NARROW)).step_by(COLUMNS) {
                        let at = [row, depth, col];
                        match rows - row {
                            1 => wide_tile::<1>(at, left, right, (&mut *out.0, out.1), into),
                            2 => wide_tile::<2>(at, left, right, (&mut *out.0, out.1), into),
                            3 => wide_tile::<3>(at, left, right, (&mut *out.0, out.1), into),
                            _ => wide_tile::<4>(at, left, right, (&mut *out.0, out.1), into),
                        }
                    }
                    row += 4;
                }
            },
        );
    }

    fn turn(block: &[f64], (rows, dim): (usize, usize), out: &mut [f64], stride: usize) {
        for row in 0..rows {
            for col in 0..dim {
                out[col * stride + row] = block[row * padded(dim) + col];
            }
        }
    }

    fn drop(dropout: &Dropout, group: u64, row: &mut [f64]) {
        for (i, row) in row.chunks_mut(GROUP).enumerate() {
            let mut factors = [1.0f32; GROUP];
            dropout.apply(group + i as u64, &mut factors[..row.len()]);
            row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= f64::from(factor));
        }
    }
}

/// Computes `R` rows and [`COLUMNS`] columns of a product, starting at a given row and column. The sums stay in
/// registers.
#[inline(always)]
fn wide_tile<const R: usize>(
    [row, depth, col]: [usize; 3],
    left: LeftFactor<'_, f64>,
    (right, right_stride): (&[f64], usize),
    (out, out_stride): (&mut [f64], usize),
    into: Into,
) {
    let mut sums = [[0.0; COLUMNS]; R];
    for t in 0..depth {
        let terms: &[f64; COLUMNS] = right[t * right_stride + col..].first_chunk().unwrap_or(&[0.0; COLUMNS]);
        for (i, sums) in sums.iter_mut().enumerate() {
            let factor = left.data[(row + i) * left.row + t * left.step];
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum += factor * term;
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let out = &mut out[(row + i) * out_stride + col..][..COLUMNS];
        match into {
            Into::Replace => out.copy_from_slice(sums),
            Into::Add => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        }
    }
}
