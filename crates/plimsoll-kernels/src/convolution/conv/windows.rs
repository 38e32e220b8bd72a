//! The source elements on which each position of the result depends, for the two passes that are sums over windows.
//!
//! In the forward pass, a position reads its window. For the gradient of the input, positions whose distance is a multiple of
//! the stride use the same taps of the output: these are a *phase*. Within a phase, a position reads a dense window, as in a
//! forward pass with stride 1, so there are no products with zeros between strides. Taps are numbered in packing order
//! (`panels.rs`): in the backward pass from the last to the first, so that a larger number reads a later element.

use super::shape::ConvShape;

/// The direction of a sum over windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    BackwardInput,
}

/// The positions of a dimension that use the same taps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Phase {
    /// The number of positions.
    pub(super) count: usize,
    /// The first tap, the distance to the next, and the number of taps.
    pub(super) first_tap: usize,
    pub(super) tap_step: usize,
    pub(super) taps: usize,
    /// The source element at the first tap of the first position; may be outside.
    pub(super) first: isize,
    /// The stride in the source between neighbouring positions.
    pub(super) step: usize,
    /// The stride in the source between neighbouring taps.
    pub(super) tap_offset: usize,
}

impl Pass {
    /// The number of phases of a dimension, which is the distance between positions of one phase.
    pub(super) fn phases(self, s: &ConvShape, dim: usize) -> usize {
        match self {
            Pass::Forward => 1,
            Pass::BackwardInput => s.stride[dim],
        }
    }

    /// Phase `start`: the positions `start`, `start + phases`, and so on.
    pub(super) fn phase(self, s: &ConvShape, dim: usize, start: usize) -> Phase {
        let (stride, padding, dilation) = (s.stride[dim], s.padding[dim], s.dilation[dim]);
        if self == Pass::Forward {
            return Phase {
                count: s.output[dim],
                first_tap: 0,
                tap_step: 1,
                taps: s.kernel[dim],
                first: -(padding as isize),
                step: stride,
                tap_offset: dilation,
            };
        }
        // A tap reads an element if `start + padding - tap * dilation` is a multiple of the stride.
        let seen = |tap: usize| (start + padding) as isize - (tap * dilation) as isize;
        let sees = |tap: &usize| seen(*tap) % stride as isize == 0;
        let common = gcd(stride, dilation);
        let tap_step = stride / common;
        let count = s.input[dim].saturating_sub(start).div_ceil(stride);
        let Some(last) = (0..s.kernel[dim]).rev().find(sees) else {
            return Phase { count, ..Phase::default() };
        };
        Phase {
            count,
            first_tap: s.kernel[dim] - 1 - last,
            tap_step,
            taps: last / tap_step + 1,
            first: seen(last) / stride as isize,
            step: 1,
            tap_offset: dilation / common,
        }
    }

    /// How many elements of padding a dimension of the source needs before its first and after its last element.
    pub(super) fn lacking(self, s: &ConvShape, dim: usize) -> [usize; 2] {
        let size = match self {
            Pass::Forward => s.input[dim],
            Pass::BackwardInput => s.output[dim],
        };
        let mut lacking = [0, 0];
        for start in 0..self.phases(s, dim) {
            let phase = self.phase(s, dim, start);
            if phase.count > 0 && phase.taps > 0 {
                let reach = (phase.taps - 1) * phase.tap_offset + (phase.count - 1) * phase.step;
                let last = phase.first + reach as isize;
                lacking[0] = lacking[0].max(usize::try_from(-phase.first).unwrap_or(0));
                lacking[1] = lacking[1].max(usize::try_from(last + 1 - size as isize).unwrap_or(0));
            }
        }
        lacking
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
