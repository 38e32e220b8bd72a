//! Converts a maximum's position in its window to its position in the image.

use super::PoolShape;
use super::max::WindowIndex;
use crate::parallel::for_each_piece;

/// Writes `out` for each element of `index`, for row-major images.
pub fn places<I: WindowIndex>(shape: &PoolShape, index: &[I], out: &mut [i64]) {
    assert_eq!(shape.inner, 1, "places of row-major images");
    assert_eq!(index.len(), out.len(), "a place for each index");
    let [_, height, width] = &shape.axes;
    let row_len = width.out.max(1);
    for_each_piece(out, shape.piece(), |start, piece| {
        for (i, row) in piece.chunks_mut(row_len).enumerate() {
            let number = start / row_len + i;
            let (_, [z, y]) = shape.row(number);
            for (column, out) in row.iter_mut().enumerate() {
                let tap = index[number * row_len + column].position();
                let (rest, kx) = (tap / width.kernel(), tap % width.kernel());
                let (kz, ky) = (rest / height.kernel(), rest % height.kernel());
                let at = [z.place(kz), y.place(ky), width.window(column).place(kx)];
                *out = ((at[0] * height.size + at[1]) * width.size + at[2]) as i64;
            }
        }
    });
}
