//! Two-dimensional convolution of images in the layout `[batch, channels, height, width]`.
//!
//! Its three passes are operators, each of which is the derivative of the others: so a derivative has one too.

use smallvec::{SmallVec, smallvec};

use super::{elementwise, want_number, want_same};
use crate::backend::DeviceFacts;
use crate::cpu::kernels::conv::{
    self, Conv2dShape, conv2d_backward_input_scratch_len, conv2d_backward_weight_scratch_len,
    conv2d_scratch_len,
};
use crate::cpu::kernels::conv_any;
use crate::cpu::kernels::number::by_number;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// Stride and zero padding of a convolution, as `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
    /// Zeros put on both sides.
    pub padding: [usize; 2],
}

impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv2dOptions { stride: [1, 1], padding: [0, 0] }
    }
}

/// `x, w[, bias] -> out`.
#[derive(Clone, Copy, Debug)]
struct Conv2d(Conv2dOptions);

/// The sizes for inputs that fit.
fn conv_shape(
    x: &[usize],
    w: &[usize],
    bias: Option<&[usize]>,
    options: Conv2dOptions,
) -> Result<Conv2dShape> {
    let misfit = |why: &str| {
        let bias = bias.map_or_else(String::new, |b| format!(" and bias {b:?}"));
        Error::shape("conv2d", format!("{why}: input {x:?}, weight {w:?}{bias}, {options:?}"))
    };
    let (&[batch, in_channels, in_h, in_w], &[out_channels, w_channels, kernel_h, kernel_w]) = (x, w) else {
        return Err(misfit("needs an input [batch, in, h, w] and a weight [out, in, kh, kw]"));
    };
    if w_channels != in_channels {
        return Err(misfit("the weight's channels are not the input's"));
    }
    if bias.is_some_and(|b| b != [out_channels]) {
        return Err(misfit("the bias is not one number per output channel"));
    }
    let Conv2dOptions { stride, padding } = options;
    let fits = |size: usize, kernel: usize, padding: usize| {
        let padded = padding.checked_mul(2).and_then(|both| size.checked_add(both));
        kernel > 0 && padded.is_some_and(|padded| padded >= kernel)
    };
    if stride.contains(&0) || !fits(in_h, kernel_h, padding[0]) || !fits(in_w, kernel_w, padding[1]) {
        return Err(misfit("the window must be inside the padded image and move by at least 1"));
    }
    Ok(Conv2dShape { batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, stride, padding })
}

fn float_bytes(len: usize) -> u64 {
    (len * DType::F32.size()) as u64
}

fn flops(s: &Conv2dShape) -> u64 {
    let per_output = 2 * s.in_channels * s.kernel_h * s.kernel_w;
    (s.batch * s.out_channels * s.out_h() * s.out_w() * per_output) as u64
}

impl Kernel for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let [x, w, bias @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let shape = conv_shape(x.shape(), w.shape(), None, self.0)?;
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        if out.dtype() == DType::F32 {
            let bias = bias.first().map(|bias| bias.elements());
            conv::conv2d(&shape, x.elements(), w.elements(), bias, out.elements(), scratch);
            return Ok(());
        }
        by_number!(out.dtype(), T => {
            let bias = bias.first().map(|bias| bias.elements());
            conv_any::conv2d::<T>(&shape, x.elements(), w.elements(), bias, out.elements());
        });
        Ok(())
    }
}

