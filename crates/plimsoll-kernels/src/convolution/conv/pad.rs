//! Copies images into a frame of zeros, so that no window reaches outside. A few images are copied at a time, so the copy
//! stays in a nearby cache and does not grow with the batch.

use std::ops::Range;

use super::shape::{Format, Strides};
use crate::parallel::for_each_piece;

/// The maximum number of floats for the framed images of a block, unless a single image needs more.
const BLOCK: usize = 1 << 19;

/// The sizes of images, and the number of zeros that they need around them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) channels: usize,
    pub(super) format: Format,
    /// Sizes of the images.
    pub(super) inside: [usize; 3],
    /// Zeros before the first element of each dimension, and after the last.
    pub(super) around: [[usize; 2]; 3],
}

impl Frame {
    /// Whether there is no frame, so that the images can be used in place.
    pub(super) fn is_empty(&self) -> bool {
        self.around == [[0; 2]; 3]
    }

    /// The sizes including the frame.
    pub(super) fn sizes(&self) -> [usize; 3] {
        std::array::from_fn(|i| self.around[i][0] + self.inside[i] + self.around[i][1])
    }

    /// Strides of the framed images.
    pub(super) fn strides(&self) -> Strides {
        self.format.strides(self.channels, self.sizes())
    }

    fn image_len(&self) -> usize {
        self.channels * self.inside.iter().product::<usize>()
    }

    /// The number of images in a block out of `batch`, if each needs `more` floats in addition to its frame.
    pub(super) fn images_per_block(&self, batch: usize, more: usize) -> usize {
        let each = more + if self.is_empty() { 0 } else { self.strides().batch };
        match each {
            0 => batch.max(1),
            _ => (BLOCK / each).clamp(1, batch.max(1)),
        }
    }

    /// Floats of scratch memory for this many images.
    pub(super) fn scratch_len(&self, images: usize) -> usize {
        if self.is_empty() { 0 } else { images * self.strides().batch }
    }

    /// The images of a block in their frames: copied to `scratch`, or in place.
    pub(super) fn put<'a>(&self, images: Range<usize>, all: &'a [f32], scratch: &'a mut [f32]) -> &'a [f32] {
        let len = self.image_len();
        let inside = &all[images.start * len..images.end * len];
        if self.is_empty() {
            return inside;
        }
        let framed = &mut scratch[..self.scratch_len(images.len())];
        let [depth, height, width] = self.sizes();
        // A row is a contiguous run: a row of one channel, or of all channels.
        let (planes, per_pixel) = match self.format {
            Format::ChannelsFirst => (self.channels, 1),
            Format::ChannelsLast => (1, self.channels),
        };
        let (plane, row) = (depth * height * width * per_pixel, width * per_pixel);
        let [inner_depth, inner_height, inner_width] = self.inside;
        let inner_row = inner_width * per_pixel;
        let rows_per_piece = (depth * height).max(1);
        for_each_piece(framed, (rows_per_piece * row).max(1), |start, piece| {
            let from = &inside[start / plane * inner_depth * inner_height * inner_row..];
            for (at, to) in piece.chunks_exact_mut(row).enumerate() {
                let z = (at / height).wrapping_sub(self.around[0][0]);
                let y = (at % height).wrapping_sub(self.around[1][0]);
                if z >= inner_depth || y >= inner_height {
                    to.fill(0.0);
                    continue;
                }
                let before = self.around[2][0] * per_pixel;
                to[..before].fill(0.0);
                to[before..before + inner_row]
                    .copy_from_slice(&from[(z * inner_height + y) * inner_row..][..inner_row]);
                to[before + inner_row..].fill(0.0);
            }
        });
        debug_assert_eq!(planes * plane, self.strides().batch);
        framed
    }
}
