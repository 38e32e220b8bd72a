//! The operators: one for each pass of a convolution. The derivative of each consists of the others.
//!
//! | pass | inputs | output |
//! |---|---|---|
//! | [`Pass::Forward`] | images, filters, optionally a bias | results |
//! | [`Pass::BackwardInput`] | gradient of results, filters | gradient of images |
//! | [`Pass::Transposed`] | as called by a user: the tensor to upsample, filters, optionally a bias | the upsampled tensor |
//! | [`Pass::BackwardWeight`] | gradient of results, images | gradient of filters |

use smallvec::{SmallVec, smallvec};

use super::format;
use crate::cpu::kernels::conv::{self, ConvShape, Format, Formats, any};
use crate::cpu::kernels::number::by_number;
use crate::cuda::convolution::images::Sizes;
use crate::cuda::{ConvolutionPass, CudaCall, convolution};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Layout, checked_len};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::arguments::want_same;
use crate::tensor::{Grads, Tensor};

/// Which pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    BackwardInput,
    Transposed,
    BackwardWeight,
}

/// One pass of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pub(super) pass: Pass,
    pub(super) shape: ConvShape,
    /// The memory format of the output, if the pass computes images or results.
    pub(super) images: Format,
    /// The memory format of the output, if the pass computes filters.
    pub(super) filters: Format,
    /// Whether a GPU may multiply `float32` values in TF32.
    pub(super) tf32: bool,
}

impl Pass {
    /// The operator's name for one, two or three spatial dimensions.
    pub(super) fn name(self, rank: usize) -> &'static str {
        let names = match self {
            Pass::Forward => ["conv1d", "conv2d", "conv3d"],
            Pass::BackwardInput => {
                ["conv1d_backward_input", "conv2d_backward_input", "conv3d_backward_input"]
            }
            Pass::Transposed => ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
            Pass::BackwardWeight => {
                ["conv1d_backward_weight", "conv2d_backward_weight", "conv3d_backward_weight"]
            }
        };
        names[rank - 1]
    }

    fn cuda(self) -> ConvolutionPass {
        match self {
            Pass::Forward => ConvolutionPass::Forward,
            Pass::BackwardInput | Pass::Transposed => ConvolutionPass::ToInput,
            Pass::BackwardWeight => ConvolutionPass::ToWeight,
        }
    }
}

impl Convolution {
    /// Runs another pass of the same convolution.
    #[track_caller]
    fn also(&self, pass: Pass, ins: [&Tensor; 2]) -> Result<Tensor> {
        call_one(Convolution { pass, ..*self }, &ins)
    }

    /// The sizes in the form that a GPU's kernels take.
    fn sizes(&self) -> Sizes {
        let ConvShape { batch, groups, in_channels, out_channels, rank, .. } = self.shape;
        let ConvShape { input, output, kernel, stride, padding, dilation, .. } = self.shape;
        let axes = [input, output, kernel, stride, padding, dilation];
        let (pass, tf32) = (self.pass.cuda(), self.tf32);
        Sizes { pass, tf32, rank, batch, groups, in_channels, out_channels, axes }
    }

    /// The memory formats of images, filters and results, from the layouts of the inputs and of the output.
    fn formats(&self, ins: [&Layout; 2], out: &Layout) -> Formats {
        let ([first, second], out) = (ins.map(format::of), format::of(out));
        match self.pass {
            Pass::Forward => Formats { input: first, weight: second, output: out },
            Pass::BackwardInput | Pass::Transposed => Formats { input: out, weight: second, output: first },
            Pass::BackwardWeight => Formats { input: second, weight: out, output: first },
        }
    }

