//! The cross-entropy methods: options, defaults and errors.

use smallvec::{SmallVec, smallvec};

use super::{CrossEntropy, NAME};
use crate::cpu::kernels::loss::Reduction;
use crate::dispatch::call;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Options for cross entropy. By default, it is the unweighted mean, and the target -100 is ignored.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyOptions<'a> {
    /// A weight for each class; no gradient flows to it.
    pub weight: Option<&'a Tensor>,
    /// Positions with this target class are ignored; they are not counted in the divisor of a mean either.
    pub ignore_index: i64,
    /// The fraction of each target, from 0 to 1, that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// How the losses of the positions are reduced; a mean divides by the sum of the target classes' weights.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions<'_> {
    fn default() -> Self {
        CrossEntropyOptions {
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
        }
    }
}

impl CrossEntropyOptions<'_> {
    pub(super) fn operator(&self) -> Result<CrossEntropy> {
        let smoothing = self.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            let message = format!("label_smoothing is {smoothing}: it must be from 0 to 1");
            return Err(Error::argument(NAME, message));
        }
        Ok(CrossEntropy { reduction: self.reduction, ignored: self.ignore_index, smoothing })
    }
}

impl Tensor {
    /// Mean cross entropy of logits `[batch, classes, …]` against classes `int64 [batch, …]`, or against probabilities in the
    /// logits' shape. Like `torch.nn.functional.cross_entropy`. For `[batch, classes]` against classes, it also makes
    /// the same memory requests as PyTorch, those of `log_softmax` and `nll_loss`; [`Tensor::cross_entropy_with`] needs
    /// one tensor of the logits' size fewer.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cross_entropy_with`].
    #[track_caller]
    pub fn cross_entropy(&self, target: impl AsRef<Tensor>) -> Result<Tensor> {
        let target = target.as_ref();
        if self.rank() == 2 && target.rank() == 1 {
            return self.log_softmax(-1)?.nll_loss(target, Reduction::Mean);
        }
        self.cross_entropy_with(target, CrossEntropyOptions::default())
    }

    /// Cross entropy of logits `[batch, classes, …]` or `[classes]` against classes `int64 [batch, …]`, or against
    /// probabilities in the logits' shape. Returns a scalar, or `[batch, …]` without reduction. Like
    /// `torch.nn.functional.cross_entropy`.
    ///
    /// # Errors
    /// If the sizes or dtypes are incompatible, a target is neither a class nor `ignore_index`, the label smoothing is
    /// outside 0 to 1, or memory runs out.
    #[track_caller]
    pub fn cross_entropy_with(
        &self,
        target: impl AsRef<Tensor>,
        options: CrossEntropyOptions<'_>,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, target];
        ins.extend(options.weight);
        Ok(call(options.operator()?, &ins)?.remove(0))
    }
}
