//! The two passes that are sums over windows (forward, and the gradient of the input), as one loop over the register tile of
//! `tile.rs`. Positions are the tile's rows, channels of the result its columns. There is no im2col: a position's row is its
//! window in the framed source (`pad.rs`), read in place, through the taps from `windows.rs`.
//!
//! Blocks of positions are computed channels-last in scratch memory that stays in the L1 cache, then transposed into a
//! row-major result or copied into a channels-last one.

use std::ops::Range;

use super::pad::Frame;
use super::panels::{Packing, Panels};
use super::shape::{ConvShape, Format, Formats, Strides, check_scratch};
use super::windows::{Pass, Phase};
use crate::parallel::{Pieces, for_each_cut_with, scratch_workers};
use crate::tile::{Depth, ROWS, Start, Tile};
use crate::transpose::transpose;

/// The number of positions that are computed before they are moved to the result: 24 KiB in a wide panel.
const POSITIONS: usize = 16 * ROWS;

/// One of the two passes, with everything derived from its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather {
    pass: Pass,
    s: ConvShape,
    frame: Frame,
    packing: Packing,
    weight: Format,
    /// The sizes and the layout of the result.
    result: [usize; 3],
    channels: usize,
    format: Format,
}

/// The part of a plane that a block covers.
struct Block {
    z: usize,
    ys: Range<usize>,
    xs: Range<usize>,
}

impl Gather {
    pub(super) fn of(pass: Pass, s: &ConvShape, formats: Formats) -> Gather {
        let (source, lies, inside, channels, result, format) = match pass {
            Pass::Forward => {
                (s.in_channels, formats.input, s.input, s.out_channels, s.output, formats.output)
            }
            Pass::BackwardInput => {
                (s.out_channels, formats.output, s.output, s.in_channels, s.input, formats.input)
            }
        };
        let around = std::array::from_fn(|dim| pass.lacking(s, dim));
        let frame = Frame { channels: source, format: lies, inside, around };
        Gather {
            pass,
            s: *s,
            frame,
            packing: Packing::of(pass, s, lies),
            weight: formats.weight,
            result,
            channels,
            format,
        }
    }

    fn panels(&self) -> Panels {
        self.packing.panels
    }

    /// The rows and columns of a block.
    fn block(&self) -> [usize; 2] {
        let [_, height, width] = self.result;
        // A plane slightly wider than a block still counts as one, since uncut rows can be moved at once.
        let columns = if width <= 2 * POSITIONS { width } else { POSITIONS };
        [(POSITIONS / columns.max(1)).clamp(1, height.max(1)), columns]
    }

    fn block_len(&self) -> usize {
        self.block()[0] * self.block()[1] * self.panels().width
    }

    fn images_per_block(&self) -> usize {
        self.frame.images_per_block(self.s.batch, 0)
    }

    /// The number of positions in an image.
    fn plane(&self) -> usize {
        self.result.iter().product()
    }

    /// The division of an image's result into chunks of work: the number and length of its parts, and the length of their
    /// pieces. A row-major result is divided into the panels of each group, a channels-last one into groups of rows.
    fn cut(&self) -> (usize, usize, usize) {
        match self.format {
            Format::ChannelsFirst => {
                let Panels { channels, per_panel, .. } = self.panels();
                (self.s.groups, channels * self.plane(), per_panel * self.plane())
            }
            Format::ChannelsLast => {
                let all = self.channels * self.plane();
                (1, all, self.rows_per_piece() * self.result[2] * self.channels)
            }
        }
    }

    /// The rows in a piece of a channels-last result. They divide the rows of an image, so that a piece is inside one plane.
    fn rows_per_piece(&self) -> usize {
        let [_, height, width] = self.result;
        let most = (4 * POSITIONS / width.max(1)).clamp(1, height.max(1));
        (1..=most).rev().find(|&rows| height.is_multiple_of(rows)).unwrap_or(1)
    }

    fn chunks(&self, images: usize) -> usize {
        let (parts, len, piece) = self.cut();
        images * parts * len.div_ceil(piece.max(1))
    }

    /// Floats of scratch memory that [`Gather::run`] needs.
    pub(super) fn scratch_len(&self) -> usize {
        let images = self.images_per_block();
        self.packing.len()
            + self.frame.scratch_len(images)
            + scratch_workers(self.chunks(images)) * self.block_len()
    }

