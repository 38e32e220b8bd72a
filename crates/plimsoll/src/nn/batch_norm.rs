//! Batch normalization as a layer: [`BatchNorm1d`], [`BatchNorm2d`], [`BatchNorm3d`].

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_tensor::autograd::saved_tensors_hooks;
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{BatchNormArgs, Error, Result, Tensor};

use super::per_channel::PerChannel;
use super::{Buffer, Mode, Module, Parameter, Scope};
use crate::members;

/// What a batch normalization has. The default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// The share of a batch in the updated running statistics; without it they are the mean over all batches.
    pub momentum: Option<f64>,
    /// Whether there are a weight and a bias.
    pub affine: bool,
    /// Whether there are running statistics. Without them the batch's are used in evaluation, too.
    pub track_running_stats: bool,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        BatchNormConfig { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true }
    }
}

/// Each channel brought to mean 0 and deviation 1, then scaled and shifted: [`BatchNorm1d`], [`BatchNorm2d`] and
/// [`BatchNorm3d`], whose inputs have `D` dimensions beside batch and channels.
///
/// ```
/// use plimsoll::nn::{BatchNorm2d, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let norm = BatchNorm2d::new(&Scope::new(&device, 1), 3)?;
/// let y = norm.forward(&Tensor::randn(&[8, 3, 4, 4], &device)?)?;
/// assert!(y.mean()?.item::<f32>()?.abs() < 1e-5);
/// let names: Vec<String> = norm.named_buffers().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["running_mean", "running_var", "num_batches_tracked"]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm<const D: usize> {
    label: LabelId,
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    running_mean: Option<Buffer>,
    running_var: Option<Buffer>,
    num_batches_tracked: Option<Buffer>,
    mode: Mode,
    momentum: Option<f64>,
    eps: f64,
}

/// Of `[batch, channels]` or `[batch, channels, length]`. As `torch.nn.BatchNorm1d`.
pub type BatchNorm1d = BatchNorm<1>;

/// Of `[batch, channels, height, width]`. As `torch.nn.BatchNorm2d`.
pub type BatchNorm2d = BatchNorm<2>;

/// Of `[batch, channels, depth, height, width]`. As `torch.nn.BatchNorm3d`.
pub type BatchNorm3d = BatchNorm<3>;

impl<const D: usize> BatchNorm<D> {
    /// For so many channels, with PyTorch's defaults.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, num_features: usize) -> Result<BatchNorm<D>> {
        BatchNorm::with(scope, num_features, BatchNormConfig::default())
    }

    /// [`BatchNorm::new`] with other settings.
    ///
    /// # Errors
    /// As [`BatchNorm::new`].
    pub fn with(scope: &Scope, num_features: usize, config: BatchNormConfig) -> Result<BatchNorm<D>> {
        let PerChannel { weight, bias, running_mean, running_var, num_batches_tracked } =
            PerChannel::new(scope, num_features, config.affine, config.track_running_stats)?;
        Ok(BatchNorm {
            label: scope.label(),
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

    /// The weight, `[channels]`.
    pub fn weight(&self) -> Option<&Parameter> {
        self.weight.as_ref()
    }

    /// The bias, `[channels]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Whether it uses the batch's statistics and updates the running ones.
    pub fn is_training(&self) -> bool {
        self.mode.is_training()
    }

    /// The normalized input, cut at 0, without the tensor between the two.
    ///
    /// # Errors
    /// As `forward`.
    pub fn forward_relu(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, None, true)
    }

    /// What `next` makes of the normalized input, cut at 0. What `next` saves of that for the backward pass is not kept but
    /// computed again from the input, which is kept anyway: one tensor instead of two, for another pass over it.
    ///
    /// # Errors
    /// As `forward`, and those of `next`.
    pub fn forward_relu_into(
        &self,
        input: &Tensor,
        next: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let cut = self.forward_relu(input)?;
        if !self.mode.is_training() || !cut.requires_grad() {
            return next(&cut);
        }
        let [x, weight, bias] = [Some(input), self.weight.as_deref(), self.bias.as_deref()]
            .map(|tensor| tensor.map(Tensor::detach));
        let (eps, owner) = (self.eps, self.label);
        // Known while `next` runs; the hooks, which live longer, must not keep it.
        let made = Arc::new(Mutex::new(Some(cut.detach())));
        let known = made.clone();
        let is_made = move |saved: &Tensor| {
            let made = known.lock().unwrap_or_else(PoisonError::into_inner);
            made.as_ref().is_some_and(|made| made.shares_storage(saved) && made.shape() == saved.shape())
        };
        let pack = move |saved: &Tensor| Ok(if is_made(saved) { None } else { Some(saved.clone()) });
        let unpack = move |packed: &Option<Tensor>| match (packed, &x) {
            (Some(saved), _) => Ok(saved.clone()),
            (None, Some(x)) => {
                let _owner = Span::layer(owner);
                let (weight, bias) = (weight.as_ref(), bias.as_ref());
                let args =
                    BatchNormArgs { weight, bias, relu: true, training: true, eps, ..Default::default() };
                x.batch_norm_with(args)
            }
            (None, None) => unreachable!("an input is there"),
        };
        let out = saved_tensors_hooks(pack, unpack, || next(&cut));
        *made.lock().unwrap_or_else(PoisonError::into_inner) = None;
        out
    }

    /// The normalized input plus `residual`, cut at 0, without the tensors between the three: the end of a residual block.
    ///
    /// # Errors
    /// As `forward`; a residual of another shape or type.
    pub fn forward_add_relu(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(input, Some(residual), true)
    }

    fn run(&self, input: &Tensor, residual: Option<&Tensor>, relu: bool) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        self.check(input)?;
        let running = self.running_mean.as_deref().zip(self.running_var.as_deref());
        input.batch_norm_with(BatchNormArgs {
            running,
            num_batches_tracked: self.num_batches_tracked.as_deref(),
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            residual,
            relu,
            training: self.mode.is_training(),
            momentum: self.momentum,
            eps: self.eps,
        })
    }

    fn check(&self, input: &Tensor) -> Result<()> {
        // One-dimensional ones take rows of features, too.
        if input.rank() == D + 2 || (D == 1 && input.rank() == 2) {
            return Ok(());
        }
        let needs = ["[batch, channels] or [batch, channels, length]", "[batch, channels, h, w]"];
        let needs = needs.get(D.wrapping_sub(1)).unwrap_or(&"[batch, channels, depth, h, w]");
        let message = format!("{} takes {needs}, not {:?}", self.kind(), input.shape());
        Err(Error::Shape { op: "batch_norm", message })
    }
}

impl<const D: usize> Module for BatchNorm<D> {
    members!(weight, bias, running_mean, running_var, num_batches_tracked, mode);

    fn kind(&self) -> &'static str {
        ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"].get(D.wrapping_sub(1)).copied().unwrap_or("BatchNorm")
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, None, false)
    }
}
