//! Winograd's passes over tensors in either layout. Row-major tensors are converted to channels-last in scratch memory, some
//! images at a time, so that scratch memory does not grow with the batch.

use std::ops::Range;

use super::super::shape::{ConvShape, Format, Formats, check_scratch};
use super::super::windows::Pass;
use super::{Winograd, WinogradWeight};
use crate::parallel::{Pieces, for_each_cut};
use crate::transpose::transpose;

/// The number of floats of converted images at a time, if that is more than one image; they fit in the cores' caches.
const BLOCK: usize = 1 << 20;
/// The maximum number of floats in one converted image.
const MOST: usize = 1 << 22;
/// The number of elements that a thread converts at a time.
const PIECE: usize = 1 << 14;

/// The images of one tensor of a pass.
#[derive(Clone, Copy, Debug)]
struct Images {
    channels: usize,
    area: usize,
    row_major: bool,
}

impl Images {
    fn of(channels: usize, size: [usize; 3], format: Format) -> Images {
        Images { channels, area: size.iter().product(), row_major: format == Format::ChannelsFirst }
    }

    fn len(&self) -> usize {
        self.channels * self.area
    }

    /// Floats of scratch memory for this many images.
    fn scratch_len(&self, images: usize) -> usize {
        if self.row_major { images * self.len() } else { 0 }
    }

    fn range(&self, images: &Range<usize>) -> Range<usize> {
        images.start * self.len()..images.end * self.len()
    }

    /// These images in channels-last layout: converted in scratch memory, or in place.
    fn channels_last<'a>(&self, images: &Range<usize>, all: &'a [f32], scratch: &'a mut [f32]) -> &'a [f32] {
        let from = &all[self.range(images)];
        if !self.row_major {
            return from;
        }
        let turned = &mut scratch[..from.len()];
        turn([self.channels, self.area], from, turned);
        turned
    }
}

/// Transposes contiguous matrices of `rows x cols`.
fn turn([rows, cols]: [usize; 2], from: &[f32], to: &mut [f32]) {
    let image = rows * cols;
    // The columns of a piece fill complete registers.
    let piece = (PIECE / rows).next_multiple_of(16).min(cols);
    let per_image = cols.div_ceil(piece);
    for_each_cut(from.len() / image * per_image, Pieces::in_rows(to, image, piece * rows), |chunk, to| {
        let (nth, first) = (chunk / per_image, chunk % per_image * piece);
        transpose((rows, to.len() / rows), (&from[nth * image + first..], cols), (to, rows));
    });
}

/// The number of images of a batch to process at a time: all if nothing is converted, `None` if a single one would need too much
/// scratch memory.
fn images_at_a_time(batch: usize, turned: usize) -> Option<usize> {
    let images = BLOCK.checked_div(turned).map_or(batch, |images| images.max(1).min(batch));
    (images > 0 && turned <= MOST).then_some(images)
}

/// The blocks of a batch. All have `images` images, except that the last may have fewer.
fn blocks(batch: usize, images: usize) -> impl Iterator<Item = Range<usize>> {
    (0..batch).step_by(images.max(1)).map(move |first| first..batch.min(first + images))
}

const LAST: Formats =
    Formats { input: Format::ChannelsLast, weight: Format::ChannelsLast, output: Format::ChannelsLast };

/// The forward pass, or the gradient of the input.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct WinogradBlocks {
    batch: usize,
    images: usize,
    source: Images,
    result: Images,
    /// The pass over a full block of images, and over the remaining ones.
    whole: Winograd,
    rest: Option<Winograd>,
}

impl WinogradBlocks {
    /// The pass, if it is worthwhile.
    pub(in super::super) fn of(pass: Pass, s: &ConvShape, formats: Formats) -> Option<WinogradBlocks> {
        let (input, output) = (
            Images::of(s.in_channels, s.input, formats.input),
            Images::of(s.out_channels, s.output, formats.output),
        );
        let (source, result) = match pass {
            Pass::Forward => (input, output),
            Pass::BackwardInput => (output, input),
        };
        let images = images_at_a_time(s.batch, source.scratch_len(1) + result.scratch_len(1))?;
        let of = |batch: usize| {
            Winograd::of(pass, &ConvShape { batch, ..*s }, Formats { weight: formats.weight, ..LAST })
        };
        let (whole, left) = (of(images)?, s.batch % images);
        let rest = if left > 0 { of(left) } else { None };
        Some(WinogradBlocks { batch: s.batch, images, source, result, whole, rest })
    }

