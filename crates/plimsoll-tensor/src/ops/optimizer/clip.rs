//! Gradient clipping: many gradients in one call, in place, without copies.

use smallvec::SmallVec;

use crate::autograd::no_grad;
use crate::cpu::kernels::optim::clip::{clamp, norm, scale};
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::want_float32_or_short;
use crate::suite::Case;
use crate::tensor::Tensor;

/// `grads -> grads` in place; clipping by norm also returns the total norm.
#[derive(Clone, Copy, Debug)]
enum Clip {
    Norm { max_norm: f64, norm_type: f64 },
    Value { clip_value: f64 },
}

impl Kernel for Clip {
    fn name(&self) -> &'static str {
        match self {
            Clip::Norm { .. } => "clip_grad_norm_",
            Clip::Value { .. } => "clip_grad_value_",
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        match *self {
            Clip::Norm { max_norm, norm_type } => cuda::optimizer::clip::norm(call, max_norm, norm_type),
            Clip::Value { clip_value } => cuda::optimizer::clip::values(call, clip_value),
        }
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let mut outs = call.outs;
        match *self {
            Clip::Norm { max_norm, norm_type } => {
                let total = outs.pop().unwrap_or_else(|| unreachable!("inferred"));
                let grads: SmallVec<[&mut [f32]; 4]> = outs.into_iter().map(|out| out.elements()).collect();
                let norm = norm(grads.iter().map(|grad| &**grad), norm_type);
                total.elements()[0] = norm as f32;
                let factor = max_norm / (norm + 1e-6);
                // NaN spreads to every gradient, as in PyTorch. Gradients whose norm is small enough stay unchanged.
                if factor.is_nan() || factor < 1.0 {
                    grads.into_iter().for_each(|grad| scale(grad, factor as f32));
                }
            }
            Clip::Value { clip_value } => {
                outs.into_iter().for_each(|out| clamp(out.elements(), clip_value as f32));
            }
        }
        Ok(())
    }
}

impl Operator for Clip {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        ins.iter().try_for_each(|meta| want_float32_or_short(self.name(), meta.dtype))?;
        let mut outputs: Outputs =
            ins.iter().enumerate().map(|(i, meta)| Output::in_place(i, meta)).collect();
        if matches!(self, Clip::Norm { .. }) {
            outputs.push(Output::new(&[], DType::F32));
        }
        Ok(outputs)
    }

    /// Scratch memory for the norm, in bytes. (`takes`, below, accepts gradients without gaps, in any order of dimensions.)
    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        match self {
            Clip::Norm { .. } if device.kind == DeviceKind::Cuda => {
                cuda::optimizer::clip::scratch(ins.iter().map(|meta| meta.layout.len()))
            }
            _ => 0,
        }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous() || layout.end() - layout.offset() == layout.len()
    }
}

/// Scales all gradients in place so that their total norm, as if they were one vector, is at most `max_norm`. Returns the norm
/// before scaling. Like `torch.nn.utils.clip_grad_norm_`, where `norm_type` is 2 by default; it may be infinite.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, op::clip_norm_};
/// let grads = [3.0f32, 4.0].map(|x| Tensor::from_slice(&[x], &[1], &Device::cpu()).unwrap());
/// let norm: f32 = clip_norm_(&grads, 1.0, 2.0)?.unwrap().item()?;
/// assert_eq!(norm, 5.0);
/// assert!((grads[1].item::<f32>()? - 0.8).abs() < 1e-6);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// The norm is a tensor, so that the host need not wait for it; `None` if there are no gradients.
///
/// # Errors
/// A bound or a norm type that is negative or NaN; gradients on different devices, or that share memory.
#[track_caller]
pub fn clip_norm_(grads: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Option<Tensor>> {
    for (name, value, is_right) in
        [("max_norm", max_norm, max_norm >= 0.0), ("norm_type", norm_type, norm_type > 0.0)]
    {
        if !is_right {
            let rule = if name == "max_norm" { "0 or more" } else { "above 0" };
            return Err(Error::argument("clip_grad_norm_", format!("{name} is {value}; it must be {rule}")));
        }
    }
    if grads.is_empty() {
        return Ok(None);
    }
    if grads.iter().any(|grad| grad.dtype() == DType::F64) {
        return no_grad(|| clip_norm_wide(grads, max_norm, norm_type)).map(Some);
    }
    let ins: SmallVec<[&Tensor; 4]> = grads.iter().collect();
    let mut outs = no_grad(|| call(Clip::Norm { max_norm, norm_type }, &ins))?;
    Ok(outs.pop())
}

/// [`clip_norm_`] for dtypes that need more than 32 bits: computes the norm of the norms, and scales each gradient in place.
#[track_caller]
fn clip_norm_wide(grads: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Tensor> {
    let norms =
        grads.iter().map(|grad| grad.to_dtype(DType::F64)?.norm(norm_type)).collect::<Result<Vec<_>>>()?;
    let norm = Tensor::stack(&norms.iter().collect::<Vec<_>>(), 0)?.norm(norm_type)?;
    let factor = norm.add_scalar(1e-6)?.reciprocal()?.mul_scalar(max_norm)?.clamp_max(1.0)?;
    grads.iter().try_for_each(|grad| grad.mul_(&factor))?;
    Ok(norm)
}

/// Clamps every element of the gradients to `-clip_value..=clip_value`, in place. Like `torch.nn.utils.clip_grad_value_`.
///
/// # Errors
/// A bound that is negative or NaN; gradients on different devices, or that share memory.
pub fn clip_value_(grads: &[Tensor], clip_value: f64) -> Result<()> {
    if clip_value.is_nan() || clip_value < 0.0 {
        let message = format!("clip_value is {clip_value}; it must be 0 or more");
        return Err(Error::argument("clip_grad_value_", message));
    }
    if grads.is_empty() {
        return Ok(());
    }
    if grads.iter().any(|grad| grad.dtype() == DType::F64) {
        return no_grad(|| grads.iter().try_for_each(|grad| grad.clamp_(-clip_value, clip_value)));
    }
    let ins: SmallVec<[&Tensor; 4]> = grads.iter().collect();
    no_grad(|| call(Clip::Value { clip_value }, &ins)).map(drop)
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let by_norm = |ins: &[Vec<f64>]| {
        let norm = ins.iter().flatten().map(|x| x * x).sum::<f64>().sqrt();
        let factor = (1.5 / (norm + 1e-6)).min(1.0);
        let scaled = ins.iter().map(|grad| grad.iter().map(|x| x * factor).collect());
        scaled.chain([vec![norm]]).collect()
    };
    let by_value =
        |ins: &[Vec<f64>]| ins.iter().map(|grad| grad.iter().map(|x| x.clamp(-0.5, 0.5)).collect()).collect();
    let norm = Clip::Norm { max_norm: 1.5, norm_type: 2.0 };
    let value = Clip::Value { clip_value: 0.5 };
    vec![
        Case::new("clip_grad_norm_", &[&[3, 4], &[5]], move |ins| call(norm, ins))
            .expect(by_norm)
            .without_derivative(),
        Case::new("clip_grad_value_", &[&[3, 4], &[5]], move |ins| call(value, ins))
            .expect(by_value)
            .without_derivative(),
    ]
}
