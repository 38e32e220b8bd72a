//! Softmax and its logarithm. Both keep their output for the derivative, never their input.

use smallvec::smallvec;

use super::{dim_index, want_float};
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::Op;
use crate::tensor::Tensor;

impl Tensor {
    /// Softmax along a dimension. As `torch.softmax`.
    ///
    /// # Errors
    /// A dimension that is not there; a type other than `float32`; out of memory.
    pub fn softmax(&self, dim: isize) -> Result<Tensor> {
        self.along("softmax", dim, &Op::Softmax, &Op::SoftmaxBackward)
    }

    /// Logarithm of the softmax along a dimension, without overflow. As `torch.log_softmax`.
    ///
    /// # Errors
    /// A dimension that is not there; a type other than `float32`; out of memory.
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor> {
        self.along("log_softmax", dim, &Op::LogSoftmax, &Op::LogSoftmaxBackward)
    }

    fn along(&self, name: &'static str, dim: isize, forward: &Op, backward: &'static Op) -> Result<Tensor> {
        want_float(name, self)?;
        let dim = dim_index(name, dim, self.rank())? as isize;
        if dim + 1 != self.rank() as isize {
            // The kernel works on rows: the dimension goes last and comes back.
            return self.transpose(dim, -1)?.along(name, -1, forward, backward)?.transpose(dim, -1);
        }
        let x = self.detach().contiguous()?;
        let out = dispatch::run(forward, &[x.data()], self.shape(), DType::F32)?;
        Ok(link(out, &[self], |out, _| SoftmaxBack { name, backward, out: Saved::of(out) }))
    }
}

struct SoftmaxBack {
    name: &'static str,
    backward: &'static Op,
    out: Saved,
}

impl Backward for SoftmaxBack {
    fn name(&self) -> &'static str {
        self.name
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None]) };
        let (grad, out) = (grad.contiguous()?, self.out.get(self.name)?);
        let ins = [grad.data(), out.data()];
        let result = dispatch::run(self.backward, &ins, grad.shape(), DType::F32)?;
        Ok(smallvec![Some(Tensor::from_data(result))])
    }
}