    /// Floats of converted images.
    fn turned(&self) -> [usize; 2] {
        [self.source, self.result].map(|images| images.scratch_len(self.images))
    }

    /// Floats of scratch memory that [`WinogradBlocks::run`] needs.
    pub(in super::super) fn scratch_len(&self) -> usize {
        let rest = self.rest.map_or(0, |rest| rest.scratch_len());
        self.turned().iter().sum::<usize>() + self.whole.scratch_len().max(rest)
    }

    pub(in super::super) fn run(
        &self,
        (source, weight): (&[f32], &[f32]),
        bias: Option<&[f32]>,
        result: &mut [f32],
        scratch: &mut [f32],
    ) {
        check_scratch(scratch.len(), self.scratch_len());
        let [of_source, of_result] = self.turned();
        let (turned_source, scratch) = scratch.split_at_mut(of_source);
        let (turned_result, own) = scratch.split_at_mut(of_result);
        for images in blocks(self.batch, self.images) {
            let pass = self.rest.filter(|_| images.len() < self.images).unwrap_or(self.whole);
            let source = self.source.channels_last(&images, source, turned_source);
            let result = &mut result[self.result.range(&images)];
            if !self.result.row_major {
                pass.run((source, weight), bias, result, own);
                continue;
            }
            let turned = &mut turned_result[..result.len()];
            pass.run((source, weight), bias, turned, own);
            turn([self.result.area, self.result.channels], turned, result);
        }
    }
}

/// The gradient of the weight.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct WinogradWeightBlocks {
    batch: usize,
    images: usize,
    input: Images,
    grad: Images,
    whole: WinogradWeight,
    rest: Option<WinogradWeight>,
}

impl WinogradWeightBlocks {
    /// The pass, if it is worthwhile.
    pub(in super::super) fn of(s: &ConvShape, formats: Formats) -> Option<WinogradWeightBlocks> {
        let input = Images::of(s.in_channels, s.input, formats.input);
        let grad = Images::of(s.out_channels, s.output, formats.output);
        let images = images_at_a_time(s.batch, input.scratch_len(1) + grad.scratch_len(1))?;
        let of = |batch: usize| {
            WinogradWeight::of(&ConvShape { batch, ..*s }, Formats { weight: formats.weight, ..LAST })
        };
        let (whole, left) = (of(images)?, s.batch % images);
        let rest = if left > 0 { of(left) } else { None };
        Some(WinogradWeightBlocks { batch: s.batch, images, input, grad, whole, rest })
    }

    fn turned(&self) -> [usize; 2] {
        [self.input, self.grad].map(|images| images.scratch_len(self.images))
    }

    /// Floats of scratch memory that [`WinogradWeightBlocks::run`] needs.
    pub(in super::super) fn scratch_len(&self) -> usize {
        let rest = self.rest.map_or(0, |rest| rest.scratch_len());
        self.turned().iter().sum::<usize>() + self.whole.scratch_len().max(rest)
    }

    pub(in super::super) fn run(&self, input: &[f32], grad: &[f32], weight: &mut [f32], scratch: &mut [f32]) {
        check_scratch(scratch.len(), self.scratch_len());
        let [of_input, of_grad] = self.turned();
        let (turned_input, scratch) = scratch.split_at_mut(of_input);
        let (turned_grad, own) = scratch.split_at_mut(of_grad);
        for images in blocks(self.batch, self.images) {
            let pass = self.rest.filter(|_| images.len() < self.images).unwrap_or(self.whole);
            let input = self.input.channels_last(&images, input, turned_input);
            let grad = self.grad.channels_last(&images, grad, turned_grad);
            pass.run((input, grad), images.start > 0, weight, own);
        }
    }
}
