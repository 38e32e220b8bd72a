//! The operator's parameters, and the dimensions of its operands.

use crate::cpu::kernels::cross_entropy::{Coefficients, Targets};
use crate::cpu::kernels::loss::{BadTarget, Reduction};
use crate::cpu::kernels::number::Float;
use crate::cuda::loss::cross_entropy::{Classes, Reduced};
use crate::dtype::DType;
use crate::error::Error;
use crate::layout::Dims;
use crate::view::In;

pub(super) const NAME: &str = "cross_entropy";

/// `logits, target[, weight] -> loss, largest logit and log-sum of each position, divisor of the mean`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossEntropy {
    pub(super) reduction: Reduction,
    pub(super) ignored: i64,
    pub(super) smoothing: f64,
}

/// The index of the class dimension.
pub(super) fn class_dim(rank: usize) -> usize {
    usize::from(rank > 1)
}

/// The shape without the class dimension.
pub(super) fn positions(logits: &[usize]) -> Dims {
    let dim = class_dim(logits.len());
    logits.iter().enumerate().filter(|&(i, _)| i != dim).map(|(_, &n)| n).collect()
}

impl CrossEntropy {
    /// The sizes and options in the form that a GPU's kernels take, for logits of this shape.
    pub(super) fn classes(&self, logits: &[usize]) -> Classes {
        let dim = class_dim(logits.len());
        Classes {
            positions: positions(logits).iter().product(),
            classes: logits[dim],
            inner: logits[dim + 1..].iter().product(),
            ignored: self.ignored,
            smoothing: self.smoothing,
            reduced: match self.reduction {
                Reduction::None => Reduced::None,
                Reduction::Mean => Reduced::Mean,
                Reduction::Sum => Reduced::Sum,
            },
        }
    }

    /// The coefficients of the loss, for logits of this shape.
    pub(super) fn coefficients<'a, T: Float>(
        &self,
        logits: &[usize],
        target: &In<'a>,
        weight: Option<&In<'a>>,
    ) -> Coefficients<'a, T> {
        let dim = class_dim(logits.len());
        Coefficients {
            classes: logits[dim],
            inner: logits[dim + 1..].iter().product(),
            weight: weight.map(|weight| weight.elements()),
            smoothing: self.smoothing,
            targets: match target.dtype() {
                DType::I64 => Targets::Classes { index: target.elements(), ignored: self.ignored },
                _ => Targets::Probabilities(target.elements()),
            },
        }
    }

    pub(super) fn bad_target(bad: BadTarget) -> Error {
        Error::Target { op: NAME, row: bad.row, value: bad.value, classes: bad.cols }
    }
}
