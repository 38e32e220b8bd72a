//! The gradient of a convolution's weights. Taps are the tile's rows, output channels its columns, and the sum runs over
//! pixels.
//!
//! The output's gradient is rearranged into panels `[pixel][channel]`, a few images at a time, and the input is framed; every
//! tap's row of sums passes over them. If there are too few chunks to keep all threads busy, the images of a block are also
//! summed in groups, each into separate parts, which are added in order, so that the result does not depend on which thread
//! computed which part. If all taps of a panel are one chunk, each chunk copies its own pixels into a panel, which then stays
//! in the L1 cache.

use std::ops::Range;

use super::pad::Frame;
use super::panels::Panels;
use super::shape::{ConvShape, Format, Formats, check_scratch};
use crate::parallel::{
    Pieces, SCRATCH_WORKERS, for_each_cut, for_each_cut_with, for_each_piece, scratch_workers,
};
use crate::simd::vectorize;
use crate::tile::{Depth, ROWS, Start, Tile};
use crate::transpose::transpose;

/// The number of pixels that a row of sums passes over at a time: 50 KiB of gradient in a wide panel.
const PIXELS: usize = 400;
/// The minimum number of tiles of taps in a chunk, if that leaves enough chunks.
const TILES: usize = 4;
/// The maximum number of floats in the parts of all groups of images together, for chunks with all taps.
const PARTS_LEN: usize = 1 << 17;

/// The pass, with everything derived from its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackwardWeight {
    s: ConvShape,
    formats: Formats,
    frame: Frame,
    panels: Panels,
    /// The number of equal spans of a panel's rows of sums; each chunk has one span.
    spans: usize,
    rows_per_span: usize,
    /// The images in a block, and the groups in which they are summed.
    images: usize,
    groups: usize,
    /// Whether each chunk copies its own pixels into panels.
    own_panels: bool,
}

impl BackwardWeight {
    pub(super) fn of(s: &ConvShape, formats: Formats) -> BackwardWeight {
        let reach = |dim: usize| {
            s.output[dim].saturating_sub(1) * s.stride[dim] + (s.kernel[dim] - 1) * s.dilation[dim] + 1
        };
        let after = |dim: usize| reach(dim).saturating_sub(s.padding[dim] + s.input[dim]);
        let around = std::array::from_fn(|dim| [s.padding[dim], after(dim)]);
        let frame = Frame { channels: s.in_channels, format: formats.input, inside: s.input, around };
        let panels = Panels::of(s.group_out());
        let columns = s.groups * panels.count();
        let tiles = (s.group_in() * s.taps()).div_ceil(ROWS).max(1);
        let groups_that_fit = PARTS_LEN / (columns * tiles * ROWS * panels.width).max(1);
        let groups_that_fit = groups_that_fit.clamp(1, SCRATCH_WORKERS).min(s.batch.max(1));
        // With two spans, the pixels are copied into panels twice, which costs less than reading shared panels from a far
        // cache.
        let own_panels = groups_that_fit * columns * 2 >= SCRATCH_WORKERS;
        let gradient = if own_panels { 0 } else { columns * s.out_plane() * panels.width };
        let images = frame.images_per_block(s.batch, gradient);
        let groups = if own_panels { groups_that_fit.min(images) } else { 1 };
        let chunks = if own_panels { SCRATCH_WORKERS } else { 2 * SCRATCH_WORKERS };
        let spans = chunks.div_ceil(groups * columns).clamp(1, tiles.div_ceil(TILES));
        let spans = if own_panels { spans.min(2) } else { spans };
        let tiles_per_span = tiles.div_ceil(spans);
        let spans = tiles.div_ceil(tiles_per_span);
        let groups = if own_panels { groups } else { chunks.div_ceil(columns * spans).clamp(1, images) };
        let rows_per_span = tiles_per_span * ROWS;
        BackwardWeight { s: *s, formats, frame, panels, spans, rows_per_span, images, groups, own_panels }
    }

    /// Panels of all groups of channels.
    fn columns(&self) -> usize {
        self.s.groups * self.panels.count()
    }

    /// The weights of a filter, which is the number of rows of sums.
    fn filter(&self) -> usize {
        self.s.group_in() * self.s.taps()
    }

    fn span_len(&self) -> usize {
        self.rows_per_span * self.panels.width
    }

    /// Floats in all sums of one group of images.
    fn part_len(&self) -> usize {
        self.columns() * self.spans * self.span_len()
    }

