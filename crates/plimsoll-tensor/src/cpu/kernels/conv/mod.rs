//! Convolution (cross-correlation, as PyTorch's `conv1d`, `conv2d` and `conv3d`): sizes, layouts, and its three passes.
//!
//! A pass is the derivative of the others, so each is here once: [`forward`], [`backward_input`], which is also the transposed
//! convolution, and [`backward_weight`]. In `f32` they are products of register tiles (`tile.rs`), with images and weights in the
//! order that tiles read (`pad.rs`, `panels.rs`):
//!
//! | file | pass |
//! |---|---|
//! | `gather.rs`, `windows.rs` | forward, and backward to the input |
//! | `weight.rs` | backward to the weight |
//! | `few_taps.rs` | forward, where there are so few products that packing would cost as much |
//! | `scatter.rs` | backward to the input of small images without padding, where half of what windows see would be zeros |
//! | `depthwise.rs` | all three of channels-last images with a filter for each channel |
//! | `any.rs` | all three as plain loops: other types, and groups of one channel |

pub(crate) mod any;
mod depthwise;
mod few_taps;
mod gather;
mod pad;
mod panels;
mod planes;
mod scatter;
mod shape;
mod weight;
mod windows;

pub(crate) use shape::{ConvShape, Format, Formats};

use gather::Gather;
use planes::Conv2dShape;
use weight::BackwardWeight;
use windows::Pass;

/// What computes the pass forward.
enum Forward {
    FewTaps(Conv2dShape),
    Gather(Gather),
    Depthwise,
    Loops,
}

impl Forward {
    fn of(s: &ConvShape, formats: Formats) -> Forward {
        match Conv2dShape::of(s, formats).filter(few_taps::suits) {
            Some(planes) => Forward::FewTaps(planes),
            None if depthwise::suits(s, formats) => Forward::Depthwise,
            None if s.is_depthwise() => Forward::Loops,
            None => Forward::Gather(Gather::of(Pass::Forward, s, formats)),
        }
    }
}

/// Floats of scratch that [`forward`] needs.
pub(crate) fn forward_scratch_len(s: &ConvShape, formats: Formats) -> usize {
    match Forward::of(s, formats) {
        Forward::FewTaps(planes) => few_taps::scratch_len(&planes),
        Forward::Gather(gather) => gather.scratch_len(),
        Forward::Depthwise => depthwise::scratch_len(s),
        Forward::Loops => 0,
    }
}

/// `input, weight[, bias] -> output`.
pub(crate) fn forward(
    s: &ConvShape,
    formats: Formats,
    (input, weight): (&[f32], &[f32]),
    bias: Option<&[f32]>,
    output: &mut [f32],
    scratch: &mut [f32],
) {
    s.check(input.len(), weight.len(), output.len());
    match Forward::of(s, formats) {
        Forward::FewTaps(planes) => few_taps::conv2d(&planes, input, weight, bias, output, scratch),
        Forward::Gather(gather) => gather.run((input, weight), bias, output, scratch),
        Forward::Depthwise => depthwise::forward(s, (input, weight), bias, output, scratch),
        Forward::Loops => any::forward(s, formats, (input, weight), bias, output),
    }
}

/// What computes the pass backward to the input.
enum BackwardInput {
    Scatter(Conv2dShape),
    Gather(Gather),
    Depthwise,
    Loops,
}

impl BackwardInput {
    fn of(s: &ConvShape, formats: Formats, bias: bool) -> BackwardInput {
        match Conv2dShape::of(s, formats).filter(|planes| !bias && scatter::suits(planes)) {
            Some(planes) => BackwardInput::Scatter(planes),
            None if depthwise::suits(s, formats) => BackwardInput::Depthwise,
            None if s.is_depthwise() => BackwardInput::Loops,
            None => BackwardInput::Gather(Gather::of(Pass::BackwardInput, s, formats)),
        }
    }
}

/// Floats of scratch that [`backward_input`] needs, with a bias or without.
pub(crate) fn backward_input_scratch_len(s: &ConvShape, formats: Formats, bias: bool) -> usize {
    match BackwardInput::of(s, formats, bias) {
        BackwardInput::Scatter(planes) => scatter::scratch_len(&planes),
        BackwardInput::Gather(gather) => gather.scratch_len(),
        BackwardInput::Depthwise => depthwise::scratch_len(s),
        BackwardInput::Loops => 0,
    }
}

/// `grad of output, weight[, bias] -> grad of input`, plus a bias for each input channel.
pub(crate) fn backward_input(
    s: &ConvShape,
    formats: Formats,
    (grad, weight): (&[f32], &[f32]),
    bias: Option<&[f32]>,
    input: &mut [f32],
    scratch: &mut [f32],
) {
    s.check(input.len(), weight.len(), grad.len());
    match BackwardInput::of(s, formats, bias.is_some()) {
        BackwardInput::Scatter(planes) => {
            scatter::conv2d_backward_input(&planes, grad, weight, input, scratch);
        }
        BackwardInput::Gather(gather) => gather.run((grad, weight), bias, input, scratch),
        BackwardInput::Depthwise => depthwise::backward_input(s, (grad, weight), bias, input, scratch),
        BackwardInput::Loops => any::backward_input(s, formats, (grad, weight), bias, input),
    }
}

/// Floats of scratch that [`backward_weight`] needs.
pub(crate) fn backward_weight_scratch_len(s: &ConvShape, formats: Formats) -> usize {
    match (depthwise::suits(s, formats), s.is_depthwise()) {
        (true, _) => depthwise::weight_scratch_len(s),
        (_, true) => 0,
        _ => BackwardWeight::of(s, formats).scratch_len(),
    }
}

/// `input, grad of output -> grad of weight`.
pub(crate) fn backward_weight(
    s: &ConvShape,
    formats: Formats,
    (input, grad): (&[f32], &[f32]),
    weight: &mut [f32],
    scratch: &mut [f32],
) {
    s.check(input.len(), weight.len(), grad.len());
    match (depthwise::suits(s, formats), s.is_depthwise()) {
        (true, _) => depthwise::backward_weight(s, (input, grad), weight, scratch),
        (_, true) => any::backward_weight(s, formats, (input, grad), weight),
        _ => BackwardWeight::of(s, formats).run(input, grad, weight, scratch),
    }
}

#[cfg(test)]
mod tests;
