//! The gradient of a convolution's input, window by window. Output pixels are the tile's rows, input channels its
//! columns.
//!
//! For each position in the kernel, `grad_in[window + place] += grad_out * weight[place]`, summed over
//! output channels in registers. One image at a time is accumulated channels-last in scratch memory.
//! Nothing is multiplied by padding. At the end the image is transposed into NCHW, without its frame.

use super::planes::{Conv2dShape, Panels};
use super::shape::check_scratch;
use crate::parallel::{Pieces, for_each_cut, for_each_cut_with, scratch_workers};
use crate::tile::{Depth, ROWS, Start, Tile};
use crate::transpose::transpose;

/// The maximum number of floats in a panel of one image's sums, so that they stay in a nearby cache.
const SUMS: usize = 1 << 16;

/// Whether scattering is faster than sums over windows (`gather.rs`), which would multiply many zeros.
pub(super) fn suits(shape: &Conv2dShape) -> bool {
    let windows = shape.out_plane() * shape.stride[0] * shape.stride[1];
    let sums = shape.padded_plane() * Panels::of(shape.in_channels).width;
    shape.in_h * shape.in_w * 5 > windows * 6 && sums <= SUMS
}

/// Floats of scratch memory that [`conv2d_backward_input`] needs.
pub(super) fn scratch_len(shape: &Conv2dShape) -> usize {
    let panels = Panels::of(shape.in_channels);
    packed_len(shape, panels)
        + scratch_workers(shape.batch * panels.count()) * shape.padded_plane() * panels.width
}

/// Writes to `grad_in` the gradient of `conv2d` with respect to its input.
pub(super) fn conv2d_backward_input(
    shape: &Conv2dShape,
    grad_out: &[f32],
    weight: &[f32],
    grad_in: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(grad_in.len(), weight.len(), grad_out.len());
    check_scratch(scratch.len(), scratch_len(shape));
    let panels = Panels::of(shape.in_channels);
    let (packed, scratch) = scratch.split_at_mut(packed_len(shape, panels));
    pack(shape, panels, weight, packed);
    let (in_plane, out_plane) = (shape.in_h * shape.in_w, shape.out_plane());
    let image_len = shape.out_channels * out_plane;
    for_each_cut_with(
        shape.batch * panels.count(),
        Pieces::in_rows(grad_in, shape.in_channels * in_plane, panels.width * in_plane),
        scratch,
        shape.padded_plane() * panels.width,
        |chunk, grad_in, image_grad| {
            let (image, panel) = (chunk / panels.count(), chunk % panels.count());
            let (_, channels) = panels.channels_of(panel);
            let len = packed_len(shape, panels) / panels.count();
            accumulate(
                shape,
                &grad_out[image * image_len..][..image_len],
                &packed[panel * len..][..len],
                panels.width,
                image_grad,
            );
            // Without a frame between them, all rows are moved at once.
            let (rows, row_len) = match shape.padding[1] {
                0 => (1, in_plane),
                _ => (shape.in_h, shape.in_w),
            };
            for y in 0..rows {
                let row = ((y + shape.padding[0]) * shape.padded().1 + shape.padding[1]) * panels.width;
                transpose(
                    (row_len, channels),
                    (&image_grad[row..], panels.width),
                    (&mut grad_in[y * row_len..], in_plane),
                );
            }
        },
    );
}

/// Sums one image's gradient for the channels of one panel, `[padded pixel][channel]`.
fn accumulate(shape: &Conv2dShape, grad_out: &[f32], packed: &[f32], width: usize, image_grad: &mut [f32]) {
    image_grad.fill(0.0);
    let plane = shape.out_plane();
    let depth = Depth::packed([1, 1, shape.out_channels], [0, 0, plane], width);
    for pixel in (0..plane).step_by(ROWS) {
        let rows = ROWS.min(plane - pixel);
        let from: [usize; ROWS] = std::array::from_fn(|i| pixel + i);
        let windows: [usize; ROWS] = std::array::from_fn(|i| shape.window(pixel + i) * width);
        for (place, weights) in packed.chunks_exact(shape.out_channels * width).enumerate() {
            let tile = Tile { a: grad_out, b: weights, depth, width, start: Start::Accumulate };
            tile.run(&from[..rows], &mut image_grad[shape.tap(place) * width..], &windows[..rows]);
        }
    }
}

fn packed_len(shape: &Conv2dShape, panels: Panels) -> usize {
    panels.count() * shape.kernel_h * shape.kernel_w * shape.out_channels * panels.width
}

/// Packs the weights as `[panel][position in the kernel][output channel][input channel of the panel]`.
fn pack(shape: &Conv2dShape, panels: Panels, weight: &[f32], packed: &mut [f32]) {
    let (area, width) = (shape.kernel_h * shape.kernel_w, panels.width);
    let len = area * shape.out_channels * width;
    for_each_cut(panels.count(), Pieces::of(packed, len), |panel, packed| {
        let (first, channels) = panels.channels_of(panel);
        if channels < width {
            packed.fill(0.0);
        }
        for out_channel in 0..shape.out_channels {
            let from = &weight[out_channel * shape.taps() + first * area..];
            transpose(
                (channels, area),
                (from, area),
                (&mut packed[out_channel * width..], shape.out_channels * width),
            );
        }
    });
}
