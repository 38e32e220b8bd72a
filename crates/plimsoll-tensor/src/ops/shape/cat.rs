//! Concatenates tensors along a dimension, and stacks them along a new one.

use smallvec::{SmallVec, smallvec};

use crate::caller::Entry;
use crate::cpu::kernels::strided::copy_strided;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, result_type};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::{borrowed, dim_index, want_dtype};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `parts -> whole`: concatenates along a dimension.
#[derive(Clone, Debug)]
struct Cat {
    name: &'static str,
    dim: usize,
    /// For each piece along the dimension, its size, and whether it is an input; otherwise it is zeros.
    pieces: SmallVec<[(usize, bool); 4]>,
}

/// A piece of a concatenation.
pub(super) enum Part<'a> {
    Given(&'a Tensor),
    Zeros(usize),
}

/// Concatenates the parts; `dim` must be below their rank, and there must be at least one tensor.
#[track_caller]
pub(super) fn cat_parts(name: &'static str, parts: &[Part<'_>], dim: usize) -> Result<Tensor> {
    let pieces = parts.iter().map(|part| match part {
        Part::Given(tensor) => (tensor.shape()[dim], true),
        Part::Zeros(size) => (*size, false),
    });
    let op = Cat { name, dim, pieces: pieces.collect() };
    let given: SmallVec<[&Tensor; 4]> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Given(tensor) => Some(*tensor),
            Part::Zeros(_) => None,
        })
        .collect();
    call_one(op, &given)
}

impl Kernel for Cat {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (out, given) = (call.outs[0], call.ins.clone());
        let (mut given, mut start) = (given.into_iter(), 0);
        for &(size, is_input) in &self.pieces {
            let layout = out.layout.narrow(self.dim, start, size);
            start += size;
            let to = out.part(&layout);
            match if is_input { given.next() } else { None } {
                Some(x) => cuda::elementwise::copy(call, x, to)?,
                None => cuda::elementwise::fill(call, 0.0, to)?,
            }
        }
        Ok(())
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let out = call.outs.remove(0);
        let (layout, mut given, mut start) = (out.layout(), call.ins.into_iter(), 0);
        by_word!(out.dtype(), W => {
            let out = out.words::<W>();
            for &(size, is_input) in &self.pieces {
                let place = layout.narrow(self.dim, start, size);
                start += size;
                let piece = if is_input { given.next() } else { None };
                if place.is_empty() {
                    continue;
                }
                let to = &mut out[place.offset()..place.end()];
                match piece {
                    Some(x) => copy_strided(x.shape(), x.words(), x.strides(), to, place.strides()),
                    None => {
                        let nowhere = Dims::from_elem(0, place.rank());
                        copy_strided(place.shape(), &[0], &nowhere, to, place.strides());
                    }
                }
            }
        });
        Ok(())
    }
}

