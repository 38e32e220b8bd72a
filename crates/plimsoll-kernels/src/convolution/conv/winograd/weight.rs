//! The gradient of the weight. Channels of the images are the rows of the products, filters their columns, and the sums run
//! over squares.
//!
//! A chunk of work is the filters of one or two panels. If that gives too few chunks, squares are also summed in groups, each
//! into separate parts, which are added in order, so that the result does not depend on which thread computed which part.

use std::ops::Range;

use super::super::panels::Panels;
use super::super::shape::{ConvShape, Format, Formats, check_scratch};
use super::grid::Grid;
use super::lines::{FilterBackward, Image, ResultsBackward, Squares, map};
use super::{SQUARE, apart, squares, workers};
use crate::parallel::{Pieces, SCRATCH_WORKERS, for_each_cut_with};
use crate::simd::vectorize;
use crate::tile::{Depth, Start, Tile, WIDE};
use crate::transpose::transpose;

/// The number of taps of a filter.
const TAPS: usize = 9;
/// The approximate number of squares that a sum passes over at a time, and of floats in their inputs.
const BLOCK: [usize; 2] = [192, 1 << 17];
/// The maximum number of floats in the sums of a chunk with more than one panel, and in the parts of all groups.
const CHUNK_LEN: usize = 1 << 18;
const PARTS_LEN: usize = 1 << 20;

/// The pass, with everything derived from its sizes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct WinogradWeight {
    weight: Format,
    batch: usize,
    images: Grid,
    results: Grid,
    panels: Panels,
    /// The panels per chunk, and the number of groups of squares that are summed separately.
    per_chunk: usize,
    groups: usize,
}

impl WinogradWeight {
    /// The pass, if it is worthwhile.
    pub(in super::super) fn of(s: &ConvShape, formats: Formats) -> Option<WinogradWeight> {
        let squares = squares(s, formats, s.output)?;
        let (channels, panels) = (s.in_channels, Panels::of(s.out_channels));
        let sums = SQUARE * channels * panels.width;
        let most = (PARTS_LEN / (panels.count() * sums)).clamp(1, SCRATCH_WORKERS);
        let groups = |chunks: usize| (SCRATCH_WORKERS / chunks).clamp(1, most.min(s.batch));
        // The inputs of squares are transformed once for each chunk, so two panels per chunk are better.
        let pairs = panels.count().div_ceil(2);
        let in_pairs = 2 * sums <= CHUNK_LEN && pairs * groups(pairs) >= SCRATCH_WORKERS;
        let per_chunk = if in_pairs { panels.count().min(2) } else { 1 };
        let grid =
            |channels, size: [usize; 3], before| Grid { channels, size: [size[1], size[2]], before, squares };
        Some(WinogradWeight {
            weight: formats.weight,
            batch: s.batch,
            images: grid(channels, s.input, [s.padding[1], s.padding[2]]),
            results: grid(s.out_channels, s.output, [0, 0]),
            panels,
            per_chunk,
            groups: groups(panels.count().div_ceil(per_chunk)),
        })
    }

    /// The number of squares in all images, and in a group.
    fn squares(&self) -> [usize; 2] {
        let all = self.batch * self.images.per_image();
        [all, all.div_ceil(self.groups)]
    }

    /// The number of squares that are processed at a time.
    fn block(&self) -> usize {
        let ([_, all], [most, floats]) = (self.squares(), BLOCK);
        let most = (floats / SQUARE / self.row()).clamp(24, most);
        all.div_ceil(all.div_ceil(most))
    }

    /// Floats between the inputs of neighbouring squares.
    fn row(&self) -> usize {
        self.images.channels.next_multiple_of(16) + 16
    }

    /// The number of chunks in a group.
    fn chunks(&self) -> usize {
        self.panels.count().div_ceil(self.per_chunk)
    }

    /// Floats in the sums of a panel, and of a chunk.
    fn sums_len(&self) -> [usize; 2] {
        let panel = SQUARE * self.images.channels * self.panels.width;
        [panel, self.per_chunk * panel]
    }

    /// Floats between the 16 matrices of a block, for the inputs of squares and for gradients.
    fn apart(&self) -> [usize; 2] {
        [self.row(), self.panels.width].map(|row| apart(self.block() * row))
    }

    /// Floats for a worker: a block and a square, or the filters of a panel; also its sums, unless they are those of a group.
    fn own_len(&self) -> usize {
        let (width, channels) = (self.panels.width, self.images.channels);
        let block = SQUARE * (self.apart().iter().sum::<usize>() + channels.max(width));
        let sums = if self.groups == 1 { self.sums_len()[1] } else { 0 };
        (block.max(TAPS * channels * width) + sums).next_multiple_of(16)
    }

    /// Floats in the sums of all groups.
    fn parts_len(&self) -> usize {
        if self.groups == 1 { 0 } else { self.groups * self.chunks() * self.sums_len()[1] }
    }

    /// Floats of scratch memory that [`WinogradWeight::run`] needs.
    pub(in super::super) fn scratch_len(&self) -> usize {
        self.parts_len() + workers(self.groups * self.chunks(), self.own_len()) * self.own_len()
    }

