//! Selects slices along a dimension with a vector of indices, and rows of an embedding table with a tensor of indices.

use smallvec::smallvec;

use super::indices::{self, by_index, vector_len, vector_stride, want_index};
use crate::cpu::kernels::index::{pick, put};
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::strided::{copy_strided, fill};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `x, index -> out`: selects slices of a dimension.
#[derive(Clone, Copy, Debug)]
struct IndexSelect {
    dim: usize,
}

impl Kernel for IndexSelect {
    fn name(&self) -> &'static str {
        "index_select"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, index, rank) = (call.ins[0], call.ins[1], call.outs[0].shape().len());
        let stride = index.layout.strides().first().copied().unwrap_or(1);
        let x_strides = indices::without(x.layout.strides(), self.dim);
        let place = (x.shape()[self.dim], x.layout.strides()[self.dim]);
        cuda::indexing::index::pick(
            call,
            (&x_strides, place.1, place.0),
            &indices::along(rank, self.dim, stride),
        )
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, index], [out]) = call.split();
        indices::check("index_select", &index, self.dim, x.shape()[self.dim])?;
        if out.layout().is_empty() {
            return Ok(());
        }
        let (shape, step) = (out.shape(), x.strides()[self.dim]);
        let (x_strides, index_strides) = (
            indices::without(x.strides(), self.dim),
            indices::along(shape.len(), self.dim, vector_stride(&index)),
        );
        by_word!(x.dtype(), W => by_index!(index, &index_strides, at => {
            pick::<W, _>(shape, (x.words(), &x_strides, step), at, out.words());
        }));
        Ok(())
    }
}

impl Operator for IndexSelect {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index] = operands::inputs("index_select", ins)?;
        let mut shape = Dims::from_slice(x.shape());
        shape[self.dim] = vector_len("index_select", &index)?;
        Ok(smallvec![Output::new(&shape, x.dtype)])
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
        let op = AddSlices {
            name: "index_select_backward",
            dim: self.dim,
            shape: at.shape(0).into(),
            skipped: None,
        };
        Ok(smallvec![Some(call_one(op, &[grad, &at.input(1)?])?), None])
    }
}

/// `weight, index -> out`: a row of the table for each index.
#[derive(Clone, Copy, Debug)]
struct Embedding {
    /// The index of the row that gets no gradient.
    padding: Option<usize>,
}

impl Kernel for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (weight, index) = (call.ins[0], call.ins[1]);
        let mut x_strides = Dims::from_elem(0, index.shape().len());
        x_strides.push(weight.layout.strides()[1]);
        let mut index_strides = Dims::from_slice(index.layout.strides());
        index_strides.push(0);
        cuda::indexing::index::pick(
            call,
            (&x_strides, weight.layout.strides()[0], weight.shape()[0]),
            &index_strides,
        )
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([weight, index], [out]) = call.split();
        indices::check("embedding", &index, 0, weight.shape()[0])?;
        if out.layout().is_empty() {
            return Ok(());
        }
        let mut x_strides = Dims::from_elem(0, index.shape().len());
        x_strides.push(weight.strides()[1]);
        let mut index_strides = Dims::from_slice(index.strides());
        index_strides.push(0);
        let (shape, step) = (out.shape(), weight.strides()[0]);
        by_word!(weight.dtype(), W => by_index!(index, &index_strides, at => {
            pick::<W, _>(shape, (weight.words(), &x_strides, step), at, out.words());
        }));
        Ok(())
    }
}

impl Operator for Embedding {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [weight, index] = operands::inputs("embedding", ins)?;
        want_index("embedding", index.dtype)?;
        let &[_, width] = weight.shape() else {
            let message = format!("a weight {:?}: needs [rows, width]", weight.shape());
            return Err(Error::shape("embedding", message));
        };
        let mut shape = Dims::from_slice(index.shape());
        shape.push(width);
        Ok(smallvec![Output::new(&shape, weight.dtype)])
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
        let (index, shape) = (at.input(1)?, Dims::from_slice(at.shape(0)));
        let rows = grad.reshape([index.numel(), shape[1]].as_slice())?;
        let op = AddSlices { name: "embedding_backward", dim: 0, shape, skipped: self.padding };
        Ok(smallvec![Some(call_one(op, &[&rows, &index.reshape(&[-1])?])?), None])
    }
}

/// `slices, index -> whole`: starts from zeros and adds each slice at its index, in order.
#[derive(Clone, Debug)]
struct AddSlices {
    name: &'static str,
    dim: usize,
    shape: Dims,
    /// The index whose slices are skipped.
    skipped: Option<usize>,
}

