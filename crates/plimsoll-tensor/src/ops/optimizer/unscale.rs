//! Unscales the gradients of a scaled loss in place, and looks for values that are not finite: one call for all gradients.

use smallvec::SmallVec;

use crate::autograd::no_grad;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::unscale::scale_and_check;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::{want_float, want_same};
use crate::suite::Case;
use crate::tensor::Tensor;

/// `gradients… -> gradients…, found`: multiplies each by `factor` in place; `found` is 1 if any value was infinite or NaN.
#[derive(Clone, Copy, Debug)]
struct Unscale {
    factor: f64,
}

impl Kernel for Unscale {
    fn name(&self) -> &'static str {
        "unscale"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::optimizer::clip::unscale(call, self.factor)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let mut outs = call.outs;
        let Some(found) = outs.pop() else { unreachable!("inferred") };
        let mut any = false;
        for gradient in outs {
            by_float!(gradient.dtype(), T => {
                any |= scale_and_check(gradient.elements(), T::of(self.factor));
            });
        }
        found.elements()[0] = f32::from(u8::from(any));
        Ok(())
    }
}

impl Operator for Unscale {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [first, ..] = ins else { return Err(Error::argument("unscale", "needs a gradient")) };
        want_float("unscale", first.dtype)?;
        want_same("unscale", ins)?;
        let mut outputs: Outputs =
            ins.iter().enumerate().map(|(i, meta)| Output::in_place(i, meta)).collect();
        outputs.push(Output::new(&[], DType::F32));
        Ok(outputs)
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        match device.kind {
            DeviceKind::Cuda => cuda::optimizer::clip::scratch(ins.iter().map(|meta| meta.layout.len())),
            DeviceKind::Cpu => 0,
        }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// Multiplies gradients of one dtype by `factor`, in place. Returns 1 if any value was infinite or NaN, otherwise 0. Like
/// PyTorch's `_amp_foreach_non_finite_check_and_unscale_`; gradient scalers are built on it.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, unscale_};
/// let gradient = Tensor::from_slice(&[2.0f32, f32::INFINITY], &[2], &Device::cpu())?;
/// assert_eq!(unscale_(&[&gradient], 0.5)?.item::<f32>()?, 1.0);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// No gradient; different dtypes or dtypes that are not floating-point; two gradients that share
/// memory.
#[track_caller]
pub fn unscale_(gradients: &[&Tensor], factor: f64) -> Result<Tensor> {
    let mut outs = no_grad(|| call(Unscale { factor }, gradients))?;
    outs.pop().ok_or_else(|| Error::argument("unscale", "needs a gradient"))
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let run = |ins: &[&Tensor]| {
        let own = ins.iter().map(|x| x.copy()).collect::<Result<SmallVec<[Tensor; 2]>>>()?;
        call(Unscale { factor: 0.5 }, &own.iter().collect::<Vec<_>>())
    };
    let half = |x: &Vec<f64>| x.iter().map(|x| x / 2.0).collect::<Vec<_>>();
    vec![
        Case::new("unscale", &[&[3, 4], &[2]], run)
            .expect(move |ins| vec![half(&ins[0]), half(&ins[1]), vec![0.0]])
            .without_derivative(),
    ]
}
