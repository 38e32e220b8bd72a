//! Max pooling, forward and backward.
//!
//! The forward pass also writes the position of each maximum in its window (`(kz * kernel_h + ky) * kernel_w + kx`), in
//! one byte for kernels of up to 256 positions: an eighth of what PyTorch saves for the backward pass. As in PyTorch,
//! padding counts as -inf, the first maximum wins and NaN is larger than everything.

use super::{Axis, PoolShape, Window, Windows};
use crate::number::{Float, Number};
use crate::parallel::{for_each_piece, for_each_piece2};
use crate::simd::vectorize;

/// The position of a maximum in its window.
pub trait WindowIndex: Copy + Send + Sync + PartialEq {
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

fn check(shape: &PoolShape, input: usize, output: usize, index: usize, index_max: usize) {
    let area = shape.kernel();
    assert!(area == 0 || area - 1 <= index_max, "window of {area} with indices up to {index_max}");
    shape.check(input, output);
    assert_eq!(index, output, "pooling: indices of {shape:?}");
}

/// Whether the windows are the common case of adjacent 2 x 2 windows on row-major images.
fn is_pairs(shape: &PoolShape) -> bool {
    let windows = |kernel| Windows::Sliding { kernel, stride: kernel, padding: 0, dilation: 1 };
    let [depth, height, width] = &shape.axes;
    let fits = |axis: &Axis| axis.windows == windows(2) && axis.out * 2 <= axis.size;
    shape.inner == 1 && depth.windows == windows(1) && fits(height) && fits(width)
}

/// Writes each window's maximum to `out` and its position in the window to `index`.
///
/// # Panics
/// If the kernel has more positions than `I` can represent, or slices do not match `shape`.
pub fn max_pool<T: Number, I: WindowIndex>(shape: &PoolShape, input: &[T], out: &mut [T], index: &mut [I]) {
    check(shape, input.len(), out.len(), index.len(), I::MAX);
    if out.is_empty() {
        return;
    }
    let (row_len, pairs) = (shape.out_row(), is_pairs(shape));
    let [_, height, width] = &shape.axes;
    let in_row = width.size * shape.inner;
    for_each_piece2((out, index), shape.piece(), |start, out, index| {
        vectorize(
            #[inline(always)]
            || {
                if pairs {
                    return pairs_forward(shape, input, start / row_len, out, index);
                }
                let rows = out.chunks_exact_mut(row_len).zip(index.chunks_exact_mut(row_len));
                for (i, (out, index)) in rows.enumerate() {
                    let (image, [wz, wy]) = shape.row(start / row_len + i);
                    let input = &input[image * shape.in_plane()..][..shape.in_plane()];
                    if outputs_apart(shape) {
                        each_output(shape, input, [wz, wy], out, index);
                        continue;
                    }
                    begin(shape, [wz, wy], out, index);
                    for (kz, z) in wz.taps() {
                        for (ky, y) in wy.taps() {
                            let row = &input[(z * height.size + y) * in_row..][..in_row];
                            let tap = (kz * height.kernel() + ky) * width.kernel();
                            max_row(shape, row, tap, out, index);
                        }
                    }
                }
            },
        );
    });
}

/// Whether outputs of a row are computed one by one: if the elements of neighbouring windows are not contiguous, passes along a
/// row gain nothing.
fn outputs_apart(shape: &PoolShape) -> bool {
    shape.inner == 1 && !matches!(shape.axes[2].windows, Windows::Sliding { stride: 1 | 2, .. })
}

/// Computes a row of the output, one window after the other.
#[inline(always)]
fn each_output<T: Number, I: WindowIndex>(
    shape: &PoolShape,
    input: &[T],
    [wz, wy]: [Window; 2],
    out: &mut [T],
    index: &mut [I],
) {
    let [_, height, width] = &shape.axes;
    let begin = (wz.first * height.kernel() + wy.first) * width.kernel();
    for (column, (out, index)) in out.iter_mut().zip(index).enumerate() {
        let wx = width.window(column);
        let (mut best, mut at) = (T::LOWEST, begin + wx.first.min(width.kernel().saturating_sub(1)));
        for (kz, z) in wz.taps() {
            for (ky, y) in wy.taps() {
                let row = &input[(z * height.size + y) * width.size..][..width.size];
                let tap = (kz * height.kernel() + ky) * width.kernel();
                for (kx, x) in wx.taps() {
                    let x = row[x];
                    let wins = (x > best) | x.is_nan();
                    best = if wins { x } else { best };
                    at = if wins { tap + kx } else { at };
                }
            }
        }
        (*out, *index) = (best, I::new(at));
    }
}

/// The initial state: for a window with only -inf, the result is its first position inside the image.
#[inline(always)]
fn begin<T: Number, I: WindowIndex>(
    shape: &PoolShape,
    [wz, wy]: [Window; 2],
    out: &mut [T],
    index: &mut [I],
) {
    let [_, height, width] = &shape.axes;
    out.fill(T::LOWEST);
    let first = (wz.first * height.kernel() + wy.first) * width.kernel();
    for (column, index) in index.chunks_exact_mut(shape.inner).enumerate() {
        index.fill(I::new(first + width.window(column).first.min(width.kernel().saturating_sub(1))));
    }
}

/// Updates `out` and `index` of neighbouring outputs with one more element of their windows.
#[inline(always)]
fn take<'a, T: Number, I: WindowIndex>(
    out: &mut [T],
    index: &mut [I],
    values: impl Iterator<Item = &'a T>,
    here: I,
) {
    for ((out, index), &x) in out.iter_mut().zip(index).zip(values) {
        let wins = (x > *out) | x.is_nan();
        *out = if wins { x } else { *out };
        *index = if wins { here } else { *index };
    }
}

