//! Convolution backward to its weights: taps are the tile's rows, output channels its columns, and the sum
//! runs over pixels.
//!
//! `grad_out` is transposed, a block of pixels at a time, into a panel `[pixel][channel]` that stays in a
//! near cache while every tap's row of sums passes over it. Images are summed in groups, each into a
//! part of its own; the parts are then added in order, so the result does not depend on who computed what.

use std::ops::Range;

use super::conv::{Conv2dShape, Panels, check_scratch, pad};
use super::parallel::{Pieces, SCRATCH_WORKERS, for_each_cut, for_each_cut_with, scratch_workers};
use super::tile::{Depth, ROWS, Start, Tile};
use super::transpose::transpose;

/// Pixels of a panel: 50 KiB of gradient in a wide one. Longer than the first-level cache likes, but a row of
/// sums is then loaded and stored less often.
const PIXELS: usize = 400;
/// Floats that all groups' parts may take together, beyond one group.
const PARTS_LEN: usize = 1 << 17;

/// How the work is cut: `groups` of images times panels of channels times `spans` of taps.
#[derive(Debug, Clone, Copy)]
struct Plan {
    panels: Panels,
    groups: usize,
    images_per_group: usize,
    spans: usize,
    taps_per_span: usize,
    /// Pixels transposed at a time: so many images of so many rows; of several images, all rows.
    block: (usize, usize),
}

impl Plan {
    fn of(shape: &Conv2dShape) -> Self {
        let panels = Panels::of(shape.out_channels);
        let part_len = panels.count() * shape.taps() * panels.width;
        let groups = (PARTS_LEN / part_len.max(1)).clamp(1, SCRATCH_WORKERS).min(shape.batch.max(1));
        let images_per_group = shape.batch.div_ceil(groups).max(1);
        let groups = shape.batch.div_ceil(images_per_group);
        // Few chunks leave threads idle: cut the taps too, at the cost of transposing once per span.
        let tiles = shape.taps().div_ceil(ROWS).max(1);
        let spans = SCRATCH_WORKERS.div_ceil((groups * panels.count()).max(1)).min(tiles.div_ceil(8));
        let taps_per_span = tiles.div_ceil(spans) * ROWS;
        Self {
            panels,
            groups,
            images_per_group,
            spans: shape.taps().div_ceil(taps_per_span),
            taps_per_span,
            block: (
                (PIXELS / shape.out_plane()).clamp(1, images_per_group),
                (PIXELS / shape.out_w()).clamp(1, shape.out_h()),
            ),
        }
    }

    fn chunks(&self) -> usize {
        self.groups * self.panels.count() * self.spans
    }

    fn part_len(&self, shape: &Conv2dShape) -> usize {
        self.panels.count() * shape.taps() * self.panels.width
    }

    fn worker_len(&self, shape: &Conv2dShape) -> usize {
        self.block.0 * self.block.1 * shape.out_w() * self.panels.width
    }
}

/// Floats of scratch that [`conv2d_backward_weight`] needs.
pub(crate) fn conv2d_backward_weight_scratch_len(shape: &Conv2dShape) -> usize {
    let plan = Plan::of(shape);
    plan.groups * plan.part_len(shape)
        + shape.padded_input_len()
        + scratch_workers(plan.groups * plan.spans) * plan.worker_len(shape)
}

