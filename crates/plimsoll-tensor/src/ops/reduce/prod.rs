//! Products over dimensions. The gradient is exact even if elements are zero.

use smallvec::smallvec;

use super::reduced::{Keep, Over};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::elementwise::{Operand, zip3};
use crate::cpu::kernels::fold::fold2;
use crate::cpu::kernels::folds::{Product, WholeProduct};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::reduce::fold::{self, Fold};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, bf16, f16};
use crate::error::Result;
use crate::facts::DeviceKind;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// `x -> product, others`: the product, and the product of the other elements, which is the derivative with respect to a single
/// zero.
#[derive(Clone, Debug)]
struct Prod {
    over: Over,
    /// Whether the operator was called without dimensions, in which case PyTorch's derivative for NaN differs.
    of_all: bool,
}

impl Kernel for Prod {
    fn name(&self) -> &'static str {
        "prod"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        fold::fold(call, &self.over.marks, Fold::Product)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out, others]) = call.split();
        let (shape, strides, marks) = (x.shape(), x.strides(), &self.over.marks);
        if x.dtype() == DType::I64 {
            let outs = (out.elements::<i64>(), others.elements::<i64>());
            fold2(shape, (x.elements::<i64>(), strides), marks, &WholeProduct, outs, |product| (product, 0));
            return Ok(());
        }
        by_float!(x.dtype(), T => {
            let outs = (out.elements::<T>(), others.elements::<T>());
            fold2(shape, (x.elements::<T>(), strides), marks, &Product, outs, |(product, zeros)| {
                let product = product as T;
                // Zero times infinity is NaN, as if the product were computed directly.
                let zero = product * 0.0;
                (if zeros == 0 { product } else { zero }, if zeros <= 1 { product } else { zero })
            });
        });
        Ok(())
    }
}

impl Operator for Prod {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("prod", ins)?;
        let shape = self.over.shape(x.shape());
        let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
        Ok(smallvec![Output::new(&shape, dtype), Output::new(&shape, dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0)).and(Saves::output(1))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let (x, shape) = (at.input(0)?, at.shape(0));
        let wide = |tensor: &Tensor| self.over.broadcastable(tensor, shape);
        let grad = wide(grad)?;
        if is_grad_enabled() {
            return Ok(smallvec![Some((&grad * &product_of_others(&x, &self.over.named())?)?)]);
        }
        if let Some(zeros) = self.zeros_among_others(at, &x)? {
            return Ok(smallvec![Some(match self.of_all && zeros > 1 {
                true => x.zeros_like()?,
                false => (&grad * &product_of_others(&x, &self.over.named())?)?,
            })]);
        }
        // The gradients of nonzero elements, multiplied by the elements; and the gradients of zero elements.
        let (of_all, of_zeros) = ((&grad * &wide(&at.output(0)?)?)?, (&grad * &wide(&at.output(1)?)?)?);
        Ok(smallvec![Some(call_one(ProdBackward, &[&x, &of_all, &of_zeros])?)])
    }
}

impl Prod {
    /// The number of zeros if other elements are infinite or NaN, in which case the product does not show which gradients are
    /// zero; otherwise `None`. It waits for the device, as PyTorch does for every product, so a capture skips it.
    fn zeros_among_others(&self, at: &Backward<'_>, x: &Tensor) -> Result<Option<i64>> {
        let (device, product) = (x.device(), at.output(0)?);
        if !device.has_values() || device.is_capturing() {
            return Ok(None);
        }
        let any_is_nan = match (device.facts().kind, product.dtype()) {
            // The host's elements are read in place.
            (DeviceKind::Cpu, DType::F64) => product.to_vec::<f64>()?.iter().any(|x| x.is_nan()),
            (DeviceKind::Cpu, DType::F32) => product.to_vec::<f32>()?.iter().any(|x| x.is_nan()),
            (DeviceKind::Cpu, DType::F16) => product.to_vec::<f16>()?.iter().any(|x| x.is_nan()),
            (DeviceKind::Cpu, DType::BF16) => product.to_vec::<bf16>()?.iter().any(|x| x.is_nan()),
            _ => product.isnan()?.any()?.item()?,
        };
        if !any_is_nan {
            return Ok(None);
        }
        let zeros: i64 = x.eq_scalar(0)?.count_nonzero()?.item()?;
        Ok((zeros > 0).then_some(zeros))
    }
}

