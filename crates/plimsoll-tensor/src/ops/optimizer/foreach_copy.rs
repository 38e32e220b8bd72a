//! Copies of many tensors in one call, such as gradients into a bucket.

use smallvec::SmallVec;

use crate::autograd::no_grad;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::suite::Case;
use crate::tensor::Tensor;

/// `to…, from… -> to…` in place.
#[derive(Clone, Copy, Debug)]
struct ForeachCopy;

impl Kernel for ForeachCopy {
    fn name(&self) -> &'static str {
        "foreach_copy_"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::optimizer::foreach_copy::foreach_copy(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        for (from, to) in call.ins.into_iter().zip(call.outs) {
            to.bytes().copy_from_slice(from.bytes());
        }
        Ok(())
    }
}

impl Operator for ForeachCopy {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let (to, from) = ins.split_at(ins.len() / 2);
        let pairs = to.iter().zip(from);
        if let Some((to, from)) =
            pairs.clone().find(|(to, from)| (to.shape(), to.dtype) != (from.shape(), from.dtype))
        {
            let message = format!(
                "{:?} of {} into {:?} of {}: both must have the same shape and type",
                from.shape(),
                from.dtype,
                to.shape(),
                to.dtype
            );
            return Err(Error::shape(self.name(), message));
        }
        Ok(pairs.enumerate().map(|(i, (to, _))| Output::in_place(i, to)).collect())
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// Copies each tensor of `from` into the one of `to` at the same place, all in one call. Like `torch._foreach_copy_`,
/// for tensors of the same shapes and types. The copies are not recorded for derivatives.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, op::foreach_copy_};
/// let bucket = Tensor::zeros(&[3], &Device::cpu())?;
/// let parts = [bucket.narrow(0, 0, 2)?, bucket.narrow(0, 2, 1)?];
/// let grads = [Tensor::ones(&[2], &Device::cpu())?, Tensor::ones(&[1], &Device::cpu())?];
/// foreach_copy_(&parts, &grads)?;
/// assert_eq!(bucket.to_vec::<f32>()?, [1.0; 3]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// Lists of different lengths, or tensors of different shapes or types; tensors on different devices; tensors of `to` that overlap.
pub fn foreach_copy_(to: &[Tensor], from: &[Tensor]) -> Result<()> {
    if to.len() != from.len() {
        let message =
            format!("{} tensors into {}: both lists must have the same length", from.len(), to.len());
        return Err(Error::argument("foreach_copy_", message));
    }
    if to.is_empty() {
        return Ok(());
    }
    let all: SmallVec<[&Tensor; 4]> = to.iter().chain(from).collect();
    no_grad(|| call(ForeachCopy, &all)).map(drop)
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 4] = [&[3, 4], &[5], &[3, 4], &[5]];
    vec![
        Case::new("foreach_copy_", &shapes, |ins| call(ForeachCopy, ins))
            .expect(|ins| ins[2..].to_vec())
            .without_derivative(),
    ]
}
