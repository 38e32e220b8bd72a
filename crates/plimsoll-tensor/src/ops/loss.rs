//! Losses: negative log-likelihood, cross entropy, mean squared error.

use smallvec::smallvec;

use super::{want_dtype, want_float};
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Op, Reduction};
use crate::tensor::Tensor;

impl Tensor {
    /// Negative log-likelihood of the classes `target` (`int64 [batch]`) under log-probabilities
    /// `[batch, classes]`, a scalar. As `torch.nn.functional.nll_loss`.
    ///
    /// # Errors
    /// Sizes or types that do not fit together; a target that is not a class; out of memory.
    pub fn nll_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        want_float("nll_loss", self)?;
        want_dtype("nll_loss", target, DType::I64)?;
        if self.rank() != 2 || target.shape() != &self.shape()[..1] {
            let message = format!(
                "log-probabilities {:?} with targets {:?}: needs [batch, classes] and [batch]",
                self.shape(),
                target.shape()
            );
            return Err(Error::shape("nll_loss", message));
        }
        let (x, t) = (self.detach().contiguous()?, target.detach().contiguous()?);
        let out = dispatch::run(&Op::NllLoss(reduction), &[x.data(), t.data()], &[], DType::F32)?;
        Ok(link(out, &[self], |_, _| NllLossBack {
            target: Saved::new(&t),
            classes: self.shape()[1],
            reduction,
        }))
    }

    /// Cross entropy of logits `[batch, classes]` against classes `int64 [batch]`: the mean of
    /// `nll_loss(log_softmax(logits))`. As `torch.nn.functional.cross_entropy`.
    ///
    /// # Errors
    /// As [`Tensor::nll_loss`].
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        self.log_softmax(-1)?.nll_loss(target, Reduction::Mean)
    }

    /// Mean of the squared differences, a scalar. As `torch.nn.functional.mse_loss`; nothing but the
    /// scalar is allocated.
    ///
    /// # Errors
    /// Two shapes; a type other than `float32`; out of memory.
    pub fn mse_loss(&self, target: &Tensor) -> Result<Tensor> {
        self.mse_loss_with(target, Reduction::Mean)
    }

    /// [`Tensor::mse_loss`], summed or averaged.
    ///
    /// # Errors
    /// As [`Tensor::mse_loss`].
    pub fn mse_loss_with(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        want_float("mse_loss", self)?;
        want_float("mse_loss", target)?;
        if self.shape() != target.shape() {
            let message =
                format!("{:?} against {:?}: the shapes must be equal", self.shape(), target.shape());
            return Err(Error::shape("mse_loss", message));
        }
        let (x, t) = (self.detach().contiguous()?, target.detach().contiguous()?);
        let out = dispatch::run(&Op::MseLoss(reduction), &[x.data(), t.data()], &[], DType::F32)?;
        Ok(link(out, &[self, target], |_, _| MseLossBack {
            x: Saved::new(&x),
            target: Saved::new(&t),
            reduction,
        }))
    }
}

struct NllLossBack {
    target: Saved,
    classes: usize,
    reduction: Reduction,
}

impl Backward for NllLossBack {
    fn name(&self) -> &'static str {
        "nll_loss"
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None]) };
        let target = self.target.get("nll_loss")?;
        let shape = [target.numel(), self.classes];
        let op = Op::NllLossBackward(self.reduction);
        let result = dispatch::run(&op, &[grad.data(), target.data()], &shape, DType::F32)?;
        Ok(smallvec![Some(Tensor::from_data(result))])
    }
}

struct MseLossBack {
    x: Saved,
    target: Saved,
    reduction: Reduction,
}

impl Backward for MseLossBack {
    fn name(&self) -> &'static str {
        "mse_loss"
    }

    fn backward(&self, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let (x, target) = (self.x.get("mse_loss")?, self.target.get("mse_loss")?);
        let run = |sign: f32| {
            let ins = [grad.data(), x.data(), target.data()];
            let op = Op::MseLossBackward(self.reduction, sign);
            dispatch::run(&op, &ins, x.shape(), DType::F32).map(Tensor::from_data)
        };
        let to_x = wanted[0].then(|| run(1.0)).transpose()?;
        let to_target = wanted[1].then(|| run(-1.0)).transpose()?;
        Ok(smallvec![to_x, to_target])
    }
}
