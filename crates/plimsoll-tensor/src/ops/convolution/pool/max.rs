//! Max pooling. Of each window it saves only the position of the maximum: one byte per output if the window has up to 256
//! elements, otherwise four. (PyTorch saves eight bytes, and the input.)

use smallvec::smallvec;

use super::spec::{Kind, Spec};
use crate::cpu::kernels::number::{by_float, by_number};
use crate::cpu::kernels::pool::max::{max_pool, max_pool_backward, max_pool_pick};
use crate::cuda::convolution::pool::MaxPass;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::shape::memory_format::MemoryFormat;
use crate::ops::{want_float, want_number};
use crate::tensor::{Grads, Tensor};

/// `x -> out, index`: the maximum of each window and its position in the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxPool(pub(super) Spec);

/// Keeps every dtype except 16-bit floats: the position in a window is a byte, and must stay one.
fn value_type(dtype: DType) -> DType {
    if dtype.is_float() { dtype.accumulator() } else { dtype }
}

/// The dtype of positions in a window.
fn index_type(places: usize) -> DType {
    if places <= 256 { DType::U8 } else { DType::I32 }
}

impl Kernel for MaxPool {
    fn name(&self) -> &'static str {
        match self.0.kind {
            Kind::Sliding(_) => self.0.name(["max_pool1d", "max_pool2d", "max_pool3d"]),
            Kind::Adaptive(_) => {
                self.0.name(["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"])
            }
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.ins[0];
        let shape = self.0.shape(self.name(), x.shape(), self.0.format(x.layout))?;
        cuda::convolution::pool::max_pool(call, MaxPass::Forward, &shape)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out, index]) = call.split();
        let shape = self.0.shape(self.name(), x.shape(), self.0.format(x.layout()))?;
        by_number!(x.dtype(), T => match index.dtype() {
            DType::U8 => max_pool::<T, u8>(&shape, x.elements(), out.elements(), index.elements()),
            _ => max_pool::<T, i32>(&shape, x.elements(), out.elements(), index.elements()),
        });
        Ok(())
    }
}

impl Operator for MaxPool {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        // The dtypes that PyTorch supports: integers in two and three dimensions.
        match self.0.kind {
            Kind::Sliding(_) if self.0.spatial > 1 => want_number(self.name(), x.dtype)?,
            _ => want_float(self.name(), x.dtype)?,
        }
        let format = self.0.format(x.layout);
        let shape = self.0.shape(self.name(), x.shape(), format)?;
        let layout = format.layout(&self.0.out_shape(x.shape(), &shape));
        let index = Output::laid_out(layout.clone(), index_type(shape.kernel()));
        Ok(smallvec![Output::laid_out(layout, x.dtype), index])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        self.0.takes(layout)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let shape = self.0.shape(self.name(), ins[0].shape(), MemoryFormat::Contiguous);
        let places = shape.map_or(1, |shape| shape.kernel());
        Cost::streaming((outs[0].layout.len() * places) as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let x: Dims = at.shape(0).into();
        Ok(smallvec![Some(to_input(self.0, x, grad, &at.output(1)?)?)])
    }
}

/// The gradient of the input, in the layout of the positions.
#[track_caller]
fn to_input(spec: Spec, x: Dims, grad: &Tensor, index: &Tensor) -> Result<Tensor> {
    let format = spec.format(&index.data().layout);
    call_one(
        MaxPoolBackward { spec, x, format },
        &[&grad.to_memory_format(format)?, &index.to_memory_format(format)?],
    )
}

/// `grad, index -> grad of x`.
#[derive(Clone, Debug)]
struct MaxPoolBackward {
    spec: Spec,
    x: Dims,
    format: MemoryFormat,
}

impl Kernel for MaxPoolBackward {
    fn name(&self) -> &'static str {
        self.spec.name(["max_pool1d_backward", "max_pool2d_backward", "max_pool3d_backward"])
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let shape = self.spec.shape(self.name(), &self.x, self.format)?;
        cuda::convolution::pool::max_pool(call, MaxPass::Backward, &shape)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, index], [out]) = call.split();
        let shape = self.spec.shape(self.name(), &self.x, self.format)?;
        by_float!(out.dtype(), T => {
            let (grad, out) = (grad.elements::<T>(), out.elements());
            match index.dtype() {
                DType::U8 => max_pool_backward::<T, u8>(&shape, grad, index.elements(), out),
                _ => max_pool_backward::<T, i32>(&shape, grad, index.elements(), out),
            }
        });
        Ok(())
    }
}

impl Operator for MaxPoolBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, _] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::laid_out(self.format.layout(&self.x), grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        self.format.fits(layout)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let pick = MaxPoolPick { spec: self.spec, x: self.x.clone(), format: self.format };
        let index = at.input(1)?.to_memory_format(self.format)?;
        Ok(smallvec![Some(call_one(pick, &[&grad.to_memory_format(self.format)?, &index])?), None])
    }
}

/// `x, index -> out`: the value at a position of each window. This is the derivative of max pooling's derivative.
#[derive(Clone, Debug)]
struct MaxPoolPick {
    spec: Spec,
    x: Dims,
    format: MemoryFormat,
}

impl Kernel for MaxPoolPick {
    fn name(&self) -> &'static str {
        "max_pool_pick"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let shape = self.spec.shape(self.name(), &self.x, self.format)?;
        cuda::convolution::pool::max_pool(call, MaxPass::Pick, &shape)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, index], [out]) = call.split();
        let shape = self.spec.shape(self.name(), &self.x, self.format)?;
        by_float!(x.dtype(), T => match index.dtype() {
            DType::U8 => max_pool_pick::<T, u8>(&shape, x.elements(), index.elements(), out.elements()),
            _ => max_pool_pick::<T, i32>(&shape, x.elements(), index.elements(), out.elements()),
        });
        Ok(())
    }
}

impl Operator for MaxPoolPick {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::laid_out(self.format.layout(index.shape()), x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        self.format.fits(layout)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        Ok(smallvec![Some(to_input(self.spec, self.x.clone(), grad, &at.input(1)?)?), None])
    }
}
