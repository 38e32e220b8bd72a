//! Finds the positions of values in sorted rows.

use crate::parallel::{PIECE, for_each_piece};

/// Whether a value's position is before or after the elements that equal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// `out[r][i]` = the position of `values[r][i]` in row `r` of `sorted`, whose rows have `len` elements. With `shared`,
/// `sorted` has one row for all values. NaN belongs at the end.
pub fn search<T: Copy + PartialOrd + Sync>(
    (sorted, len, shared): (&[T], usize, bool),
    (values, per_row): (&[T], usize),
    side: Side,
    out: &mut [i64],
) {
    for_each_piece(out, PIECE, |start, piece| {
        for (i, out) in piece.iter_mut().enumerate() {
            let value = values[start + i];
            let row = if shared { 0 } else { (start + i) / per_row };
            let row = &sorted[row * len..][..len];
            // Not `!(x < value)`: NaN is at the end, and counts as the largest.
            *out = row.partition_point(|&x| match side {
                Side::Left => x < value || not_a_number(value) && !not_a_number(x),
                Side::Right => x <= value || not_a_number(value),
            }) as i64;
        }
    });
}

#[allow(clippy::eq_op, reason = "only what is not a number differs from itself")]
fn not_a_number<T: Copy + PartialOrd>(x: T) -> bool {
    x != x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_placed_before_or_after_its_equals() {
        let sorted = [1.0, 2.0, 2.0, 3.0, f64::NAN];
        let values = [0.0, 2.0, 3.5, f64::NAN];
        let mut out = [0; 4];
        search((&sorted, 5, true), (&values, 4), Side::Left, &mut out);
        assert_eq!(out, [0, 1, 4, 4]);
        search((&sorted, 5, true), (&values, 4), Side::Right, &mut out);
        assert_eq!(out, [0, 3, 4, 5]);
    }
}
