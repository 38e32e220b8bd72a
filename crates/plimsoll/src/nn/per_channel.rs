//! The tensors that batch and instance normalization keep for each channel, under PyTorch's names.

use plimsoll_tensor::{DType, Result, Tensor};

use super::{Buffer, Init, Parameter, Scope};

pub(super) struct PerChannel {
    pub(super) weight: Option<Parameter>,
    pub(super) bias: Option<Parameter>,
    pub(super) running_mean: Option<Buffer>,
    pub(super) running_var: Option<Buffer>,
    pub(super) num_batches_tracked: Option<Buffer>,
}

impl PerChannel {
    /// Makes a weight and a bias if `affine`, and running statistics if `track_running_stats`.
    pub(super) fn new(
        scope: &Scope,
        num_features: usize,
        affine: bool,
        track_running_stats: bool,
    ) -> Result<PerChannel> {
        let shape = [num_features];
        let parameter = |name, init| affine.then(|| scope.parameter(name, &shape, init)).transpose();
        let buffer = |name, shape: &[usize], value, dtype| {
            let make = || scope.buffer(name, |device| Tensor::full(shape, value, dtype, device));
            track_running_stats.then(make).transpose()
        };
        Ok(PerChannel {
            weight: parameter("weight", Init::Ones)?,
            bias: parameter("bias", Init::Zeros)?,
            running_mean: buffer("running_mean", &shape, 0.0, DType::F32)?,
            running_var: buffer("running_var", &shape, 1.0, DType::F32)?,
            num_batches_tracked: buffer("num_batches_tracked", &[], 0.0, DType::I64)?,
        })
    }
}
