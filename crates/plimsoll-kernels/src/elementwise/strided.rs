//! Moving elements: copies between layouts, fills. Nothing is computed, so element types do not matter.

use crate::parallel::{Cut, PIECE, for_each_chunk, for_each_piece};
use crate::walk::Walk;

/// Copies each position of `shape` from `src` to `dst`. With row-major `dst_strides`, this makes a
/// contiguous copy.
///
/// # Panics
/// If `dst_strides` do not nest (a broadcast or overlapping destination), or a slice is too short.
pub fn copy_strided<T: Copy + Send + Sync>(
    shape: &[usize],
    src: &[T],
    src_strides: &[usize],
    dst: &mut [T],
    dst_strides: &[usize],
) {
    let walk = Walk::new(shape, [src_strides, dst_strides]);
    let ([reads, writes], [from_step, to_step]) = ([walk.span(0), walk.span(1)], walk.run_strides());
    assert!(walk.visits_once(1), "copy: destination {shape:?} with strides {dst_strides:?} overlaps itself");
    assert!(src.len() >= reads, "copy: src of {} where {reads} are read", src.len());
    assert!(dst.len() >= writes, "copy: dst of {} where {writes} are written", dst.len());
    let dst = Cut::new(dst);
    for_each_chunk(walk.len().div_ceil(PIECE), |chunk| {
        let positions = chunk * PIECE..walk.len().min((chunk + 1) * PIECE);
        walk.for_each_run(positions, |_, [from, to], len| {
            if (from_step, to_step) == (1, 1) {
                // SAFETY: different runs write different elements (`visits_once`).
                unsafe { dst.range(to, len) }.copy_from_slice(&src[from..][..len]);
            } else {
                for i in 0..len {
                    // SAFETY: as above.
                    unsafe { dst.set(to + i * to_step, src[from + i * from_step]) };
                }
            }
        });
    });
}

/// Sets every element to `value`.
pub fn fill<T: Copy + Send + Sync>(dst: &mut [T], value: T) {
    for_each_piece(dst, PIECE, |_, dst| dst.fill(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn copies_to_contiguous_match_the_reference() {
        let src = random(1000, 1);
        for (shape, strides) in strided_cases() {
            let expected: Vec<f32> = offsets(&shape, &strides).map(|at| src[at]).collect();
            let mut out = vec![0.0; expected.len()];
            copy_strided(&shape, &src, &strides, &mut out, &contiguous(&shape));
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_large_transpose_lands_where_strides_say() {
        let src: Vec<i64> = (0..300 * 700).collect();
        let mut dst = vec![0i64; 300 * 700];
        copy_strided(&[300, 700], &src, &[700, 1], &mut dst, &[1, 300]);
        assert!((0..300 * 700).all(|i| dst[i % 700 * 300 + i / 700] == i as i64));
    }

    #[test]
    #[should_panic(expected = "overlaps itself")]
    fn a_broadcast_destination_is_refused() {
        copy_strided(&[2, 2], &[1u8; 4], &[2, 1], &mut [0; 4], &[0, 1]);
    }

    #[test]
    fn fill_reaches_the_end() {
        let mut dst = vec![0i32; 100_001];
        fill(&mut dst, 7);
        assert!(dst.iter().all(|&x| x == 7));
    }
}
