//! Blocks of `f32` that the tile kernel multiplies: rows gathered from strided heads, and products of blocks.

use super::super::tile::{Depth, NARROW, ROWS, Start, Tile, WIDE};
use super::super::transpose::transpose;

/// Columns of a block whose rows have `dim` elements: whole tiles.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(NARROW)
}

/// Copies `rows` rows of `dim` elements, `step` apart, times `scale`, to rows of [`padded`] columns; zeros behind them.
#[inline(always)]
pub(super) fn load(
    (from, step): (&[f32], usize),
    (rows, dim): (usize, usize),
    scale: f32,
    block: &mut [f32],
) {
    if dim == 0 {
        return;
    }
    for (row, to) in block.chunks_exact_mut(padded(dim)).take(rows).enumerate() {
        let (to, rest) = to.split_at_mut(dim);
        to.iter_mut().zip(&from[row * step..]).for_each(|(to, x)| *to = x * scale);
        rest.fill(0.0);
    }
}

/// A block of `rows x dim` with rows and columns exchanged, rows `stride` apart.
pub(super) fn turn(block: &[f32], (rows, dim): (usize, usize), out: &mut [f32], stride: usize) {
    transpose((rows, dim), (block, padded(dim)), (out, stride));
}

/// A factor on the left: `rows` of them, `row` floats apart, whose `depth` terms are `step` apart.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) step: usize,
}

/// What a product does with what was there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    Replace,
    Add,
}

/// `out[i, j] (+)= sum over t < depth of left[i, t] · right[t, j]` for `rows` rows and `cols` columns, rounded up to
/// whole tiles. Rows of `right` and `out` are the given distances apart.
#[inline(always)]
pub(super) fn product(
    [rows, depth, cols]: [usize; 3],
    left: Left<'_>,
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