    /// PyTorch's CPU convolution takes numeric tensors of one dtype, but `int32`, `int16` and `uint8` only in a forward pass
    /// without dilation.
    fn want_types(&self, ins: &[Meta<'_>]) -> Result<()> {
        let (op, dtype) = (self.name(), ins[0].dtype);
        let short_whole = self.pass == Pass::Forward && self.shape.dilation == [1; 3];
        if dtype == DType::Bool || (matches!(dtype, DType::I32 | DType::I16 | DType::U8) && !short_whole) {
            let expected = if short_whole { "a numeric type" } else { "a floating-point type, or int64" };
            return Err(Error::DType { op, expected, got: dtype });
        }
        want_same(op, ins)
    }
}

impl Kernel for Convolution {
    fn name(&self) -> &'static str {
        self.pass.name(self.shape.rank)
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        convolution::convolution(call, self.sizes())
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let [first, second, bias @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        let (s, dtype) = (&self.shape, out.dtype());
        let formats = self.formats([first.layout(), second.layout()], out.layout());
        if dtype == DType::F32 {
            let (ins, bias) =
                ((first.elements(), second.elements()), bias.first().map(|bias| bias.elements()));
            let out = out.elements();
            match self.pass {
                Pass::Forward => conv::forward(s, formats, ins, bias, out, scratch),
                Pass::BackwardWeight => conv::backward_weight(s, formats, (ins.1, ins.0), out, scratch),
                _ => conv::backward_input(s, formats, ins, bias, out, scratch),
            }
            return Ok(());
        }
        by_number!(dtype, T => {
            let bias = bias.first().map(|bias| bias.elements());
            let (ins, out) = ((first.elements(), second.elements()), out.elements());
            match self.pass {
                Pass::Forward => any::forward::<T>(s, formats, ins, bias, out),
                Pass::BackwardWeight => any::backward_weight::<T>(s, formats, (ins.1, ins.0), out),
                _ => any::backward_input::<T>(s, formats, ins, bias, out),
            }
        });
        Ok(())
    }
}

impl Operator for Convolution {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        self.want_types(ins)?;
        let layout = match self.pass {
            Pass::Forward => format::layout(&format::output_shape(&self.shape), self.images),
            Pass::BackwardWeight => format::layout(&format::weight_shape(&self.shape), self.filters),
            _ => format::layout(&format::input_shape(&self.shape), self.images),
        };
        checked_len(layout.shape())?;
        Ok(smallvec![Output::laid_out(layout, ins[0].dtype)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input < 2 { format::takes(layout) } else { layout.is_contiguous() }
    }

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda {
            let layouts = [ins[0].layout, ins[1].layout];
            return convolution::scratch(&self.sizes(), ins[0].dtype, layouts, outs[0].layout, device);
        }
        if ins[0].dtype != DType::F32 {
            return 0;
        }
        let (s, formats) = (&self.shape, self.formats([ins[0].layout, ins[1].layout], outs[0].layout));
        let floats = match self.pass {
            Pass::Forward => conv::forward_scratch_len(s, formats),
            Pass::BackwardWeight => conv::backward_weight_scratch_len(s, formats),
            _ => conv::backward_input_scratch_len(s, formats, ins.len() == 3),
        };
        (floats * DType::F32.size()) as u64
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let s = &self.shape;
        Cost::streaming((2 * s.output_len() * s.group_in() * s.taps()) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        match self.pass {
            Pass::Forward | Pass::Transposed => Autocast::Lower,
            _ => Autocast::AsGiven,
        }
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).only_if(wanted[1]).and(Saves::input(1).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        // Gathered once for both gradients.
        let grad = &if format::takes(&grad.data().layout) { grad.clone() } else { grad.contiguous()? };
        let to_first = || match self.pass {
            Pass::Forward => self.also(Pass::BackwardInput, [grad, &at.input(1)?]),
            Pass::BackwardWeight => self.also(Pass::Forward, [&at.input(1)?, grad]),
            _ => self.also(Pass::Forward, [grad, &at.input(1)?]),
        };
        let to_second = || match self.pass {
            Pass::Forward => self.also(Pass::BackwardWeight, [grad, &at.input(0)?]),
            Pass::BackwardWeight => self.also(Pass::BackwardInput, [&at.input(0)?, grad]),
            _ => self.also(Pass::BackwardWeight, [&at.input(0)?, grad]),
        };
        let mut results: Grads =
            smallvec![at.wants(0).then(to_first).transpose()?, at.wants(1).then(to_second).transpose()?];
        if at.inputs() == 3 {
            let all_but_channels: SmallVec<[isize; 4]> =
                [0].into_iter().chain(2..grad.rank() as isize).collect();
            results.push(at.wants(2).then(|| grad.sum_dims(&all_but_channels)).transpose()?);
        }
        Ok(results)
    }
}