/// Writes to `grad_weight` the gradient of `conv2d` with respect to its weights.
pub(crate) fn conv2d_backward_weight(
    shape: &Conv2dShape,
    input: &[f32],
    grad_out: &[f32],
    grad_weight: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(input.len(), grad_weight.len(), grad_out.len());
    check_scratch(scratch.len(), conv2d_backward_weight_scratch_len(shape));
    let plan = Plan::of(shape);
    if plan.groups == 0 {
        return grad_weight.fill(0.0);
    }
    let part_len = plan.part_len(shape);
    let (parts, scratch) = scratch.split_at_mut(plan.groups * part_len);
    let (padded, scratch) = scratch.split_at_mut(shape.padded_input_len());
    let input = pad(shape, input, padded);
    let width = plan.panels.width;
    // A group's taps of one panel and span are one chunk's.
    let cut = Pieces::in_rows(parts, shape.taps() * width, plan.taps_per_span * width);
    for_each_cut_with(plan.chunks(), cut, scratch, plan.worker_len(shape), |chunk, part, pixels| {
        let (rest, span) = (chunk / plan.spans, chunk % plan.spans);
        let (group, panel) = (rest / plan.panels.count(), rest % plan.panels.count());
        let images = group * plan.images_per_group..shape.batch.min((group + 1) * plan.images_per_group);
        part.fill(0.0);
        for first in images.clone().step_by(plan.block.0) {
            let images = first..images.end.min(first + plan.block.0);
            accumulate(
                shape,
                &plan,
                images,
                panel,
                span * plan.taps_per_span,
                (input, grad_out),
                part,
                pixels,
            );
        }
    });
    add_parts(shape, &plan, parts, grad_weight);
}

/// Adds the products of some images to `part`: rows `taps_start..` of one panel.
#[allow(clippy::too_many_arguments)] // a loop body, split off for its length
fn accumulate(
    shape: &Conv2dShape,
    plan: &Plan,
    images: Range<usize>,
    panel: usize,
    taps_start: usize,
    (input, grad_out): (&[f32], &[f32]),
    part: &mut [f32],
    pixels: &mut [f32],
) {
    let (width, plane, image_len) =
        (plan.panels.width, shape.out_plane(), shape.in_channels * shape.padded_plane());
    let (first, channels) = plan.panels.channels_of(panel);
    let row_step = shape.stride[0] * shape.padded().1;
    let taps = part.len() / width;
    if channels < width {
        pixels.fill(0.0); // the transposes below leave the spare columns alone
    }
    for y in (0..shape.out_h()).step_by(plan.block.1) {
        let rows = plan.block.1.min(shape.out_h() - y);
        let block_len = rows * shape.out_w();
        for (image, pixels) in images.clone().zip(pixels.chunks_exact_mut(block_len * width)) {
            let from = &grad_out[(image * shape.out_channels + first) * plane + y * shape.out_w()..];
            transpose((channels, block_len), (from, plane), (pixels, width));
        }
        let counts = [images.len(), rows, shape.out_w()];
        let tile = Tile {
            a: &input[images.start * image_len..images.end * image_len],
            b: pixels,
            depth: Depth::packed(counts, [image_len, row_step, shape.stride[1]], width),
            width,
            start: Start::Accumulate,
        };
        for tap in (0..taps).step_by(ROWS) {
            let count = ROWS.min(taps - tap);
            let from: [usize; ROWS] = std::array::from_fn(|i| y * row_step + shape.tap(taps_start + tap + i));
            let to: [usize; ROWS] = std::array::from_fn(|i| (tap + i) * width);
            tile.run(&from[..count], part, &to[..count]);
        }
    }
}

/// Adds the groups' parts in order, into the first, and transposes it to `[channel][tap]`.
fn add_parts(shape: &Conv2dShape, plan: &Plan, parts: &mut [f32], grad_weight: &mut [f32]) {
    let (taps, width) = (shape.taps(), plan.panels.width);
    let (first_part, others) = parts.split_at_mut(plan.part_len(shape));
    let cut = (Pieces::of(first_part, taps * width), Pieces::of(grad_weight, width * taps));
    for_each_cut(plan.panels.count(), cut, |panel, (sums, grad_weight)| {
        let (_, channels) = plan.panels.channels_of(panel);
        super::simd::vectorize(
            #[inline(always)]
            || {
                for other in others.chunks_exact(plan.part_len(shape)) {
                    for (sum, x) in sums.iter_mut().zip(&other[panel * taps * width..]) {
                        *sum += x;
                    }
                }
            },
        );
        transpose((taps, channels), (sums, width), (grad_weight, taps));
    });
}