    /// Writes the gradient of the weight, or adds it to the old values.
    pub(in super::super) fn run(
        &self,
        (input, grad): (&[f32], &[f32]),
        adds: bool,
        weight: &mut [f32],
        scratch: &mut [f32],
    ) {
        check_scratch(scratch.len(), self.scratch_len());
        let (parts, own) = scratch.split_at_mut(self.parts_len());
        let ([all, per_group], [_, sums_len]) = (self.squares(), self.sums_len());
        let (chunks, own_len) = (self.chunks(), self.own_len());
        let filters_len = self.per_chunk * self.panels.per_panel * TAPS * self.images.channels;
        if self.groups == 1 {
            let cut = Pieces::of(weight, filters_len);
            return for_each_cut_with(chunks, cut, own, own_len, |chunk, filters, own| {
                let (sums, own) = own.split_at_mut(sums_len);
                self.sum((input, grad), chunk, 0..all, sums, own);
                self.finish(sums, adds, filters, own);
            });
        }
        let cut = Pieces::of(parts, sums_len);
        for_each_cut_with(self.groups * chunks, cut, own, own_len, |at, sums, own| {
            let start = all.min(at / chunks * per_group);
            let squares = start..all.min(start + per_group);
            self.sum((input, grad), at % chunks, squares, sums, own);
        });
        let (sums, others) = parts.split_at_mut(chunks * sums_len);
        let (cut, others) = ((Pieces::of(sums, sums_len), Pieces::of(weight, filters_len)), &*others);
        for_each_cut_with(chunks, cut, own, own_len, |chunk, (sums, filters), own| {
            for other in others.chunks_exact(sums_len).skip(chunk).step_by(chunks) {
                vectorize(
                    #[inline(always)]
                    || sums.iter_mut().zip(other).for_each(|(sum, x)| *sum += x),
                );
            }
            self.finish(sums, adds, filters, own);
        });
    }

    /// The panels in a chunk.
    fn panels_of(&self, chunk: usize) -> Range<usize> {
        let first = chunk * self.per_chunk;
        first..self.panels.count().min(first + self.per_chunk)
    }

    /// Sums the products of some squares for the panels of a chunk.
    fn sum(
        &self,
        (input, grad): (&[f32], &[f32]),
        chunk: usize,
        squares: Range<usize>,
        sums: &mut [f32],
        own: &mut [f32],
    ) {
        let (row, width, channels) = (self.row(), self.panels.width, self.images.channels);
        let ([of_seen, of_gradients], [sums_len, _]) = (self.apart(), self.sums_len());
        let (seen, own) = own.split_at_mut(SQUARE * of_seen);
        let (gradients, square) = own.split_at_mut(SQUARE * of_gradients);
        let seen_at = Squares { first: 0, row: 4 * of_seen, column: of_seen, next: row };
        let gradients_at = Squares { first: 0, row: 4 * of_gradients, column: of_gradients, next: width };
        if squares.is_empty() {
            sums.fill(0.0);
        }
        for first in squares.clone().step_by(self.block()) {
            let here = first..squares.end.min(first + self.block());
            let to = (&mut *seen, seen_at, channels);
            self.images.map::<Image, 4>((input, 0..channels), here.clone(), to, square);
            for (sums, panel) in sums.chunks_exact_mut(sums_len).zip(self.panels_of(chunk)) {
                let (filter, filters) = self.panels.channels_of(panel);
                let to = (&mut *gradients, gradients_at, width);
                let of_panel = (grad, filter..filter + filters);
                self.results.map::<ResultsBackward, 2>(of_panel, here.clone(), to, square);
                let accumulates = first > squares.start;
                for (at, sums) in sums.chunks_exact_mut(channels * width).enumerate() {
                    let tile = Tile {
                        a: &seen[at * of_seen..],
                        b: &gradients[at * of_gradients..],
                        depth: Depth::packed([1, 1, here.len()], [0, 0, row], width),
                        width,
                        start: if accumulates { Start::Accumulate } else { Start::Columns(&[0.0; WIDE]) },
                    };
                    tile.run_strided(channels, 1, sums, width);
                }
            }
        }
    }

    /// Transforms the sums of a chunk to its filters.
    fn finish(&self, sums: &[f32], adds: bool, filters: &mut [f32], own: &mut [f32]) {
        let (width, channels) = (self.panels.width, self.images.channels);
        let (one, filter) = (channels * width, TAPS * channels);
        let from = Squares { first: 0, row: 4 * one, column: one, next: width };
        let to = match self.weight {
            Format::ChannelsFirst => Squares { first: 0, row: 3 * width, column: width, next: TAPS * width },
            Format::ChannelsLast => Squares { row: 3 * one, ..from },
        };
        let taps = &mut own[..filter * width];
        let panels = filters.chunks_mut(self.panels.per_panel * filter);
        for (sums, filters) in sums.chunks_exact(SQUARE * one).zip(panels) {
            map::<FilterBackward, 4, 3>((sums, from), (&mut *taps, to), (channels, width));
            if !adds {
                transpose((filter, filters.len() / filter), (taps, width), (filters, filter));
                continue;
            }
            for (col, filter) in filters.chunks_exact_mut(filter).enumerate() {
                filter.iter_mut().zip(taps.chunks_exact(width)).for_each(|(sum, taps)| *sum += taps[col]);
            }
        }
    }
}
