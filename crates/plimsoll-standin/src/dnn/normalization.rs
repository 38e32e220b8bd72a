//! cuDNN's batch normalization: a model of its workspaces. Those of an H200 (`tests/pytorch/workspaces/`) follow it to the
//! byte, but for three channels, for which there is a smaller kernel.
//!
//! Only the kernels for tensors in NHWC need any (`CUDNN_BATCHNORM_SPATIAL_PERSISTENT`, which PyTorch asks for there):
//! sums of so many positions at a time, of 64 channels together. Nothing is kept between forward and backward, because
//! PyTorch asks for no activation in it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use crate::argument::{Out, little_endian};
use crate::call::calls;
use crate::error::{Failure, Outcome};
use crate::settings::CudnnWorkspace;

/// `CUDNN_BATCHNORM_SPATIAL_PERSISTENT`.
const PERSISTENT: c_int = 2;
/// `CUDNN_DATA_FLOAT`.
const FLOAT: c_int = 0;
/// Channels that are summed together.
const GROUP_CHANNELS: u64 = 64;
/// Bytes of what counts the sums of a group that are done.
const COUNTER_BYTES: u64 = 4;

/// A tensor, as its descriptor has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tensor {
    element: c_int,
    channels: u64,
    /// Pictures times the positions in one.
    positions: u64,
}

static TENSORS: Mutex<BTreeMap<u64, Tensor>> = Mutex::new(BTreeMap::new());

fn tensors() -> MutexGuard<'static, BTreeMap<u64, Tensor>> {
    TENSORS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Tensor {
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
    fn cudnnSetTensorNdDescriptor(descriptor: u64, element: c_int, count: c_int, sizes: Out<u8>, _strides: u64) {
        let sizes = sizes.get_bytes(4 * count.unsigned_abs() as usize)?;
        let sizes: Vec<u64> = sizes.chunks(4).map(little_endian).map(i64::unsigned_abs).collect();
        let channels = sizes.get(1).copied().unwrap_or(1);
        let positions = sizes.iter().enumerate().filter(|&(at, _)| at != 1).map(|(_, size)| size).product();
        tensors().insert(descriptor, Tensor { element, channels, positions });
        Ok(())
    }
    fn cudnnDestroyTensorDescriptor(descriptor: u64) {
        tensors().remove(&descriptor);
        Ok(())
    }
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: u64, mode: c_int, _operation: c_int, x: u64, _z: u64, _y: u64, _scale: u64, _activation: u64,
        bytes: Out<u64>,
    ) {
        answer(mode, x, bytes, Tensor::forward_bytes)
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
        answer(mode, x, bytes, Tensor::backward_bytes)
    }
}

fn answer(mode: c_int, x: u64, bytes: Out<u64>, model: fn(&Tensor) -> u64) -> Outcome {
    let tensor = tensors().get(&x).copied().ok_or(Failure::InvalidHandle)?;
    bytes.put(match CudnnWorkspace::wanted() {
        CudnnWorkspace::Model if mode == PERSISTENT => model(&tensor),
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../tests/pytorch/workspaces/normalization-h200-2.11.0.txt");

    /// Those in NHWC that cuDNN computed: the tensor, and the card's bytes of forward and backward.
    fn measured() -> impl Iterator<Item = (Tensor, [u64; 2])> {
        let lines =
            MEASURED.lines().filter(|line| line.contains(" nhwc ") && line.contains("CudnnBatchNorm"));
        lines.map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let sizes: Vec<u64> = words[2].split('x').map(|size| size.parse().unwrap()).collect();
            let bytes = |at: usize| words[at].trim_matches(['[', ']']).parse().unwrap();
            let element = if words[0] == "fp32" { FLOAT } else { 2 };
            let tensor = Tensor { element, channels: sizes[1], positions: sizes[0] * sizes[2] * sizes[3] };
            (tensor, [bytes(4), bytes(words.len() - 1)])
        })
    }

    #[test]
    fn workspaces_in_nhwc_are_as_on_a_card_but_for_three_channels() {
        assert_eq!(measured().count(), 206);
        for (tensor, bytes) in measured().filter(|(tensor, _)| tensor.channels > 3) {
            assert_eq!([tensor.forward_bytes(), tensor.backward_bytes()], bytes, "{tensor:?}");
        }
    }

    #[test]
    fn nothing_is_asked_for_in_nchw_on_a_card() {
        let lines =
            MEASURED.lines().filter(|line| line.contains(" nchw ") && line.contains("CudnnBatchNorm"));
        for line in lines {
            assert!(line.contains("Backward0 [] [") && line.ends_with("] []"), "{line}");
        }
    }
}