/// Processes one input row for an output row, with one pass along the row for each tap. Used if neighbouring windows are one
/// element or some channels apart.
#[inline(always)]
fn max_row<T: Number, I: WindowIndex>(
    shape: &PoolShape,
    row: &[T],
    tap: usize,
    out: &mut [T],
    index: &mut [I],
) {
    let (width, inner) = (&shape.axes[2], shape.inner);
    if inner == 1 && matches!(width.windows, Windows::Sliding { .. }) {
        for kx in 0..width.kernel() {
            let (first, end, at, stride) = width.inside(kx);
            if first < end {
                let (out, index, here) = (&mut out[first..end], &mut index[first..end], I::new(tap + kx));
                if stride == 1 {
                    take(out, index, row[at..].iter(), here);
                    continue;
                }
                debug_assert_eq!(stride, 2, "only strides 1 and 2 are processed by rows");
                // The last position may be the row's last element, without a neighbour.
                let (pairs, last) = (row[at..].as_chunks::<2>().0, end - first - 1);
                let values = pairs[..last].iter().map(|[x, _]| x);
                take(&mut out[..last], &mut index[..last], values, here);
                take(&mut out[last..], &mut index[last..], [&row[at + 2 * last]].into_iter(), here);
            }
        }
        return;
    }
    let rows = out.chunks_exact_mut(inner).zip(index.chunks_exact_mut(inner));
    for (column, (out, index)) in rows.enumerate() {
        for (kx, x) in width.window(column).taps() {
            take(out, index, row[x * inner..][..inner].iter(), I::new(tap + kx));
        }
    }
}

/// The common 2 x 2 case: computes the output rows from this one on, each from two input rows.
#[inline(always)]
fn pairs_forward<T: Number, I: WindowIndex>(
    shape: &PoolShape,
    input: &[T],
    first: usize,
    out: &mut [T],
    index: &mut [I],
) {
    let [_, height, width] = &shape.axes;
    let (mut plane, mut y) = (first / height.out, first % height.out);
    for (out, index) in out.chunks_exact_mut(width.out).zip(index.chunks_exact_mut(width.out)) {
        let rows = &input[(plane * height.size + 2 * y) * width.size..][..2 * width.size];
        let (top, _) = rows[..width.size].as_chunks::<2>();
        let (bottom, _) = rows[width.size..].as_chunks::<2>();
        for (((out, index), &[a, b]), &[c, d]) in out.iter_mut().zip(index).zip(top).zip(bottom) {
            let (mut best, mut at) = (a, 0u32);
            for (x, k) in [(b, 1), (c, 2), (d, 3)] {
                let wins = (x > best) | x.is_nan();
                best = if wins { x } else { best };
                at = if wins { k } else { at };
            }
            (*out, *index) = (best, I::new(at as usize));
        }
        y += 1;
        if y == height.out {
            (plane, y) = (plane + 1, 0);
        }
    }
}

/// The positions in the image of the positions in a window.
struct Places<'a> {
    shape: &'a PoolShape,
    /// For windows of up to 256 positions, the offset in the image of each one from the first tap.
    offsets: [u32; 256],
}

