//! The memory format of images and filters: row-major or channels-last.

use crate::cpu::kernels::conv::{ConvShape, Format};
use crate::layout::{Dims, Layout};
use crate::ops::shape::memory_format::MemoryFormat;
use crate::tensor::Tensor;

impl From<MemoryFormat> for Format {
    fn from(format: MemoryFormat) -> Format {
        match format {
            MemoryFormat::Contiguous => Format::ChannelsFirst,
            MemoryFormat::ChannelsLast => Format::ChannelsLast,
        }
    }
}

/// Whether a kernel reads this layout: without gaps, in one of the two formats.
pub(super) fn takes(layout: &Layout) -> bool {
    MemoryFormat::of(layout).is_some()
}

/// The format of a layout that [`takes`] accepts.
pub(super) fn of(layout: &Layout) -> Format {
    MemoryFormat::of(layout).unwrap_or(MemoryFormat::ChannelsLast).into()
}

/// The format that PyTorch suggests for results computed from this tensor. It supports channels-last for two and three spatial
/// dimensions; if sizes of 1 make both formats possible, the strides decide.
pub(super) fn suggested(x: &Tensor) -> Format {
    let layout = &x.data().layout;
    match matches!(layout.rank(), 4 | 5) && says_channels_last(layout.shape(), layout.strides()) {
        true => Format::ChannelsLast,
        false => Format::ChannelsFirst,
    }
}

/// Like PyTorch's `is_channels_last_strides_2d`.
fn says_channels_last(shape: &[usize], strides: &[usize]) -> bool {
    let mut least = 0;
    if strides[1] == 0 {
        return false;
    }
    for dim in [1].into_iter().chain((2..shape.len()).rev()).chain([0]) {
        let ambiguous = dim == 0 && least == strides[1];
        if shape[dim] == 0 || strides[dim] < least || ambiguous {
            return false;
        }
        least = strides[dim] * shape[dim].max(1);
    }
    true
}

/// A layout without gaps in this format.
pub(super) fn layout(shape: &[usize], format: Format) -> Layout {
    match format {
        Format::ChannelsFirst => MemoryFormat::Contiguous,
        Format::ChannelsLast => MemoryFormat::ChannelsLast,
    }
    .layout(shape)
}

/// The shape of a tensor: the outer sizes, and the last of `sizes`, one for each spatial dimension.
fn shape(s: &ConvShape, outer: usize, channels: usize, sizes: [usize; 3]) -> Dims {
    [outer, channels].into_iter().chain(sizes[3 - s.rank..].iter().copied()).collect()
}

pub(super) fn input_shape(s: &ConvShape) -> Dims {
    shape(s, s.batch, s.in_channels, s.input)
}

pub(super) fn output_shape(s: &ConvShape) -> Dims {
    shape(s, s.batch, s.out_channels, s.output)
}

pub(super) fn weight_shape(s: &ConvShape) -> Dims {
    shape(s, s.out_channels, s.group_in(), s.kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggested_format_is_pytorchs() {
        let last = |shape: &[usize]| layout(shape, Format::ChannelsLast);
        let says = |layout: &Layout| says_channels_last(layout.shape(), layout.strides());
        assert!(says(&last(&[2, 4, 9, 9])) && says(&last(&[2, 4, 3, 3, 3])));
        assert!(says(&last(&[2, 1, 9, 9])), "by its strides");
        assert!(says(&last(&[2, 4, 1, 1])));
        assert!(!says(&Layout::contiguous(&[2, 4, 1, 1])), "a filter of 1 x 1");
        assert!(!says(&Layout::contiguous(&[2, 4, 9, 9])) && !says(&Layout::contiguous(&[2, 1, 1, 1])));
    }
}
