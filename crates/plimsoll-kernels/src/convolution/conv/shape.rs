//! The sizes of a convolution, and the layouts of its tensors.

use std::ops::Range;

/// The sizes of a convolution with three spatial dimensions; if there are fewer, the first ones have size
/// 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// The number of spatial dimensions: 1 to 3.
    pub rank: usize,
    pub batch: usize,
    /// The number of independent groups of channels; divides both numbers of channels.
    pub groups: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub kernel: [usize; 3],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 3],
    /// Zeros before the first element. After the last element there are as many as the last window needs.
    pub padding: [usize; 3],
    /// Distance between neighbouring taps of a window; at least 1.
    pub dilation: [usize; 3],
}

/// The memory order of a tensor `[batch, channels, …]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Row-major.
    ChannelsFirst,
    /// The channels of a pixel are contiguous.
    ChannelsLast,
}

/// The layouts of the three tensors of a convolution: images, filters, results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    pub input: Format,
    pub weight: Format,
    pub output: Format,
}

/// Distances between neighbours, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    pub batch: usize,
    pub channel: usize,
    pub at: [usize; 3],
}

impl Format {
    pub(super) fn strides(self, channels: usize, [depth, height, width]: [usize; 3]) -> Strides {
        let (area, batch) = (height * width, channels * depth * height * width);
        match self {
            Format::ChannelsFirst => Strides { batch, channel: depth * area, at: [area, width, 1] },
            Format::ChannelsLast => {
                Strides { batch, channel: 1, at: [area * channels, width * channels, channels] }
            }
        }
    }
}

impl ConvShape {
    /// Input channels per group.
    pub fn group_in(&self) -> usize {
        self.in_channels / self.groups
    }

    /// Output channels per group.
    pub fn group_out(&self) -> usize {
        self.out_channels / self.groups
    }

    /// The number of weights between one input and one output channel.
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    pub fn in_plane(&self) -> usize {
        self.input.iter().product()
    }

    pub fn out_plane(&self) -> usize {
        self.output.iter().product()
    }

    pub fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.in_plane()
    }

    pub fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_plane()
    }

    pub fn weight_len(&self) -> usize {
        self.out_channels * self.group_in() * self.taps()
    }

    pub(super) fn input_strides(&self, formats: Formats) -> Strides {
        formats.input.strides(self.in_channels, self.input)
    }

    pub(super) fn output_strides(&self, formats: Formats) -> Strides {
        formats.output.strides(self.out_channels, self.output)
    }

    pub(super) fn weight_strides(&self, formats: Formats) -> Strides {
        formats.weight.strides(self.group_in(), self.kernel)
    }

    /// The windows along a dimension in which tap `tap` is inside the image.
    pub fn inside(&self, dim: usize, tap: usize) -> Range<usize> {
        let (stride, padding) = (self.stride[dim], self.padding[dim]);
        let offset = tap * self.dilation[dim];
        let end = match (self.input[dim] + padding).checked_sub(offset + 1) {
            Some(last) if self.input[dim] > 0 => (last / stride + 1).min(self.output[dim]),
            _ => 0,
        };
        padding.saturating_sub(offset).div_ceil(stride).min(end)..end
    }

    /// The position of tap `tap` of window `window` along a dimension. It must be inside the image.
    pub fn seen(&self, dim: usize, window: usize, tap: usize) -> usize {
        window * self.stride[dim] + tap * self.dilation[dim] - self.padding[dim]
    }

    /// Calls `visit(input, weight, output)` with the row-major indices of every product.
    pub fn for_each_product(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let place = |at: [usize; 3], of: [usize; 3]| (at[0] * of[1] + at[1]) * of[2] + at[2];
        let index = |i: usize, of: [usize; 3]| [i / of[2] / of[1], i / of[2] % of[1], i % of[2]];
        for (n, o) in (0..self.batch).flat_map(|n| (0..self.out_channels).map(move |o| (n, o))) {
            for (pixel, tap) in (0..self.out_plane()).flat_map(|p| (0..self.taps()).map(move |t| (p, t))) {
                let (window, at) = (index(pixel, self.output), index(tap, self.kernel));
                let seen: [usize; 3] = std::array::from_fn(|i| {
                    (window[i] * self.stride[i] + at[i] * self.dilation[i]).wrapping_sub(self.padding[i])
                });
                if seen.iter().zip(self.input).any(|(&at, size)| at >= size) {
                    continue;
                }
                for c in 0..self.group_in() {
                    let channel = o / self.group_out() * self.group_in() + c;
                    let input = (n * self.in_channels + channel) * self.in_plane() + place(seen, self.input);
                    let weight = (o * self.group_in() + c) * self.taps() + tap;
                    visit(input, weight, (n * self.out_channels + o) * self.out_plane() + pixel);
                }
            }
        }
    }

    /// Panics unless slices of these lengths hold the three tensors.
    pub(super) fn check(&self, input: usize, weight: usize, output: usize) {
        assert!(!self.stride.contains(&0), "convolution with stride {:?}", self.stride);
        assert!(!self.dilation.contains(&0), "convolution with dilation {:?}", self.dilation);
        assert_eq!(input, self.input_len(), "convolution: input of {self:?}");
        assert_eq!(weight, self.weight_len(), "convolution: weight of {self:?}");
        assert_eq!(output, self.output_len(), "convolution: output of {self:?}");
    }

    /// Whether each group has so few channels that a tile would be nearly empty.
    pub(super) fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.group_in() * self.group_out() <= 4
    }
}

pub(super) fn check_scratch(len: usize, needed: usize) {
    assert!(len >= needed, "convolution: scratch of {len} floats where {needed} are needed");
}
