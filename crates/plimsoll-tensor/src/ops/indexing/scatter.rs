//! Writes or adds elements at an index, in a copy or in place: `scatter`, `scatter_add`, `index_add`, `index_copy`.

use smallvec::smallvec;

use super::gather::fits;
use super::indices::{self, by_index, want_index};
use super::scatter_value::{ScatterValue, copy_first};
use super::scattered::{Change, Form, Indexes};
use crate::cpu::kernels::index::put;
use crate::cpu::kernels::number::by_float;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, want_dtype};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `x, index, src -> out`: `x` with each element of `src` written at its index along a dimension. If several elements
/// have the same target, either the last one wins, or all are added in their order along the dimension.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    dim: usize,
    change: Change,
    indexes: Indexes,
    form: Form,
}

impl Kernel for Scatter {
    fn name(&self) -> &'static str {
        match (self.change, self.indexes, self.form) {
            (Change::Replace, Indexes::Elements, Form::Copy) => "scatter",
            (Change::Replace, Indexes::Elements, Form::InPlace) => "scatter_",
            (Change::Add, Indexes::Elements, Form::Copy) => "scatter_add",
            (Change::Add, Indexes::Elements, Form::InPlace) => "scatter_add_",
            (Change::Replace, Indexes::Slices, Form::Copy) => "index_copy",
            (Change::Replace, Indexes::Slices, Form::InPlace) => "index_copy_",
            (Change::Add, Indexes::Slices, Form::Copy) => "index_add",
            (Change::Add, Indexes::Slices, Form::InPlace) => "index_add_",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        if self.change == Change::Replace { dtype } else { dtype.accumulator() }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let (x, [index, src]) = match ins[..] {
            [x, index, src] => (Some(x), [index, src]),
            [index, src] => (None, [index, src]),
            _ => return call.missing(),
        };
        let strides = self.indexes.strides(&index, out.shape().len(), self.dim);
        let at = cuda::indexing::scatter::At { dim: self.dim, shape: src.shape(), index, strides: &strides };
        if self.change == Change::Add {
            let before = x.map_or(cuda::indexing::scatter::Base::Own, cuda::indexing::scatter::Base::Of);
            return cuda::indexing::scatter::scatter_add(call, at, src, before, out);
        }
        if let Some(x) = x {
            cuda::elementwise::copy(call, x, out)?;
        }
        cuda::indexing::scatter::scatter(call, cuda::indexing::scatter::Change::Replace, at, Some(src), out)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let out = call.outs.pop().unwrap_or_else(|| unreachable!("inferred"));
        let (x, [index, src]) = self.form.split(call.ins);
        let (dim, layout, dtype) = (self.dim, out.layout().clone(), out.dtype());
        let shape = layout.shape();
        indices::check(self.name(), &index, dim, shape[dim])?;
        let strides = match self.indexes {
            Indexes::Elements => Dims::from_slice(index.strides()),
            Indexes::Slices => indices::along(shape.len(), dim, indices::vector_stride(&index)),
        };
        let (src_shape, src_strides) = (src.shape(), src.strides());
        match self.change {
            Change::Replace => by_word!(dtype, W => {
                let (out, src) = (out.words::<W>(), (src.words::<W>(), src_strides));
                copy_first(x.as_ref().map(|x| (x.words(), x.strides())), shape, out, layout.strides());
                by_index!(index, &strides, at => put(src_shape, dim, src, at, (out, shape), |y, x| *y = x));
            }),
            Change::Add if dtype == DType::I64 => {
                let (out, src) = (out.elements::<i64>(), (src.elements::<i64>(), src_strides));
                copy_first(x.as_ref().map(|x| (x.elements(), x.strides())), shape, out, layout.strides());
                let add = |y: &mut i64, x: i64| *y = y.wrapping_add(x);
                by_index!(index, &strides, at => put(src_shape, dim, src, at, (out, shape), add));
            }
            Change::Add => by_float!(dtype, T => {
                let (out, src) = (out.elements::<T>(), (src.elements::<T>(), src_strides));
                copy_first(x.as_ref().map(|x| (x.elements(), x.strides())), shape, out, layout.strides());
                by_index!(index, &strides, at => put(src_shape, dim, src, at, (out, shape), |y, x| *y += x));
            }),
        }
        Ok(())
    }
}

