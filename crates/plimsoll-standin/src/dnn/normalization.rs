//! cuDNN's normalization over a batch. In NCHW it asks for no workspace. In NHWC, as PyTorch has it trained there, an
//! H200 was asked for sums that each tile of positions keeps (`tests/pytorch/workspaces/libraries-h200-2.11.0.txt`); which
//! tiles its kernels take is not documented. Nothing is kept for the backward pass in either.

use std::ffi::c_int;

use super::asked;
use super::tensor::Tensor;
use crate::argument::Out;
use crate::call::{calls, work};
use crate::error::Outcome;

/// `CUDNN_BATCHNORM_SPATIAL_PERSISTENT`: what PyTorch asks for in NHWC.
const PERSISTENT: c_int = 2;
/// So many channels are summed at once, over as many positions.
const TILE: u64 = 64;
/// Bytes of both sums of a channel.
const SUMS_BYTES: u64 = 8;

calls! { Dnn:
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: u64, mode: c_int, _operation: c_int, x: u64, _z: u64, _y: u64, _scale: u64, _activation: u64,
        bytes: Out<u64>,
    ) {
        bytes.put(forward_bytes(mode, x)?)
    }
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: u64, _mode: c_int, _operation: c_int, _activation: u64, _x: u64, bytes: Out<u64>,
    ) {
        bytes.put(0)
    }
    /// The tiles of the backward pass are half as long again.
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: u64, mode: c_int, _operation: c_int, x: u64, _y: u64, _dy: u64, _dz: u64, _dx: u64, _scale: u64,
        _activation: u64, bytes: Out<u64>,
    ) {
        bytes.put(forward_bytes(mode, x)? * 2 / 3)
    }
}

work! { Dnn:
    cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTrainingEx
}

fn forward_bytes(mode: c_int, x: u64) -> Outcome<u64> {
    if mode != PERSISTENT {
        return Ok(0);
    }
    let sizes = Tensor::of(x)?.sizes;
    Ok(asked(|| tiles_bytes(&sizes)))
}

/// For a tensor of samples, channels and positions. Channels that do not fill vectors of 16 bytes are summed otherwise,
/// and with less.
fn tiles_bytes(sizes: &[u64]) -> u64 {
    let channels = sizes.get(1).copied().unwrap_or(0);
    if channels == 0 || !channels.is_multiple_of(4) {
        return 0;
    }
    let positions = sizes.iter().product::<u64>() / channels;
    positions * channels.div_ceil(TILE) * SUMS_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_near_the_cards() {
        let measured = include_str!("../../tests/pytorch/workspaces/libraries-h200-2.11.0.txt");
        let mut errors = Vec::new();
        for line in measured.lines().filter(|line| line.starts_with("BatchNorm ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let numbers: Vec<u64> = words[2..].iter().map(|word| word.parse().unwrap()).collect();
            let [samples, channels, width, forward, backward, kept] = numbers[..] else { panic!("{line}") };
            assert_eq!(kept, 0, "{line}");
            if words[1] == "nchw" {
                assert_eq!([forward, backward], [0, 0], "{line}");
            } else if channels > 3 {
                let ours = tiles_bytes(&[samples, channels, width, width]);
                errors.push(ours as f64 / forward as f64 - 1.0);
                errors.push((ours * 2 / 3) as f64 / backward as f64 - 1.0);
            }
        }
        errors.sort_by(f64::total_cmp);
        assert_eq!(errors.len(), 18);
        let figures = [errors[0], errors[9], errors[17]];
        assert_eq!(figures.map(|figure| format!("{figure:.3}")), ["-0.114", "-0.009", "-0.000"]);
    }
}
