//! Matrix products: `matmul`, batched and broadcast, and `linear`, the layer's product with its bias.

use smallvec::smallvec;

use super::want_float;
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch::{self, Data};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::{self, Dims};
use crate::op::Op;
use crate::tensor::Tensor;

impl Tensor {
    /// Matrix product over the last two dimensions; leading ones broadcast, a vector is a row on the left
    /// and a column on the right. As `torch.matmul`.
    ///
    /// # Errors
    /// Inner sizes that differ, leading sizes that do not broadcast, a scalar; out of memory.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() == 1 {
            return self.unsqueeze(0)?.matmul(other)?.squeeze(if other.rank() == 1 { 0 } else { -2 });
        }
        if other.rank() == 1 {
            return self.matmul(&other.unsqueeze(1)?)?.squeeze(-1);
        }
        let out = matmul(self, other)?;
        Ok(link(out, &[self, other], |_, wanted| MatmulBack {
            a: wanted[1].then(|| Saved::new(self)),
            b: wanted[0].then(|| Saved::new(other)),
            a_shape: self.shape().into(),
            b_shape: other.shape().into(),
        }))
    }

    /// `self · weightᵀ + bias`: rows of `[…, in]` against the rows of `[out, in]`, plus `[out]`. One
    /// allocation, the output. As `torch.nn.functional.linear`.
    ///
    /// # Errors
    /// Sizes that do not fit together; out of memory.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        for tensor in [Some(self), Some(weight), bias].into_iter().flatten() {
            want_float("linear", tensor)?;
        }
        let fits = self.rank() > 0 && weight.rank() == 2 && self.shape().last() == weight.shape().last();
        if !fits || bias.is_some_and(|b| b.shape() != &weight.shape()[..1]) {
            let message = format!(
                "input {:?} with weight {:?} and bias {:?}: needs […, in], [out, in] and [out]",
                self.shape(),
                weight.shape(),
                bias.map(Tensor::shape)
            );
            return Err(Error::shape("linear", message));
        }
        let rows = leading(self.shape());
        let [outer, inner] = [weight.shape()[0], weight.shape()[1]];
        let x = self.detach().reshape(&[rows, inner])?;
        let bias = bias.map(Tensor::contiguous).transpose()?;
        let mut ins = vec![x.data(), weight.data()];
        ins.extend(bias.as_ref().map(Tensor::data));
        let mut out = dispatch::run(&Op::Linear, &ins, &[rows, outer], DType::F32)?;
        let mut shape: Dims = self.shape().into();
        shape[self.rank() - 1] = outer;
        out.layout = layout::Layout::contiguous(&shape);
        let mut inputs = vec![self, weight];
        inputs.extend(&bias);
        Ok(link(out, &inputs, |_, wanted| LinearBack {
            x: wanted[1].then(|| Saved::new(&x)),
            weight: wanted[0].then(|| Saved::new(weight)),
            x_shape: self.shape().into(),
        }))
    }
}

/// How many rows there are, which also holds where a row has no elements.
fn leading(shape: &[usize]) -> usize {
    shape[..shape.len() - 1].iter().product()
}

/// The product without recording it.
fn matmul(a: &Tensor, b: &Tensor) -> Result<Data> {
    want_float("matmul", a)?;
    want_float("matmul", b)?;
    let misfit = || Error::shape("matmul", format!("{:?} times {:?}", a.shape(), b.shape()));
    let ([a_lead @ .., m, k], [b_lead @ .., k2, n]) = (a.shape(), b.shape()) else { return Err(misfit()) };
    if k != k2 {
        return Err(misfit());
    }
    let lead = layout::broadcast("matmul", a_lead, b_lead)?;
    let with_lead =
        |rows: usize, columns: usize| -> Dims { lead.iter().copied().chain([rows, columns]).collect() };
    let expand = |t: &Tensor, shape: &[usize]| -> Result<Data> {
        let layout = t.data().layout.expand(shape).ok_or_else(misfit)?;
        Ok(Data { layout, ..t.data().clone() })
    };
    let (a, b) = (expand(a, &with_lead(*m, *k))?, expand(b, &with_lead(*k, *n))?);
    dispatch::run(&Op::Matmul, &[&a, &b], &with_lead(*m, *n), DType::F32)
}

struct MatmulBack {
    a: Option<Saved>,
    b: Option<Saved>,
    a_shape: Dims,
    b_shape: Dims,
}

impl Backward for MatmulBack {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let to_a = |b: &Saved| grad.matmul(&b.get("matmul")?.transpose(-1, -2)?)?.sum_to(&self.a_shape);
        let to_b = |a: &Saved| a.get("matmul")?.transpose(-1, -2)?.matmul(grad)?.sum_to(&self.b_shape);
        Ok(smallvec![self.b.as_ref().map(to_a).transpose()?, self.a.as_ref().map(to_b).transpose()?])
    }
}

struct LinearBack {
    /// As a matrix of rows.
    x: Option<Saved>,
    weight: Option<Saved>,
    x_shape: Dims,
}

impl Backward for LinearBack {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn backward(&self, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None; wanted.len()]) };
        let grad = grad.reshape(&[leading(grad.shape()), grad.shape()[grad.rank() - 1]])?;
        let to_x = |w: &Saved| grad.matmul(&w.get("linear")?)?.reshape(self.x_shape.as_slice());
        let to_w = |x: &Saved| grad.t()?.matmul(&x.get("linear")?);
        let mut results: Grads =
            smallvec![self.weight.as_ref().map(to_x).transpose()?, self.x.as_ref().map(to_w).transpose()?];
        if let Some(&bias) = wanted.get(2) {
            results.push(bias.then(|| grad.sum_dims(&[0])).transpose()?);
        }
        Ok(results)
    }
}