impl Operator for Conv2d {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, w, bias @ ..] = ins else {
            return Err(Error::argument("conv2d", "needs an input, a weight and perhaps a bias"));
        };
        want_number("conv2d", x.dtype)?;
        want_same("conv2d", ins)?;
        let s = conv_shape(x.shape(), w.shape(), bias.first().map(Meta::shape), self.0)?;
        Ok(smallvec![Output::new(&[s.batch, s.out_channels, s.out_h(), s.out_w()], x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        if ins[0].dtype != DType::F32 {
            return 0;
        }
        let shape = conv_shape(ins[0].shape(), ins[1].shape(), None, self.0);
        shape.map_or(0, |shape| float_bytes(conv2d_scratch_len(&shape)))
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let shape = conv_shape(ins[0].shape(), ins[1].shape(), None, self.0);
        Cost::streaming(shape.as_ref().map_or(0, flops), ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).only_if(wanted[1]).and(Saves::input(1).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        // Gathered once for both passes.
        let grad = grad.contiguous()?;
        let shape = conv_shape(at.shape(0), at.shape(1), None, self.0)?;
        let to_x = || call_one(BackwardInput(shape), &[&grad, &at.input(1)?]);
        let to_w = || call_one(BackwardWeight(shape), &[&grad, &at.input(0)?]);
        let mut results: Grads =
            smallvec![at.wants(0).then(to_x).transpose()?, at.wants(1).then(to_w).transpose()?];
        if at.inputs() == 3 {
            results.push(at.wants(2).then(|| grad.sum_dims(&[0, 2, 3])).transpose()?);
        }
        Ok(results)
    }
}

impl Conv2dShape {
    fn options(&self) -> Conv2dOptions {
        Conv2dOptions { stride: self.stride, padding: self.padding }
    }
}

/// `grad, w -> grad of x`.
#[derive(Clone, Copy, Debug)]
struct BackwardInput(Conv2dShape);

impl Kernel for BackwardInput {
    fn name(&self) -> &'static str {
        "conv2d_backward_input"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([grad, w], [out]) = call.split();
        match out.dtype() {
            DType::F64 => {
                conv_any::conv2d_backward_input::<f64>(
                    &self.0,
                    grad.elements(),
                    w.elements(),
                    out.elements(),
                );
            }
            _ => conv::conv2d_backward_input(&self.0, grad.elements(), w.elements(), out.elements(), scratch),
        }
        Ok(())
    }
}

impl Operator for BackwardInput {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, _] = elementwise::inputs(self.name(), ins)?;
        let s = &self.0;
        Ok(smallvec![Output::new(&[s.batch, s.in_channels, s.in_h, s.in_w], grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        if ins[0].dtype != DType::F32 {
            return 0;
        }
        float_bytes(conv2d_backward_input_scratch_len(&self.0))
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(flops(&self.0), ins, outs)
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).only_if(wanted[1]).and(Saves::input(1).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let to_grad = || grad.conv2d(&at.input(1)?, None, self.0.options());
        let to_w = || call_one(BackwardWeight(self.0), &[&at.input(0)?, grad]);
        Ok(smallvec![at.wants(0).then(to_grad).transpose()?, at.wants(1).then(to_w).transpose()?])
    }
}

/// `grad, x -> grad of w`.
#[derive(Clone, Copy, Debug)]
struct BackwardWeight(Conv2dShape);

impl Kernel for BackwardWeight {
    fn name(&self) -> &'static str {
        "conv2d_backward_weight"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([grad, x], [out]) = call.split();
        match out.dtype() {
            DType::F64 => {
                conv_any::conv2d_backward_weight::<f64>(
                    &self.0,
                    x.elements(),
                    grad.elements(),
                    out.elements(),
                );
            }
            _ => {
                conv::conv2d_backward_weight(&self.0, x.elements(), grad.elements(), out.elements(), scratch);
            }
        }
        Ok(())
    }
}

impl Operator for BackwardWeight {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, _] = elementwise::inputs(self.name(), ins)?;
        let s = &self.0;
        Ok(smallvec![Output::new(&[s.out_channels, s.in_channels, s.kernel_h, s.kernel_w], grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        if ins[0].dtype != DType::F32 {
            return 0;
        }
        float_bytes(conv2d_backward_weight_scratch_len(&self.0))
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(flops(&self.0), ins, outs)
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).only_if(wanted[1]).and(Saves::input(1).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let to_grad = || at.input(1)?.conv2d(grad, None, self.0.options());
        let to_x = || call_one(BackwardInput(self.0), &[&at.input(0)?, grad]);
        Ok(smallvec![at.wants(0).then(to_grad).transpose()?, at.wants(1).then(to_x).transpose()?])
    }
}

impl Tensor {
    /// Cross-correlation of `[batch, in, h, w]` with the filters `[out, in, kh, kw]`, plus `[out]`. As
    /// `torch.nn.functional.conv2d`.
    ///
    /// # Errors
    /// Sizes that do not fit together; windows larger than the padded image; out of memory.
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: Conv2dOptions) -> Result<Tensor> {
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, weight];
        ins.extend(bias);
        call_one(Conv2d(options), &ins)
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    // [batch, in, height, width], [out, in, kernel, kernel], stride, padding.
    let naive = |[n, c, h, w]: [usize; 4], [o, kh, kw]: [usize; 3], s: usize, p: usize| {
        move |ins: &[Vec<f64>]| {
            let (oh, ow) = ((h + 2 * p - kh) / s + 1, (w + 2 * p - kw) / s + 1);
            let x = |i: usize, channel: usize, y: usize, x: usize| match (y.checked_sub(p), x.checked_sub(p))
            {
                (Some(y), Some(x)) if y < h && x < w => ins[0][((i * c + channel) * h + y) * w + x],
                _ => 0.0,
            };
            let at = |place: usize| -> f64 {
                let (col, row) = (place % ow, place / ow % oh);
                let (out, i) = (place / ow / oh % o, place / ow / oh / o);
                let tap = |t: usize| {
                    let (dx, dy, channel) = (t % kw, t / kw % kh, t / kw / kh);
                    ins[1][out * c * kh * kw + t] * x(i, channel, row * s + dy, col * s + dx)
                };
                (0..c * kh * kw).map(tap).sum::<f64>() + ins.get(2).map_or(0.0, |bias| bias[out])
            };
            vec![(0..n * o * oh * ow).map(at).collect()]
        }
    };
    let case = |shapes: &[&[usize]], stride: usize, padding: usize| {
        let op = Conv2d(Conv2dOptions { stride: [stride; 2], padding: [padding; 2] });
        let name = format!("conv2d {shapes:?}, stride {stride}, padding {padding}");
        Case::new(name, shapes, move |ins| call(op, ins))
    };
    let passes = |shape: Conv2dShape| {
        let (x, w) = ([shape.batch, shape.in_channels, shape.in_h, shape.in_w], [2, 2, 2, 2]);
        let out = [shape.batch, shape.out_channels, shape.out_h(), shape.out_w()];
        [
            Case::new("conv2d_backward_input", &[&out, &w], move |ins| call(BackwardInput(shape), ins)),
            Case::new("conv2d_backward_weight", &[&out, &x], move |ins| call(BackwardWeight(shape), ins)),
        ]
    };
    let shape = conv_shape(&[1, 2, 4, 3], &[2, 2, 2, 2], None, Conv2dOptions::default());
    let mut cases = vec![
        case(&[&[2, 2, 5, 4], &[3, 2, 3, 2], &[3]], 1, 0).expect(naive([2, 2, 5, 4], [3, 3, 2], 1, 0)),
        case(&[&[1, 2, 5, 5], &[2, 2, 3, 3]], 2, 1).expect(naive([1, 2, 5, 5], [2, 3, 3], 2, 1)),
    ];
    cases.extend(shape.into_iter().flat_map(passes));
    cases
}
