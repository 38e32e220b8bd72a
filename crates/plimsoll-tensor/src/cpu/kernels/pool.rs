//! Max pooling of NCHW planes, forward and backward.
//!
//! Forward also writes where in its window each maximum was (`ky * kernel_w + kx`), one byte for kernels up to
//! 256 positions: a quarter of what PyTorch keeps for backward. As in PyTorch, padding counts as -inf, the
//! first maximum wins and NaN is larger than everything.

use super::number::{Float, Number};
use super::parallel::{PIECE, for_each_piece, for_each_piece2};
use super::simd::vectorize;

/// Sizes of pooling: each of `planes` images of `in_h` × `in_w` on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool2dShape {
    /// Batch times channels.
    pub(crate) planes: usize,
    /// Rows of the input.
    pub(crate) in_h: usize,
    /// Columns of the input.
    pub(crate) in_w: usize,
    /// Size of the window, vertical and horizontal.
    pub(crate) kernel: [usize; 2],
    /// Distance between neighbouring windows; at least 1.
    pub(crate) stride: [usize; 2],
    /// Places outside the image on both sides; at most half the window, so that every window meets the image.
    pub(crate) padding: [usize; 2],
}

impl Pool2dShape {
    /// Rows of the output.
    pub(crate) fn out_h(&self) -> usize {
        (self.in_h + 2 * self.padding[0] - self.kernel[0]) / self.stride[0] + 1
    }

    /// Columns of the output.
    pub(crate) fn out_w(&self) -> usize {
        (self.in_w + 2 * self.padding[1] - self.kernel[1]) / self.stride[1] + 1
    }
}

impl Pool2dShape {
    fn in_plane(&self) -> usize {
        self.in_h * self.in_w
    }

    fn out_plane(&self) -> usize {
        self.out_h() * self.out_w()
    }

    /// Planes per chunk of parallel work.
    fn planes_per_chunk(&self) -> usize {
        (PIECE / self.in_plane().max(1)).max(1)
    }

    fn check(&self, input: usize, output: usize, index: usize, index_max: usize) {
        let area = self.kernel[0] * self.kernel[1];
        assert!(area > 0 && area - 1 <= index_max, "window of {area} with indices up to {index_max}");
        for d in 0..2 {
            let (padding, kernel) = (self.padding[d], self.kernel[d]);
            assert!(padding * 2 <= kernel, "padding {padding} is more than half the kernel {kernel}");
        }
        assert_eq!(input, self.planes * self.in_plane(), "pooling: input of {self:?}");
        assert_eq!(output, self.planes * self.out_plane(), "pooling: output of {self:?}");
        assert_eq!(index, output, "pooling: indices of {self:?}");
    }

    /// Outputs along a dimension whose windows see offset `k` inside the image: a range, with the input
    /// position of the first.
    fn inside(&self, d: usize, k: usize) -> (usize, usize, usize) {
        let (size, out) = if d == 0 { (self.in_h, self.out_h()) } else { (self.in_w, self.out_w()) };
        let (stride, padding) = (self.stride[d], self.padding[d]);
        let first = padding.saturating_sub(k).div_ceil(stride);
        let end = (size + padding).saturating_sub(k).div_ceil(stride).min(out);
        (first, end.max(first), (first * stride + k).saturating_sub(padding))
    }
}

/// Where in its window a maximum was.
pub(crate) trait WindowIndex: Copy + Send + Sync + PartialEq {
    const MAX: usize;
    fn new(position: usize) -> Self;
    fn position(self) -> usize;
}

impl WindowIndex for u8 {
    const MAX: usize = u8::MAX as usize;
    #[inline(always)]
    fn new(position: usize) -> Self {
        position as Self
    }
    #[inline(always)]
    fn position(self) -> usize {
        usize::from(self)
    }
}

impl WindowIndex for i32 {
    const MAX: usize = i32::MAX as usize;
    #[inline(always)]
    fn new(position: usize) -> Self {
        position as Self
    }
    #[inline(always)]
    fn position(self) -> usize {
        self as usize
    }
}