    /// Floats of an image's gradient in panels that all chunks share.
    fn gradient_len(&self) -> usize {
        if self.own_panels { 0 } else { self.columns() * self.s.out_plane() * self.panels.width }
    }

    /// The part that a chunk passes over at a time: several small images, or some rows of a large one.
    fn pixels(&self) -> [usize; 2] {
        let [_, height, width] = self.s.output;
        [(PIXELS / (height * width).max(1)).max(1), (PIXELS / width.max(1)).clamp(1, height.max(1))]
    }

    /// Floats in a chunk's own panel.
    fn own_len(&self) -> usize {
        let [images, rows] = self.pixels();
        if self.own_panels { images * rows * self.s.output[2] * self.panels.width } else { 0 }
    }

    /// Floats in the panels that are filled before the sums, shared or for each worker.
    fn panels_len(&self) -> usize {
        let chunks = self.groups * self.columns() * self.spans;
        self.images * self.gradient_len() + scratch_workers(chunks) * self.own_len()
    }

    /// Floats of scratch memory that [`BackwardWeight::run`] needs.
    pub(super) fn scratch_len(&self) -> usize {
        self.groups * self.part_len() + self.frame.scratch_len(self.images) + self.panels_len()
    }

    pub(super) fn run(&self, input: &[f32], grad: &[f32], weight: &mut [f32], scratch: &mut [f32]) {
        check_scratch(scratch.len(), self.scratch_len());
        if self.s.batch == 0 || self.s.out_plane() == 0 || weight.is_empty() {
            return weight.fill(0.0);
        }
        let (parts, scratch) = scratch.split_at_mut(self.groups * self.part_len());
        let (framed, gradient) = scratch.split_at_mut(self.frame.scratch_len(self.images));
        for first in (0..self.s.batch).step_by(self.images) {
            let images = first..self.s.batch.min(first + self.images);
            let input = self.frame.put(images.clone(), input, framed);
            let (shared, own) = gradient.split_at_mut(images.len() * self.gradient_len());
            if !self.own_panels {
                self.fill_panels(images.clone(), grad, shared);
            }
            let (shared, per_group) = (&*shared, self.images.div_ceil(self.groups));
            let of_a_part = self.columns() * self.spans;
            let cut = Pieces::of(parts, self.span_len());
            for_each_cut_with(self.groups * of_a_part, cut, own, self.own_len(), |chunk, part, own| {
                let (group, at) = (chunk / of_a_part, chunk % of_a_part);
                if first == 0 {
                    part.fill(0.0);
                }
                let end = images.len().min((group + 1) * per_group);
                let of_group = (group * per_group).min(end)..end;
                let grad = if self.own_panels { &grad[images.start * self.image_len()..] } else { shared };
                self.sums(of_group, (at / self.spans, at % self.spans), input, (grad, own), part);
            });
        }
        self.finish(parts, weight);
    }

    /// Elements of an image's gradient.
    fn image_len(&self) -> usize {
        self.s.out_channels * self.s.out_plane()
    }

    /// Rearranges the gradients of some images into panels, `[image][panel][pixel][channel]`.
    fn fill_panels(&self, images: Range<usize>, grad: &[f32], gradient: &mut [f32]) {
        let (plane, width) = (self.s.out_plane(), self.panels.width);
        for_each_piece(gradient, plane * width, |start, out| {
            let at = start / out.len();
            let image = images.start + at / self.columns();
            let grad = &grad[image * self.image_len()..][..self.image_len()];
            self.fill_panel(at % self.columns(), grad, 0..plane, out);
        });
    }

    /// Rearranges some pixels of an image's gradient into a panel.
    fn fill_panel(&self, column: usize, grad: &[f32], pixels: Range<usize>, out: &mut [f32]) {
        let (panels, plane) = (self.panels, self.s.out_plane());
        let (first, channels) = panels.channels_of(column % panels.count());
        let first = column / panels.count() * panels.channels + first;
        if channels < panels.width {
            out.fill(0.0);
        }
        if self.formats.output == Format::ChannelsFirst {
            let from = &grad[first * plane + pixels.start..];
            return transpose((channels, pixels.len()), (from, plane), (out, panels.width));
        }
        let from = grad.chunks_exact(self.s.out_channels).skip(pixels.start).take(pixels.len());
        for (pixel, to) in from.zip(out.chunks_exact_mut(panels.width)) {
            to[..channels].copy_from_slice(&pixel[first..first + channels]);
        }
    }

