//! Instance normalization as a layer: [`InstanceNorm1d`], [`InstanceNorm2d`], [`InstanceNorm3d`].

use plimsoll_tensor::checkpoint::is_recomputing;
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{BatchNormArgs, Error, Result, Tensor, no_grad};

use super::per_channel::PerChannel;
use super::{Buffer, Mode, Module, Parameter, Scope};
use crate::members;

/// The options of instance normalization. The defaults are PyTorch's: neither weights nor running statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstanceNormConfig {
    /// Epsilon added to the variance.
    pub eps: f64,
    /// The weight of a batch in the running statistics.
    pub momentum: f64,
    /// Whether there are a weight and a bias.
    pub affine: bool,
    /// Whether there are running statistics, which are used in evaluation.
    pub track_running_stats: bool,
}

impl Default for InstanceNormConfig {
    fn default() -> Self {
        InstanceNormConfig { eps: 1e-5, momentum: 0.1, affine: false, track_running_stats: false }
    }
}

/// Normalizes each channel of each example to mean 0 and standard deviation 1. Inputs have `D` dimensions in addition to
/// batch and channels; the batch may be missing.
///
/// ```
/// use plimsoll::nn::{InstanceNorm2d, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let norm = InstanceNorm2d::new(&Scope::new(&device, 1), 3)?;
/// let y = norm.forward(&Tensor::randn(&[2, 3, 4, 4], &device)?)?;
/// assert!(y.mean_dims(&[2, 3])?.abs()?.max()?.item::<f32>()? < 1e-5);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct InstanceNorm<const D: usize> {
    label: LabelId,
    channels: usize,
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    running_mean: Option<Buffer>,
    running_var: Option<Buffer>,
    num_batches_tracked: Option<Buffer>,
    mode: Mode,
    momentum: f64,
    eps: f64,
}

/// For inputs `[batch, channels, length]`. Like `torch.nn.InstanceNorm1d`.
pub type InstanceNorm1d = InstanceNorm<1>;
/// For inputs `[batch, channels, height, width]`. Like `torch.nn.InstanceNorm2d`.
pub type InstanceNorm2d = InstanceNorm<2>;
/// For inputs `[batch, channels, depth, height, width]`. Like `torch.nn.InstanceNorm3d`.
pub type InstanceNorm3d = InstanceNorm<3>;

impl<const D: usize> InstanceNorm<D> {
    /// A layer for this many channels, with PyTorch's defaults.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, num_features: usize) -> Result<InstanceNorm<D>> {
        InstanceNorm::with(scope, num_features, InstanceNormConfig::default())
    }

    /// [`InstanceNorm::new`] with other settings.
    ///
    /// # Errors
    /// The same errors as [`InstanceNorm::new`].
    pub fn with(scope: &Scope, num_features: usize, config: InstanceNormConfig) -> Result<InstanceNorm<D>> {
        let PerChannel { weight, bias, running_mean, running_var, num_batches_tracked } =
            PerChannel::new(scope, num_features, config.affine, config.track_running_stats)?;
        Ok(InstanceNorm {
            label: scope.label(),
            channels: num_features,
            weight,
            bias,
            running_mean,
            running_var,
            num_batches_tracked,
            mode: Mode::default(),
            momentum: config.momentum,
            eps: config.eps,
        })
    }

    /// Updates the running statistics with the mean of the examples' statistics.
    fn track(&self, input: &Tensor, mean: &Buffer, var: &Buffer) -> Result<()> {
        let places: Vec<isize> = (2..input.rank() as isize).collect();
        let of_batch = |x: Tensor| x.mean_dims(&[0])?.to_dtype(mean.dtype());
        let input = input.detach();
        mean.lerp_scalar_(&of_batch(input.mean_dims(&places)?)?, self.momentum)?;
        var.lerp_scalar_(&of_batch(input.var_dims(&places, 1.0)?)?, self.momentum)
    }
}

impl<const D: usize> Module for InstanceNorm<D> {
    members!(weight, bias, running_mean, running_var, num_batches_tracked, mode);

    fn kind(&self) -> &'static str {
        ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]
            .get(D.wrapping_sub(1))
            .copied()
            .unwrap_or("InstanceNorm")
    }

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        let fail = |message: String| Err(Error::Shape { op: "instance_norm", message });
        if input.rank() == D + 1 {
            return self.forward(&input.unsqueeze(0)?)?.squeeze(0);
        }
        if input.rank() != D + 2 || input.shape()[1] != self.channels {
            return fail(format!(
                "the input has shape {:?}; expected [batch, {}, …] with {D} dimensions after the channels",
                input.shape(),
                self.channels
            ));
        }
        let running = self.running_mean.as_ref().zip(self.running_var.as_ref());
        let (weight, bias) = (self.weight.as_deref(), self.bias.as_deref());
        if let (Some((mean, var)), false) = (running, self.mode.is_training()) {
            return input.batch_norm_with(BatchNormArgs {
                running: Some((mean.tensor(), var.tensor())),
                weight,
                bias,
                eps: self.eps,
                ..BatchNormArgs::default()
            });
        }
        let places: usize = input.shape()[2..].iter().product();
        if places == 1 && self.mode.is_training() {
            return fail(format!("{:?} has 1 element per channel: its variance is undefined", input.shape()));
        }
        // A checkpointed layer that is computed again has counted this batch.
        if let (Some((mean, var)), false) = (running, is_recomputing()) {
            no_grad(|| self.track(input, mean, var))?;
        }
        input.group_norm(self.channels, weight, bias, self.eps)
    }
}
