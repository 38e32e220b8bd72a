//! Convolution forward: pixels are the tile's rows, output channels its columns.
//!
//! Weights are repacked once into panels `[tap][channel]`; a pixel's row of the (never built) im2col matrix is
//! its window in the padded image plus an offset per tap. Blocks of pixels are computed channels-last in
//! scratch that stays in the first-level cache, then transposed into the NCHW output.

use super::conv::{Conv2dShape, Panels, check_scratch, pad};
use super::conv_few_taps;
use super::parallel::{Pieces, for_each_cut, for_each_cut_with, scratch_workers};
use super::tile::{Depth, ROWS, Start, Tile};
use super::transpose::transpose;

/// Pixels computed before they are transposed: 24 KiB of results in a wide panel.
const PIXELS: usize = 16 * ROWS;

/// Floats of scratch that [`conv2d`] needs.
pub(crate) fn conv2d_scratch_len(shape: &Conv2dShape) -> usize {
    if conv_few_taps::suits(shape) {
        return shape.padded_input_len();
    }
    let panels = Panels::of(shape.out_channels);
    let packed = panels.count() * (shape.taps() + 1) * panels.width;
    packed + shape.padded_input_len() + scratch_workers(shape.batch * panels.count()) * PIXELS * panels.width
}

/// `out = input (*) weight + bias`.
pub(crate) fn conv2d(
    shape: &Conv2dShape,
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(input.len(), weight.len(), out.len());
    check_scratch(scratch.len(), conv2d_scratch_len(shape));
    if let Some(bias) = bias {
        assert_eq!(bias.len(), shape.out_channels, "convolution: bias of {shape:?}");
    }
    if conv_few_taps::suits(shape) {
        return conv_few_taps::conv2d(shape, input, weight, bias, out, scratch);
    }
    let panels = Panels::of(shape.out_channels);
    let (packed, scratch) = scratch.split_at_mut(panels.count() * (shape.taps() + 1) * panels.width);
    let (padded, scratch) = scratch.split_at_mut(shape.padded_input_len());
    pack(shape, panels, weight, bias, packed);
    let input = pad(shape, input, padded);
    let (image_len, plane) = (shape.in_channels * shape.padded_plane(), shape.out_plane());
    let chunks = shape.batch * panels.count();
    let out = Pieces::in_rows(out, shape.out_channels * plane, panels.width * plane);
    for_each_cut_with(chunks, out, scratch, PIXELS * panels.width, |chunk, out, block| {
        let (image, panel) = (chunk / panels.count(), chunk % panels.count());
        let (_, channels) = panels.channels_of(panel);
        let (start, weights) = packed_panel(shape, panels, packed, panel);
        let tile = Tile {
            a: &input[image * image_len..][..image_len],
            b: weights,
            depth: Depth::packed(
                [shape.in_channels, shape.kernel_h, shape.kernel_w],
                [shape.padded_plane(), shape.padded().1, 1],
                panels.width,
            ),
            width: panels.width,
            start: Start::Columns(start),
        };
        for pixel in (0..plane).step_by(PIXELS) {
            let pixels = PIXELS.min(plane - pixel);
            compute(shape, &tile, pixel, &mut block[..pixels * panels.width]);
            transpose((pixels, channels), (block, panels.width), (&mut out[pixel..], plane));
        }
    });
}

/// Fills `block` with the pixels from `first`, channels-last.
fn compute(shape: &Conv2dShape, tile: &Tile<'_>, first: usize, block: &mut [f32]) {
    let pixels = block.len() / tile.width;
    for done in (0..pixels).step_by(ROWS) {
        let rows = ROWS.min(pixels - done);
        let windows: [usize; ROWS] = std::array::from_fn(|i| shape.window(first + done + i));
        let places: [usize; ROWS] = std::array::from_fn(|i| (done + i) * tile.width);
        tile.run(&windows[..rows], block, &places[..rows]);
    }
}

/// Packs each panel as its bias (or zeros) followed by `[tap][channel]`.
fn pack(shape: &Conv2dShape, panels: Panels, weight: &[f32], bias: Option<&[f32]>, packed: &mut [f32]) {
    let (taps, width) = (shape.taps(), panels.width);
    for_each_cut(panels.count(), Pieces::of(packed, (taps + 1) * width), |panel, packed| {
        let (first, channels) = panels.channels_of(panel);
        if channels < width {
            packed.fill(0.0);
        }
        let (start, weights) = packed.split_at_mut(width);
        match bias {
            Some(bias) => start[..channels].copy_from_slice(&bias[first..][..channels]),
            None => start.fill(0.0),
        }
        transpose((channels, taps), (&weight[first * taps..], taps), (weights, width));
    });
}

fn packed_panel<'a>(
    shape: &Conv2dShape,
    panels: Panels,
    packed: &'a [f32],
    panel: usize,
) -> (&'a [f32], &'a [f32]) {
    let len = (shape.taps() + 1) * panels.width;
    packed[panel * len..][..len].split_at(panels.width)
}
