//! The forward pass of a convolution with few taps. Output channels are the tile's rows, neighbouring
//! pixels its columns.
//!
//! The first layer of a network sums so few products that packing and transposing (`gather.rs`) would cost
//! as much as the sums. Here a tile reads weights and padded images in place and writes rows of NCHW
//! directly.

use super::planes::{Conv2dShape, pad};
use crate::parallel::{Pieces, for_each_cut};
use crate::tile::{Depth, NARROW, ROWS, Start, Tile, WIDE};

/// The largest number of taps for which this is faster.
const TAPS: usize = 100;

/// Whether [`conv2d`] can and should compute this shape.
pub(super) fn suits(shape: &Conv2dShape) -> bool {
    shape.taps() <= TAPS && shape.stride[1] == 1 && shape.out_w() >= NARROW
}

/// The number of images in a block, each with its padding.
fn images_per_block(shape: &Conv2dShape) -> usize {
    let image = shape.in_channels * shape.padded_plane();
    if shape.is_padded() {
        ((1 << 19) / image.max(1)).clamp(1, shape.batch.max(1))
    } else {
        shape.batch.max(1)
    }
}

/// Floats of scratch memory that [`conv2d`] needs.
pub(super) fn scratch_len(shape: &Conv2dShape) -> usize {
    Conv2dShape { batch: images_per_block(shape), ..*shape }.padded_input_len()
}

/// `out = input (*) weight + bias`.
pub(super) fn conv2d(
    shape: &Conv2dShape,
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let images = images_per_block(shape);
    let (image, result) =
        (shape.in_channels * shape.in_h * shape.in_w, shape.out_channels * shape.out_plane());
    for (input, out) in input.chunks((images * image).max(1)).zip(out.chunks_mut((images * result).max(1))) {
        let shape = Conv2dShape { batch: out.len() / result, ..*shape };
        block(&shape, input, weight, bias, out, scratch);
    }
}

/// The same for the images of one block.
fn block(
    shape: &Conv2dShape,
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let input = pad(shape, input, &mut scratch[..shape.padded_input_len()]);
    let (image_len, plane, taps) =
        (shape.in_channels * shape.padded_plane(), shape.out_plane(), shape.taps());
    let groups = shape.out_channels.div_ceil(ROWS);
    let weight_rows: [usize; ROWS] = std::array::from_fn(|i| i * taps);
    let out_rows: [usize; ROWS] = std::array::from_fn(|i| i * plane);
    let width = shape.out_w().min(WIDE);
    let out = Pieces::in_rows(out, shape.out_channels * plane, ROWS * plane);
    for_each_cut(shape.batch * groups, out, |chunk, out| {
        let (image, first) = (chunk / groups, chunk % groups * ROWS);
        let channels = ROWS.min(shape.out_channels - first);
        let image = &input[image * image_len..][..image_len];
        let tile = Tile {
            a: &weight[first * taps..],
            b: image,
            depth: Depth {
                counts: [shape.in_channels, shape.kernel_h, shape.kernel_w],
                a_strides: [shape.kernel_h * shape.kernel_w, shape.kernel_w, 1],
                b_strides: [shape.padded_plane(), shape.padded().1, 1],
            },
            width,
            start: Start::Rows(bias.map_or(&[0.0; ROWS], |bias| &bias[first..])),
        };
        for y in 0..shape.out_h() {
            for x in (0..shape.out_w()).step_by(width) {
                // The last columns of a row may be computed twice, so that a tile stays inside the row.
                let pixel = y * shape.out_w() + x.min(shape.out_w() - width);
                let tile = Tile { b: &image[shape.window(pixel)..], ..tile };
                tile.run(&weight_rows[..channels], &mut out[pixel..], &out_rows[..channels]);
            }
        }
    });
}
