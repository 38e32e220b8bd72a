//! In which order an image's elements lie: row-major or channels-last. PyTorch's memory formats.
//!
//! Operators on `[batch, channels, …]` that can work in both take an input as it lies and answer in the same order.

use crate::error::Result;
use crate::layout::{Dims, Layout};
use crate::tensor::Tensor;

/// The order of the elements of `[batch, channels, …]`, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFormat {
    /// Row-major.
    Contiguous,
    /// The channels of a place side by side.
    ChannelsLast,
}

/// The dimensions of a tensor from the outermost to the innermost where channels are last.
fn channels_last_order(rank: usize) -> Dims {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

impl MemoryFormat {
    /// The format of a layout; none where it has gaps or another order. What is both is [`MemoryFormat::Contiguous`].
    pub(crate) fn of(layout: &Layout) -> Option<MemoryFormat> {
        if layout.is_contiguous() {
            return Some(MemoryFormat::Contiguous);
        }
        let is_last =
            layout.rank() > 2 && layout.permute(&channels_last_order(layout.rank())).is_contiguous();
        is_last.then_some(MemoryFormat::ChannelsLast)
    }

    /// The format in which an operator works on an input that lies like this: row-major where it has to be gathered.
    pub(crate) fn for_input(layout: &Layout) -> MemoryFormat {
        MemoryFormat::of(layout).unwrap_or(MemoryFormat::Contiguous)
    }

    /// The layout of a new tensor of this shape.
    pub(crate) fn layout(self, shape: &[usize]) -> Layout {
        match self {
            MemoryFormat::Contiguous => Layout::contiguous(shape),
            MemoryFormat::ChannelsLast => {
                let lying: Dims = channels_last_order(shape.len()).iter().map(|&dim| shape[dim]).collect();
                let back: Dims = [0, shape.len() - 1].into_iter().chain(1..shape.len() - 1).collect();
                Layout::contiguous(&lying).permute(&back)
            }
        }
    }

    /// Whether elements that lie like this can be read in this format.
    pub(crate) fn fits(self, layout: &Layout) -> bool {
        match self {
            MemoryFormat::Contiguous => layout.is_contiguous(),
            MemoryFormat::ChannelsLast => {
                layout.rank() > 2 && layout.permute(&channels_last_order(layout.rank())).is_contiguous()
            }
        }
    }

    /// The tensor in this format: itself, or a copy.
    pub(crate) fn apply(self, x: &Tensor) -> Result<Tensor> {
        if self.fits(&x.data().layout) {
            return Ok(x.clone());
        }
        if self == MemoryFormat::Contiguous {
            return x.contiguous();
        }
        let rank = x.rank();
        let order: Vec<isize> = channels_last_order(rank).iter().map(|&dim| dim as isize).collect();
        let back: Vec<isize> = [0, rank - 1].into_iter().chain(1..rank - 1).map(|dim| dim as isize).collect();
        x.permute(&order)?.contiguous()?.permute(&back)
    }
}

/// The layout of an output of the input's shape: channels-last stays so.
pub(crate) fn kept(layout: &Layout) -> Layout {
    MemoryFormat::for_input(layout).layout(layout.shape())
}
