//! Reduces elements at an index: sum, mean, product, maximum, minimum. Like `torch.scatter_reduce`.
//!
//! Sums and means are composed of `scatter_add`; products and extremes have their own operator. Elements that tie for an
//! extreme share its gradient evenly, as in PyTorch.

use smallvec::smallvec;

use super::gather::fits;
use super::indices::{self, by_index, want_index};
use super::scattered::Form;
use crate::autograd::is_grad_enabled;
use crate::caller::Entry;
use crate::cpu::kernels::index::put;
use crate::cpu::kernels::number::{Number, by_number};
use crate::cpu::kernels::strided::copy_strided;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Cost, Meta, Operator, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, want_dtype, want_number};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

const NAME: &str = "scatter_reduce";

/// How elements with the same target are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their product.
    Prod,
    /// Their maximum.
    Amax,
    /// Their minimum.
    Amin,
}

/// How an element is combined with each element that is scattered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Largest,
    Smallest,
    Product,
}

/// `x, index, src -> out`: the maximum, minimum or product of each element and those scattered to it.
#[derive(Clone, Copy, Debug)]
struct ScatterFold {
    dim: usize,
    fold: Fold,
    include_self: bool,
}

impl Kernel for ScatterFold {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let &[x, index, src] = &call.ins[..] else { return call.missing() };
        let out = call.outs[0];
        cuda::elementwise::copy(call, x, out)?;
        let at = cuda::indexing::scatter::At {
            dim: self.dim,
            shape: src.shape(),
            index,
            strides: index.layout.strides(),
        };
        if !self.include_self {
            // First overwrite each target with one of its elements, or with 1 for a product: the old values do not count.
            let (first, from) = match self.fold {
                Fold::Product => (cuda::indexing::scatter::Change::Set(1.0), None),
                _ => (cuda::indexing::scatter::Change::Replace, Some(src)),
            };
            cuda::indexing::scatter::scatter(call, first, at, from, out)?;
        }
        let change = match self.fold {
            Fold::Largest => cuda::indexing::scatter::Change::Larger,
            Fold::Smallest => cuda::indexing::scatter::Change::Smaller,
            Fold::Product => cuda::indexing::scatter::Change::Multiply,
        };
        cuda::indexing::scatter::scatter(call, change, at, Some(src), out)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let out = call.outs.pop().unwrap_or_else(|| unreachable!("inferred"));
        let (x, [index, src]) = Form::Copy.split(call.ins);
        let x = x.unwrap_or_else(|| unreachable!("inferred"));
        let (dim, layout, fold) = (self.dim, out.layout().clone(), self.fold);
        let shape = layout.shape();
        indices::check(NAME, &index, dim, shape[dim])?;
        let src_shape = src.shape();
        by_number!(out.dtype(), T => {
            let (out, from) = (out.elements::<T>(), (src.elements::<T>(), src.strides()));
            copy_strided(shape, x.elements::<T>(), x.strides(), out, layout.strides());
            if !self.include_self {
                // First set each target to one of its elements, or to 1 for a product: its old value does not count.
                let first = |y: &mut T, x: T| *y = if fold == Fold::Product { T::ONE } else { x };
                by_index!(index, index.strides(), at => put(src_shape, dim, from, at, (out, shape), first));
            }
            // NaN wins, as in PyTorch.
            let change = |y: &mut T, x: T| {
                let wins = match fold {
                    Fold::Largest => x > *y,
                    Fold::Smallest => x < *y,
                    Fold::Product => {
                        *y = y.times_plus(x, T::default());
                        return;
                    }
                };
                if wins || x.is_nan() {
                    *y = x;
                }
            };
            by_index!(index, index.strides(), at => put(src_shape, dim, from, at, (out, shape), change));
        });
        Ok(())
    }
}

impl Operator for ScatterFold {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index, src] = operands::inputs(NAME, ins)?;
        want_number(NAME, x.dtype)?;
        want_index(NAME, index.dtype)?;
        want_dtype(NAME, src.dtype, x.dtype)?;
        fits(NAME, x.shape(), index.shape(), self.dim)?;
        operands::equal_shapes(NAME, &[index, src])?;
        Ok(Form::Copy.outputs(&x))
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[2].layout.len() as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::input(1)).and(Saves::input(2)).and(Saves::output(0))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let (x, index, src, out) = (at.input(0)?, at.input(1)?, at.input(2)?, at.output(0)?);
        let dim = self.dim as isize;
        if self.fold == Fold::Product {
            return self.of_product(at, grad, [&x, &index, &src, &out]);
        }
        let [x, src, out] = [x, src, out].map(|x| x.detach());
        let of_x = x.eq(&out)?.to_dtype(grad.dtype())?;
        let of_src = src.eq(&out.gather(dim, &index)?)?.to_dtype(grad.dtype())?;
        let shares = of_x.scatter_add(dim, &index, &of_src)?;
        // A target that no element equals is NaN, and has no gradient.
        let share = grad.div(&shares.clamp_min(1.0)?)?;
        // As in PyTorch, the old element takes a share even if it is not included; in that case it gets no gradient.
        let to_x = || match self.include_self {
            true => of_x.mul(&share),
            false => of_x.mul(&share)?.scatter_value(dim, &index, 0.0),
        };
        let to_src = || of_src.mul(&share.gather(dim, &index)?);
        Ok(smallvec![at.wants(0).then(to_x).transpose()?, None, at.wants(2).then(to_src).transpose()?])
    }
}