impl<'a> Places<'a> {
    fn new(shape: &'a PoolShape) -> Places<'a> {
        let mut offsets = [0; 256];
        if shape.kernel() <= 256 {
            let of = |position| Self::offset(shape, position) as u32;
            offsets.iter_mut().take(shape.kernel()).enumerate().for_each(|(i, to)| *to = of(i));
        }
        Places { shape, offsets }
    }

    fn offset(shape: &PoolShape, position: usize) -> usize {
        let [_, height, width] = &shape.axes;
        let [dz, dy, dx] = shape.axes.map(|axis| match axis.windows {
            Windows::Sliding { dilation, .. } => dilation,
            Windows::Adaptive => 1,
        });
        let (kx, rest) = (position % width.kernel(), position / width.kernel());
        let (ky, kz) = (rest % height.kernel(), rest / height.kernel());
        (kz * dz * height.size + ky * dy) * width.size + kx * dx
    }

    /// The position in the image of tap 0 for an output of a row. It may be before the image, so it wraps.
    #[inline(always)]
    fn origin(&self, row: usize, column: usize) -> usize {
        let [depth, height, width] = &self.shape.axes;
        let start = |axis: &Axis, out: usize| match axis.windows {
            Windows::Sliding { stride, padding, .. } => (out * stride).wrapping_sub(padding),
            Windows::Adaptive => axis.window(out).at,
        };
        let (oy, oz) = (row % height.out, row / height.out % depth.out);
        let plane = start(depth, oz).wrapping_mul(height.size).wrapping_add(start(height, oy));
        plane.wrapping_mul(width.size).wrapping_add(start(width, column))
    }

    /// The position in the image of a position in a window.
    #[inline(always)]
    fn at<I: WindowIndex>(&self, origin: usize, index: I) -> usize {
        let offset = match self.offsets.get(index.position()) {
            Some(&offset) if I::MAX <= 255 => offset as usize,
            _ => Self::offset(self.shape, index.position()),
        };
        origin.wrapping_add(offset)
    }

    /// Runs `f(output, position in the image)` for every output of an image that has a position; windows outside the image have
    /// none.
    #[inline(always)]
    fn for_each<I: WindowIndex>(&self, image: usize, index: &[I], mut f: impl FnMut(usize, usize)) {
        let (shape, row_len) = (self.shape, self.shape.out_row());
        let rows = shape.axes[0].out * shape.axes[1].out;
        for row in image * rows..(image + 1) * rows {
            let (_, [wz, wy]) = shape.row(row);
            if wz.len() * wy.len() == 0 {
                continue;
            }
            for column in 0..shape.axes[2].out {
                if shape.axes[2].window(column).len() == 0 {
                    continue;
                }
                let (origin, first) = (self.origin(row, column), row * row_len + column * shape.inner);
                for (channel, &index) in index[first..][..shape.inner].iter().enumerate() {
                    f(first + channel, self.at(origin, index) * shape.inner + channel);
                }
            }
        }
    }
}

/// Writes the gradient of each input to `grad_in`: the sum of `grad_out` over the windows whose maximum it was.
pub fn max_pool_backward<T: Float, I: WindowIndex>(
    shape: &PoolShape,
    grad_out: &[T],
    index: &[I],
    grad_in: &mut [T],
) {
    check(shape, grad_in.len(), grad_out.len(), index.len(), I::MAX);
    let (places, pairs) = (Places::new(shape), is_pairs(shape) && shape.axes[0].size == 1);
    let out_plane = shape.out_plane();
    for_each_piece(grad_in, shape.image_piece(), |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, grad_in) in piece.chunks_exact_mut(shape.in_plane()).enumerate() {
                    let image = start / shape.in_plane() + i;
                    if pairs {
                        let at = image * out_plane;
                        pairs_backward(shape, &grad_out[at..], &index[at..], grad_in);
                        continue;
                    }
                    grad_in.fill(T::default());
                    places.for_each(image, index, |out, place| grad_in[place] += grad_out[out]);
                }
            },
        );
    });
}

#[inline(always)]
fn pairs_backward<T: Float, I: WindowIndex>(
    shape: &PoolShape,
    grad_out: &[T],
    index: &[I],
    grad_in: &mut [T],
) {
    let (in_w, out_w, out_h) = (shape.axes[2].size, shape.axes[2].out, shape.axes[1].out);
    let (seen, beyond) = grad_in.split_at_mut(out_h * 2 * in_w);
    let rows = seen.chunks_exact_mut(2 * in_w).zip(grad_out.chunks_exact(out_w.max(1)));
    for ((rows, grad), index) in rows.zip(index.chunks_exact(out_w.max(1))) {
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
    beyond.fill(T::default());
}

/// Writes to `out` the value of `input` at each window's position; 0 for a window outside the image.
pub fn max_pool_pick<T: Number, I: WindowIndex>(shape: &PoolShape, input: &[T], index: &[I], out: &mut [T]) {
    check(shape, input.len(), out.len(), index.len(), I::MAX);
    let (places, out_plane) = (Places::new(shape), shape.out_plane());
    for_each_piece(out, out_plane.max(1), |start, out| {
        let image = start / out_plane;
        let input = &input[image * shape.in_plane()..][..shape.in_plane()];
        out.fill(T::default());
        places.for_each(image, index, |to, place| out[to - start] = input[place]);
    });
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
