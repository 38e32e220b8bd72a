//! Batch normalization as a layer: [`BatchNorm1d`], [`BatchNorm2d`], [`BatchNorm3d`].

use std::cell::Cell;

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{BatchNormArgs, Error, Result, Tensor};

use super::per_channel::PerChannel;
use super::{Buffer, Mode, Module, Parameter, Scope};
use crate::members;

/// The options of batch normalization. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Epsilon added to the variance.
    pub eps: f64,
    /// The weight of a batch in the running statistics; with `None` they are the mean over all batches.
    pub momentum: Option<f64>,
    /// Whether there are a weight and a bias.
    pub affine: bool,
    /// Whether there are running statistics. Without them, evaluation also uses the batch's statistics.
    pub track_running_stats: bool,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        BatchNormConfig { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true }
    }
}

/// Normalizes each channel to mean 0 and standard deviation 1, then scales and shifts it: [`BatchNorm1d`], [`BatchNorm2d`] and
/// [`BatchNorm3d`], whose inputs have `D` dimensions in addition to batch and channels.
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

thread_local! {
    static IS_CUMULATIVE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which the running statistics of this thread's layers become means over all batches, whatever their momentum is.
pub(crate) fn cumulative<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_CUMULATIVE.set(self.0);
        }
    }
    let _restore = Restore(IS_CUMULATIVE.replace(true));
    f()
}

/// For inputs `[batch, channels]` or `[batch, channels, length]`. Like `torch.nn.BatchNorm1d`.
pub type BatchNorm1d = BatchNorm<1>;

/// For inputs `[batch, channels, height, width]`. Like `torch.nn.BatchNorm2d`.
pub type BatchNorm2d = BatchNorm<2>;

/// For inputs `[batch, channels, depth, height, width]`. Like `torch.nn.BatchNorm3d`.
pub type BatchNorm3d = BatchNorm<3>;

impl<const D: usize> BatchNorm<D> {
    /// A layer for this many channels, with PyTorch's defaults.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, num_features: usize) -> Result<BatchNorm<D>> {
        BatchNorm::with(scope, num_features, BatchNormConfig::default())
    }

    /// [`BatchNorm::new`] with other settings.
    ///
    /// # Errors
    /// The same errors as [`BatchNorm::new`].
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

    /// Whether the layer is in training mode, in which it uses the batch's statistics and updates the running ones.
    pub fn is_training(&self) -> bool {
        self.mode.is_training()
    }

    /// Normalization followed by ReLU, without storing the tensor between the two.
    ///
    /// # Errors
    /// The same errors as `forward`.
    #[track_caller]
    pub fn forward_relu(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, BatchNormArgs { relu: true, ..BatchNormArgs::default() })
    }

    /// [`BatchNorm::forward_relu`] with an output that is not kept: the backward pass recomputes it from the input, which is kept
    /// anyway. This keeps one tensor instead of two, and costs another pass over it.
    ///
    /// # Errors
    /// The same errors as `forward`.
    #[track_caller]
    pub fn forward_relu_recomputed(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, BatchNormArgs { relu: true, recompute: true, ..BatchNormArgs::default() })
    }

    /// Normalization, addition of `residual` and ReLU, without storing the tensors in between: the end of a residual block.
    ///
    /// # Errors
    /// The same errors as `forward`, or if the residual has a different shape or type.
    #[track_caller]
    pub fn forward_add_relu(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(input, BatchNormArgs { residual: Some(residual), relu: true, ..BatchNormArgs::default() })
    }

    /// [`BatchNorm::forward_add_relu`] with an output that is not kept for the backward pass, like
    /// [`BatchNorm::forward_relu_recomputed`]: it is recomputed from the input and the residual.
    ///
    /// # Errors
    /// The same errors as [`BatchNorm::forward_add_relu`].
    #[track_caller]
    pub fn forward_add_relu_recomputed(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let args = BatchNormArgs { relu: true, recompute: true, ..BatchNormArgs::default() };
        self.run(input, BatchNormArgs { residual: Some(residual), ..args })
    }

    /// `forward` with an output that is not kept for the backward pass, like [`BatchNorm::forward_relu_recomputed`].
    ///
    /// # Errors
    /// The same errors as `forward`.
    #[track_caller]
    pub fn forward_recomputed(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, BatchNormArgs { recompute: true, ..BatchNormArgs::default() })
    }

    /// Normalizes; `then` says whether ReLU and a residual follow, and which output is kept.
    #[track_caller]
    fn run(&self, input: &Tensor, then: BatchNormArgs<'_>) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        self.check(input)?;
        let running = self.running_mean.as_deref().zip(self.running_var.as_deref());
        input.batch_norm_with(BatchNormArgs {
            running,
            num_batches_tracked: self.num_batches_tracked.as_deref(),
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            training: self.mode.is_training(),
            momentum: self.momentum.filter(|_| !IS_CUMULATIVE.get()),
            eps: self.eps,
            ..then
        })
    }

    fn check(&self, input: &Tensor) -> Result<()> {
        // `BatchNorm1d` also takes inputs without a length.
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

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, BatchNormArgs::default())
    }
}