impl Operator for Scatter {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index, src] = operands::inputs(self.name(), ins)?;
        want_index(self.name(), index.dtype)?;
        want_dtype(self.name(), src.dtype, x.dtype)?;
        match self.indexes {
            Indexes::Elements => {
                fits(self.name(), x.shape(), index.shape(), self.dim)?;
                operands::equal_shapes(self.name(), &[index, src])?;
            }
            Indexes::Slices => {
                let len = indices::vector_len(self.name(), &index)?;
                let mut expected = Dims::from_slice(x.shape());
                expected[self.dim] = len;
                if src.shape() != expected.as_slice() {
                    let message = format!(
                        "a source {:?} for {:?} with {len} indices along dimension {}: needs {expected:?}",
                        src.shape(),
                        x.shape(),
                        self.dim
                    );
                    return Err(Error::shape(self.name(), message));
                }
            }
        }
        Ok(self.form.outputs(&x))
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        self.form.takes(input, layout)
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        match self.change == Change::Add && device.kind == DeviceKind::Cuda {
            true => cuda::indexing::scatter::scratch(ins[0].shape(), ins[0].dtype),
            false => 0,
        }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(if self.change == Change::Add { ins[2].layout.len() as u64 } else { 0 }, ins, outs)
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(1).only_if(wanted[2] || self.change == Change::Replace)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let dim = self.dim as isize;
        let to_x = || match self.change {
            Change::Add => Ok(grad.clone()),
            Change::Replace => {
                let zeros =
                    ScatterValue { dim: self.dim, value: 0.0, indexes: self.indexes, form: Form::Copy };
                call_one(zeros, &[grad, &at.input(1)?])
            }
        };
        let to_src = || match self.indexes {
            Indexes::Elements => grad.gather(dim, &at.input(1)?),
            Indexes::Slices => grad.index_select(dim, &at.input(1)?),
        };
        Ok(smallvec![at.wants(0).then(to_x).transpose()?, None, at.wants(2).then(to_src).transpose()?])
    }
}

impl Tensor {
    /// Returns a copy with `src[i][j]` written at `[index[i][j]][j]`, along dimension 0, and likewise along others. If several
    /// elements have the same target, the last along the dimension wins. `src` may be larger than the index. Like
    /// `torch.scatter`.
    ///
    /// # Errors
    /// A dimension out of range; an index with another number of dimensions, or larger than `src`, or larger than this tensor
    /// in another dimension; different dtypes; an index out of range; out of memory.
    #[track_caller]
    pub fn scatter(&self, dim: isize, index: impl AsRef<Tensor>, src: impl AsRef<Tensor>) -> Result<Tensor> {
        let (index, src) = (index.as_ref(), src.as_ref());
        self.put(dim, index, src, Change::Replace, Form::Copy)
    }

    /// Returns a copy with `src[i][j]` added at `[index[i][j]][j]` along dimension 0, and likewise along other
    /// dimensions. The order of addition is always the same. Like `torch.scatter_add`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_add(
        &self,
        dim: isize,
        index: impl AsRef<Tensor>,
        src: impl AsRef<Tensor>,
    ) -> Result<Tensor> {
        let (index, src) = (index.as_ref(), src.as_ref());
        self.put(dim, index, src, Change::Add, Form::Copy)
    }

    /// Returns a copy to which each slice of `src` along a dimension is added at its index. Like `torch.index_add`.
    ///
    /// # Errors
    /// If the dimension is out of range, the index is not a vector with one element for each slice, an index is out of
    /// range, the dtypes differ, or memory runs out.
    #[track_caller]
    pub fn index_add(
        &self,
        dim: isize,
        index: impl AsRef<Tensor>,
        src: impl AsRef<Tensor>,
    ) -> Result<Tensor> {
        let (index, src) = (index.as_ref(), src.as_ref());
        let dim = dim_index("index_add", dim, self.rank())?;
        call_one(
            Scatter { dim, change: Change::Add, indexes: Indexes::Slices, form: Form::Copy },
            &[self, index, src],
        )
    }

    /// Returns a copy with the slices of `src` along a dimension written, each at its index. Like `torch.index_copy`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::index_add`].
    #[track_caller]
    pub fn index_copy(
        &self,
        dim: isize,
        index: impl AsRef<Tensor>,
        src: impl AsRef<Tensor>,
    ) -> Result<Tensor> {
        let (index, src) = (index.as_ref(), src.as_ref());
        let dim = dim_index("index_copy", dim, self.rank())?;
        call_one(
            Scatter { dim, change: Change::Replace, indexes: Indexes::Slices, form: Form::Copy },
            &[self, index, src],
        )
    }

    /// [`Tensor::scatter`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::scatter`] and [`Tensor::add_`].
    #[track_caller]
    pub fn scatter_(&self, dim: isize, index: impl AsRef<Tensor>, src: impl AsRef<Tensor>) -> Result<()> {
        let (index, src) = (index.as_ref(), src.as_ref());
        self.put(dim, index, src, Change::Replace, Form::InPlace).map(drop)
    }

    /// [`Tensor::scatter_add`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::scatter`] and [`Tensor::add_`].
    #[track_caller]
    pub fn scatter_add_(&self, dim: isize, index: impl AsRef<Tensor>, src: impl AsRef<Tensor>) -> Result<()> {
        let (index, src) = (index.as_ref(), src.as_ref());
        self.put(dim, index, src, Change::Add, Form::InPlace).map(drop)
    }

    /// [`Tensor::index_add`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::index_add`] and [`Tensor::add_`].
    #[track_caller]
    pub fn index_add_(&self, dim: isize, index: impl AsRef<Tensor>, src: impl AsRef<Tensor>) -> Result<()> {
        let (index, src) = (index.as_ref(), src.as_ref());
        let dim = dim_index("index_add_", dim, self.rank())?;
        let op = Scatter { dim, change: Change::Add, indexes: Indexes::Slices, form: Form::InPlace };
        call(op, &[self, index, src]).map(drop)
    }

    /// [`Tensor::index_copy`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::index_add`] and [`Tensor::add_`].
    #[track_caller]
    pub fn index_copy_(&self, dim: isize, index: impl AsRef<Tensor>, src: impl AsRef<Tensor>) -> Result<()> {
        let (index, src) = (index.as_ref(), src.as_ref());
        let dim = dim_index("index_copy_", dim, self.rank())?;
        let op = Scatter { dim, change: Change::Replace, indexes: Indexes::Slices, form: Form::InPlace };
        call(op, &[self, index, src]).map(drop)
    }

    #[track_caller]
    fn put(&self, dim: isize, index: &Tensor, src: &Tensor, change: Change, form: Form) -> Result<Tensor> {
        let op = Scatter { dim: 0, change, indexes: Indexes::Elements, form };
        let op = Scatter { dim: dim_index(op.name(), dim, self.rank())?, ..op };
        if src.rank() != index.rank() || src.shape().iter().zip(index.shape()).any(|(src, index)| index > src)
        {
            let (index, src) = (index.shape(), src.shape());
            let message =
                format!("an index {index:?} for a source {src:?}: no size may be larger than the source's");
            return Err(Error::shape(op.name(), message));
        }
        let src = (0..src.rank()).try_fold(src.clone(), |src, dim| match index.shape()[dim] {
            size if size == src.shape()[dim] => Ok(src),
            size => src.narrow(dim as isize, 0, size),
        })?;
        call_one(op, &[self, index, &src])
    }
}

