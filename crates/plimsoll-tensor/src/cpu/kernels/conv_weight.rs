//! Convolution backward to its weights: taps are the tile's rows, output channels its columns, and the sum
//! runs over pixels.
//!
//! `grad_out` is transposed, a few rows of pixels at a time, into a panel `[pixel][channel]` that stays in the
//! first-level cache while every tap's row of sums passes over it. Images are summed in groups, each into a
//! part of its own; the parts are then added in order, so the result does not depend on who computed what.

use super::conv::{Conv2dShape, Panels, pad};
use super::parallel::{Cut, for_each_chunk, for_each_chunk_with, scratch_workers};
use super::tile::{Depth, ROWS, Start, Tile};
use super::transpose::transpose;

/// Pixels of a panel: 32 KiB of gradient in a wide one.
const PIXELS: usize = 256;
/// Groups of images at most.
const GROUPS: usize = 16;
/// Floats that all groups' parts may take together, beyond one group.
const PARTS_LEN: usize = 1 << 20;

/// How the work is cut: `groups` of images times `spans` of taps.
#[derive(Debug, Clone, Copy)]
struct Plan {
    panels: Panels,
    groups: usize,
    images_per_group: usize,
    spans: usize,
    taps_per_span: usize,
    /// Rows of pixels that are transposed at a time.
    rows: usize,
}

impl Plan {
    fn of(shape: &Conv2dShape) -> Self {
        let panels = Panels::of(shape.out_channels);
        let part_len = panels.count() * shape.taps() * panels.width;
        let groups = (PARTS_LEN / part_len.max(1)).clamp(1, GROUPS).min(shape.batch.max(1));
        let images_per_group = shape.batch.div_ceil(groups).max(1);
        let groups = shape.batch.div_ceil(images_per_group);
        // Few groups leave threads idle: cut the taps too, at the cost of transposing once per span.
        let tiles = shape.taps().div_ceil(ROWS).max(1);
        let taps_per_span = tiles.div_ceil(GROUPS / groups.max(1)).max(8).min(tiles) * ROWS;
        Self {
            panels,
            groups,
            images_per_group,
            spans: shape.taps().div_ceil(taps_per_span),
            taps_per_span,
            rows: (PIXELS / shape.out_w()).clamp(1, shape.out_h()),
        }
    }

    fn part_len(&self, shape: &Conv2dShape) -> usize {
        self.panels.count() * shape.taps() * self.panels.width
    }

    fn worker_len(&self, shape: &Conv2dShape) -> usize {
        self.rows * shape.out_w() * self.panels.width
    }
}

/// Floats of scratch that [`conv2d_backward_weight`] needs.
pub(crate) fn conv2d_backward_weight_scratch_len(shape: &Conv2dShape) -> usize {
    let plan = Plan::of(shape);
    plan.groups * plan.part_len(shape) + shape.padded_input_len() + scratch_workers(plan.groups * plan.spans) * plan.worker_len(shape)
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
    let plan = Plan::of(shape);
    if plan.groups == 0 {
        return grad_weight.fill(0.0);
    }
    let part_len = plan.part_len(shape);
    let (parts, scratch) = scratch.split_at_mut(plan.groups * part_len);
    let (padded, scratch) = scratch.split_at_mut(shape.padded_input_len());
    let input = pad(shape, input, padded);
    let cut = Cut::new(parts);
    for_each_chunk_with(plan.groups * plan.spans, scratch, plan.worker_len(shape), |chunk, pixels| {
        let (group, span) = (chunk / plan.spans, chunk % plan.spans);
        let taps = span * plan.taps_per_span..shape.taps().min((span + 1) * plan.taps_per_span);
        let images = group * plan.images_per_group..shape.batch.min((group + 1) * plan.images_per_group);
        for panel in 0..plan.panels.count() {
            let at = (panel * shape.taps() + taps.start) * plan.panels.width;
            // SAFETY: a group's taps of one span belong to one chunk.
            let part = unsafe { cut.range(group * part_len + at, taps.len() * plan.panels.width) };
            part.fill(0.0);
            for image in images.clone() {
                accumulate(shape, &plan, image, panel, taps.start, (input, grad_out), part, pixels);
            }
        }
    });
    add_parts(shape, &plan, parts, grad_weight);
}

/// Adds one image's products to `part`: rows `taps_start..` of one panel.
#[allow(clippy::too_many_arguments)] // a loop body, split off for its length
fn accumulate(
    shape: &Conv2dShape,
    plan: &Plan,
    image: usize,
    panel: usize,
    taps_start: usize,
    (input, grad_out): (&[f32], &[f32]),
    part: &mut [f32],
    pixels: &mut [f32],
) {
    let (width, plane, image_len) =
        (plan.panels.width, shape.out_plane(), shape.in_channels * shape.padded_plane());
    let (first, channels) = plan.panels.channels_of(panel);
    let taps = part.len() / width;
    if channels < width {
        pixels.fill(0.0); // the transposes below leave the spare columns alone
    }
    for y in (0..shape.out_h()).step_by(plan.rows) {
        let rows = plan.rows.min(shape.out_h() - y);
        let from = &grad_out[(image * shape.out_channels + first) * plane + y * shape.out_w()..];
        transpose((channels, rows * shape.out_w()), (from, plane), (pixels, width));
        let row_step = shape.stride[0] * shape.padded().1;
        let tile = Tile {
            a: &input[image * image_len..][..image_len],
            depth: Depth { counts: [1, rows, shape.out_w()], strides: [0, row_step, shape.stride[1]] },
            panel: pixels,
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
    let (first_part, grad_weight) = (Cut::new(first_part), Cut::new(grad_weight));
    for_each_chunk(plan.panels.count(), |panel| {
        let (first, channels) = plan.panels.channels_of(panel);
        // SAFETY: one panel, one chunk.
        let sums = unsafe { first_part.range(panel * taps * width, taps * width) };
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
        // SAFETY: one panel's channels, one chunk.
        let grad_weight = unsafe { grad_weight.range(first * taps, channels * taps) };
        transpose((taps, channels), (sums, width), (grad_weight, taps));
    });
}
