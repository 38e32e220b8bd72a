//! Losses under the names that programs give their `criterion`: [`CrossEntropyLoss`] and others.
//!
//! Each has options with PyTorch's defaults, and a `forward` that calls the method of [`Tensor`] of the same name.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{CrossEntropyOptions, Result, Tensor};

/// Like `torch.nn.CrossEntropyLoss`.
///
/// ```
/// use plimsoll::nn::CrossEntropyLoss;
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let criterion = CrossEntropyLoss { label_smoothing: 0.1, ..CrossEntropyLoss::default() };
/// let (logits, target) = (Tensor::zeros(&[2, 4], &device)?, Tensor::from_slice(&[0i64, 3], &[2], &device)?);
/// assert!((criterion.forward(&logits, &target)?.item::<f32>()? - 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CrossEntropyLoss {
    /// A weight for each class.
    pub weight: Option<Tensor>,
    /// Positions with this class are ignored.
    pub ignore_index: i64,
    /// The fraction of each target that is spread evenly over all classes, from 0 to 1.
    pub label_smoothing: f64,
    /// How the losses of positions are reduced to one number.
    pub reduction: Reduction,
}

impl Default for CrossEntropyLoss {
    fn default() -> CrossEntropyLoss {
        CrossEntropyLoss {
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
        }
    }
}

impl CrossEntropyLoss {
    /// The loss of logits `[batch, classes, …]`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cross_entropy_with`].
    #[track_caller]
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let CrossEntropyLoss { ref weight, ignore_index, label_smoothing, reduction } = *self;
        let weight = weight.as_ref();
        input.cross_entropy_with(
            target,
            CrossEntropyOptions { weight, ignore_index, label_smoothing, reduction },
        )
    }
}

/// Like `torch.nn.NLLLoss`.
#[derive(Clone, Debug)]
pub struct NLLLoss {
    /// A weight for each class.
    pub weight: Option<Tensor>,
    /// Positions with this class are ignored.
    pub ignore_index: i64,
    /// How the losses of positions are reduced to one number.
    pub reduction: Reduction,
}

impl Default for NLLLoss {
    fn default() -> NLLLoss {
        NLLLoss { weight: None, ignore_index: -100, reduction: Reduction::Mean }
    }
}

impl NLLLoss {
    /// The loss of logarithms of probabilities, `[batch, classes, …]`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::nll_loss_with`].
    #[track_caller]
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let NLLLoss { ref weight, ignore_index, reduction } = *self;
        let options = CrossEntropyOptions {
            weight: weight.as_ref(),
            ignore_index,
            reduction,
            ..CrossEntropyOptions::default()
        };
        input.nll_loss_with(target, options)
    }
}

/// Defines losses that call a method of tensors, with a reduction and further options.
macro_rules! losses {
    ($($(#[$doc:meta])* $loss:ident { $($(#[$of:meta])* $number:ident: $type:ty = $default:expr),* } => $call:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $loss {
            $($(#[$of])* pub $number: $type,)*
            /// How the losses of elements are reduced to one number.
            pub reduction: Reduction,
        }

        impl Default for $loss {
            fn default() -> $loss {
                $loss { $($number: $default,)* reduction: Reduction::Mean }
            }
        }

        impl $loss {
            /// Computes the loss.
            ///
            /// # Errors
            /// If the shapes, types or devices do not match, or if memory runs out.
            #[track_caller]
            pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
                let _entry = Entry::here();
                let call: fn(&$loss, &Tensor, &Tensor) -> Result<Tensor> = $call;
                call(self, input, target)
            }
        }
    )*};
}

losses! {
    /// Like `torch.nn.MSELoss`.
    MSELoss {} => |of, x, y| x.mse_loss_with(y, of.reduction);
    /// Like `torch.nn.L1Loss`.
    L1Loss {} => |of, x, y| x.l1_loss(y, of.reduction);
    /// Like `torch.nn.SmoothL1Loss`.
    SmoothL1Loss {
        /// The difference at which the loss changes from quadratic to linear.
        beta: f64 = 1.0
    } => |of, x, y| x.smooth_l1_loss(y, of.beta, of.reduction);
    /// Like `torch.nn.HuberLoss`.
    HuberLoss {
        /// The difference at which the loss changes from quadratic to linear.
        delta: f64 = 1.0
    } => |of, x, y| x.huber_loss(y, of.delta, of.reduction);
    /// The input is probabilities. Like `torch.nn.BCELoss`.
    BCELoss {
        /// A weight for each element.
        weight: Option<Tensor> = None
    } => |of, x, y| x.binary_cross_entropy(y, of.weight.as_ref(), of.reduction);
    /// Like `torch.nn.BCEWithLogitsLoss`.
    BCEWithLogitsLoss {
        /// A weight for each element.
        weight: Option<Tensor> = None,
        /// A weight for the positive targets of each class.
        pos_weight: Option<Tensor> = None
    } => |of, x, y| {
        x.binary_cross_entropy_with_logits(y, of.weight.as_ref(), of.pos_weight.as_ref(), of.reduction)
    };
    /// The input is logarithms of probabilities. Like `torch.nn.KLDivLoss`.
    KLDivLoss {
        /// Whether targets are logarithms as well.
        log_target: bool = false,
        /// Whether to divide the sum by the number of rows instead of using `reduction`; `reduction="batchmean"` in PyTorch.
        batchmean: bool = false
    } => |of, x, y| match of.batchmean {
        true => x.kl_div(y, of.log_target, Reduction::Sum)?.div_scalar(x.shape().first().map_or(1.0, |&n| n as f64)),
        false => x.kl_div(y, of.log_target, of.reduction),
    };
}
