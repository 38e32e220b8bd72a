//! Average pooling. It saves nothing: its derivative only needs the sizes.

use smallvec::smallvec;

use super::spec::{Kind, Spec};
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::pool::average::{Divisor, avg_pool, avg_pool_backward};
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::shape::memory_format::MemoryFormat;
use crate::tensor::Grads;

/// `x -> out`: each window's mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct AvgPool {
    pub(super) spec: Spec,
    pub(super) divisor: Divisor,
}

impl Kernel for AvgPool {
    fn name(&self) -> &'static str {
        match self.spec.kind {
            Kind::Sliding(_) => self.spec.name(["avg_pool1d", "avg_pool2d", "avg_pool3d"]),
            Kind::Adaptive(_) => {
                self.spec.name(["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"])
            }
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.ins[0];
        let shape = self.spec.shape(self.name(), x.shape(), self.spec.format(x.layout))?;
        cuda::convolution::pool::avg_pool(call, false, &shape, self.divisor)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let shape = self.spec.shape(self.name(), x.shape(), self.spec.format(x.layout()))?;
        match x.dtype() {
            DType::I64 => avg_pool::<i64>(&shape, self.divisor, x.elements(), out.elements()),
            dtype => by_float!(dtype, T => avg_pool::<T>(&shape, self.divisor, x.elements(), out.elements())),
        }
        Ok(())
    }
}

impl Operator for AvgPool {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        // As in PyTorch, only sliding windows support means of integers.
        let is_sliding = matches!(self.spec.kind, Kind::Sliding(_));
        let has_means = x.dtype.is_float() || (x.dtype == DType::I64 && is_sliding);
        if !has_means {
            return Err(Error::DType { op: self.name(), expected: "a floating-point type", got: x.dtype });
        }
        let format = self.spec.format(x.layout);
        let shape = self.spec.shape(self.name(), x.shape(), format)?;
        let layout = format.layout(&self.spec.out_shape(x.shape(), &shape));
        Ok(smallvec![Output::laid_out(layout, x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        self.spec.takes(layout)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let shape = self.spec.shape(self.name(), ins[0].shape(), MemoryFormat::Contiguous);
        let places = shape.map_or(1, |shape| shape.kernel());
        Cost::streaming((outs[0].layout.len() * places) as u64, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let format = self.spec.format(&grad.data().layout);
        let op = AvgPoolBackward { of: *self, x: at.shape(0).into(), format };
        Ok(smallvec![Some(call_one(op, &[&grad.to_memory_format(format)?])?)])
    }
}

/// `grad -> grad of x`.
#[derive(Clone, Debug)]
struct AvgPoolBackward {
    of: AvgPool,
    x: Dims,
    format: MemoryFormat,
}

impl Kernel for AvgPoolBackward {
    fn name(&self) -> &'static str {
        self.of.spec.name(["avg_pool1d_backward", "avg_pool2d_backward", "avg_pool3d_backward"])
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let shape = self.of.spec.shape(self.name(), &self.x, self.format)?;
        cuda::convolution::pool::avg_pool(call, true, &shape, self.of.divisor)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad], [out]) = call.split();
        let shape = self.of.spec.shape(self.name(), &self.x, self.format)?;
        by_float!(out.dtype(), T => {
            avg_pool_backward::<T>(&shape, self.of.divisor, grad.elements(), out.elements());
        });
        Ok(())
    }
}

impl Operator for AvgPoolBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::laid_out(self.format.layout(&self.x), grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        self.format.fits(layout)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let grad = at.grad(0).map(|grad| call_one(self.of, &[grad]));
        Ok(smallvec![grad.transpose()?])
    }
}
