//! The two passes that are sums over windows: forward, and the gradient of the input, which is a forward pass with flipped
//! filters.
//!
//! Squares are the rows of the products, channels of the result their columns. A chunk of work is some rows of squares, or some
//! small images. It transforms their inputs once, for all columns. Transformed filters take 16/9 of the original size, so if they
//! are large, only some columns are computed at a time.

use std::ops::Range;

use super::super::panels::{Packing, Panels};
use super::super::shape::{ConvShape, Format, Formats, check_scratch};
use super::super::windows::Pass;
use super::grid::{Grid, Run, runs};
use super::lines::{Filter, Image, Results, Squares, map};
use super::{SQUARE, apart, squares, workers};
use crate::parallel::{Pieces, for_each_cut_with};
use crate::tile::{Depth, ROWS, Start, Tile, WIDE};

/// The approximate number of squares in a chunk.
const CHUNK: usize = 96;
/// The maximum number of floats of transformed filters at a time, unless they are a single panel.
const FILTERS: usize = 1 << 20;
/// The approximate number of floats of transformed images at a time; they fit in the L2 cache.
const SEEN: usize = 1 << 17;

/// One of the two passes, with everything derived from its sizes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Winograd {
    packing: Packing,
    weight: Format,
    batch: usize,
    source: Grid,
    /// The channels, height and width of the result.
    channels: usize,
    size: [usize; 2],
}

/// The part of a result that starts at an offset.
struct Part<'a> {
    values: &'a mut [f32],
    offset: usize,
}

impl Winograd {
    /// The pass, if it is worthwhile.
    pub(in super::super) fn of(pass: Pass, s: &ConvShape, formats: Formats) -> Option<Winograd> {
        let padding = [s.padding[1], s.padding[2]];
        let (channels, source, result) = match pass {
            Pass::Forward => ([s.in_channels, s.out_channels], s.input, s.output),
            Pass::BackwardInput => ([s.out_channels, s.in_channels], s.output, s.input),
        };
        let squares = squares(s, formats, result)?;
        let before = if pass == Pass::Forward { padding } else { padding.map(|padding| 2 - padding) };
        Some(Winograd {
            packing: Packing::of(pass, s, Format::ChannelsLast),
            weight: formats.weight,
            batch: s.batch,
            source: Grid { channels: channels[0], size: [source[1], source[2]], before, squares },
            channels: channels[1],
            size: [result[1], result[2]],
        })
    }

    fn panels(&self) -> Panels {
        self.packing.panels
    }

    /// Floats in an image of the result.
    fn image_len(&self) -> usize {
        self.size[0] * self.size[1] * self.channels
    }

    /// The size of a chunk: this many images, or this many rows of squares of one image.
    fn chunk(&self) -> (usize, usize) {
        let ([down, across], all) = (self.source.squares, self.source.per_image());
        if all >= CHUNK {
            return (1, ((CHUNK + across / 2) / across).clamp(1, down));
        }
        ((CHUNK / all).min(self.batch.div_ceil(4)).max(1), down)
    }

    fn chunks(&self) -> usize {
        let (images, rows) = self.chunk();
        self.batch.div_ceil(images) * self.source.squares[0].div_ceil(rows)
    }

    /// The number of squares that a chunk works on at a time.
    fn block(&self) -> usize {
        let (images, rows) = self.chunk();
        let all = images * rows * self.source.squares[1];
        let most = (SEEN / SQUARE / self.row()).next_multiple_of(ROWS);
        all.div_ceil(all.div_ceil(most)).next_multiple_of(ROWS).min(all)
    }

    /// Floats between the inputs of neighbouring squares. Not a power of two, since they would then share a few cache sets.
    fn row(&self) -> usize {
        self.source.channels.next_multiple_of(16) + 16
    }

    /// Floats in the transformed filters of a panel, which follow its biases.
    fn panel_len(&self) -> usize {
        (1 + SQUARE * self.source.channels) * self.panels().width
    }

    fn panels_at_once(&self) -> usize {
        (FILTERS / self.panel_len()).clamp(1, self.panels().count())
    }

    /// Floats between the 16 matrices of a block, for the inputs of squares and for products.
    fn apart(&self) -> [usize; 2] {
        [self.row(), self.panels().width].map(|row| apart(self.block() * row))
    }

    /// Floats for a worker: a block and a square, or the filters of a panel before they are transformed.
    fn own_len(&self) -> usize {
        let block = SQUARE * self.apart().iter().sum::<usize>();
        let square = SQUARE * self.source.channels.max(WIDE);
        (block + square).max(self.packing.panel_len()).next_multiple_of(16)
    }

    /// Floats of scratch memory that [`Winograd::run`] needs.
    pub(in super::super) fn scratch_len(&self) -> usize {
        let chunks = self.chunks().max(self.panels_at_once());
        self.panels_at_once() * self.panel_len() + workers(chunks, self.own_len()) * self.own_len()
    }

