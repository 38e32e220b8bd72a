//! Convolution (cross-correlation, like PyTorch's `conv1d`, `conv2d` and `conv3d`): sizes, layouts, and its three
//! passes.
//!
//! Each pass is a derivative of the others, so there are three functions: [`forward`], [`backward_input`], which is also the
//! transposed convolution, and [`backward_weight`]. In `f32` they are products of register tiles (`tile.rs`), with images and
//! weights in the order in which tiles read them (`pad.rs`, `panels.rs`):
//!
//! | file | pass |
//! |---|---|
//! | `gather.rs`, `windows.rs` | forward, and the gradient of the input |
//! | `weight.rs` | the gradient of the weight |
//! | `winograd/` | all three, for images with 3 × 3 filters, with fewer products |
//! | `few_taps.rs` | forward, with so few products that packing would cost as much |
//! | `scatter.rs` | the gradient of the input for small images without padding, where windows would be half zeros |
//! | `depthwise.rs`, `depthwise_planes.rs` | groups of one channel, channels-last and row-major |
//! | `any.rs` | all three as plain loops, for other types |

pub mod any;
mod depthwise;
mod depthwise_planes;
mod few_taps;
mod gather;
mod pad;
mod panels;
mod planes;
mod scatter;
mod shape;
mod weight;
mod windows;
mod winograd;

pub use shape::{ConvShape, Format, Formats};

use depthwise_planes::Planes;
use gather::Gather;
use planes::Conv2dShape;
use weight::BackwardWeight;
use windows::Pass;
use winograd::{WinogradBlocks, WinogradWeightBlocks};

/// The kernel for the forward pass.
#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Forward {
    FewTaps(Conv2dShape),
    Winograd(WinogradBlocks),
    Gather(Gather),
    Depthwise,
    Planes(Planes),
    Loops,
}

impl Forward {
    fn of(s: &ConvShape, formats: Formats) -> Forward {
        match Conv2dShape::of(s, formats).filter(few_taps::suits) {
            Some(planes) => Forward::FewTaps(planes),
            None if depthwise::suits(s, formats) => Forward::Depthwise,
            None => match Planes::forward(s, formats) {
                Some(planes) => Forward::Planes(planes),
                None if s.is_depthwise() => Forward::Loops,
                None => match WinogradBlocks::of(Pass::Forward, s, formats) {
                    Some(winograd) => Forward::Winograd(winograd),
                    None => Forward::Gather(Gather::of(Pass::Forward, s, formats)),
                },
            },
        }
    }
}

/// Floats of scratch memory that [`forward`] needs.
pub fn forward_scratch_len(s: &ConvShape, formats: Formats) -> usize {
    match Forward::of(s, formats) {
        Forward::FewTaps(planes) => few_taps::scratch_len(&planes),
        Forward::Winograd(winograd) => winograd.scratch_len(),
        Forward::Gather(gather) => gather.scratch_len(),
        Forward::Depthwise => depthwise::scratch_len(s),
        Forward::Planes(planes) => planes.scratch_len(s.batch * s.out_channels),
        Forward::Loops => 0,
    }
}

/// `input, weight[, bias] -> output`.
pub fn forward(
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
        Forward::Winograd(winograd) => winograd.run((input, weight), bias, output, scratch),
        Forward::Gather(gather) => gather.run((input, weight), bias, output, scratch),
        Forward::Depthwise => depthwise::forward(s, (input, weight), bias, output, scratch),
        Forward::Planes(planes) => {
            let channels = (s.out_channels, s.group_out());
            planes.run((input, weight, false), channels, bias, output, scratch);
        }
        Forward::Loops => any::forward(s, formats, (input, weight), bias, output),
    }
}

/// The kernel for the gradient of the input.
#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum BackwardInput {
    Scatter(Conv2dShape),
    Winograd(WinogradBlocks),
    Gather(Gather),
    Depthwise,
    Planes(Planes),
    Loops,
}

