//! Addition, subtraction, multiplication, division, broadcast; and the operators, also with numbers.

use smallvec::smallvec;

use super::want_float;
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout;
use crate::op::{BinaryFn, Op};
use crate::tensor::Tensor;

impl Tensor {
    /// `self + other`, broadcast.
    ///
    /// # Errors
    /// Shapes that do not broadcast, types other than `float32`, two devices, out of memory: as for every
    /// operation on two tensors.
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        self.linear_binary(other, BinaryFn::Add)
    }

    /// `self - other`, broadcast.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        self.linear_binary(other, BinaryFn::Sub)
    }

    /// `self * other`, element by element, broadcast.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        let out = self.binary(other, BinaryFn::Mul)?;
        Ok(link(out, &[self, other], |_, wanted| MulBack {
            a: wanted[1].then(|| Saved::new(self)),
            b: wanted[0].then(|| Saved::new(other)),
            shapes: Shapes::of(self, other),
        }))
    }

    /// `self / other`, element by element, broadcast.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        let out = self.binary(other, BinaryFn::Div)?;
        Ok(link(out, &[self, other], |_, wanted| DivBack {
            a: wanted[1].then(|| Saved::new(self)),
            b: Saved::new(other),
            shapes: Shapes::of(self, other),
        }))
    }

    fn binary(&self, other: &Tensor, f: BinaryFn) -> Result<dispatch::Data> {
        want_float(f.name(), self)?;
        want_float(f.name(), other)?;
        let shape = layout::broadcast(f.name(), self.shape(), other.shape())?;
        dispatch::run(&Op::Binary(f), &[self.data(), other.data()], &shape, DType::F32)
    }

    /// Sums and differences: their derivatives need no values.
    fn linear_binary(&self, other: &Tensor, f: BinaryFn) -> Result<Tensor> {
        let out = self.binary(other, f)?;
        Ok(link(out, &[self, other], |_, _| AddBack { f, shapes: Shapes::of(self, other) }))
    }

    /// Summed over whatever broadcasting repeated, so that it has `shape` again; itself where it has.
    pub(crate) fn sum_to(&self, shape: &[usize]) -> Result<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let lead = self.rank() - shape.len();
        let repeated = |i: usize| i < lead || (shape[i - lead] == 1 && self.shape()[i] != 1);
        let dims: Vec<isize> = (0..self.rank()).filter(|&i| repeated(i)).map(|i| i as isize).collect();
        self.sum_keepdim(&dims)?.reshape(shape)
    }
}

/// The shapes that the inputs had before broadcasting.
struct Shapes {
    a: layout::Dims,
    b: layout::Dims,
}

impl Shapes {
    fn of(a: &Tensor, b: &Tensor) -> Shapes {
        Shapes { a: a.shape().into(), b: b.shape().into() }
    }
}

struct AddBack {
    f: BinaryFn,
    shapes: Shapes,
}

impl Backward for AddBack {
    fn name(&self) -> &'static str {
        self.f.name()
    }

    fn backward(&self, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let a = wanted[0].then(|| grad.sum_to(&self.shapes.a)).transpose()?;
        let b = wanted[1].then(|| grad.sum_to(&self.shapes.b)).transpose()?;
        let b = match (b, self.f) {
            (Some(b), BinaryFn::Sub) => Some(b.neg()?),
            (b, _) => b,
        };
        Ok(smallvec![a, b])
    }
}

struct MulBack {
    a: Option<Saved>,
    b: Option<Saved>,
    shapes: Shapes,
}

impl Backward for MulBack {
    fn name(&self) -> &'static str {
        "mul"
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let times = |other: &Option<Saved>, shape: &[usize]| {
            other.as_ref().map(|other| grad.mul(&other.get("mul")?)?.sum_to(shape)).transpose()
        };
        Ok(smallvec![times(&self.b, &self.shapes.a)?, times(&self.a, &self.shapes.b)?])
    }
}

struct DivBack {
    a: Option<Saved>,
    b: Saved,
    shapes: Shapes,
}

impl Backward for DivBack {
    fn name(&self) -> &'static str {
        "div"
    }

    /// `d(a/b) = da/b - a/b² db`.
    fn backward(&self, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let b = self.b.get("div")?;
        let over_b = grad.div(&b)?;
        let to_b = |a: &Saved| {
            let slope = a.get("div")?.div(&b)?;
            slope.mul_(&over_b)?;
            slope.sum_to(&self.shapes.b)?.neg()
        };
        let grad_b = self.a.as_ref().map(to_b).transpose()?;
        let grad_a = wanted[0].then(|| over_b.sum_to(&self.shapes.a)).transpose()?;
        Ok(smallvec![grad_a, grad_b])
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $scalar:expr) => {
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(self, other)
            }
        }
        impl std::ops::$trait<f32> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, value: f32) -> Result<Tensor> {
                let (mul, add): (f32, f32) = $scalar(value);
                self.affine(mul, add)
            }
        }
    };
}
operator!(Add, add, |value| (1.0, value));
operator!(Sub, sub, |value: f32| (1.0, -value));
operator!(Mul, mul, |value| (value, 0.0));
operator!(Div, div, |value: f32| (1.0 / value, 0.0));

impl std::ops::Add<&Tensor> for f32 {
    type Output = Result<Tensor>;
    fn add(self, tensor: &Tensor) -> Result<Tensor> {
        tensor.affine(1.0, self)
    }
}

impl std::ops::Sub<&Tensor> for f32 {
    type Output = Result<Tensor>;
    fn sub(self, tensor: &Tensor) -> Result<Tensor> {
        tensor.affine(-1.0, self)
    }
}

impl std::ops::Mul<&Tensor> for f32 {
    type Output = Result<Tensor>;
    fn mul(self, tensor: &Tensor) -> Result<Tensor> {
        tensor.affine(self, 0.0)
    }
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}
