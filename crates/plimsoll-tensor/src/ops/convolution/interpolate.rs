//! Resampling of `[batch, channels, …]` to a different size. Its derivative only needs the sizes.

use smallvec::smallvec;

use super::bicubic::Axis;
use crate::caller::Entry;
use crate::cpu::kernels::interpolate::{
    Axis as ResampleAxis, ResampleShape, Sampling, interpolate, interpolate_backward,
};
use crate::cpu::kernels::number::by_float;
use crate::cuda::convolution::interpolate::Resampled;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::shape::memory_format::MemoryFormat;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

const NAME: &str = "interpolate";

/// The interpolation method. PyTorch names linear interpolation after the number of dimensions: `linear`, `bilinear`,
/// `trilinear`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterpolateMode {
    /// The element at or before the position: PyTorch's `nearest`.
    #[default]
    Nearest,
    /// The element whose centre is nearest: `nearest-exact`.
    NearestExact,
    /// Linear between the elements around the position, along each dimension.
    Linear {
        /// Whether the centres of the corner elements are aligned; otherwise their outer edges are.
        align_corners: bool,
    },
    /// Cubic convolution of the four elements around the position, along both dimensions: `bicubic`. Results may overshoot.
    Cubic {
        /// As in [`InterpolateMode::Linear`].
        align_corners: bool,
    },
}

/// The new size of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResizeTo<'a> {
    /// One size for each dimension after batch and channels.
    Size(&'a [usize]),
    /// This many times as large in each dimension, rounded down: one factor for all, or one for each.
    Scale(&'a [f64]),
}

/// `x -> out`.
#[derive(Clone, Debug)]
struct Interpolate {
    mode: InterpolateMode,
    /// Sizes of the input and of the output, and the number of input elements per output element.
    from: Dims,
    to: Dims,
    ratios: [f64; 3],
}

impl Interpolate {
    fn shape(&self, x: &[usize], format: MemoryFormat) -> ResampleShape {
        let mut axes = [ResampleAxis::one(); 3];
        let lead = 3 - self.from.len();
        for (i, axis) in axes[lead..].iter_mut().enumerate() {
            *axis = ResampleAxis { size: self.from[i], out: self.to[i], ratio: self.ratios[i] };
        }
        let sampling = match self.mode {
            InterpolateMode::Nearest => Sampling::Nearest,
            InterpolateMode::NearestExact => Sampling::NearestExact,
            InterpolateMode::Linear { align_corners } => Sampling::Linear { align_corners },
            InterpolateMode::Cubic { .. } => unreachable!("resampled by products"),
        };
        match format {
            MemoryFormat::Contiguous => ResampleShape { outer: x[0] * x[1], axes, inner: 1, sampling },
            MemoryFormat::ChannelsLast => ResampleShape { outer: x[0], axes, inner: x[1], sampling },
        }
    }

    /// The parameters in the form that a GPU's kernels take.
    fn resampled(&self, x: &[usize], format: MemoryFormat) -> Resampled {
        let ResampleShape { outer, axes, inner, sampling } = self.shape(x, format);
        let mode = match sampling {
            Sampling::Nearest => 0,
            Sampling::NearestExact => 1,
            Sampling::Linear { align_corners } => 2 + u32::from(align_corners),
        };
        Resampled { outer, inner, axes: axes.map(|axis| (axis.size, axis.out, axis.ratio)), mode }
    }

    fn with_sizes(x: &[usize], sizes: &[usize]) -> Dims {
        x[..2].iter().chain(sizes).copied().collect()
    }
}

/// Bytes are interpolated in `f32` and rounded after each dimension, as in PyTorch; the kernel reads them directly.
fn value_type(dtype: DType) -> DType {
    if dtype == DType::U8 { dtype } else { dtype.accumulator() }
}

impl Kernel for Interpolate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.ins[0];
        let shape = self.resampled(x.shape(), MemoryFormat::for_input(x.layout));
        cuda::convolution::interpolate::interpolate(call, shape, false)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let shape = self.shape(x.shape(), MemoryFormat::for_input(x.layout()));
        if x.dtype() == DType::U8 {
            let round = |x: f32| (x + 0.5) as u8;
            interpolate::<u8, f32>(&shape, x.elements(), out.elements(), f32::from, round);
            return Ok(());
        }
        by_float!(x.dtype(), T => interpolate::<T, T>(&shape, x.elements(), out.elements(), |x| x, |x| x));
        Ok(())
    }
}

impl Operator for Interpolate {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(NAME, ins)?;
        if !x.dtype.is_float() && x.dtype != DType::U8 {
            let expected = "a floating-point type, or uint8";
            return Err(Error::DType { op: NAME, expected, got: x.dtype });
        }
        let layout = MemoryFormat::for_input(x.layout).layout(&Self::with_sizes(x.shape(), &self.to));
        Ok(smallvec![Output::laid_out(layout, x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        MemoryFormat::of(layout).is_some()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let per_output = match self.mode {
            InterpolateMode::Linear { .. } => 3 << self.to.len(),
            _ => 0,
        };
        Cost::streaming((outs[0].layout.len() * per_output) as u64, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let format = MemoryFormat::for_input(&grad.data().layout);
        let op = InterpolateBackward { of: self.clone(), format };
        Ok(smallvec![Some(call_one(op, &[&grad.to_memory_format(format)?])?)])
    }
}

/// `grad -> grad of x`.
#[derive(Clone, Debug)]
struct InterpolateBackward {
    of: Interpolate,
    format: MemoryFormat,
}

impl Kernel for InterpolateBackward {
    fn name(&self) -> &'static str {
        "interpolate_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let shape = self.of.resampled(call.ins[0].shape(), self.format);
        cuda::convolution::interpolate::interpolate(call, shape, true)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad], [out]) = call.split();
        let shape = self.of.shape(grad.shape(), self.format);
        by_float!(grad.dtype(), T => interpolate_backward::<T>(&shape, grad.elements(), out.elements()));
        Ok(())
    }
}

