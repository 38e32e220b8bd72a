//! Products composed of other operations: `baddbmm`, `inner`, `tensordot`, `cross`; and the transposition of batched matrices.

use super::products::want_whole_factors;
use crate::autocast;
use crate::caller::Entry;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dim_index;
use crate::tensor::Tensor;

impl Tensor {
    /// Swaps the last two dimensions. Returns a view. Like `Tensor.mT`.
    ///
    /// # Errors
    /// If there are fewer than two dimensions.
    #[track_caller]
    pub fn mt(&self) -> Result<Tensor> {
        self.transpose(-2, -1)
    }

    /// `beta · self + alpha · (a @ b)` for batches of matrices. Like `torch.baddbmm`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::bmm`], or if the dtypes differ, the factors of integers are fractional, or the
    /// shapes do not broadcast.
    #[track_caller]
    pub fn baddbmm(
        &self,
        a: impl AsRef<Tensor>,
        b: impl AsRef<Tensor>,
        beta: f64,
        alpha: f64,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (a, b) = (a.as_ref(), b.as_ref());
        const NAME: &str = "baddbmm";
        want_whole_factors(NAME, a.dtype(), beta, alpha)?;
        if self.dtype() != a.dtype() && !autocast::is_enabled() {
            return Err(Error::DType { op: NAME, expected: a.dtype().name(), got: self.dtype() });
        }
        let scaled = |x: &Tensor, by: f64| match x.dtype().is_float() {
            true => x.affine(by, 0.0),
            false => x.mul_scalar(by as i64),
        };
        let product = a.bmm(b)?;
        let product = if alpha == 1.0 { product } else { scaled(&product, alpha)? };
        match beta {
            // Its values are ignored; its gradient is zeros.
            0.0 if self.requires_grad() => {
                let none = Tensor::full(&[], 0.0, DType::Bool, self.device())?;
                none.where_cond(self, &product)
            }
            0.0 => Ok(product),
            1.0 => self.add(&product),
            _ => scaled(self, beta)?.add(&product),
        }
    }

    /// `x · W · y + bias` for each matrix `W` of a weight `[outputs, width of self, width of other]`, over the last dimension
    /// of both inputs. Like `torch.nn.functional.bilinear`.
    ///
    /// # Errors
    /// If the widths do not match the weight, the other sizes differ, or memory runs out.
    #[track_caller]
    pub fn bilinear<'a>(
        &self,
        other: impl AsRef<Tensor>,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (other, weight, bias) = (other.as_ref(), weight.as_ref(), bias.into());
        let product = Tensor::einsum("...i,oij,...j->...o", &[self, weight, other])?;
        bias.map_or(Ok(product.clone()), |bias| product.add(bias))
    }

    /// The sums of products over the last dimension of both tensors. Like `torch.inner`.
    ///
    /// # Errors
    /// If the last dimensions differ in size, or memory runs out.
    #[track_caller]
    pub fn inner(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        if self.rank() == 0 || other.rank() == 0 {
            return self.mul(other);
        }
        self.tensordot(other, &[-1], &[-1])
    }

    /// The sums of products over pairs of dimensions of both tensors. The remaining dimensions of this tensor come first. Like
    /// `torch.tensordot(self, other, (dims, others))`.
    ///
    /// # Errors
    /// If the dimensions are out of range, are repeated or differ in size, or if memory runs out.
    #[track_caller]
    pub fn tensordot(&self, other: impl AsRef<Tensor>, dims: &[isize], others: &[isize]) -> Result<Tensor> {
        let other = other.as_ref();
        const NAME: &str = "tensordot";
        let (left, right) = (Sides::of(NAME, self, dims)?, Sides::of(NAME, other, others)?);
        let sizes =
            |x: &Tensor, dims: &[isize]| dims.iter().map(|&d| x.shape()[d as usize]).collect::<Vec<_>>();
        let summed = sizes(self, &left.named);
        if summed != sizes(other, &right.named) {
            let message = format!(
                "dimensions {dims:?} of {:?} do not match {others:?} of {:?}",
                self.shape(),
                other.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        let inner: usize = summed.iter().product();
        let (rows, columns) = (sizes(self, &left.rest), sizes(other, &right.rest));
        let a = self.permute(&[&left.rest[..], &left.named].concat())?;
        let b = other.permute(&[&right.named[..], &right.rest].concat())?;
        let a = a.reshape([rows.iter().product(), inner].as_slice())?;
        let b = b.reshape([inner, columns.iter().product()].as_slice())?;
        a.matmul(&b)?.reshape([rows, columns].concat().as_slice())
    }

    /// The cross product of vectors of three elements along a dimension, broadcast. Like `torch.linalg.cross`.
    ///
    /// # Errors
    /// If a dimension is not of size 3, the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn cross(&self, other: impl AsRef<Tensor>, dim: isize) -> Result<Tensor> {
        let _entry = Entry::here();
        let other = other.as_ref();
        for x in [self, other] {
            let at = dim_index("cross", dim, x.rank())?;
            if x.shape()[at] != 3 {
                return Err(Error::shape(
                    "cross",
                    format!("dimension {at} of {:?}: needs size 3", x.shape()),
                ));
            }
        }
        let (a, b) = (|shift| self.roll(&[shift], &[dim]), |shift| other.roll(&[shift], &[dim]));
        a(-1)?.mul(&b(-2)?)?.sub(&a(-2)?.mul(&b(-1)?)?)
    }
}

/// The dimensions that are summed over, and the others, as indices from the front.
struct Sides {
    named: Vec<isize>,
    rest: Vec<isize>,
}

impl Sides {
    fn of(op: &'static str, x: &Tensor, dims: &[isize]) -> Result<Sides> {
        let mut named = Vec::new();
        for &dim in dims {
            let at = dim_index(op, dim, x.rank())? as isize;
            if named.contains(&at) {
                return Err(Error::shape(op, format!("dimension {at} is named twice in {dims:?}")));
            }
            named.push(at);
        }
        let rest = (0..x.rank() as isize).filter(|at| !named.contains(at)).collect();
        Ok(Sides { named, rest })
    }
}
