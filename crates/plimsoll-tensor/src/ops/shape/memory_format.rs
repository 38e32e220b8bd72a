//! The memory order of an image's elements: row-major or channels-last. These are PyTorch's memory formats.
//!
//! Operators on `[batch, channels, …]` that support both formats read the input as it is, and their output has the same format.

use crate::error::{Error, Result};
use crate::layout::{Dims, Layout};
use crate::tensor::Tensor;

/// The memory order of the elements of `[batch, channels, …]`, without gaps. Like `torch.memory_format`.
///
/// ```
/// use plimsoll_tensor::{Device, MemoryFormat, Tensor};
/// let images = Tensor::zeros(&[8, 3, 32, 32], &Device::cpu())?.to_memory_format(MemoryFormat::ChannelsLast)?;
/// assert_eq!(images.shape(), [8, 3, 32, 32]);
/// assert_eq!(images.strides(), [3072, 1, 96, 3]);
/// assert!(images.relu()?.is_in_memory_format(MemoryFormat::ChannelsLast));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFormat {
    /// Row-major.
    Contiguous,
    /// The channels of each pixel are adjacent: PyTorch's `channels_last` and `channels_last_3d`.
    ChannelsLast,
}

/// The dimensions of a channels-last tensor from the outermost to the innermost.
fn channels_last_order(rank: usize) -> Dims {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

impl MemoryFormat {
    /// The format of a layout; `None` if it has gaps or a different order. A layout that is in both formats is
    /// [`MemoryFormat::Contiguous`].
    pub(crate) fn of(layout: &Layout) -> Option<MemoryFormat> {
        if layout.is_contiguous() {
            return Some(MemoryFormat::Contiguous);
        }
        let is_last =
            layout.rank() > 2 && layout.permute(&channels_last_order(layout.rank())).is_contiguous();
        is_last.then_some(MemoryFormat::ChannelsLast)
    }

    /// The format in which an operator reads an input of this layout: row-major if the input has to be gathered.
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

    /// Whether a tensor of this layout can be read in this format.
    pub(crate) fn fits(self, layout: &Layout) -> bool {
        match self {
            MemoryFormat::Contiguous => layout.is_contiguous(),
            MemoryFormat::ChannelsLast => {
                layout.rank() > 2 && layout.permute(&channels_last_order(layout.rank())).is_contiguous()
            }
        }
    }
}

impl Tensor {
    /// Converts the tensor to a memory format. Returns the tensor itself if it has the format, otherwise a copy. Like PyTorch's
    /// `to(memory_format=…)`.
    ///
    /// # Errors
    /// If channels-last is requested for fewer than three dimensions, or memory runs out.
    #[track_caller]
    pub fn to_memory_format(&self, format: MemoryFormat) -> Result<Tensor> {
        let rank = self.rank();
        if format == MemoryFormat::ChannelsLast && rank < 3 {
            let message = format!("channels-last needs [batch, channels, …], not {:?}", self.shape());
            return Err(Error::shape("to_memory_format", message));
        }
        if self.is_in_memory_format(format) {
            return Ok(self.clone());
        }
        if format == MemoryFormat::Contiguous {
            return self.contiguous();
        }
        let order: Vec<isize> = channels_last_order(rank).iter().map(|&dim| dim as isize).collect();
        let back: Vec<isize> = [0, rank - 1].into_iter().chain(1..rank - 1).map(|dim| dim as isize).collect();
        self.permute(&order)?.contiguous()?.permute(&back)
    }

    /// Whether the elements are in this order, without gaps. Like PyTorch's `is_contiguous(memory_format=…)`.
    pub fn is_in_memory_format(&self, format: MemoryFormat) -> bool {
        format.fits(&self.data().layout)
    }
}

/// The layout of an output of the input's shape: channels-last inputs give channels-last outputs.
pub(crate) fn kept(layout: &Layout) -> Layout {
    MemoryFormat::for_input(layout).layout(layout.shape())
}