    /// The offset, from the start of its window, of the weight that a row of sums belongs to; rows beyond the last
    /// repeat the last.
    fn tap(&self, row: usize) -> usize {
        let (taps, [_, height, width]) = (self.s.taps(), self.s.kernel);
        let row = row.min(self.filter() - 1);
        let (channel, tap) = match self.formats.input {
            Format::ChannelsFirst => (row / taps, row % taps),
            Format::ChannelsLast => (row % self.s.group_in(), row / self.s.group_in()),
        };
        let at = [tap / width / height, tap / width % height, tap % width];
        let strides = self.frame.strides();
        (0..3).fold(channel * strides.channel, |sum, dim| {
            sum + at[dim] * self.s.dilation[dim] * strides.at[dim]
        })
    }

    /// Adds the products of some images of a block to a span of one panel's sums.
    fn sums(
        &self,
        images: Range<usize>,
        (column, span): (usize, usize),
        input: &[f32],
        (grad, own): (&[f32], &mut [f32]),
        part: &mut [f32],
    ) {
        let (s, width, strides) = (&self.s, self.panels.width, self.frame.strides());
        let [depth, height, across] = s.output;
        let group = column / self.panels.count() * s.group_in() * strides.channel;
        let plane = s.out_plane();
        let [at_once, rows] = self.pixels();
        let (step_y, step_x) = (s.stride[1] * strides.at[1], s.stride[2] * strides.at[2]);
        let first_row = span * self.rows_per_span;
        let end_row = self.filter().min(first_row + self.rows_per_span);
        for image in images.clone().step_by(at_once) {
            let count = at_once.min(images.end - image);
            for (z, y) in (0..depth).flat_map(|z| (0..height).step_by(rows).map(move |y| (z, y))) {
                let rows = rows.min(height - y);
                let (pixel, pixels) = ((z * height + y) * across, rows * across);
                let (b, image_stride) = match self.own_panels {
                    true => {
                        for (i, out) in own.chunks_exact_mut(pixels * width).take(count).enumerate() {
                            let grad = &grad[(image + i) * self.image_len()..][..self.image_len()];
                            self.fill_panel(column, grad, pixel..pixel + pixels, out);
                        }
                        (&*own, pixels * width)
                    }
                    false => {
                        let at = (image * self.columns() + column) * plane + pixel;
                        (&grad[at * width..], self.gradient_len())
                    }
                };
                let from = image * strides.batch + group + z * s.stride[0] * strides.at[0] + y * step_y;
                let tile = Tile {
                    a: &input[from..],
                    b,
                    depth: Depth {
                        counts: [count, rows, across],
                        a_strides: [strides.batch, step_y, step_x],
                        b_strides: [image_stride, across * width, width],
                    },
                    width,
                    start: Start::Accumulate,
                };
                for row in (first_row..end_row).step_by(ROWS) {
                    let count = ROWS.min(end_row - row);
                    let taps: [usize; ROWS] = std::array::from_fn(|i| self.tap(row + i));
                    let to: [usize; ROWS] = std::array::from_fn(|i| (row - first_row + i) * width);
                    tile.run(&taps[..count], part, &to[..count]);
                }
            }
        }
    }

    /// Adds the parts in order to the first, and writes it in the weight's layout.
    fn finish(&self, parts: &mut [f32], weight: &mut [f32]) {
        let (panels, width, filter) = (self.panels, self.panels.width, self.filter());
        let (sums, others) = parts.split_at_mut(self.part_len());
        for_each_piece(sums, self.span_len(), |start, sums| {
            for other in others.chunks_exact(self.part_len()) {
                let other = &other[start..start + sums.len()];
                vectorize(
                    #[inline(always)]
                    || sums.iter_mut().zip(other).for_each(|(sum, x)| *sum += x),
                );
            }
        });
        let (taps, group_in) = (self.s.taps(), self.s.group_in());
        let same_order = self.formats.weight == self.formats.input || taps == 1 || group_in == 1;
        let sums = &*sums;
        let cut = Pieces::in_rows(weight, panels.channels * filter, panels.per_panel * filter);
        for_each_cut(self.columns(), cut, |column, filters| {
            let sums = &sums[column * self.spans * self.span_len()..];
            let channels = filters.len() / filter;
            if same_order {
                return transpose((filter, channels), (sums, width), (filters, filter));
            }
            for (row, sums) in sums.chunks_exact(width).take(filter).enumerate() {
                let to = match self.formats.weight {
                    Format::ChannelsFirst => row % group_in * taps + row / group_in,
                    Format::ChannelsLast => row % taps * group_in + row / taps,
                };
                sums[..channels].iter().enumerate().for_each(|(i, &sum)| filters[i * filter + to] = sum);
            }
        });
    }
}
