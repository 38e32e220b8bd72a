//! Pooling: reduces each window of an image to its largest element or its mean.
//!
//! An image has up to three dimensions; missing ones have size 1 and windows of 1. There are `outer` contiguous images
//! with `inner` adjacent channels: row-major images are `[batch · channels, d, h, w, 1]`, channels-last ones `[batch, d,
//! h, w, channels]`. `max` and `average` have the kernels.

pub mod average;
pub mod max;
pub mod places;

use crate::parallel::PIECE;

/// The positions of the windows along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Windows of `kernel` elements that are `dilation` apart. Windows are `stride` apart, and the first begins `padding`
    /// before the image.
    Sliding { kernel: usize, stride: usize, padding: usize, dilation: usize },
    /// One window for each output, spread evenly over the image; they may overlap by one element.
    Adaptive,
}

/// One dimension of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The size of the input.
    pub size: usize,
    /// The size of the output; every window overlaps the padded image.
    pub out: usize,
    pub windows: Windows,
}

/// The elements of one window that are inside the image: taps `first..end`, the first at `at`, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub first: usize,
    pub end: usize,
    at: usize,
    step: usize,
}

impl Window {
    /// The taps inside the image, each with its position.
    #[inline(always)]
    pub fn taps(self) -> impl Iterator<Item = (usize, usize)> {
        (self.first..self.end).map(move |tap| (tap, self.at + (tap - self.first) * self.step))
    }

    /// The position in the image of one of these taps.
    pub fn place(self, tap: usize) -> usize {
        self.at + tap.saturating_sub(self.first) * self.step
    }

    /// The number of taps.
    #[allow(clippy::len_without_is_empty, reason = "nothing asks whether there are none")]
    pub fn len(self) -> usize {
        self.end - self.first
    }
}

impl Axis {
    /// A dimension that is not pooled.
    pub fn one() -> Axis {
        let windows = Windows::Sliding { kernel: 1, stride: 1, padding: 0, dilation: 1 };
        Axis { size: 1, out: 1, windows }
    }

    /// The maximum number of taps of a window.
    pub fn kernel(&self) -> usize {
        match self.windows {
            Windows::Sliding { kernel, .. } => kernel,
            Windows::Adaptive if self.size.is_multiple_of(self.out.max(1)) => self.size / self.out.max(1),
            Windows::Adaptive => (self.size / self.out + 2).min(self.size),
        }
    }

    /// The window of an output.
    #[inline(always)]
    pub fn window(&self, out: usize) -> Window {
        match self.windows {
            // Avoids divisions, which would take longer than a small window.
            Windows::Sliding { kernel, stride, padding, dilation: 1 } => {
                let start = out * stride;
                let first = padding.saturating_sub(start).min(kernel);
                let end = (self.size + padding).saturating_sub(start).min(kernel);
                let at = (start + first).saturating_sub(padding);
                Window { first, end: end.max(first), at, step: 1 }
            }
            Windows::Sliding { kernel, stride, padding, dilation } => {
                let start = out * stride;
                let first = padding.saturating_sub(start).div_ceil(dilation).min(kernel);
                let end = (self.size + padding).saturating_sub(start).div_ceil(dilation).min(kernel);
                let at = (start + first * dilation).saturating_sub(padding);
                Window { first, end: end.max(first), at, step: dilation }
            }
            Windows::Adaptive => {
                let at = out * self.size / self.out;
                let end = ((out + 1) * self.size).div_ceil(self.out);
                Window { first: 0, end: end - at, at, step: 1 }
            }
        }
    }

    /// The number of elements of a window that are inside the padded image: the divisor of a mean that includes padding.
    pub fn padded_len(&self, out: usize) -> usize {
        match self.windows {
            Windows::Sliding { kernel, stride, padding, .. } => {
                (self.size + 2 * padding).saturating_sub(out * stride).min(kernel)
            }
            Windows::Adaptive => self.window(out).len(),
        }
    }

    /// The range of outputs for whose windows tap `tap` is inside the image, with the input position for the first. Sliding
    /// windows only.
    #[inline(always)]
    fn inside(&self, tap: usize) -> (usize, usize, usize, usize) {
        let Windows::Sliding { stride, padding, dilation, .. } = self.windows else {
            unreachable!("sliding")
        };
        let tap = tap * dilation;
        let first = padding.saturating_sub(tap).div_ceil(stride).min(self.out);
        let end = (self.size + padding).saturating_sub(tap).div_ceil(stride).min(self.out);
        (first, end.max(first), (first * stride + tap).saturating_sub(padding), stride)
    }
}

/// Sizes of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// The number of images: batch, or batch times channels.
    pub outer: usize,
    /// Depth, height and width.
    pub axes: [Axis; 3],
    /// The number of adjacent channels.
    pub inner: usize,
}

impl PoolShape {
    /// The number of elements of an input image.
    pub fn in_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product::<usize>() * self.inner
    }

    /// The number of elements of an output image.
    pub fn out_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.out).product::<usize>() * self.inner
    }

    /// The number of elements of an output row.
    fn out_row(&self) -> usize {
        self.axes[2].out * self.inner
    }

    /// The maximum number of taps of a window.
    pub fn kernel(&self) -> usize {
        self.axes.iter().map(Axis::kernel).product()
    }

    /// Output elements in a piece of parallel work: complete rows.
    fn piece(&self) -> usize {
        let per_output = self.kernel().clamp(1, 16);
        (PIECE / (self.out_row() * per_output).max(1)).max(1) * self.out_row().max(1)
    }

    /// Input elements in a piece of parallel work: complete images.
    fn image_piece(&self) -> usize {
        (PIECE / self.in_plane().max(1)).max(1) * self.in_plane().max(1)
    }

    /// The image of a row of the output, and the windows of its depth and height.
    #[inline(always)]
    fn row(&self, row: usize) -> (usize, [Window; 2]) {
        let [depth, height, _] = &self.axes;
        let (oy, rest) = (row % height.out, row / height.out);
        (rest / depth.out, [depth.window(rest % depth.out), height.window(oy)])
    }

    fn check(&self, input: usize, output: usize) {
        assert_eq!(input, self.outer * self.in_plane(), "pooling: input of {self:?}");
        assert_eq!(output, self.outer * self.out_plane(), "pooling: output of {self:?}");
    }
}
