//! The operator's parameters, and how the channels of its input lie.

use crate::cpu::kernels::channel_norm::Channels;
use crate::layout::Layout;

/// `x[, weight, bias] -> out, mean, rstd, variance` with the batch's statistics; `x, mean, variance[, weight, bias] ->
/// out, mean, rstd, variance` with given ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNorm {
    /// Whether the statistics are those of the batch.
    pub(super) batch: bool,
    pub(super) relu: bool,
    pub(super) eps: f64,
}

impl BatchNorm {
    /// The number of the weight.
    pub(super) fn weight(self) -> usize {
        if self.batch { 1 } else { 3 }
    }
}

/// Sizes of `[batch, channels, …]` as it lies.
pub(super) fn channels(layout: &Layout) -> Channels {
    let &[batch, channels, ref rest @ ..] = layout.shape() else { unreachable!("inferred") };
    let inner: usize = rest.iter().product();
    match layout.is_contiguous() {
        true => Channels { outer: batch, channels, inner },
        false => Channels { outer: batch * inner, channels, inner: 1 },
    }
}

/// Whether channels are side by side, without gaps.
pub(super) fn is_channels_last(layout: &Layout) -> bool {
    if layout.rank() < 3 {
        return false;
    }
    let last = layout.rank() as isize - 1;
    let order: Vec<usize> = [0].into_iter().chain(2..=last as usize).chain([1]).collect();
    layout.permute(&order).is_contiguous()
}

pub(super) fn takes(layout: &Layout) -> bool {
    layout.is_contiguous() || is_channels_last(layout)
}

/// The layout of an output for this input: channels-last stays so.
pub(super) fn kept(layout: &Layout) -> Layout {
    if takes(layout) { layout.dense() } else { Layout::contiguous(layout.shape()) }
}
