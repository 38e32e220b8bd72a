//! Writes one value at an index, in a copy or in place: `scatter_value`, `index_fill`.

use smallvec::smallvec;

use super::gather::fits;
use super::indices::{self, by_index, want_index};
use super::scattered::{Form, Indexes};
use crate::cpu::kernels::index::put;
use crate::cpu::kernels::strided::copy_strided;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, Element, by_dtype};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Outputs, Saves};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::tensor::{Grads, Tensor};

/// Copies the tensor, unless it is changed in place.
pub(super) fn copy_first<T: bytemuck::Pod + Send + Sync>(
    x: Option<(&[T], &[usize])>,
    shape: &[usize],
    out: &mut [T],
    strides: &[usize],
) {
    if let Some((x, x_strides)) = x {
        copy_strided(shape, x, x_strides, out, strides);
    }
}

/// `x, index -> out`: `x` with one value written at each index.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScatterValue {
    pub(super) dim: usize,
    pub(super) value: f64,
    pub(super) indexes: Indexes,
    pub(super) form: Form,
}

impl Kernel for ScatterValue {
    fn name(&self) -> &'static str {
        match (self.indexes, self.form) {
            (Indexes::Elements, Form::Copy) => "scatter",
            (Indexes::Elements, Form::InPlace) => "scatter_",
            (Indexes::Slices, Form::Copy) => "index_fill",
            (Indexes::Slices, Form::InPlace) => "index_fill_",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let (x, index) = match ins[..] {
            [x, index] => (Some(x), index),
            [index] => (None, index),
            _ => return call.missing(),
        };
        let shape = match self.indexes {
            Indexes::Elements => Dims::from_slice(index.shape()),
            Indexes::Slices => {
                let mut shape = Dims::from_slice(out.shape());
                shape[self.dim] = index.len();
                shape
            }
        };
        let strides = self.indexes.strides(&index, out.shape().len(), self.dim);
        let at = cuda::indexing::scatter::At { dim: self.dim, shape: &shape, index, strides: &strides };
        if let Some(x) = x {
            cuda::elementwise::copy(call, x, out)?;
        }
        cuda::indexing::scatter::scatter(
            call,
            cuda::indexing::scatter::Change::Set(self.value),
            at,
            None,
            out,
        )
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let out = call.outs.pop().unwrap_or_else(|| unreachable!("inferred"));
        let (x, [index]) = self.form.split(call.ins);
        let (dim, layout) = (self.dim, out.layout().clone());
        let shape = layout.shape();
        indices::check(self.name(), &index, dim, shape[dim])?;
        let (places, strides) = match self.indexes {
            Indexes::Elements => (Dims::from_slice(index.shape()), Dims::from_slice(index.strides())),
            Indexes::Slices => {
                let mut places = Dims::from_slice(shape);
                places[dim] = index.layout().len();
                (places, indices::along(shape.len(), dim, indices::vector_stride(&index)))
            }
        };
        let nowhere = Dims::from_elem(0, shape.len());
        by_dtype!(out.dtype(), T => {
            let out = out.elements();
            copy_first(x.as_ref().map(|x| (x.elements(), x.strides())), shape, out, layout.strides());
            let value = T::from_f64(self.value).to_stored();
            let src = (&[value][..], &nowhere[..]);
            by_index!(index, &strides, at => put(&places, dim, src, at, (out, shape), |y, x| *y = x));
        });
        Ok(())
    }
}

impl Operator for ScatterValue {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index] = operands::inputs(self.name(), ins)?;
        want_index(self.name(), index.dtype)?;
        match self.indexes {
            Indexes::Elements => fits(self.name(), x.shape(), index.shape(), self.dim)?,
            Indexes::Slices => drop(indices::vector_len(self.name(), &index)?),
        }
        Ok(self.form.outputs(&x))
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        self.form.takes(input, layout)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let zeros = ScatterValue { value: 0.0, form: Form::Copy, ..*self };
        Ok(smallvec![Some(call_one(zeros, &[grad, &at.input(1)?])?), None])
    }
}

impl Tensor {
    /// Returns a copy with one value written at each index. Like `torch.scatter` with a number.
    ///
    /// # Errors
    /// The errors of [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_value(&self, dim: isize, index: impl AsRef<Tensor>, value: f64) -> Result<Tensor> {
        let index = index.as_ref();
        let dim = dim_index("scatter", dim, self.rank())?;
        call_one(ScatterValue { dim, value, indexes: Indexes::Elements, form: Form::Copy }, &[self, index])
    }

    /// Returns a copy with one value in the selected slices of a dimension. Like `torch.index_fill`.
    ///
    /// # Errors
    /// The errors of [`Tensor::index_add`].
    #[track_caller]
    pub fn index_fill(&self, dim: isize, index: impl AsRef<Tensor>, value: f64) -> Result<Tensor> {
        let index = index.as_ref();
        let dim = dim_index("index_fill", dim, self.rank())?;
        call_one(ScatterValue { dim, value, indexes: Indexes::Slices, form: Form::Copy }, &[self, index])
    }

    /// [`Tensor::scatter_value`] in place.
    ///
    /// # Errors
    /// The errors of [`Tensor::scatter`] and [`Tensor::add_`].
    #[track_caller]
    pub fn scatter_value_(&self, dim: isize, index: impl AsRef<Tensor>, value: f64) -> Result<()> {
        let index = index.as_ref();
        let dim = dim_index("scatter_", dim, self.rank())?;
        let op = ScatterValue { dim, value, indexes: Indexes::Elements, form: Form::InPlace };
        call(op, &[self, index]).map(drop)
    }

    /// [`Tensor::index_fill`] in place.
    ///
    /// # Errors
    /// The errors of [`Tensor::index_add`] and [`Tensor::add_`].
    #[track_caller]
    pub fn index_fill_(&self, dim: isize, index: impl AsRef<Tensor>, value: f64) -> Result<()> {
        let index = index.as_ref();
        let dim = dim_index("index_fill_", dim, self.rank())?;
        let op = ScatterValue { dim, value, indexes: Indexes::Slices, form: Form::InPlace };
        call(op, &[self, index]).map(drop)
    }
}
