//! Resampling of images: nearest and linear, forward and backward.
//!
//! An image has up to three dimensions; missing ones have size 1. There are `outer` contiguous images with `inner` adjacent
//! channels, as in [`super::pool`]. As in PyTorch, positions are computed in `f32` for the nearest neighbour, otherwise in
//! the type of the elements.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;

/// The choice of input elements for an output element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The element at or before the position.
    Nearest,
    /// The element whose center is nearest.
    NearestExact,
    /// Interpolates between the two nearest elements. With `align_corners`, the centers of the corner elements coincide,
    /// otherwise their outer corners.
    Linear { align_corners: bool },
}

/// One dimension: its sizes, and the number of input elements per output element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    pub size: usize,
    pub out: usize,
    pub ratio: f64,
}

/// Sizes of resampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResampleShape {
    pub outer: usize,
    /// Depth, height and width.
    pub axes: [Axis; 3],
    pub inner: usize,
    pub sampling: Sampling,
}

/// Two input elements and the weight of the second.
#[derive(Clone, Copy, Debug)]
struct Place<T> {
    near: usize,
    far: usize,
    share: T,
}

impl Axis {
    /// A dimension that is not resampled.
    pub fn one() -> Axis {
        Axis { size: 1, out: 1, ratio: 1.0 }
    }

    #[inline(always)]
    fn place<T: Float>(&self, sampling: Sampling, out: usize) -> Place<T> {
        let last = self.size.saturating_sub(1);
        let nearest = |at: f32| {
            let near = (at as usize).min(last);
            Place { near, far: near, share: T::default() }
        };
        if self.size == self.out && self.ratio == 1.0 {
            return Place { near: out, far: out, share: T::default() };
        }
        match sampling {
            Sampling::Nearest => nearest((out as f32 * self.ratio as f32).floor()),
            Sampling::NearestExact => nearest(((out as f32 + 0.5) * self.ratio as f32).floor()),
            Sampling::Linear { align_corners } => {
                let (ratio, half, at) = (T::of(self.ratio), T::of(0.5), T::of(out as f64));
                let at = if align_corners { at * ratio } else { (at + half) * ratio - half };
                let at = if at < T::default() { T::default() } else { at };
                let near = (at.wide() as usize).min(last);
                let share = at - T::of(near as f64);
                // After the last element there is nothing to blend with.
                let share = if share > T::of(1.0) { T::of(1.0) } else { share };
                Place { near, far: (near + 1).min(last), share }
            }
        }
    }
}

impl ResampleShape {
    fn in_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product::<usize>() * self.inner
    }

    fn out_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.out).product::<usize>() * self.inner
    }

    fn check(&self, input: usize, output: usize) {
        assert_eq!(input, self.outer * self.in_plane(), "interpolation: input of {self:?}");
        assert_eq!(output, self.outer * self.out_plane(), "interpolation: output of {self:?}");
    }

    /// The image of a row of the output, and the rows of the input that it blends, with their weights.
    #[inline(always)]
    fn row<T: Float>(&self, row: usize) -> (usize, [(usize, T); 4]) {
        let [depth, height, width] = &self.axes;
        let z: Place<T> = depth.place(self.sampling, row / height.out % depth.out);
        let y: Place<T> = height.place(self.sampling, row % height.out);
        let one = T::of(1.0);
        let at = |z: usize, y: usize| (z * height.size + y) * width.size * self.inner;
        let rows = [
            (at(z.near, y.near), (one - z.share) * (one - y.share)),
            (at(z.near, y.far), (one - z.share) * y.share),
            (at(z.far, y.near), z.share * (one - y.share)),
            (at(z.far, y.far), z.share * y.share),
        ];
        (row / height.out / depth.out, rows)
    }
}

/// Writes the resampled input; `load` and `store` convert elements.
pub fn interpolate<S: Copy + Send + Sync + Default, T: Float>(
    shape: &ResampleShape,
    input: &[S],
    out: &mut [S],
    load: impl Fn(S) -> T + Sync,
    store: impl Fn(T) -> S + Sync,
) {
    shape.check(input.len(), out.len());
    if out.is_empty() {
        return;
    }
    let (width, inner) = (&shape.axes[2], shape.inner);
    let row_len = width.out * inner;
    let is_linear = matches!(shape.sampling, Sampling::Linear { .. });
    for_each_piece(out, (PIECE / 4 / row_len).max(1) * row_len, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out) in piece.chunks_exact_mut(row_len).enumerate() {
                    let (image, rows) = shape.row::<T>(start / row_len + i);
                    let input = &input[image * shape.in_plane()..][..shape.in_plane()];
                    for (column, out) in out.chunks_exact_mut(inner).enumerate() {
                        let x: Place<T> = width.place(shape.sampling, column);
                        if !is_linear {
                            out.copy_from_slice(&input[rows[0].0 + x.near * inner..][..inner]);
                            continue;
                        }
                        for (channel, out) in out.iter_mut().enumerate() {
                            let mut sum = T::default();
                            for (at, share) in rows {
                                // A row with weight 0 may contain NaN.
                                if share == T::default() {
                                    continue;
                                }
                                let near = load(input[at + x.near * inner + channel]);
                                let far = load(input[at + x.far * inner + channel]);
                                let blend = match x.share == T::default() {
                                    true => near,
                                    false => near * (T::of(1.0) - x.share) + far * x.share,
                                };
                                // Bytes are rounded after each dimension.
                                sum += share * load(store(blend));
                            }
                            *out = store(sum);
                        }
                    }
                }
            },
        );
    });
}

/// Writes the gradient of the input to `grad_in`.
pub fn interpolate_backward<T: Float>(shape: &ResampleShape, grad_out: &[T], grad_in: &mut [T]) {
    shape.check(grad_in.len(), grad_out.len());
    let ([depth, height, width], inner) = (&shape.axes, shape.inner);
    let (rows_of_image, row_len, in_plane) = (depth.out * height.out, width.out * inner, shape.in_plane());
    for_each_piece(grad_in, (PIECE / in_plane.max(1)).max(1) * in_plane.max(1), |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, grad_in) in piece.chunks_exact_mut(in_plane).enumerate() {
                    grad_in.fill(T::default());
                    let image = start / in_plane + i;
                    for row in image * rows_of_image..(image + 1) * rows_of_image {
                        let (_, rows) = shape.row::<T>(row);
                        let grad = &grad_out[row * row_len..][..row_len];
                        for (column, grad) in grad.chunks_exact(inner).enumerate() {
                            let x: Place<T> = width.place(shape.sampling, column);
                            for (at, share) in rows {
                                if share == T::default() {
                                    continue;
                                }
                                for (place, share) in
                                    [(x.near, share * (T::of(1.0) - x.share)), (x.far, share * x.share)]
                                {
                                    if share == T::default() {
                                        continue;
                                    }
                                    let to = grad_in[at + place * inner..][..inner].iter_mut();
                                    to.zip(grad).for_each(|(to, &g)| *to += g * share);
                                }
                            }
                        }
                    }
                }
            },
        );
    });
}
