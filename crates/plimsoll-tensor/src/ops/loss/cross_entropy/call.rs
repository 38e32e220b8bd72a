//! The methods: options, defaults and what they refuse.

use smallvec::{SmallVec, smallvec};

use super::{CrossEntropy, NAME};
use crate::cpu::kernels::loss::Reduction;
use crate::dispatch::call;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// How a cross entropy weighs its positions. The default is the plain mean; the target -100 is ignored.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyOptions<'a> {
    /// A weight for each class. Has no gradient.
    pub weight: Option<&'a Tensor>,
    /// Positions with this class count for nothing, in a mean's divisor too.
    pub ignore_index: i64,
    /// The share of each target that is spread evenly over all classes, from 0 to 1.
    pub label_smoothing: f64,
    /// How positions become one number: a mean divides by the weights of the targets' classes.
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
            let message = format!("label_smoothing is {smoothing}: a share is in 0 to 1");
            return Err(Error::argument(NAME, message));
        }
        Ok(CrossEntropy { reduction: self.reduction, ignored: self.ignore_index, smoothing })
    }
}

impl Tensor {
    /// Cross entropy of logits `[batch, classes, …]` against classes `int64 [batch, …]`, or probabilities shaped like the
    /// logits: the mean over positions. As `torch.nn.functional.cross_entropy`; of `[batch, classes]` against classes also in
    /// its requests for memory, those of `log_softmax` and `nll_loss`. [`Tensor::cross_entropy_with`] needs one tensor of the
    /// logits' size less.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy_with`].
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        if self.rank() == 2 && target.rank() == 1 {
            return self.log_softmax(-1)?.nll_loss(target, Reduction::Mean);
        }
        self.cross_entropy_with(target, CrossEntropyOptions::default())
    }

    /// Cross entropy of logits `[batch, classes, …]`, or `[classes]`, against classes `int64 [batch, …]`, or probabilities
    /// shaped like the logits; a scalar, or `[batch, …]` without reduction. As `torch.nn.functional.cross_entropy`.
    ///
    /// # Errors
    /// Sizes or types that do not fit together; a target that is neither a class nor `ignore_index`; a share of smoothing
    /// outside 0 to 1; out of memory.
    pub fn cross_entropy_with(&self, target: &Tensor, options: CrossEntropyOptions<'_>) -> Result<Tensor> {
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, target];
        ins.extend(options.weight);
        Ok(call(options.operator()?, &ins)?.remove(0))
    }
}
