//! Row-major images of two dimensions without groups and dilation, for the two kernels that support nothing else:
//! `few_taps.rs` and `scatter.rs`.

use super::shape::{ConvShape, Format, Formats};
use crate::parallel::{PIECE, for_each_piece};
use crate::tile::panel_width;

/// Sizes of a convolution: `[batch, in_channels, in_h, in_w]` with filters `[out_channels, in_channels, kernel_h, kernel_w]`
/// give `[batch, out_channels, out_h, out_w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conv2dShape {
    pub batch: usize,
    pub in_channels: usize,
    pub in_h: usize,
    pub in_w: usize,
    pub out_channels: usize,
    pub kernel_h: usize,
    pub kernel_w: usize,
    /// Distance between neighbouring windows, vertical and horizontal; at least 1.
    pub stride: [usize; 2],
    /// Zero padding on both sides, vertical and horizontal.
    pub padding: [usize; 2],
}

impl Conv2dShape {
    /// Converts a shape, if it is one of row-major two-dimensional images without groups and dilation.
    pub(super) fn of(s: &ConvShape, formats: Formats) -> Option<Conv2dShape> {
        let first = Format::ChannelsFirst;
        let row_major = formats == Formats { input: first, weight: first, output: first };
        let flat = s.input[0] == 1 && s.kernel[0] == 1 && s.output[0] == 1 && s.padding[0] == 0;
        let [[_, in_h, in_w], [_, kernel_h, kernel_w]] = [s.input, s.kernel];
        let (stride, padding) = ([s.stride[1], s.stride[2]], [s.padding[1], s.padding[2]]);
        let planes = Conv2dShape {
            batch: s.batch,
            in_channels: s.in_channels,
            in_h,
            in_w,
            out_channels: s.out_channels,
            kernel_h,
            kernel_w,
            stride,
            padding,
        };
        let plain = s.groups == 1 && s.dilation == [1; 3] && s.out_plane() > 0;
        let serves = plain && flat && row_major && in_h + 2 * padding[0] >= kernel_h;
        let same = || in_w + 2 * padding[1] >= kernel_w && [planes.out_h(), planes.out_w()] == s.output[1..];
        (serves && same()).then_some(planes)
    }

    /// Rows of the output.
    pub(super) fn out_h(&self) -> usize {
        (self.in_h + 2 * self.padding[0] - self.kernel_h) / self.stride[0] + 1
    }

    /// Columns of the output.
    pub(super) fn out_w(&self) -> usize {
        (self.in_w + 2 * self.padding[1] - self.kernel_w) / self.stride[1] + 1
    }
}

impl Conv2dShape {
    pub(super) fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.in_h * self.in_w
    }

    pub(super) fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_plane()
    }

    pub(super) fn weight_len(&self) -> usize {
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

    /// Floats of all images with padding; 0 if the input can be used in place.
    pub(super) fn padded_input_len(&self) -> usize {
        if self.is_padded() { self.batch * self.in_channels * self.padded_plane() } else { 0 }
    }

    /// The offset in a padded plane at which the window of output pixel `pixel` starts.
    #[inline(always)]
    pub(super) fn window(&self, pixel: usize) -> usize {
        let (y, x) = (pixel / self.out_w(), pixel % self.out_w());
        y * self.stride[0] * self.padded().1 + x * self.stride[1]
    }

    /// The offset of tap `tap` from the start of its window, in contiguous padded planes.
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

    /// The first channel of a panel, and the number of channels in it.
    pub(super) fn channels_of(&self, panel: usize) -> (usize, usize) {
        let first = panel * self.width;
        (first, self.width.min(self.channels - first))
    }
}

/// Copies every image of `input` into a zero frame in `scratch`; returns the input itself if there is no padding.
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