/// Writes each window's maximum to `out` and its place in the window to `index`.
///
/// # Panics
/// When the kernel has more positions than `I` can name, or slices are not of `shape`.
pub(crate) fn max_pool2d<T: Number, I: WindowIndex>(
    shape: &Pool2dShape,
    input: &[T],
    out: &mut [T],
    index: &mut [I],
) {
    shape.check(input.len(), out.len(), index.len(), I::MAX);
    let (in_plane, out_plane, group) = (shape.in_plane(), shape.out_plane(), shape.planes_per_chunk());
    if out.is_empty() {
        return;
    }
    for_each_piece2((out, index), group * out_plane, |start, out, index| {
        let planes = out.chunks_exact_mut(out_plane).zip(index.chunks_exact_mut(out_plane));
        for (i, (out, index)) in planes.enumerate() {
            let input = &input[(start / out_plane + i) * in_plane..][..in_plane];
            vectorize(
                #[inline(always)]
                || match (shape.kernel, shape.stride, shape.padding) {
                    ([2, 2], [2, 2], [0, 0]) => pairs_forward(shape, input, out, index),
                    _ => plane_forward(shape, input, out, index),
                },
            );
        }
    });
}

/// Writes to `grad_in` each input's gradient: the sum of `grad_out` over windows whose maximum it was.
pub(crate) fn max_pool2d_backward<T: Float, I: WindowIndex>(
    shape: &Pool2dShape,
    grad_out: &[T],
    index: &[I],
    grad_in: &mut [T],
) {
    shape.check(grad_in.len(), grad_out.len(), index.len(), I::MAX);
    let (in_plane, out_plane, group) = (shape.in_plane(), shape.out_plane(), shape.planes_per_chunk());
    if grad_in.is_empty() {
        return;
    }
    for_each_piece(grad_in, group * in_plane, |start, grad_in| {
        for (i, grad_in) in grad_in.chunks_exact_mut(in_plane).enumerate() {
            let plane = start / in_plane + i;
            let (grad_out, index) = (&grad_out[plane * out_plane..], &index[plane * out_plane..]);
            vectorize(
                #[inline(always)]
                || match (shape.kernel, shape.stride, shape.padding) {
                    ([2, 2], [2, 2], [0, 0]) => pairs_backward(shape, grad_out, index, grad_in),
                    _ => plane_backward(shape, grad_out, index, grad_in),
                },
            );
        }
    });
}

/// Writes to `out` the value of `input` at each window's place.
pub(crate) fn max_pool2d_pick<T: Number, I: WindowIndex>(
    shape: &Pool2dShape,
    input: &[T],
    index: &[I],
    out: &mut [T],
) {
    shape.check(input.len(), out.len(), index.len(), I::MAX);
    let (in_plane, out_plane, out_w) = (shape.in_plane(), shape.out_plane(), shape.out_w());
    for_each_piece(out, shape.planes_per_chunk() * out_plane.max(1), |start, piece| {
        for (i, out) in piece.iter_mut().enumerate() {
            let (plane, place) = ((start + i) / out_plane, (start + i) % out_plane);
            let at = index[start + i].position();
            let (ky, kx) = (at / shape.kernel[1], at % shape.kernel[1]);
            let y = place / out_w * shape.stride[0] + ky - shape.padding[0];
            let x = place % out_w * shape.stride[1] + kx - shape.padding[1];
            *out = input[plane * in_plane + y * shape.in_w + x];
        }
    });
}