/// For each element, the product of the others over these dimensions, in differentiable operations.
#[track_caller]
fn product_of_others(x: &Tensor, dims: &[isize]) -> Result<Tensor> {
    let last: Vec<isize> =
        (0..x.rank() as isize).filter(|dim| !dims.contains(dim)).chain(dims.iter().copied()).collect();
    let back: Vec<isize> = (0..x.rank() as isize)
        .map(|dim| last.iter().position(|&at| at == dim).unwrap_or(0) as isize)
        .collect();
    let moved = x.permute(&last)?;
    let count: usize = moved.shape()[x.rank() - dims.len()..].iter().product();
    if count == 0 {
        return x.ones_like();
    }
    let rows = moved.reshape([x.numel() / count, count].as_slice())?;
    let one = Tensor::full(&[x.numel() / count, 1], 1.0, x.dtype(), x.device())?;
    let before = |x: &Tensor| Tensor::cat(&[&one, &x.narrow(1, 0, count - 1)?], 1)?.cumprod(1);
    let after = before(&rows.flip(&[1])?)?.flip(&[1])?;
    (&before(&rows)? * &after)?.reshape(moved.shape())?.permute(&back)
}

/// `x, of_all, of_zeros -> grad of x`.
#[derive(Clone, Copy, Debug)]
struct ProdBackward;

impl Kernel for ProdBackward {
    fn name(&self) -> &'static str {
        "prod_backward"
    }

    fn expression(&self) -> Option<String> {
        Some("a == C(0.0) ? c : b / a".to_owned())
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, of_all, of_zeros], [out]) = call.split();
        let shape = out.shape();
        let strides = [&x, &of_all, &of_zeros].map(|x| operands::expanded(x, shape));
        by_float!(x.dtype(), T => {
            let operands = std::array::from_fn(|i| {
                Operand { data: [&x, &of_all, &of_zeros][i].elements::<T>(), strides: &strides[i] }
            });
            zip3(
                shape,
                operands,
                out.elements::<T>(),
                #[inline(always)]
                |x, of_all, of_zeros| if x == 0.0 { of_zeros } else { of_all / x },
            );
        });
        Ok(())
    }
}

impl Operator for ProdBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, ..] = operands::inputs::<3>("prod_backward", ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }
}

impl Tensor {
    /// The product of all elements, a scalar; 1 if there are none. Integers and `bool` give `int64`. Like `torch.prod`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn prod(&self) -> Result<Tensor> {
        self.prod_over(Over::all(self.rank()), true)
    }

    /// The product over a dimension, which is removed. Like `torch.prod(dim)`.
    ///
    /// # Errors
    /// If a dimension is out of range, or memory runs out.
    #[track_caller]
    pub fn prod_dim(&self, dim: isize) -> Result<Tensor> {
        self.prod_over(Over::dims("prod", self.rank(), &[dim], Keep::Dropped)?, false)
    }

    /// The product over a dimension, which is kept with size 1.
    ///
    /// # Errors
    /// The same errors as [`Tensor::prod_dim`].
    #[track_caller]
    pub fn prod_keepdim(&self, dim: isize) -> Result<Tensor> {
        self.prod_over(Over::dims("prod", self.rank(), &[dim], Keep::Kept)?, false)
    }

    #[track_caller]
    fn prod_over(&self, over: Over, of_all: bool) -> Result<Tensor> {
        Ok(call(Prod { over, of_all }, &[self])?.remove(0))
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let rows = |ins: &[Vec<f64>]| vec![ins[0].chunks(4).map(|row| row.iter().product()).collect()];
    let one = |x: Result<Tensor>| Ok(smallvec![x?]);
    vec![
        Case::new("prod", &[&[2, 3]], move |ins| one(ins[0].prod()))
            .over(Domain::Positive)
            .expect(|ins| vec![vec![ins[0].iter().product()]]),
        Case::new("prod_dim", &[&[3, 4]], move |ins| one(ins[0].prod_dim(1))).expect(rows),
        Case::new("prod_keepdim", &[&[3, 4]], move |ins| one(ins[0].prod_keepdim(0))),
    ]
}