impl Kernel for AddSlices {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::index::add_slices(call, self.dim, self.skipped)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([src, index], [out]) = call.split();
        let layout = out.layout();
        let strides = indices::along(self.shape.len(), self.dim, vector_stride(&index));
        by_float!(src.dtype(), T => {
            let (out, slices) = (out.elements::<T>(), (src.elements::<T>(), src.strides()));
            fill(out, 0.0);
            by_index!(index, &strides, at => {
                put(src.shape(), self.dim, slices, at, (out, &self.shape), |y, x| *y += x);
            });
            if let Some(skipped) = self.skipped {
                let place = layout.narrow(self.dim, skipped, 1);
                let nowhere = Dims::from_elem(0, place.rank());
                let out = &mut out[place.offset()..place.end()];
                copy_strided(place.shape(), &[0.0], &nowhere, out, place.strides());
            }
        });
        Ok(())
    }
}

impl Operator for AddSlices {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [src, index] = operands::inputs(self.name, ins)?;
        vector_len(self.name, &index)?;
        Ok(smallvec![Output::new(&self.shape, src.dtype)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input == 0 || layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda {
            cuda::indexing::index::add_slices_scratch(ins[1].layout.len())
        } else {
            0
        }
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let (index, dim) = (at.input(1)?, self.dim as isize);
        let grad = match self.skipped {
            None => grad.clone(),
            Some(skipped) => {
                let skipped = Tensor::full(&[1], skipped as f64, DType::I64, grad.device())?;
                grad.index_fill(dim, &skipped, 0.0)?
            }
        };
        Ok(smallvec![Some(grad.index_select(dim, &index)?), None])
    }
}

impl Tensor {
    /// Selects slices along a dimension with a vector of indices (`int64` or `int32`). Like `torch.index_select`.
    ///
    /// # Errors
    /// If a dimension is out of range, an index is not a vector, an index is out of range, or memory runs out.
    #[track_caller]
    pub fn index_select(&self, dim: isize, index: impl AsRef<Tensor>) -> Result<Tensor> {
        let index = index.as_ref();
        call_one(IndexSelect { dim: dim_index("index_select", dim, self.rank())? }, &[self, index])
    }

    /// Selects a row of the table `weight [rows, width]` for each of these indices, which may have any shape: `[…, width]`. The
    /// row `padding_idx`, which counts from the end if negative, gets no gradient. The gradient is dense, and is always summed
    /// in the same order. Like `torch.nn.functional.embedding`.
    ///
    /// # Errors
    /// If the weight is not a matrix, an index is out of range, a padding index is out of range, or memory runs out.
    #[track_caller]
    pub fn embedding(
        &self,
        weight: impl AsRef<Tensor>,
        padding_idx: impl Into<Option<isize>>,
    ) -> Result<Tensor> {
        let padding_idx = padding_idx.into();
        let weight = weight.as_ref();
        let rows = weight.shape().first().copied().unwrap_or(0);
        let row = |at: isize| {
            let place = if at < 0 { at.checked_add_unsigned(rows) } else { Some(at) };
            place.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < rows).ok_or_else(|| {
                Error::argument("embedding", format!("padding index {at} is not one of {rows} rows"))
            })
        };
        call_one(Embedding { padding: padding_idx.map(row).transpose()? }, &[weight, self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let rows = |ins: &[Vec<f64>]| {
        vec![ins[1].iter().flat_map(|&row| ins[0][row as usize * 4..][..4].to_vec()).collect()]
    };
    let indexed = |case: Case, shape: &[usize]| case.and(shape, DType::I64, Domain::Below(3));
    let select =
        |dim: usize| Case::new("index_select", &[&[3, 4]], move |ins| call(IndexSelect { dim }, ins));
    let embedding = |padding: Option<usize>| {
        Case::new("embedding", &[&[3, 4]], move |ins| call(Embedding { padding }, ins))
    };
    let shape = Dims::from_slice(&[3, 4]);
    let add = AddSlices { name: "embedding_backward", dim: 0, shape, skipped: Some(1) };
    let add = Case::new("embedding_backward", &[&[5, 4]], move |ins| call(add.clone(), ins));
    vec![
        indexed(select(0), &[5]).expect(rows),
        indexed(select(1), &[5]),
        indexed(embedding(None), &[2, 3]).expect(rows),
        indexed(add, &[5]),
    ]
}
