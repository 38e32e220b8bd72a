//! 2-D convolution (cross-correlation, as PyTorch's `conv2d`) of NCHW images: its sizes and what its three
//! passes share.
//!
//! The passes are [`conv2d`], [`conv2d_backward_input`] and [`conv2d_backward_weight`], each in its own file;
//! all three are loops over the register tile of `tile.rs`, without im2col. The bias gradient is a sum (`reduce.rs`).

use super::parallel::{PIECE, for_each_piece};
use super::tile::panel_width;

pub(crate) use super::conv_forward::{conv2d, conv2d_scratch_len};
pub(crate) use super::conv_input::{conv2d_backward_input, conv2d_backward_input_scratch_len};
pub(crate) use super::conv_weight::{conv2d_backward_weight, conv2d_backward_weight_scratch_len};

/// Sizes of a convolution: `[batch, in_channels, in_h, in_w]` with filters
/// `[out_channels, in_channels, kernel_h, kernel_w]` gives `[batch, out_channels, out_h, out_w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conv2dShape {
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) in_h: usize,
    pub(crate) in_w: usize,
    pub(crate) out_channels: usize,
    pub(crate) kernel_h: usize,
    pub(crate) kernel_w: usize,
    /// Distance between neighbouring windows, vertical and horizontal; at least 1.
    pub(crate) stride: [usize; 2],
    /// Zeros on both sides, vertical and horizontal.
    pub(crate) padding: [usize; 2],
}

impl Conv2dShape {
    /// Rows of the output.
    pub(crate) fn out_h(&self) -> usize {
        (self.in_h + 2 * self.padding[0] - self.kernel_h) / self.stride[0] + 1
    }

    /// Columns of the output.
    pub(crate) fn out_w(&self) -> usize {
        (self.in_w + 2 * self.padding[1] - self.kernel_w) / self.stride[1] + 1
    }
}

impl Conv2dShape {
    pub(crate) fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.in_h * self.in_w
    }

    pub(crate) fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_plane()
    }

    pub(crate) fn weight_len(&self) -> usize {
        self.out_channels * self.taps()
    }

    /// Weights per output channel.
    pub(super) fn taps(&self) -> usize {
        self.in_channels * self.kernel_h * self.kernel_w
    }

    pub(super) fn out_plane(&self) -> usize {
        self.out_h() * self.out_w()
    }

    pub(super) fn is_padded(&self) -> bool {
        self.padding != [0, 0]
    }

    /// Height and width of an image with its padding.
    pub(super) fn padded(&self) -> (usize, usize) {
        (self.in_h + 2 * self.padding[0], self.in_w + 2 * self.padding[1])
    }

    pub(super) fn padded_plane(&self) -> usize {
        let (height, width) = self.padded();
        height * width
    }

    /// Floats of all images with padding; 0 where the input itself serves.
    pub(super) fn padded_input_len(&self) -> usize {
        if self.is_padded() { self.batch * self.in_channels * self.padded_plane() } else { 0 }
    }

    /// Where the window of output pixel `pixel` starts in a padded plane.
    #[inline(always)]
    pub(super) fn window(&self, pixel: usize) -> usize {
        let (y, x) = (pixel / self.out_w(), pixel % self.out_w());
        y * self.stride[0] * self.padded().1 + x * self.stride[1]
    }

    /// Where tap `tap` of a window is, from the window's start, in padded planes one after the other.
    #[inline(always)]
    pub(super) fn tap(&self, tap: usize) -> usize {
        let area = self.kernel_h * self.kernel_w;
        let (channel, place) = (tap / area, tap % area);
        channel * self.padded_plane() + place / self.kernel_w * self.padded().1 + place % self.kernel_w
    }

    pub(super) fn check(&self, input: usize, weight: usize, output: usize) {
        assert!(self.stride[0] > 0 && self.stride[1] > 0, "convolution with stride {:?}", self.stride);
        let (height, width) = self.padded();
        assert!(
            self.kernel_h <= height && self.kernel_w <= width,
            "kernel {} x {} on {height} x {width}",
            self.kernel_h,
            self.kernel_w
        );
        assert_eq!(input, self.input_len(), "convolution: input of {self:?}");
        assert_eq!(weight, self.weight_len(), "convolution: weight of {self:?}");
        assert_eq!(output, self.output_len(), "convolution: output of {self:?}");
    }
}

/// Channels as the columns of panels of one width, the last padded with zeros.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels {
    pub(super) channels: usize,
    pub(super) width: usize,
}

impl Panels {
    pub(super) fn of(channels: usize) -> Self {
        Self { channels, width: panel_width(channels) }
    }

    pub(super) fn count(&self) -> usize {
        self.channels.div_ceil(self.width)
    }

    /// First channel of a panel, and how many it holds.
    pub(super) fn channels_of(&self, panel: usize) -> (usize, usize) {
        let first = panel * self.width;
        (first, self.width.min(self.channels - first))
    }
}

pub(super) fn check_scratch(len: usize, needed: usize) {
    assert!(len >= needed, "convolution: scratch of {len} floats where {needed} are needed");
}

/// Copies every image of `input` into a zero frame in `scratch`; the input itself when there is no padding.
pub(super) fn pad<'a>(shape: &Conv2dShape, input: &'a [f32], scratch: &'a mut [f32]) -> &'a [f32] {
    if !shape.is_padded() || input.is_empty() {
        return input;
    }
    let ((_, width), plane) = (shape.padded(), shape.padded_plane());
    let group = (PIECE / plane).max(1);
    for_each_piece(scratch, group * plane, |start, planes| {
        planes.fill(0.0);
        for (i, padded) in planes.chunks_exact_mut(plane).enumerate() {
            let image = &input[(start / plane + i) * shape.in_h * shape.in_w..][..shape.in_h * shape.in_w];
            let rows = padded[shape.padding[0] * width..].chunks_exact_mut(width);
            for (row, from) in rows.zip(image.chunks_exact(shape.in_w)) {
                row[shape.padding[1]..][..shape.in_w].copy_from_slice(from);
            }
        }
    });
    scratch
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
