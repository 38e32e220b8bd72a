//! cuDNN's batch normalization: a model of its workspaces. Those of an H200 (`tests/pytorch/workspaces/`) follow it to the
//! byte, but for three channels, for which there is a smaller kernel.
//!
//! Only the kernels for tensors in NHWC need any (`CUDNN_BATCHNORM_SPATIAL_PERSISTENT`, which PyTorch asks for there):
//! sums of so many positions at a time, of 64 channels together. Nothing is kept between forward and backward, because
//! PyTorch asks for no activation in it.

use std::ffi::c_int;

use super::asked;
use super::tensor::Tensor;
use crate::argument::Out;
use crate::call::{calls, work};
use crate::error::Outcome;

/// `CUDNN_BATCHNORM_SPATIAL_PERSISTENT`.
const PERSISTENT: c_int = 2;
/// `CUDNN_DATA_FLOAT`.
const FLOAT: c_int = 0;
/// Channels that are summed together.
const GROUP_CHANNELS: u64 = 64;
/// Bytes of what counts the sums of a group that are done.
const COUNTER_BYTES: u64 = 4;

/// What is normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Input {
    element: c_int,
    channels: u64,
    /// Pictures times the positions in one.
    positions: u64,
}

impl Input {
    fn of(tensor: &Tensor) -> Input {
        let channels = tensor.sizes.get(1).copied().unwrap_or(1).max(1);
        Input {
            element: tensor.element,
            channels,
            positions: tensor.sizes.iter().product::<u64>() / channels,
        }
    }

    fn forward_bytes(&self) -> u64 {
        let positions = if self.element == FLOAT { 64 } else { 160 };
        // Two sums for each channel, and a counter beside them.
        self.sums_bytes(positions, 2 * 4 * GROUP_CHANNELS + COUNTER_BYTES) + 1072
    }

    fn backward_bytes(&self) -> u64 {
        self.sums_bytes(96, 2 * 4 * GROUP_CHANNELS) + 1056
    }

    /// Bytes of the sums of so many positions each, and of a counter for each group of channels.
    fn sums_bytes(&self, positions: u64, sum_bytes: u64) -> u64 {
        let groups = self.channels.div_ceil(GROUP_CHANNELS);
        groups * (self.positions.div_ceil(positions) * sum_bytes + COUNTER_BYTES)
    }
}

calls! { Dnn:
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: u64, mode: c_int, _operation: c_int, x: u64, _z: u64, _y: u64, _scale: u64, _activation: u64,
        bytes: Out<u64>,
    ) {
        answer(mode, x, bytes, Input::forward_bytes)
    }
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: u64, _mode: c_int, _operation: c_int, _activation: u64, _x: u64, bytes: Out<u64>,
    ) {
        bytes.put(0)
    }
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: u64, mode: c_int, _operation: c_int, x: u64, _y: u64, _dy: u64, _dz: u64, _dx: u64, _scale: u64,
        _activation: u64, bytes: Out<u64>,
    ) {
        answer(mode, x, bytes, Input::backward_bytes)
    }
}

work! { Dnn:
    cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTrainingEx
}

fn answer(mode: c_int, x: u64, bytes: Out<u64>, model: fn(&Input) -> u64) -> Outcome {
    let modelled = modelled(mode, &Input::of(&Tensor::of(x)?), model);
    bytes.put(modelled.map_or(0, |bytes| asked(|| bytes)))
}

/// Bytes by a model, in the mode that needs any.
fn modelled(mode: c_int, input: &Input, model: fn(&Input) -> u64) -> Option<u64> {
    (mode == PERSISTENT).then(|| model(input))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../tests/pytorch/workspaces/normalization-h200-2.11.0.txt");
    /// `CUDNN_BATCHNORM_SPATIAL`, which PyTorch asks for in NCHW.
    const SPATIAL: c_int = 1;

    /// Those in a layout that cuDNN computed: the input, and the card's bytes of forward and backward, if any.
    fn measured(layout: &str) -> Vec<(Input, [Option<u64>; 2])> {
        let lines = MEASURED.lines().filter(|line| line.contains(layout) && line.contains("CudnnBatchNorm"));
        let read = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let sizes: Vec<u64> = words[2].split('x').map(|size| size.parse().unwrap()).collect();
            let bytes = |at: usize| match words[at] {
                "[]" => None,
                bytes => Some(bytes.trim_matches(['[', ']']).parse().unwrap()),
            };
            let element = if words[0] == "fp32" { FLOAT } else { 2 };
            (Input::of(&Tensor { element, sizes }), [bytes(4), bytes(words.len() - 1)])
        };
        lines.map(read).collect()
    }

    fn both(mode: c_int, input: &Input) -> [Option<u64>; 2] {
        [Input::forward_bytes, Input::backward_bytes].map(|model| modelled(mode, input, model))
    }

    #[test]
    fn workspaces_in_nhwc_are_as_on_a_card_but_for_three_channels() {
        let measured = measured(" nhwc ");
        assert_eq!(measured.len(), 206);
        for (input, bytes) in measured.iter().filter(|(input, _)| input.channels > 3) {
            assert_eq!(both(PERSISTENT, input), *bytes, "{input:?}");
        }
    }

    #[test]
    fn nothing_is_asked_for_in_nchw_as_on_a_card() {
        let measured = measured(" nchw ");
        assert_eq!(measured.len(), 206);
        for (input, bytes) in measured {
            assert_eq!(both(SPATIAL, &input), bytes, "{input:?}");
        }
    }
}