impl Operator for InterpolateBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad] = operands::inputs(self.name(), ins)?;
        let layout = self.format.layout(&Interpolate::with_sizes(grad.shape(), &self.of.from));
        Ok(smallvec![Output::laid_out(layout, grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        self.format.fits(layout)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let grad = at.grad(0).map(|grad| call_one(self.of.clone(), &[grad]));
        Ok(smallvec![grad.transpose()?])
    }
}

impl Tensor {
    /// Resamples images `[batch, channels, …]` with one to three dimensions to a different size. Like
    /// `torch.nn.functional.interpolate`, without antialiasing.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, InterpolateMode, ResizeTo, Tensor};
    /// let x = Tensor::from_slice(&[0.0f32, 2.0], &[1, 1, 2], &Device::cpu())?;
    /// let y = x.interpolate(ResizeTo::Size(&[3]), InterpolateMode::Linear { align_corners: true })?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the sizes or scales do not match the image's dimensions, a size is 0, the dtype is neither floating-point nor
    /// `uint8`, or memory runs out.
    #[track_caller]
    pub fn interpolate(&self, to: ResizeTo<'_>, mode: InterpolateMode) -> Result<Tensor> {
        let _entry = Entry::here();
        let misfit = |why: &str| {
            let message = format!(
                "{why}: input {:?}, {to:?}; needs [batch, channels, …] with 1 to 3 sizes",
                self.shape()
            );
            Err(Error::shape(NAME, message))
        };
        let spatial = self.rank().saturating_sub(2);
        if !(1..=3).contains(&spatial) {
            return misfit("an input of this rank cannot be resampled");
        }
        let from = Dims::from_slice(&self.shape()[2..]);
        let scale = |i: usize| match to {
            ResizeTo::Size(_) => None,
            ResizeTo::Scale(scales) => Some(scales[if scales.len() == 1 { 0 } else { i }]),
        };
        let sizes: Dims = match to {
            ResizeTo::Size(sizes) if sizes.len() == spatial => sizes.into(),
            ResizeTo::Scale(scales) if scales.len() == 1 || scales.len() == spatial => {
                if let Some(bad) = scales.iter().find(|scale| !scale.is_finite() || **scale <= 0.0) {
                    return misfit(&format!("a scale of {bad}"));
                }
                (0..spatial).map(|i| (from[i] as f64 * scale(i).unwrap_or(1.0)).floor() as usize).collect()
            }
            _ => return misfit("one size or scale for each dimension after batch and channels is needed"),
        };
        if sizes.contains(&0) || from.contains(&0) {
            return misfit("a size of 0");
        }
        let mut ratios = [1.0; 3];
        for (i, ratio) in ratios.iter_mut().take(spatial).enumerate() {
            *ratio = match mode {
                InterpolateMode::Linear { align_corners: true }
                | InterpolateMode::Cubic { align_corners: true }
                    if sizes[i] > 1 =>
                {
                    (from[i] - 1) as f64 / (sizes[i] - 1) as f64
                }
                InterpolateMode::Linear { align_corners: true }
                | InterpolateMode::Cubic { align_corners: true } => 0.0,
                _ => scale(i).map_or(from[i] as f64 / sizes[i] as f64, |scale| 1.0 / scale),
            };
        }
        if let InterpolateMode::Cubic { align_corners } = mode {
            if spatial != 2 {
                return misfit("cubic resampling needs images with two dimensions");
            }
            let axis = |i: usize| Axis { size: from[i], out: sizes[i], ratio: ratios[i] };
            return self.bicubic([axis(0), axis(1)], align_corners);
        }
        call_one(Interpolate { mode, from, to: sizes, ratios }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |shape: &[usize], sizes: &'static [usize], mode: InterpolateMode| {
        Case::new(format!("interpolate {shape:?} to {sizes:?}, {mode:?}"), &[shape], move |ins| {
            Ok(smallvec![ins[0].interpolate(ResizeTo::Size(sizes), mode)?])
        })
    };
    let linear = |align_corners| InterpolateMode::Linear { align_corners };
    vec![
        case(&[1, 2, 3], &[6], InterpolateMode::Nearest)
            .expect(|ins| vec![(0..12).map(|i| ins[0][i / 2]).collect()]),
        case(&[2, 1, 3, 4], &[5, 2], InterpolateMode::Nearest),
        case(&[1, 2, 2, 3], &[4, 5], InterpolateMode::NearestExact),
        case(&[1, 1, 2], &[3], linear(true))
            .expect(|ins| vec![vec![ins[0][0], (ins[0][0] + ins[0][1]) / 2.0, ins[0][1]]]),
        case(&[1, 2, 3, 2], &[5, 4], linear(false)),
        case(&[2, 1, 4, 3], &[2, 5], linear(true)),
        case(&[1, 1, 2, 2, 3], &[3, 4, 2], linear(false)),
    ]
}