impl BackwardInput {
    fn of(s: &ConvShape, formats: Formats, bias: bool) -> BackwardInput {
        match Conv2dShape::of(s, formats).filter(|planes| !bias && scatter::suits(planes)) {
            Some(planes) => BackwardInput::Scatter(planes),
            None if depthwise::suits(s, formats) => BackwardInput::Depthwise,
            None => match Planes::backward_input(s, formats) {
                Some(planes) => BackwardInput::Planes(planes),
                None if s.is_depthwise() => BackwardInput::Loops,
                None => match WinogradBlocks::of(Pass::BackwardInput, s, formats) {
                    Some(winograd) => BackwardInput::Winograd(winograd),
                    None => BackwardInput::Gather(Gather::of(Pass::BackwardInput, s, formats)),
                },
            },
        }
    }
}

/// Floats of scratch memory that [`backward_input`] needs, with or without a bias.
pub fn backward_input_scratch_len(s: &ConvShape, formats: Formats, bias: bool) -> usize {
    match BackwardInput::of(s, formats, bias) {
        BackwardInput::Scatter(planes) => scatter::scratch_len(&planes),
        BackwardInput::Winograd(winograd) => winograd.scratch_len(),
        BackwardInput::Gather(gather) => gather.scratch_len(),
        BackwardInput::Depthwise => depthwise::scratch_len(s),
        BackwardInput::Planes(planes) => planes.scratch_len(s.batch * s.in_channels),
        BackwardInput::Loops => 0,
    }
}

/// `grad of output, weight[, bias] -> grad of input`, plus a bias for each input channel.
pub fn backward_input(
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
        BackwardInput::Winograd(winograd) => winograd.run((grad, weight), bias, input, scratch),
        BackwardInput::Gather(gather) => gather.run((grad, weight), bias, input, scratch),
        BackwardInput::Depthwise => depthwise::backward_input(s, (grad, weight), bias, input, scratch),
        BackwardInput::Planes(planes) => {
            planes.run((grad, weight, true), (s.in_channels, 1), bias, input, scratch);
        }
        BackwardInput::Loops => any::backward_input(s, formats, (grad, weight), bias, input),
    }
}

/// The kernel for the gradient of the weight.
#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum ToWeight {
    Winograd(WinogradWeightBlocks),
    Sums(BackwardWeight),
    Depthwise,
    Planes(Planes),
    Loops,
}

impl ToWeight {
    fn of(s: &ConvShape, formats: Formats) -> ToWeight {
        match Planes::forward(s, formats) {
            _ if depthwise::suits(s, formats) => ToWeight::Depthwise,
            Some(planes) => ToWeight::Planes(planes),
            None if s.is_depthwise() => ToWeight::Loops,
            None => match WinogradWeightBlocks::of(s, formats) {
                Some(winograd) => ToWeight::Winograd(winograd),
                None => ToWeight::Sums(BackwardWeight::of(s, formats)),
            },
        }
    }
}

/// Floats of scratch memory that [`backward_weight`] needs.
pub fn backward_weight_scratch_len(s: &ConvShape, formats: Formats) -> usize {
    match ToWeight::of(s, formats) {
        ToWeight::Winograd(winograd) => winograd.scratch_len(),
        ToWeight::Sums(sums) => sums.scratch_len(),
        ToWeight::Depthwise => depthwise::weight_scratch_len(s),
        ToWeight::Planes(planes) => planes.scratch_len(s.out_channels),
        ToWeight::Loops => 0,
    }
}

/// `input, grad of output -> grad of weight`.
pub fn backward_weight(
    s: &ConvShape,
    formats: Formats,
    (input, grad): (&[f32], &[f32]),
    weight: &mut [f32],
    scratch: &mut [f32],
) {
    s.check(input.len(), weight.len(), grad.len());
    match ToWeight::of(s, formats) {
        ToWeight::Winograd(winograd) => winograd.run(input, grad, weight, scratch),
        ToWeight::Sums(sums) => sums.run(input, grad, weight, scratch),
        ToWeight::Depthwise => depthwise::backward_weight(s, (input, grad), weight, scratch),
        ToWeight::Planes(planes) => {
            planes.run_weight((input, grad), (s.out_channels, s.group_out()), weight, scratch);
        }
        ToWeight::Loops => any::backward_weight(s, formats, (input, grad), weight),
    }
}

#[cfg(test)]
mod tests;
