//! Losses with a margin, multi-label losses, and losses of distributions. Composed of other operations, with PyTorch's
//! formulas.

use crate::caller::Entry;
use crate::cpu::kernels::loss::Reduction;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

#[track_caller]
fn reduced(losses: &Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(losses.clone()),
        Reduction::Sum => losses.sum(),
        Reduction::Mean => losses.mean(),
    }
}

impl Tensor {
    /// `max(0, margin - target · (self - other))` for targets 1 and -1. Like `torch.nn.functional.margin_ranking_loss`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn margin_ranking_loss(
        &self,
        other: impl AsRef<Tensor>,
        target: impl AsRef<Tensor>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let (other, target) = (other.as_ref(), target.as_ref());
        let worse = other.sub(self)?.mul(target)?;
        reduced(&worse.add_scalar(margin)?.clamp_min(0.0)?, reduction)
    }

    /// The element itself for target 1, `max(0, margin - self)` for target -1. Like `torch.nn.functional.hinge_embedding_loss`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn hinge_embedding_loss(
        &self,
        target: impl AsRef<Tensor>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        let zero = Tensor::full(&[], 0.0, self.dtype(), self.device())?;
        let far = self.affine(-1.0, margin)?.clamp_min(0.0)?;
        let apart = target.eq_scalar(1)?.where_cond(&zero, &far)?;
        let near = target.eq_scalar(-1)?.where_cond(&zero, self)?;
        reduced(&apart.add(&near)?, reduction)
    }

    /// `1 - cos(self, other)` for target 1, `max(0, cos - margin)` for target -1; the vectors are along the last dimension. Like
    /// `torch.nn.functional.cosine_embedding_loss`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn cosine_embedding_loss(
        &self,
        other: impl AsRef<Tensor>,
        target: impl AsRef<Tensor>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (other, target) = (other.as_ref(), target.as_ref());
        const EPSILON: f64 = 1e-12;
        let square = |x: &Tensor| x.square()?.sum_dims(&[-1])?.add_scalar(EPSILON);
        let product = self.mul(other)?.sum_dims(&[-1])?;
        let cosine = product.div(&square(self)?.mul(&square(other)?)?.sqrt()?)?;
        let zero = Tensor::full(&[], 0.0, cosine.dtype(), cosine.device())?;
        let near = target.eq_scalar(1)?.where_cond(&cosine.affine(-1.0, 1.0)?, &zero)?;
        let far = target.eq_scalar(-1)?.where_cond(&cosine.sub_scalar(margin)?.clamp_min(0.0)?, &zero)?;
        reduced(&near.add(&far)?, reduction)
    }

    /// `ln(1 + e^(-target · self))` for targets 1 and -1. Like `torch.nn.functional.soft_margin_loss`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn soft_margin_loss(&self, target: impl AsRef<Tensor>, reduction: Reduction) -> Result<Tensor> {
        let target = target.as_ref();
        let against = target.mul(self)?.neg()?;
        let zero = Tensor::full(&[], 0.0, against.dtype(), against.device())?;
        reduced(&against.logaddexp(&zero)?, reduction)
    }

    /// Binary cross entropy of each label, for logits `[batch, labels]` against targets 0 and 1, averaged over the labels. Like
    /// `torch.nn.functional.multilabel_soft_margin_loss`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::binary_cross_entropy_with_logits`].
    #[track_caller]
    pub fn multilabel_soft_margin_loss<'a>(
        &self,
        target: impl AsRef<Tensor>,
        weight: impl Into<Option<&'a Tensor>>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let (target, weight) = (target.as_ref(), weight.into());
        let losses = self.binary_cross_entropy_with_logits(target, weight, None, Reduction::None)?;
        reduced(&losses.mean_dims(&[-1])?, reduction)
    }

    /// The mean over classes, without the target itself, of `max(0, margin - self[target] + self[class])^p`, for `[batch,
    /// classes]` against the target classes. Like `torch.nn.functional.multi_margin_loss`.
    ///
    /// # Errors
    /// If `p` is neither 1 nor 2, a target is not a class, or memory runs out.
    #[track_caller]
    pub fn multi_margin_loss(
        &self,
        target: impl AsRef<Tensor>,
        p: u32,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        const NAME: &str = "multi_margin_loss";
        if !(1..=2).contains(&p) {
            return Err(Error::argument(NAME, format!("p is {p}: needs 1 or 2")));
        }
        let &[_, classes] = self.shape() else {
            return Err(Error::shape(NAME, format!("{:?}: needs [batch, classes]", self.shape())));
        };
        let place = target.to_dtype(DType::I64)?.unsqueeze(-1)?;
        let over = self.sub(&self.gather(1, &place)?)?.add_scalar(margin)?.clamp_min(0.0)?;
        let over = if p == 2 { over.square()? } else { over };
        let losses = over.scatter_value(1, &place, 0.0)?.sum_dims(&[1])?.div_scalar(classes as i64)?;
        reduced(&losses, reduction)
    }

    /// Negative log-likelihood of counts under a Poisson distribution. `self` is the logarithm of its mean, or the mean itself
    /// if `log_input` is false: then `eps` is added to it before its logarithm (PyTorch's default is 1e-8). `full` adds
    /// Stirling's term for targets above 1. Like `torch.nn.functional.poisson_nll_loss`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn poisson_nll_loss(
        &self,
        target: impl AsRef<Tensor>,
        log_input: bool,
        full: bool,
        eps: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        let losses = match log_input {
            true => self.exp()?.sub(&target.mul(self)?)?,
            false => self.sub(&target.mul(&self.add_scalar(eps)?.log()?)?)?,
        };
        if !full {
            return reduced(&losses, reduction);
        }
        let safe = target.clamp_min(1.0)?;
        let stirling = safe.mul(&safe.log()?)?.sub(&safe)?;
        let stirling = stirling.add(&safe.mul_scalar(std::f64::consts::TAU)?.log()?.mul_scalar(0.5)?)?;
        reduced(&losses.add(&stirling.masked_fill(&target.le_scalar(1)?, 0.0)?)?, reduction)
    }

    /// Negative log-likelihood of targets under normal distributions with these means and the variances `var`, clamped to at
    /// least `eps`. `full` adds the constant term. Like `torch.nn.functional.gaussian_nll_loss`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn gaussian_nll_loss(
        &self,
        target: impl AsRef<Tensor>,
        var: impl AsRef<Tensor>,
        full: bool,
        eps: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let (target, var) = (target.as_ref(), var.as_ref());
        // As in PyTorch, clamping the variance does not affect its gradient.
        let var = var.add(&var.detach().clamp_min(eps)?.sub(var.detach())?)?;
        let losses = var.log()?.add(&self.sub(target)?.square()?.div(&var)?)?.mul_scalar(0.5)?;
        let constant = if full { 0.5 * std::f64::consts::TAU.ln() } else { 0.0 };
        reduced(&losses.add_scalar(constant)?, reduction)
    }
}