/// The common 2 x 2 halving: every input is in at most one window, so both directions are one pass.
#[inline(always)]
fn pairs_forward<T: Number, I: WindowIndex>(
    shape: &Pool2dShape,
    input: &[T],
    out: &mut [T],
    index: &mut [I],
) {
    let (in_w, out_w) = (shape.in_w, shape.out_w());
    let rows =
        out.chunks_exact_mut(out_w).zip(index.chunks_exact_mut(out_w)).zip(input.chunks_exact(2 * in_w));
    for ((out, index), rows) in rows {
        let (top, _) = rows[..in_w].as_chunks::<2>();
        let (bottom, _) = rows[in_w..].as_chunks::<2>();
        for (((out, index), &[a, b]), &[c, d]) in out.iter_mut().zip(index).zip(top).zip(bottom) {
            let (mut best, mut at) = (a, 0u32);
            for (x, k) in [(b, 1), (c, 2), (d, 3)] {
                let wins = (x > best) | x.is_nan();
                best = if wins { x } else { best };
                at = if wins { k } else { at };
            }
            (*out, *index) = (best, I::new(at as usize));
        }
    }
}

#[inline(always)]
fn pairs_backward<T: Float, I: WindowIndex>(
    shape: &Pool2dShape,
    grad_out: &[T],
    index: &[I],
    grad_in: &mut [T],
) {
    let (in_w, out_w) = (shape.in_w, shape.out_w());
    let mut rows = grad_in.chunks_exact_mut(2 * in_w);
    for ((rows, grad), index) in (&mut rows).zip(grad_out.chunks_exact(out_w)).zip(index.chunks_exact(out_w))
    {
        let (top, bottom) = rows.split_at_mut(in_w);
        for (row, first) in [(top, 0), (bottom, 2)] {
            let (pairs, rest) = row.as_chunks_mut::<2>();
            for ((pair, &g), &at) in pairs.iter_mut().zip(grad).zip(index) {
                let at = at.position() as u32;
                *pair = [
                    if at == first { g } else { T::default() },
                    if at == first + 1 { g } else { T::default() },
                ];
            }
            rest.fill(T::default());
        }
    }
    rows.into_remainder().fill(T::default());
}

/// Any kernel: each window position is one pass along the rows of the output, held in cache.
#[inline(always)]
fn plane_forward<T: Number, I: WindowIndex>(
    shape: &Pool2dShape,
    input: &[T],
    out: &mut [T],
    index: &mut [I],
) {
    let ([kernel_h, kernel_w], [_, stride], out_w) = (shape.kernel, shape.stride, shape.out_w());
    for oy in 0..shape.out_h() {
        let (out, index) = (&mut out[oy * out_w..][..out_w], &mut index[oy * out_w..][..out_w]);
        out.fill(T::LOWEST);
        let top = shape.padding[0].saturating_sub(oy * shape.stride[0]);
        for (ox, index) in index.iter_mut().enumerate() {
            // A window of nothing but -inf names its first position inside the image.
            *index = I::new(top * kernel_w + shape.padding[1].saturating_sub(ox * stride));
        }
        for ky in top..kernel_h.min(shape.in_h + shape.padding[0] - oy * shape.stride[0]) {
            let row = &input[(oy * shape.stride[0] + ky - shape.padding[0]) * shape.in_w..][..shape.in_w];
            for kx in 0..kernel_w {
                let (first, end, at) = shape.inside(1, kx);
                let here = I::new(ky * kernel_w + kx);
                for (i, (out, index)) in out[first..end].iter_mut().zip(&mut index[first..end]).enumerate() {
                    let x = row[at + i * stride];
                    let wins = (x > *out) | x.is_nan();
                    *out = if wins { x } else { *out };
                    *index = if wins { here } else { *index };
                }
            }
        }
    }
}

#[inline(always)]
fn plane_backward<T: Float, I: WindowIndex>(
    shape: &Pool2dShape,
    grad_out: &[T],
    index: &[I],
    grad_in: &mut [T],
) {
    grad_in.fill(T::default());
    let out_w = shape.out_w();
    for oy in 0..shape.out_h() {
        for ox in 0..out_w {
            let at = index[oy * out_w + ox].position();
            let (ky, kx) = (at / shape.kernel[1], at % shape.kernel[1]);
            let y = oy * shape.stride[0] + ky - shape.padding[0];
            let x = ox * shape.stride[1] + kx - shape.padding[1];
            grad_in[y * shape.in_w + x] += grad_out[oy * out_w + ox];
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