impl Operator for Cat {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [first, rest @ ..] = ins else { return Err(Error::argument(self.name, "needs a tensor")) };
        for (i, other) in rest.iter().enumerate() {
            want_dtype(self.name, other.dtype, first.dtype)?;
            let fits = |(d, (a, b)): (usize, (&usize, &usize))| d == self.dim || a == b;
            let fits =
                other.rank() == first.rank() && first.shape().iter().zip(other.shape()).enumerate().all(fits);
            if !fits {
                let (number, a, b) = (i + 1, first.shape(), other.shape());
                let message = format!(
                    "tensor {number} is {b:?}, but tensor 0 is {a:?}: all sizes except that of dimension {} must be equal",
                    self.dim
                );
                return Err(Error::shape(self.name, message));
            }
        }
        let mut shape: Dims = first.shape().into();
        shape[self.dim] = self.pieces.iter().map(|piece| piece.0).sum();
        // The result is channels-last if all parts are.
        let alike = ins
            .iter()
            .all(|meta| meta.layout.dense().strides() == meta.layout.dense_as(meta.shape()).strides())
            && rest.iter().all(|meta| meta.layout.order() == first.layout.order());
        let layout = if alike { first.layout.dense_as(&shape) } else { Layout::contiguous(&shape) };
        Ok(smallvec![Output::laid_out(layout, first.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    /// The gradients are views of the output's gradient.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok((0..at.inputs()).map(|_| None).collect()) };
        let (mut grads, mut start) = (Grads::new(), 0);
        for &(size, is_input) in &self.pieces {
            if is_input {
                let wants = at.wants(grads.len());
                let part = wants.then(|| grad.narrow(self.dim as isize, start, size)).transpose()?;
                grads.push(part);
            }
            start += size;
        }
        Ok(grads)
    }
}

/// Converts tensors to their promoted dtype.
#[track_caller]
fn in_common_type(tensors: SmallVec<[Tensor; 4]>) -> Result<SmallVec<[Tensor; 4]>> {
    match result_type(tensors.iter().map(|x| (x.dtype(), true))) {
        Some(dtype) if tensors.iter().any(|x| x.dtype() != dtype) => {
            tensors.iter().map(|x| x.to_dtype(dtype)).collect()
        }
        _ => Ok(tensors),
    }
}

impl Tensor {
    /// Concatenates tensors along a dimension, in their promoted dtype. Empty vectors are allowed with any shape. Like
    /// `torch.cat`.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::arange(3, &Device::cpu())?;
    /// assert_eq!(Tensor::cat(&[&x, &x], 0)?.to_vec::<i64>()?, [0, 1, 2, 0, 1, 2]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are no tensors, the sizes differ in another dimension, or memory runs out.
    #[track_caller]
    pub fn cat(tensors: &[impl AsRef<Tensor>], dim: isize) -> Result<Tensor> {
        let _entry = Entry::here();
        let tensors = &borrowed(tensors)[..];
        let Some(&first) = tensors.first() else {
            return Err(Error::argument("cat", "an empty list: needs at least one tensor"));
        };
        let empty = |tensor: &Tensor| tensor.shape() == [0];
        let lead = tensors.iter().copied().find(|tensor| !empty(tensor)).unwrap_or(first);
        let dim = dim_index("cat", dim, lead.rank())?;
        let fit = |&tensor: &&Tensor| {
            if empty(tensor) && lead.rank() != 1 {
                // PyTorch allows empty vectors here because it once had no empty tensors of other shapes.
                let mut shape = Dims::from_slice(lead.shape());
                shape[dim] = 0;
                return tensor.reshape(shape.as_slice());
            }
            if tensor.rank() != lead.rank() {
                let (a, b) = (lead.shape(), tensor.shape());
                let message = format!("{a:?} and {b:?} must have the same number of dimensions");
                return Err(Error::shape("cat", message));
            }
            Ok(tensor.clone())
        };
        let tensors: SmallVec<[Tensor; 4]> = tensors.iter().map(fit).collect::<Result<_>>()?;
        let tensors = in_common_type(tensors)?;
        let parts: SmallVec<[Part<'_>; 4]> = tensors.iter().map(Part::Given).collect();
        cat_parts("cat", &parts, dim)
    }

    /// Stacks tensors of the same shape along a new dimension. Like `torch.stack`.
    ///
    /// # Errors
    /// If there are no tensors, the shapes differ, or memory runs out.
    #[track_caller]
    pub fn stack(tensors: &[impl AsRef<Tensor>], dim: isize) -> Result<Tensor> {
        let _entry = Entry::here();
        let tensors = &borrowed(tensors)[..];
        let Some(first) = tensors.first() else {
            return Err(Error::argument("stack", "an empty list: needs at least one tensor"));
        };
        let dim = dim_index("stack", dim, first.rank() + 1)?;
        if let Some(other) = tensors.iter().find(|tensor| tensor.shape() != first.shape()) {
            let (a, b) = (first.shape(), other.shape());
            return Err(Error::shape("stack", format!("{a:?} with {b:?}: the shapes must be equal")));
        }
        let wide = tensors.iter().map(|x| x.unsqueeze(dim as isize)).collect::<Result<_>>()?;
        let wide = in_common_type(wide)?;
        let parts: SmallVec<[Part<'_>; 4]> = wide.iter().map(Part::Given).collect();
        cat_parts("stack", &parts, dim)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let rows = |ins: &[Vec<f64>]| vec![ins.concat()];
    let columns = |ins: &[Vec<f64>]| {
        vec![(0..2).flat_map(|i| [&ins[0][i * 3..][..3], &ins[1][i * 2..][..2]].concat()).collect()]
    };
    let gap = Cat { name: "cat", dim: 1, pieces: smallvec![(3, true), (1, false), (2, true)] };
    vec![
        Case::new("cat along 0", &[&[1, 3], &[2, 3]], |ins| Ok(smallvec![Tensor::cat(ins, 0)?])).expect(rows),
        Case::new("cat along 1", &[&[2, 3], &[2, 2]], |ins| Ok(smallvec![Tensor::cat(ins, -1)?]))
            .expect(columns),
        Case::new("cat with a gap", &[&[2, 3], &[2, 2]], move |ins| call(gap.clone(), ins)),
        Case::new("stack", &[&[2, 3], &[2, 3]], |ins| Ok(smallvec![Tensor::stack(ins, 1)?])),
    ]
}