    pub(super) fn run(
        &self,
        (source, weight): (&[f32], &[f32]),
        bias: Option<&[f32]>,
        result: &mut [f32],
        scratch: &mut [f32],
    ) {
        check_scratch(scratch.len(), self.scratch_len());
        let image_len = self.channels * self.plane();
        if image_len == 0 {
            return;
        }
        let (packed, scratch) = scratch.split_at_mut(self.packing.len());
        let (framed, blocks) = scratch.split_at_mut(self.frame.scratch_len(self.images_per_block()));
        self.packing.pack((weight, self.weight), bias, packed);
        let per_block = self.images_per_block();
        let ((parts, part_len, piece_len), source_len) = (self.cut(), self.frame.strides().batch);
        let pieces = part_len.div_ceil(piece_len);
        for (i, results) in result.chunks_mut(per_block * image_len).enumerate() {
            let count = results.len() / image_len;
            let source = self.frame.put(i * per_block..i * per_block + count, source, framed);
            let cut = Pieces::in_rows(results, part_len, piece_len);
            for_each_cut_with(self.chunks(count), cut, blocks, self.block_len(), |chunk, piece, block| {
                let (part, nth) = (chunk / pieces % parts, chunk % pieces);
                let image = &source[chunk / pieces / parts * source_len..][..source_len];
                match self.format {
                    Format::ChannelsFirst => self.planes(packed, image, (part, nth), piece, block),
                    Format::ChannelsLast => self.rows(packed, image, nth * piece_len, piece, block),
                }
            });
        }
    }

    /// Computes the channels of a panel of a row-major result.
    fn planes(
        &self,
        packed: &[f32],
        image: &[f32],
        panel: (usize, usize),
        out: &mut [f32],
        block: &mut [f32],
    ) {
        let (panels, plane, [depth, height, width]) = (self.panels(), self.plane(), self.result);
        let (_, channels) = panels.channels_of(panel.1);
        let [rows, columns] = self.block();
        for (z, y) in (0..depth).flat_map(|z| (0..height).step_by(rows).map(move |y| (z, y))) {
            for x in (0..width).step_by(columns) {
                let ys = y..height.min(y + rows);
                let xs = x..width.min(x + columns);
                let positions = ys.len() * xs.len();
                self.compute(packed, image, panel, &Block { z, ys, xs }, block);
                let to = (z * height + y) * width + x;
                transpose((positions, channels), (block, panels.width), (&mut out[to..], plane));
            }
        }
    }

    /// Computes some rows of a channels-last result.
    fn rows(&self, packed: &[f32], image: &[f32], at: usize, piece: &mut [f32], block: &mut [f32]) {
        let (panels, [_, height, width]) = (self.panels(), self.result);
        let row = width * self.channels;
        let (z, top) = (at / row / height, at / row % height);
        let [rows, columns] = self.block();
        let bottom = top + piece.len() / row;
        for y in (top..bottom).step_by(rows) {
            for x in (0..width).step_by(columns) {
                for (group, panel) in
                    (0..self.s.groups).flat_map(|g| (0..panels.count()).map(move |panel| (g, panel)))
                {
                    let (ys, xs) = (y..bottom.min(y + rows), x..width.min(x + columns));
                    let (positions, across) = (ys.len() * xs.len(), xs.len());
                    self.compute(packed, image, (group, panel), &Block { z, ys, xs }, block);
                    let (first, channels) = panels.channels_of(panel);
                    for (i, from) in block.chunks_exact(panels.width).take(positions).enumerate() {
                        let pixel = (y - top + i / across) * width + x + i % across;
                        let to = pixel * self.channels + group * panels.channels + first;
                        piece[to..to + channels].copy_from_slice(&from[..channels]);
                    }
                }
            }
        }
    }

    /// Fills `block` with the results of its positions for one panel.
    fn compute(
        &self,
        packed: &[f32],
        image: &[f32],
        (group, panel): (usize, usize),
        block: &Block,
        out: &mut [f32],
    ) {
        let (bias, weights) = self.packing.panel(packed, group, panel);
        let strides = self.frame.strides();
        let image = &image[group * self.packing.summed * strides.channel..];
        let phase = |dim: usize, at: usize| self.pass.phase(&self.s, dim, at);
        let phases: [usize; 3] = std::array::from_fn(|dim| self.pass.phases(&self.s, dim));
        let deep = phase(0, block.z % phases[0]);
        for start_y in 0..phases[1] {
            let down = Positions::of(phase(1, start_y), start_y, phases[1], &block.ys);
            for start_x in 0..phases[2] {
                let across = Positions::of(phase(2, start_x), start_x, phases[2], &block.xs);
                let width = self.panels().width;
                let sums = Sums { bias, weights, width, strides, deep_position: block.z / phases[0] };
                let columns = block.xs.len();
                self.phase(image, &sums, [deep, down.phase, across.phase], [&down, &across], columns, out);
            }
        }
    }

