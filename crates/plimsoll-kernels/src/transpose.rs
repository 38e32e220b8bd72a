//! Transposes blocks between NCHW planes and the channels-last tiles of convolution, 8 x 8 elements at a
//! time in registers.

/// `dst[col * dst_stride + row] = src[row * src_stride + col]` for all `rows` and `cols`.
pub(super) fn transpose(
    (rows, cols): (usize, usize),
    (src, src_stride): (&[f32], usize),
    (dst, dst_stride): (&mut [f32], usize),
) {
    if rows == 0 || cols == 0 {
        return;
    }
    let (reads, writes) = ((rows - 1) * src_stride + cols, (cols - 1) * dst_stride + rows);
    assert!(src.len() >= reads, "transpose: src of {} where {reads} are read", src.len());
    assert!(dst.len() >= writes, "transpose: dst of {} where {writes} are written", dst.len());
    #[allow(unused_mut)]
    let mut done = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        done = (rows & !7, cols & !7);
        let (down, across) = (done.0 / 8, done.1 / 8);
        for block in 0..down * across {
            // Iterates along the larger stride first, so that the pieces of a line are moved one after the
            // other.
            let (row, col) = if src_stride > dst_stride {
                (block % down * 8, block / down * 8)
            } else {
                (block / across * 8, block % across * 8)
            };
            // SAFETY: the processor has AVX; the block lies inside both slices, whose lengths were checked.
            unsafe {
                let (src, dst) =
                    (src.as_ptr().add(row * src_stride + col), dst.as_mut_ptr().add(col * dst_stride + row));
                transpose_8x8(src, src_stride, dst, dst_stride);
            }
        }
    }
    for row in 0..rows {
        for col in if row < done.0 { done.1 } else { 0 }..cols {
            dst[col * dst_stride + row] = src[row * src_stride + col];
        }
    }
}

/// # Safety
/// `src` must be readable and `dst` writable for 8 rows of 8 elements at their strides.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose_8x8(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
    use std::arch::x86_64::*;
    // A register holds half of row i and the same half of row i + 4: first the left halves, then the right ones. The
    // lane-wise shuffles require this.
    let halves = |row: usize, col: usize| {
        // SAFETY: rows and columns go up to 7, which the caller guarantees to be valid.
        unsafe {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(src.add(row * src_stride + col)));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(src.add((row + 4) * src_stride + col)))
        }
    };
    for col in [0, 4] {
        let [a, b, c, d] = [halves(0, col), halves(1, col), halves(2, col), halves(3, col)];
        let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let columns = [
            _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
            _mm256_shuffle_ps::<0xEE>(ab_low, cd_low),
            _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            _mm256_shuffle_ps::<0xEE>(ab_high, cd_high),
        ];
        for (i, column) in columns.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(dst.add((col + i) * dst_stride), column) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn any_size_lands_transposed_and_touches_nothing_else() {
        for (rows, cols) in [(0, 3), (1, 1), (8, 8), (9, 17), (32, 25), (100, 31), (7, 40)] {
            let (src, src_stride, dst_stride) = (random(rows * (cols + 2), 1), cols + 2, rows + 3);
            let mut dst = vec![7.0; cols * dst_stride];
            transpose((rows, cols), (&src, src_stride), (&mut dst, dst_stride));
            for (i, &x) in dst.iter().enumerate() {
                let (col, row) = (i / dst_stride, i % dst_stride);
                assert_eq!(x, if row < rows { src[row * src_stride + col] } else { 7.0 });
            }
        }
    }
}