    pub(in super::super) fn run(
        &self,
        (source, weight): (&[f32], &[f32]),
        bias: Option<&[f32]>,
        result: &mut [f32],
        scratch: &mut [f32],
    ) {
        check_scratch(scratch.len(), self.scratch_len());
        let at_once = self.panels_at_once();
        let (filters, own) = scratch.split_at_mut(at_once * self.panel_len());
        let ((images, rows), [down, across]) = (self.chunk(), self.source.squares);
        let (per_unit, unit_len) = (down.div_ceil(rows), images * self.image_len());
        let part_len = if images > 1 { unit_len } else { 2 * rows * self.size[1] * self.channels };
        let (count, all) = (self.panels().count(), self.batch * self.source.per_image());
        for first in (0..count).step_by(at_once) {
            let panels = first..count.min(first + at_once);
            let cut = Pieces::of(filters, self.panel_len());
            for_each_cut_with(panels.len(), cut, own, self.own_len(), |i, filters, own| {
                self.map_filters((weight, bias), panels.start + i, filters, own);
            });
            let filters = &*filters;
            let cut = Pieces::in_rows(result, unit_len, part_len);
            for_each_cut_with(self.chunks(), cut, own, self.own_len(), |chunk, values, own| {
                let (unit, nth) = (chunk / per_unit, chunk % per_unit);
                let start = unit * images * down * across;
                let squares = match images {
                    1 => start + nth * rows * across..start + down.min((nth + 1) * rows) * across,
                    _ => start..all.min(start + images * down * across),
                };
                let part = Part { values, offset: unit * unit_len + nth * part_len };
                self.squares(source, (filters, panels.clone()), squares, part, own);
            });
        }
    }

    /// Transforms the filters of a panel to `[product][channel][column]`, after the biases.
    fn map_filters(
        &self,
        (weight, bias): (&[f32], Option<&[f32]>),
        panel: usize,
        filters: &mut [f32],
        own: &mut [f32],
    ) {
        let width = self.panels().width;
        let packed = &mut own[..self.packing.panel_len()];
        self.packing.pack_panel((weight, self.weight), bias, panel, packed);
        let (bias, taps) = packed.split_at(width);
        let (to, mapped) = filters.split_at_mut(width);
        to.copy_from_slice(bias);
        let one = self.source.channels * width;
        let from = Squares { first: 0, row: 3 * one, column: one, next: width };
        let to = Squares { row: 4 * one, ..from };
        map::<Filter, 3, 4>((taps, from), (mapped, to), (self.source.channels, width));
    }

    /// Computes some squares of the result, for some panels.
    fn squares(
        &self,
        source: &[f32],
        (filters, panels): (&[f32], Range<usize>),
        squares: Range<usize>,
        mut part: Part<'_>,
        own: &mut [f32],
    ) {
        let (row, width, channels) = (self.row(), self.panels().width, self.source.channels);
        let [of_seen, of_products] = self.apart();
        let (seen, own) = own.split_at_mut(SQUARE * of_seen);
        let (products, square) = own.split_at_mut(SQUARE * of_products);
        let seen_at = Squares { first: 0, row: 4 * of_seen, column: of_seen, next: row };
        for first in squares.clone().step_by(self.block()) {
            let squares = first..squares.end.min(first + self.block());
            let to = (&mut *seen, seen_at, channels);
            self.source.map::<Image, 4>((source, 0..channels), squares.clone(), to, square);
            for (filters, panel) in filters.chunks_exact(self.panel_len()).zip(panels.clone()) {
                let (bias, filters) = filters.split_at(width);
                for at in 0..SQUARE {
                    let tile = Tile {
                        a: &seen[at * of_seen..],
                        b: &filters[at * channels * width..],
                        depth: Depth::packed([1, 1, channels], [0, 0, 1], width),
                        width,
                        // The product in the second row and column is the only one that counts exactly once in each result.
                        start: Start::Columns(if at == 5 { bias } else { &[0.0; WIDE] }),
                    };
                    tile.run_strided(squares.len(), row, &mut products[at * of_products..], width);
                }
                self.write(products, panel, squares.clone(), &mut part, square);
            }
        }
    }

    /// Transforms products to the results of a panel.
    fn write(
        &self,
        products: &[f32],
        panel: usize,
        squares: Range<usize>,
        part: &mut Part<'_>,
        square: &mut [f32],
    ) {
        let ([height, across], width, [_, apart]) = (self.size, self.panels().width, self.apart());
        let (first, channels) = self.panels().channels_of(panel);
        for Run { image, y, xs, nth } in runs(self.source.squares, squares) {
            let pixel = |y: usize, x: usize| {
                ((image * height + y) * across + x) * self.channels + first - part.offset
            };
            let whole = if channels == width && 2 * y + 2 <= height { across / 2 } else { 0 };
            let mut x = xs.start;
            while x < xs.end {
                let first = (nth + x - xs.start) * width;
                let from = (products, Squares { first, row: 4 * apart, column: apart, next: width });
                if x < whole {
                    let count = xs.end.min(whole) - x;
                    let to = Squares {
                        first: pixel(2 * y, 2 * x),
                        row: across * self.channels,
                        column: self.channels,
                        next: 2 * self.channels,
                    };
                    map::<Results, 4, 2>(from, (&mut *part.values, to), (count, width));
                    x += count;
                    continue;
                }
                let to = Squares { first: 0, row: 2 * width, column: width, next: 0 };
                map::<Results, 4, 2>(from, (&mut *square, to), (1, width));
                for (i, from) in square.chunks_exact(width).take(4).enumerate() {
                    let (y, x) = (2 * y + i / 2, 2 * x + i % 2);
                    if y < height && x < across {
                        part.values[pixel(y, x)..][..channels].copy_from_slice(&from[..channels]);
                    }
                }
                x += 1;
            }
        }
    }
}