    /// Computes the positions of one phase in a block.
    fn phase(
        &self,
        image: &[f32],
        sums: &Sums<'_>,
        phases: [Phase; 3],
        [down, across]: [&Positions; 2],
        columns: usize,
        out: &mut [f32],
    ) {
        let (strides, width) = (sums.strides, sums.width);
        let [_, kernel_h, kernel_w] = self.s.kernel;
        let [deep, ..] = phases;
        let depth = self.depth(sums, &phases);
        let nothing = phases.iter().any(|phase| phase.taps == 0);
        let place = |dim: usize, first: isize| (first + self.frame.around[dim][0] as isize) as usize;
        let weight_row = match self.packing.order {
            Format::ChannelsFirst => 1,
            Format::ChannelsLast => self.packing.summed,
        };
        let (mut y, mut x) = (0, 0);
        let total = down.count * across.count;
        for done in (0..total).step_by(ROWS) {
            let rows = ROWS.min(total - done);
            let (mut from, mut to) = ([0; ROWS], [0; ROWS]);
            for (from, to) in from.iter_mut().zip(&mut to).take(rows) {
                *from = (down.first + y) * phases[1].step * strides.at[1]
                    + (across.first + x) * phases[2].step * strides.at[2];
                *to = ((down.place + y * down.step) * columns + across.place + x * across.step) * width;
                x += 1;
                if x == across.count {
                    (x, y) = (0, y + 1);
                }
            }
            let (from, to) = (&from[..rows], &to[..rows]);
            let start = Start::Columns(sums.bias);
            if nothing {
                let depth = Depth { counts: [0; 3], ..depth };
                Tile { a: image, b: sums.weights, depth, width, start }.run(from, out, to);
                continue;
            }
            let at = place(1, phases[1].first) * strides.at[1] + place(2, phases[2].first) * strides.at[2];
            for tap in 0..deep.taps {
                let z = place(0, deep.first) + sums.deep_position * deep.step + tap * deep.tap_offset;
                let first_tap = (deep.first_tap + tap * deep.tap_step) * kernel_h * kernel_w
                    + phases[1].first_tap * kernel_w
                    + phases[2].first_tap;
                let tile = Tile {
                    a: &image[z * strides.at[0] + at..],
                    b: &sums.weights[first_tap * weight_row * width..],
                    depth,
                    width,
                    start: if tap == 0 { start } else { Start::Accumulate },
                };
                tile.run(from, out, to);
            }
        }
    }

    /// The terms of a position's sum, for one tap of the first dimension.
    fn depth(&self, sums: &Sums<'_>, [_, down, across]: &[Phase; 3]) -> Depth {
        let (strides, width) = (sums.strides, sums.width);
        let (taps, summed) = (self.packing.taps, self.packing.summed);
        let kernel_w = self.s.kernel[2];
        let (row, column) = (down.tap_offset * strides.at[1], across.tap_offset * strides.at[2]);
        match self.packing.order {
            // With one tap, the inner loop runs over the channels.
            Format::ChannelsFirst if down.taps * across.taps == 1 => Depth {
                counts: [1, 1, summed],
                a_strides: [0, 0, strides.channel],
                b_strides: [0, 0, taps * width],
            },
            Format::ChannelsFirst => Depth {
                counts: [summed, down.taps, across.taps],
                a_strides: [strides.channel, row, column],
                b_strides: [taps * width, down.tap_step * kernel_w * width, across.tap_step * width],
            },
            // Neighbouring taps read neighbouring channels, so they form one run.
            Format::ChannelsLast if column == summed && across.tap_step == 1 => Depth {
                counts: [1, down.taps, across.taps * summed],
                a_strides: [0, row, 1],
                b_strides: [0, down.tap_step * kernel_w * summed * width, width],
            },
            Format::ChannelsLast => Depth {
                counts: [down.taps, across.taps, summed],
                a_strides: [row, column, 1],
                b_strides: [
                    down.tap_step * kernel_w * summed * width,
                    across.tap_step * summed * width,
                    width,
                ],
            },
        }
    }
}

/// The data that the sums of a block share.
struct Sums<'a> {
    bias: &'a [f32],
    weights: &'a [f32],
    width: usize,
    strides: Strides,
    /// The position of the block's plane within its phase.
    deep_position: usize,
}

/// The positions of a phase within a range of one dimension.
struct Positions {
    phase: Phase,
    /// The index of the first one within the phase, and their number.
    first: usize,
    count: usize,
    /// The offset of the first one in the range, and the distance to the next.
    place: usize,
    step: usize,
}

impl Positions {
    fn of(phase: Phase, start: usize, step: usize, range: &Range<usize>) -> Positions {
        let first = range.start.saturating_sub(start).div_ceil(step);
        let end = range.end.saturating_sub(start).div_ceil(step);
        let place = (start + first * step).saturating_sub(range.start);
        Positions { phase, first, count: end.saturating_sub(first), place, step }
    }
}
