//! The gradients of row normalization, computed by one operation: on a GPU, in one pass over the rows.

use smallvec::{SmallVec, smallvec};

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::reduce;
use crate::cpu::kernels::row_norm::{Center, Rows, row_norm_backward, row_norm_backward_scale};
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::error::Result;
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::tensor::Tensor;

/// `grad, x, rstd[, mean][, grad of the sum][, weight] -> [grad of x][, of weight][, of bias][, sum of the rows of the first]`.
#[derive(Clone, Copy, Debug)]
struct RowNormBackward {
    mean: bool,
    /// Whether the gradient of the sum is added to that of `x`.
    along: bool,
    wanted: [bool; 3],
    /// Whether the kernel also outputs the sum of the rows of the gradient of `x`.
    row_sum: bool,
}

/// Computes the required gradients of `x`, the weight and the bias. `kept` has each row's inverse deviation, and its mean if
/// that was subtracted. With `row_sum`, the sum of its rows is attached to the gradient of `x`, if it costs little.
#[track_caller]
pub(super) fn run(
    center: Center,
    grad: &Tensor,
    (x, kept): (&Tensor, &[Tensor]),
    along: Option<&Tensor>,
    weight: Option<&Tensor>,
    wanted: [bool; 3],
    row_sum: bool,
) -> Result<[Option<Tensor>; 3]> {
    // Only if a GPU's kernel computes sums anyway.
    let is_cuda = x.device().facts().kind == DeviceKind::Cuda;
    let row_sum = row_sum && is_cuda && wanted[0] && (wanted[1] || wanted[2]);
    let op = RowNormBackward {
        mean: center == Center::Mean,
        along: along.is_some() && wanted[0],
        wanted,
        row_sum,
    };
    let mut ins: SmallVec<[&Tensor; 6]> = smallvec![grad, x];
    ins.extend(kept);
    ins.extend(along.filter(|_| op.along));
    ins.extend(weight);
    let mut outs = call(op, &ins)?.into_iter();
    let grads = wanted.map(|wanted| if wanted { outs.next() } else { None });
    if let (Some(grad), Some(sum)) = (&grads[0], outs.next()) {
        grad.bring_row_sum(sum);
    }
    Ok(grads)
}

impl Kernel for RowNormBackward {
    fn name(&self) -> &'static str {
        if self.mean { "layer_norm_backward" } else { "rms_norm_backward" }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::normalization::row_norm::backward(call, self.mean, self.along, self.wanted, self.row_sum)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, x, rstd, rest @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let (mean, rest) = rest.split_at(usize::from(self.mean));
        let (along, weight) = rest.split_at(usize::from(self.along));
        let cols = x.shape().last().copied().unwrap_or(1);
        let mut outs = call.outs.into_iter();
        by_float!(x.dtype(), T => {
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let mean = mean.first().map(|mean| mean.elements::<T>());
            let of = Rows { cols, rstd: rstd.elements::<T>(), mean };
            if self.wanted[0] {
                let along = along.first().map(|along| along.elements());
                let weight = weight.first().map(|weight| weight.elements());
                row_norm_backward(&of, (grad.elements(), along), x.elements(), weight, next());
            }
            if self.wanted[1] {
                row_norm_backward_scale(&of, grad.elements(), x.elements(), next());
            }
            if self.wanted[2] {
                let rows = of.rstd.len();
                reduce::sum(&[rows, cols], grad.elements(), &[cols, 1], &[true, false], next());
            }
        });
        Ok(())
    }
}

impl Operator for RowNormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let (shape, dtype) = (ins[1].shape(), ins[1].dtype);
        let shapes =
            [shape, &shape[shape.len() - 1..], &shape[shape.len() - 1..]].into_iter().zip(self.wanted);
        let sum = self.row_sum.then(|| Output::new(&shape[shape.len() - 1..], dtype));
        let grads = shapes.filter(|(_, wanted)| *wanted).map(|(shape, _)| Output::new(shape, dtype));
        Ok(grads.chain(sum).collect())
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let (cols, rows) = (ins[1].shape().last().copied().unwrap_or(1), ins[2].layout.len());
        match device.kind {
            DeviceKind::Cuda if self.wanted[1] || self.wanted[2] => {
                cuda::normalization::row_norm::sums_scratch(rows, cols, ins[1].dtype, self.row_sum)
            }
            _ => 0,
        }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}