/// Cases for the conformance suite. Where several elements replace the same one, the derivative is PyTorch's (each gets
/// that element's gradient), which finite differences do not confirm. So the indices here are distinct.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |op: Scatter, ins: &[Vec<f64>], index: &[f64]| {
        let mut out = ins[0].clone();
        for (i, &index) in index.iter().enumerate() {
            let at = if op.dim == 0 { index as usize * 4 + i % 2 } else { i / 2 * 4 + index as usize };
            out[at] = ins[1][i] + if op.change == Change::Add { out[at] } else { 0.0 };
        }
        vec![out]
    };
    let op =
        |dim: usize, change: Change, indexes: Indexes| Scatter { dim, change, indexes, form: Form::Copy };
    let index = |values: &[i64], shape: &[usize], x: &Tensor| Tensor::from_slice(values, shape, x.device());
    let replace = op(0, Change::Replace, Indexes::Elements);
    let places = [2i64, 0, 0, 1, 1, 2];
    let copy = op(1, Change::Replace, Indexes::Slices);
    let add = op(1, Change::Add, Indexes::Elements);
    let add_slices = op(1, Change::Add, Indexes::Slices);
    let value = |indexes: Indexes, shape: &[usize]| {
        let op = ScatterValue { dim: 0, value: 2.5, indexes, form: Form::Copy };
        Case::new(format!("{} of a value", op.name()), &[&[3, 4]], move |ins| call(op, ins)).and(
            shape,
            DType::I64,
            Domain::Below(3),
        )
    };
    vec![
        Case::new("scatter", &[&[3, 4], &[3, 2]], move |ins| {
            call(replace, &[ins[0], &index(&places, &[3, 2], ins[0])?, ins[1]])
        })
        .expect(move |ins| naive(replace, ins, &places.map(|at| at as f64))),
        Case::new("index_copy", &[&[3, 4], &[3, 2]], move |ins| {
            call(copy, &[ins[0], &index(&[3, 1], &[2], ins[0])?, ins[1]])
        }),
        Case::new("scatter_add", &[&[3, 4], &[3, 2]], move |ins| call(add, &[ins[0], ins[2], ins[1]]))
            .and(&[3, 2], DType::I64, Domain::Below(3))
            .expect(move |ins| naive(add, ins, &ins[2])),
        Case::new("index_add", &[&[3, 4], &[3, 5]], move |ins| call(add_slices, &[ins[0], ins[2], ins[1]]))
            .and(&[5], DType::I32, Domain::Below(4)),
        value(Indexes::Elements, &[2, 3]),
        value(Indexes::Slices, &[2]),
    ]
}
