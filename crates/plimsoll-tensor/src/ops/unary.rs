//! Functions of each element, and `to_dtype`.

use smallvec::smallvec;

use super::want_float;
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Op, UnaryFn};
use crate::tensor::Tensor;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// A type other than `float32`; out of memory.
            pub fn $name(&self) -> Result<Tensor> {
                self.unary(UnaryFn::$f)
            }
        )*}
    };
}

unary! {
    /// `-x`.
    neg => Neg,
    /// `max(x, 0)`; not a number stays so, as in PyTorch.
    relu => Relu,
    /// `e` to the power of `x`.
    exp => Exp,
    /// Natural logarithm. As `torch.log`.
    log => Ln,
    /// Square root.
    sqrt => Sqrt,
    /// `x²`.
    square => Square,
    /// Hyperbolic tangent.
    tanh => Tanh,
    /// `1 / (1 + e^-x)`.
    sigmoid => Sigmoid,
}

impl Tensor {
    /// `mul * x + add`.
    ///
    /// # Errors
    /// A type other than `float32`; out of memory.
    pub fn affine(&self, mul: f32, add: f32) -> Result<Tensor> {
        self.unary(UnaryFn::Affine { mul, add })
    }

    /// `x + value`.
    ///
    /// # Errors
    /// As [`Tensor::affine`].
    pub fn add_scalar(&self, value: f32) -> Result<Tensor> {
        self.affine(1.0, value)
    }

    /// `x * value`.
    ///
    /// # Errors
    /// As [`Tensor::affine`].
    pub fn mul_scalar(&self, value: f32) -> Result<Tensor> {
        self.affine(value, 0.0)
    }

    fn unary(&self, f: UnaryFn) -> Result<Tensor> {
        want_float(f.name(), self)?;
        let out = dispatch::run(&Op::Unary(f), &[self.data()], self.shape(), DType::F32)?;
        Ok(link(out, &[self], |out, _| UnaryBack {
            f,
            saved: match f {
                UnaryFn::Neg | UnaryFn::Affine { .. } => None,
                UnaryFn::Ln | UnaryFn::Square => Some(Saved::new(self)),
                // Where input and output would both do, the output: the next layer often keeps it anyway.
                _ => Some(Saved::of(out)),
            },
        }))
    }

    /// The values converted to another type: towards zero, and into the range of the type, where
    /// it has fewer values. Gradients flow only where nothing changes.
    ///
    /// # Errors
    /// Out of memory.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let x = self.detach().contiguous()?;
        dispatch::run(&Op::Cast, &[x.data()], self.shape(), dtype).map(Tensor::from_data)
    }
}

struct UnaryBack {
    f: UnaryFn,
    saved: Option<Saved>,
}

impl Backward for UnaryBack {
    fn name(&self) -> &'static str {
        self.f.name()
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None]) };
        let saved = self.saved.as_ref().map(|saved| saved.get(self.name())).transpose()?;
        Ok(smallvec![Some(derivative(self.f, grad, saved.as_ref())?)])
    }
}

/// The gradient of the input; `saved` is the input for `log` and `square`, the output for the others.
fn derivative(f: UnaryFn, grad: &Tensor, saved: Option<&Tensor>) -> Result<Tensor> {
    let Some(v) = saved else {
        return grad.mul_scalar(if let UnaryFn::Affine { mul, .. } = f { mul } else { -1.0 });
    };
    match f {
        UnaryFn::Relu => {
            let (grad, v) = (grad.contiguous()?, v.contiguous()?);
            let ins = [grad.data(), v.data()];
            dispatch::run(&Op::ReluBackward, &ins, grad.shape(), DType::F32).map(Tensor::from_data)
        }
        UnaryFn::Exp => grad.mul(v),
        UnaryFn::Ln => grad.div(v),
        UnaryFn::Sqrt => grad.div(v)?.mul_scalar(0.5),
        // The slope is a new tensor: it becomes the gradient in place, instead of one temporary more.
        UnaryFn::Square => times(v.mul_scalar(2.0)?, &[grad]),
        UnaryFn::Tanh => {
            let square = v.square()?;
            let slope = square.affine(-1.0, 1.0)?;
            drop(square);
            times(slope, &[grad])
        }
        UnaryFn::Sigmoid => times(v.affine(-1.0, 1.0)?, &[v, grad]),
        UnaryFn::Neg | UnaryFn::Affine { .. } => unreachable!("{} saves nothing", f.name()),
    }
}

/// `product`, which nobody else looks at, multiplied by each of `factors` in place.
fn times(product: Tensor, factors: &[&Tensor]) -> Result<Tensor> {
    factors.iter().try_for_each(|factor| product.mul_(factor))?;
    Ok(product)
}