impl ScatterFold {
    /// The gradients of the factors are the product divided by each factor. If one factor is 0, its gradient is the
    /// product of the others. If several are 0, all gradients are 0, but second derivatives are not; those are an
    /// error, as in PyTorch.
    fn of_product(
        &self,
        at: &Backward<'_>,
        grad: &Tensor,
        [x, index, src, out]: [&Tensor; 4],
    ) -> Result<Grads> {
        let dim = self.dim as isize;
        let product = |x: &Tensor, src: &Tensor| call_one(*self, &[x, index, src]);
        let to_x = || {
            let masked = x.masked_fill(&x.detach().eq_scalar(0.0)?, 1.0)?;
            let to_x = grad.mul(&product(&masked, src)?)?.div(&masked)?;
            if self.include_self { Ok(to_x) } else { to_x.scatter_value(dim, index, 0.0) }
        };
        let to_src = || {
            let zero = src.detach().eq_scalar(0.0)?;
            let zeros = x.zeros_like()?.detach().scatter_add(dim, index, &zero.to_dtype(src.dtype())?)?;
            let zeros = zeros.gather(dim, index)?;
            if is_grad_enabled()
                && src.device().has_values()
                && zeros.gt_scalar(1.0)?.any()?.item::<bool>()?
            {
                let message =
                    "a product has no second derivative here where more than one factor of a place is 0";
                return Err(Error::autograd(NAME, message));
            }
            let single = zero.logical_and(&zeros.eq_scalar(1.0)?)?;
            let others = product(x, &src.masked_fill(&single, 1.0)?)?;
            let of_single = grad.mul(&others)?.gather(dim, index)?;
            let of_rest = grad.mul(out)?.gather(dim, index)?.div(&src.masked_fill(&zero, 1.0)?)?;
            single.where_cond(&of_single, &of_rest)?.masked_fill(&zeros.gt_scalar(1.0)?, 0.0)
        };
        Ok(smallvec![at.wants(0).then(to_x).transpose()?, None, at.wants(2).then(to_src).transpose()?])
    }
}

impl Tensor {
    /// Returns a copy with `src[i][j]` reduced into `[index[i][j]][j]`, along dimension 0, and likewise along others. With
    /// `include_self`, the elements of this tensor are part of the reduction; without it, they are kept only where no index
    /// refers to them. `src` may be larger than the index. Like `torch.scatter_reduce`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, ScatterReduction, Tensor};
    /// let device = Device::cpu();
    /// let index = Tensor::from_slice(&[0i64, 2, 0, 2], &[4], &device)?;
    /// let src = Tensor::from_slice(&[1.0f32, 5.0, 3.0, 2.0], &[4], &device)?;
    /// let most = Tensor::zeros(&[3], &device)?.scatter_reduce(0, &index, &src, ScatterReduction::Amax, true)?;
    /// assert_eq!(most.to_vec::<f32>()?, [3.0, 0.0, 5.0]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Tensor::scatter`], or if the dtype is not numeric, or a mean is taken of integers.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: isize,
        index: impl AsRef<Tensor>,
        src: impl AsRef<Tensor>,
        reduction: ScatterReduction,
        include_self: bool,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (index, src) = (index.as_ref(), src.as_ref());
        let axis = dim_index(NAME, dim, self.rank())?;
        let start = || match include_self {
            true => Ok(self.clone()),
            false => self.scatter_value(dim, index, 0.0),
        };
        let folded = |fold: Fold| {
            let fits = src.rank() == index.rank();
            if !fits || src.shape().iter().zip(index.shape()).any(|(src, index)| index > src) {
                let (index, src) = (index.shape(), src.shape());
                let message = format!(
                    "an index {index:?} for a source {src:?}: no size may be larger than the source's"
                );
                return Err(Error::shape(NAME, message));
            }
            let part = |src: Tensor, axis: usize| src.narrow(axis as isize, 0, index.shape()[axis]);
            let src = (0..src.rank()).try_fold(src.clone(), part)?;
            call_one(ScatterFold { dim: axis, fold, include_self }, &[self, index, &src])
        };
        match reduction {
            ScatterReduction::Sum => start()?.scatter_add(dim, index, src),
            ScatterReduction::Amax => folded(Fold::Largest),
            ScatterReduction::Amin => folded(Fold::Smallest),
            ScatterReduction::Prod => folded(Fold::Product),
            ScatterReduction::Mean => {
                if !self.dtype().is_float() {
                    return Err(Error::DType {
                        op: NAME,
                        expected: "a floating-point type",
                        got: self.dtype(),
                    });
                }
                let counts = if include_self { self.ones_like()? } else { self.zeros_like()? }.detach();
                let counts = counts.scatter_add(dim, index, src.ones_like()?.detach())?;
                start()?.scatter_add(dim, index, src)?.div(&counts.clamp_min(1.0)?)
            }
        }
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let places = [0, 2, 1, 2, 0, 1];
    let largest = move |ins: &[Vec<f64>]| {
        let mut out = ins[0].clone();
        for (i, &place) in places.iter().enumerate() {
            let at = place * 2 + i % 2;
            out[at] = out[at].max(ins[1][i]);
        }
        vec![out]
    };
    let index = move |like: &Tensor| {
        let values: Vec<i64> = places.iter().map(|&place| place as i64).collect();
        Tensor::from_slice(&values, &[3, 2], like.device())
    };
    vec![
        Case::new("scatter_reduce, the largest", &[&[3, 2], &[3, 2]], move |ins| {
            call(
                ScatterFold { dim: 0, fold: Fold::Largest, include_self: true },
                &[ins[0], &index(ins[0])?, ins[1]],
            )
        })
        .expect(largest)
        .over(Domain::Apart),
    ]
}
