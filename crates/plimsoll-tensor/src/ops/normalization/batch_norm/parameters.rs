//! The operator's parameters, and the memory layout of its input's channels.

use crate::cpu::kernels::channel_norm::Channels;
use crate::cuda::normalization::batch_norm::{Cut, Images};
use crate::layout::Layout;

/// The operations after the normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    Relu,
    /// A residual, which is the last input, is added; then ReLU.
    AddRelu,
}

impl Then {
    /// The operator's name in this case.
    pub(super) fn name(self) -> &'static str {
        match self {
            Then::Nothing => "batch_norm",
            Then::Relu => "batch_norm_relu",
            Then::AddRelu => "batch_norm_add_relu",
        }
    }

    /// The form of this that a GPU's kernels take.
    pub(super) fn cut(self) -> Cut {
        match self {
            Then::Nothing => Cut::None,
            Then::Relu => Cut::Recomputed,
            Then::AddRelu => Cut::FromOutput,
        }
    }
}

/// `x[, weight, bias][, residual] -> out, mean, rstd, variance` with the batch's statistics; `x, mean, variance[, weight,
/// bias][, residual] -> out, mean, rstd, variance` with given ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNorm {
    /// Whether to use the batch's statistics.
    pub(super) batch: bool,
    pub(super) then: Then,
    /// Whether the output is not saved: the derivative recomputes which elements the ReLU set to 0, from the residual if there
    /// is one.
    pub(super) recompute: bool,
    pub(super) eps: f64,
}

impl BatchNorm {
    /// The indices of the weight and the bias, if present, among this many inputs.
    pub(super) fn scale(self, inputs: usize) -> std::ops::Range<usize> {
        let first = if self.batch { 1 } else { 3 };
        first..inputs - usize::from(self.then == Then::AddRelu)
    }

    /// Whether the derivative recomputes which elements the ReLU set to 0, for which it reads weight and bias.
    pub(super) fn finds_cut(self) -> bool {
        self.then == Then::Relu || (self.then == Then::AddRelu && self.recompute)
    }

    /// Whether the derivative reads from the output which elements the ReLU set to 0.
    pub(super) fn reads_output(self) -> bool {
        self.then == Then::AddRelu && !self.recompute
    }
}

/// The sizes of `[batch, channels, …]` in memory order.
pub(super) fn channels(layout: &Layout) -> Channels {
    let &[batch, channels, ref rest @ ..] = layout.shape() else { unreachable!("inferred") };
    let inner: usize = rest.iter().product();
    match layout.is_contiguous() {
        true => Channels { outer: batch, channels, inner },
        false => Channels { outer: batch * inner, channels, inner: 1 },
    }
}

/// The sizes in the form that a GPU's kernels take.
pub(super) fn images(layout: &Layout) -> Images {
    let Channels { outer, channels, inner } = channels(layout);
    Images { outer, channels, inner }
}
