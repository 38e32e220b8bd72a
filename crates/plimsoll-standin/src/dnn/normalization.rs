//! cuDNN's batch normalization: a model of its workspaces. It matches an H200 (`tests/pytorch/workspaces/`) to the
//! byte, except for three channels, for which cuDNN has a smaller kernel.
//!
//! Only the NHWC kernels (`CUDNN_BATCHNORM_SPATIAL_PERSISTENT`, which PyTorch requests for NHWC) need a workspace:
//! partial sums over a number of positions, for 64 channels at a time. Nothing is saved from forward to backward,
//! because PyTorch requests no fused activation.

use std::ffi::c_int;

use super::asked;
use super::tensor::Tensor;
use crate::argument::Out;
use crate::call::calls;
use crate::error::Outcome;
use crate::stream::work;

/// `CUDNN_BATCHNORM_SPATIAL_PERSISTENT`.
const PERSISTENT: c_int = 2;
/// `CUDNN_DATA_FLOAT`.
const FLOAT: c_int = 0;
/// Channels that one group sums together.
const GROUP_CHANNELS: u64 = 64;
/// Bytes of the counter of finished sums of a group.
const COUNTER_BYTES: u64 = 4;

/// The input of a normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Input {
    element: c_int,
    channels: u64,
    /// Images times positions per image.
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
        // Two sums per channel, and a counter.
        self.sums_bytes(positions, 2 * 4 * GROUP_CHANNELS + COUNTER_BYTES) + 1072
    }

    fn backward_bytes(&self) -> u64 {
        self.sums_bytes(96, 2 * 4 * GROUP_CHANNELS) + 1056
    }

    /// Bytes of the partial sums over this many positions each, and of a counter per channel group.
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

/// Workspace bytes by the model, in the mode that needs a workspace.
fn modelled(mode: c_int, input: &Input, model: fn(&Input) -> u64) -> Option<u64> {
    (mode == PERSISTENT).then(|| model(input))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../tests/pytorch/workspaces/normalization-h200-2.11.0.txt");
    /// `CUDNN_BATCHNORM_SPATIAL`, which PyTorch requests for NCHW.
    const SPATIAL: c_int = 1;

    /// The measured cases in a layout: the input, and the H200's forward and backward bytes, if any.
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
