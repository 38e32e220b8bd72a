//! Selects elements with one index per output: `gather`, and `take_along_dim`, which broadcasts.

use smallvec::smallvec;

use super::indices::{self, by_index, want_index};
use crate::cpu::kernels::index::{pick, put};
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::strided::fill;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `x, index -> out`, where `out` has the index's shape.
#[derive(Clone, Copy, Debug)]
struct Gather {
    dim: usize,
}

impl Kernel for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, index) = (call.ins[0], call.ins[1]);
        let strides = indices::without(x.layout.strides(), self.dim);
        let place = (&strides[..], x.layout.strides()[self.dim], x.shape()[self.dim]);
        cuda::indexing::index::pick(call, place, index.layout.strides())
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, index], [out]) = call.split();
        indices::check("gather", &index, self.dim, x.shape()[self.dim])?;
        if out.layout().is_empty() {
            return Ok(());
        }
        let strides = indices::without(x.strides(), self.dim);
        let step = x.strides()[self.dim];
        by_word!(x.dtype(), W => by_index!(index, index.strides(), at => {
            pick::<W, _>(index.shape(), (x.words(), &strides, step), at, out.words());
        }));
        Ok(())
    }
}

/// Fails unless an index fits a tensor of this shape in all dimensions except `dim`.
pub(in crate::ops) fn fits(op: &'static str, x: &[usize], index: &[usize], dim: usize) -> Result<()> {
    let inside = (0..x.len().min(index.len())).all(|d| d == dim || index[d] <= x[d]);
    if x.len() == index.len() && inside {
        return Ok(());
    }
    let message = format!(
        "an index {index:?} for {x:?} along dimension {dim}: needs the same number of dimensions, \
         and no other size larger than the tensor's"
    );
    Err(Error::shape(op, message))
}

impl Operator for Gather {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index] = operands::inputs("gather", ins)?;
        want_index("gather", index.dtype)?;
        fits("gather", x.shape(), index.shape(), self.dim)?;
        Ok(smallvec![Output::new(index.shape(), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost {
            flops: 0,
            bytes_read: outs[0].bytes() + ins[1].bytes(),
            bytes_written: outs[0].bytes(),
            ..Cost::default()
        }
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        Ok(smallvec![Some(grad.gather_backward(self.dim, &at.input(1)?, at.shape(0))?), None])
    }
}

/// `grad, index -> grad of x`: starts from zeros and adds each element at its index.
#[derive(Clone, Debug)]
struct GatherBackward {
    dim: usize,
    shape: Dims,
}

impl Kernel for GatherBackward {
    fn name(&self) -> &'static str {
        "gather_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (grad, index, out) = (call.ins[0], call.ins[1], call.outs[0]);
        let (shape, strides) = (index.shape(), index.layout.strides());
        let at = cuda::indexing::scatter::At { dim: self.dim, shape, index, strides };
        cuda::indexing::scatter::scatter_add(call, at, grad, cuda::indexing::scatter::Base::Zeros, out)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, index], [out]) = call.split();
        by_float!(grad.dtype(), T => {
            let (out, src) = (out.elements::<T>(), (grad.elements::<T>(), grad.strides()));
            fill(out, 0.0);
            by_index!(index, index.strides(), at => {
                put(index.shape(), self.dim, src, at, (out, &self.shape), |y, x| *y += x);
            });
        });
        Ok(())
    }
}

impl Operator for GatherBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, index] = operands::inputs("gather_backward", ins)?;
        operands::equal_shapes("gather_backward", &[grad, index])?;
        Ok(smallvec![Output::new(&self.shape, grad.dtype)])
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda {
            cuda::indexing::scatter::scratch(&self.shape, ins[0].dtype)
        } else {
            0
        }
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        Ok(smallvec![Some(call_one(Gather { dim: self.dim }, &[grad, &at.input(1)?])?), None])
    }
}

impl Tensor {
    /// `out[i][j] = self[index[i][j]][j]` along dimension 0, and likewise along other dimensions. The result has one
    /// element per index (`int64` or `int32`). Like `torch.gather`.
    ///
    /// # Errors
    /// If the dimension is out of range; if the index has a different number of dimensions, or is larger than this
    /// tensor in another dimension; if an index is outside the dimension; or if memory runs out.
    #[track_caller]
    pub fn gather(&self, dim: isize, index: impl AsRef<Tensor>) -> Result<Tensor> {
        let index = index.as_ref();
        if self.rank() == 0 && index.rank() == 0 {
            return self.unsqueeze(0)?.gather(dim, &index.unsqueeze(0)?)?.squeeze(0);
        }
        call_one(Gather { dim: dim_index("gather", dim, self.rank())? }, &[self, index])
    }

    /// [`Tensor::gather`], with the other dimensions of both tensors broadcast. Like `torch.take_along_dim`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::gather`], or if the shapes do not broadcast.
    #[track_caller]
    pub fn take_along_dim(&self, index: impl AsRef<Tensor>, dim: isize) -> Result<Tensor> {
        let index = index.as_ref();
        let at = dim_index("take_along_dim", dim, self.rank())?;
        if index.rank() != self.rank() {
            let message = format!(
                "an index {:?} for {:?}: needs the same number of dimensions",
                index.shape(),
                self.shape()
            );
            return Err(Error::shape("take_along_dim", message));
        }
        let (mut x, mut i) = (Dims::from_slice(self.shape()), Dims::from_slice(index.shape()));
        let (size, count) = (std::mem::replace(&mut x[at], 1), std::mem::replace(&mut i[at], 1));
        let shape = layout::broadcast("take_along_dim", &x, &i)?;
        let with = |size: usize| {
            let mut shape = shape.clone();
            shape[at] = size;
            shape
        };
        self.expand(&with(size))?.gather(dim, &index.expand(&with(count))?)
    }

    /// The derivative of `gather` and of other operators that select values by index along a dimension.
    #[track_caller]
    pub(in crate::ops) fn gather_backward(
        &self,
        dim: usize,
        index: &Tensor,
        shape: &[usize],
    ) -> Result<Tensor> {
        call_one(GatherBackward { dim, shape: shape.into() }, &[self, index])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let along = |dim: usize, shape: &'static [usize]| {
        let naive = move |ins: &[Vec<f64>]| {
            let cols = shape[1];
            let at = |i: usize| match dim {
                0 => ins[1][i] as usize * 4 + i % cols,
                _ => i / cols * 4 + ins[1][i] as usize,
            };
            vec![(0..ins[1].len()).map(|i| ins[0][at(i)]).collect()]
        };
        Case::new(format!("gather along {dim}"), &[&[3, 4]], move |ins| call(Gather { dim }, ins))
            .and(shape, DType::I64, Domain::Below(3))
            .expect(naive)
    };
    let back = GatherBackward { dim: 0, shape: Dims::from_slice(&[3, 4]) };
    vec![
        along(0, &[5, 3]),
        along(1, &[2, 6]),
        Case::new("gather_backward", &[&[2, 4]], move |ins| call(back.clone(), ins)).and(
            &[2, 4],
            DType::I64,
            Domain::Below(3),
        ),
        Case::new("take_along_dim", &[&[3, 1, 4]], |ins| Ok(smallvec![ins[0].take_along_dim(ins[1], 2)?]))
            .and(&[1, 2, 3], DType::I32, Domain::Below(4)),
    ]
}
