//! The windows of a pooling operation, and the resulting sizes.

use super::options::MaxPoolOptions;
use crate::cpu::kernels::pool::{Axis, PoolShape, Windows};
use crate::error::{Error, Result};
use crate::layout::{Dims, Layout};
use crate::ops::shape::memory_format::MemoryFormat;

/// The windows, for images of `spatial` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    /// The number of dimensions of an image: 1 to 3. The arrays below use their last `spatial` entries.
    pub(super) spatial: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sliding(MaxPoolOptions<3>),
    /// Adaptive windows: as many as are needed for outputs of this size.
    Adaptive([usize; 3]),
}

impl Spec {
    /// Selects the name for this number of dimensions; `names` has those for one, two and three.
    pub(super) fn name(&self, names: [&'static str; 3]) -> &'static str {
        names[self.spatial - 1]
    }

    /// The sizes for an input of this shape in this memory format.
    pub(super) fn shape(&self, op: &'static str, x: &[usize], format: MemoryFormat) -> Result<PoolShape> {
        let Some(lead) = x.len().checked_sub(self.spatial).filter(|lead| [1, 2].contains(lead)) else {
            let places = &["length", "h, w", "d, h, w"][self.spatial - 1];
            let message = format!("input {x:?}: needs [batch, channels, {places}] or [channels, {places}]");
            return Err(Error::shape(op, message));
        };
        let mut axes = [Axis::one(); 3];
        for (axis, dim) in (3 - self.spatial..3).zip(lead..) {
            axes[axis] = self.axis(op, x, axis, x[dim])?;
        }
        let channels = x[lead - 1];
        let images: usize = x[..lead].iter().product();
        Ok(match format {
            MemoryFormat::Contiguous => PoolShape { outer: images, axes, inner: 1 },
            MemoryFormat::ChannelsLast => PoolShape { outer: x[0], axes, inner: channels },
        })
    }

    fn axis(&self, op: &'static str, x: &[usize], axis: usize, size: usize) -> Result<Axis> {
        let misfit = |why: &str| Error::shape(op, format!("{why}: input {x:?}, {}", self.describe()));
        let (kernel, stride, padding, dilation, ceil_mode) = match self.kind {
            Kind::Adaptive(out) if size == 0 && out[axis] > 0 => {
                return Err(misfit("an image without elements has no windows"));
            }
            Kind::Adaptive(out) => return Ok(Axis { size, out: out[axis], windows: Windows::Adaptive }),
            Kind::Sliding(MaxPoolOptions { kernel, stride, padding, dilation, ceil_mode }) => {
                (kernel[axis], stride[axis], padding[axis], dilation[axis], ceil_mode)
            }
        };
        let reach = kernel.checked_sub(1).and_then(|steps| steps.checked_mul(dilation)?.checked_add(1));
        let padded = padding.checked_mul(2).and_then(|both| both.checked_add(size));
        let fits = stride > 0 && dilation > 0 && reach.is_some_and(|reach| padding <= reach / 2);
        // Leftover elements also get a window, even if it is the only one.
        let left_over = if ceil_mode { stride.saturating_sub(1) } else { 0 };
        let span = |reach: usize, padded: usize| padded.checked_add(left_over)?.checked_sub(reach);
        let span = reach.zip(padded).and_then(|(reach, padded)| span(reach, padded));
        let (Some(span), true) = (span, fits) else {
            let why = "the window must be inside the padded image, move by at least 1, and be padded by at most half";
            return Err(misfit(why));
        };
        let mut out = span / stride + 1;
        // A window that would contain only padding on the right is dropped.
        if ceil_mode && (out - 1).saturating_mul(stride) >= size + padding {
            out -= 1;
        }
        if out == 0 {
            return Err(misfit("there is no window"));
        }
        Ok(Axis { size, out, windows: Windows::Sliding { kernel, stride, padding, dilation } })
    }

    /// The parameters, for error messages.
    pub(super) fn describe(&self) -> String {
        let last = |all: &[usize; 3]| format!("{:?}", &all[3 - self.spatial..]);
        match &self.kind {
            Kind::Adaptive(out) => format!("output {}", last(out)),
            Kind::Sliding(MaxPoolOptions { kernel, stride, padding, dilation, ceil_mode }) => format!(
                "kernel {}, stride {}, padding {}, dilation {}, ceil_mode {ceil_mode}",
                last(kernel),
                last(stride),
                last(padding),
                last(dilation)
            ),
        }
    }

    /// The shape of the output.
    pub(super) fn out_shape(&self, x: &[usize], shape: &PoolShape) -> Dims {
        let outs = shape.axes[3 - self.spatial..].iter().map(|axis| axis.out);
        x[..x.len() - self.spatial].iter().copied().chain(outs).collect()
    }

    /// The memory format in which a tensor of this layout is read. Images without a batch are read row-major.
    pub(super) fn format(&self, layout: &Layout) -> MemoryFormat {
        match layout.rank() == self.spatial + 2 {
            true => MemoryFormat::for_input(layout),
            false => MemoryFormat::Contiguous,
        }
    }

    /// Whether a kernel can read an input of this layout.
    pub(super) fn takes(&self, layout: &Layout) -> bool {
        self.format(layout).fits(layout)
    }
}
