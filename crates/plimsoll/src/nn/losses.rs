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

/// Defines losses of some tensors, `(input, target)` or others, that call a method of the first one, with a reduction and further
/// options.
macro_rules! losses {
    (@tensor $input:ident) => { &Tensor };
    ($($(#[$doc:meta])* $loss:ident ($($input:ident),+) {
        $($(#[$of:meta])* $number:ident: $type:ty = $default:expr),*
    } => $call:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $loss {
            $($(#[$of])* pub $number: $type,)*
            /// How the losses of elements or rows are reduced to one number.
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
            pub fn forward(&self, $($input: &Tensor),+) -> Result<Tensor> {
                let _entry = Entry::here();
                let call: fn(&$loss, $(losses!(@tensor $input)),+) -> Result<Tensor> = $call;
                call(self, $($input),+)
            }
        }
    )*};
}

losses! {
    /// Like `torch.nn.MSELoss`.
    MSELoss(input, target) {} => |of, x, y| x.mse_loss_with(y, of.reduction);
    /// Like `torch.nn.L1Loss`.
    L1Loss(input, target) {} => |of, x, y| x.l1_loss(y, of.reduction);
    /// Like `torch.nn.SmoothL1Loss`.
    SmoothL1Loss(input, target) {
        /// The difference at which the loss changes from quadratic to linear.
        beta: f64 = 1.0
    } => |of, x, y| x.smooth_l1_loss(y, of.beta, of.reduction);
    /// Like `torch.nn.HuberLoss`.
    HuberLoss(input, target) {
        /// The difference at which the loss changes from quadratic to linear.
        delta: f64 = 1.0
    } => |of, x, y| x.huber_loss(y, of.delta, of.reduction);
    /// The input is probabilities. Like `torch.nn.BCELoss`.
    BCELoss(input, target) {
        /// A weight for each element.
        weight: Option<Tensor> = None
    } => |of, x, y| x.binary_cross_entropy(y, of.weight.as_ref(), of.reduction);
    /// Like `torch.nn.BCEWithLogitsLoss`.
    BCEWithLogitsLoss(input, target) {
        /// A weight for each element.
        weight: Option<Tensor> = None,
        /// A weight for the positive targets of each class.
        pos_weight: Option<Tensor> = None
    } => |of, x, y| {
        x.binary_cross_entropy_with_logits(y, of.weight.as_ref(), of.pos_weight.as_ref(), of.reduction)
    };
    /// The input is distances; targets are 1 for near and -1 for far pairs. Like `torch.nn.HingeEmbeddingLoss`.
    HingeEmbeddingLoss(input, target) {
        /// The distance from which on the loss of a far pair is 0.
        margin: f64 = 1.0
    } => |of, x, y| x.hinge_embedding_loss(y, of.margin, of.reduction);
    /// Targets are 1 and -1. Like `torch.nn.SoftMarginLoss`.
    SoftMarginLoss(input, target) {} => |of, x, y| x.soft_margin_loss(y, of.reduction);
    /// Scores `[batch, classes]`; targets are classes. Like `torch.nn.MultiMarginLoss`.
    MultiMarginLoss(input, target) {
        /// 1 or 2: the power of each difference.
        p: u32 = 1,
        /// The difference of scores from which on the loss is 0.
        margin: f64 = 1.0
    } => |of, x, y| x.multi_margin_loss(y, of.p, of.margin, of.reduction);
    /// Targets are counts. Like `torch.nn.PoissonNLLLoss`.
    PoissonNLLLoss(input, target) {
        /// Whether the input is the logarithm of the mean.
        log_input: bool = true,
        /// Whether to add Stirling's term.
        full: bool = false,
        /// Added to the input before its logarithm, if `log_input` is false.
        eps: f64 = 1e-8
    } => |of, x, y| x.poisson_nll_loss(y, of.log_input, of.full, of.eps, of.reduction);
    /// The input is logarithms of probabilities. Like `torch.nn.KLDivLoss`.
    KLDivLoss(input, target) {
        /// Whether targets are logarithms as well.
        log_target: bool = false,
        /// Whether to divide the sum by the number of rows instead of using `reduction`; `reduction="batchmean"` in PyTorch.
        batchmean: bool = false
    } => |of, x, y| match of.batchmean {
        true => x.kl_div(y, of.log_target, Reduction::Sum)?.div_scalar(x.shape().first().map_or(1.0, |&n| n as f64)),
        false => x.kl_div(y, of.log_target, of.reduction),
    };
    /// The positive row must be nearer to the anchor than the negative one, by the margin. Like `torch.nn.TripletMarginLoss`, with the
    /// Euclidean distance.
    ///
    /// ```
    /// use plimsoll::nn::TripletMarginLoss;
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let row = |x: f32| Tensor::from_slice(&[x, 0.0], &[1, 2], &device);
    /// let loss = TripletMarginLoss::default().forward(&row(0.0)?, &row(1.0)?, &row(1.5)?)?;
    /// assert!((loss.item::<f32>()? - 0.5).abs() < 1e-5);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    TripletMarginLoss(anchor, positive, negative) {
        /// The difference of distances from which on the loss is 0.
        margin: f64 = 1.0
    } => |of, a, p, n| a.triplet_margin_loss(p, n, of.margin, of.reduction);
    /// The cosine of two rows must be 1 for target 1, and at most the margin for target -1. Like `torch.nn.CosineEmbeddingLoss`.
    ///
    /// ```
    /// use plimsoll::nn::CosineEmbeddingLoss;
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let (x, target) = (Tensor::ones(&[2, 3], &device)?, Tensor::from_slice(&[1.0f32, -1.0], &[2], &device)?);
    /// let loss = CosineEmbeddingLoss::default().forward(&x, &x, &target)?;
    /// assert!((loss.item::<f32>()? - 0.5).abs() < 1e-6);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    CosineEmbeddingLoss(first, second, target) {
        /// The cosine up to which the loss of target -1 is 0.
        margin: f64 = 0.0
    } => |of, a, b, target| a.cosine_embedding_loss(b, target, of.margin, of.reduction);
    /// The first input must be above the second one for target 1, and below it for target -1, by the margin. Like
    /// `torch.nn.MarginRankingLoss`.
    ///
    /// ```
    /// use plimsoll::nn::MarginRankingLoss;
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let (low, high) = (Tensor::zeros(&[1], &device)?, Tensor::ones(&[1], &device)?);
    /// assert_eq!(MarginRankingLoss::default().forward(&low, &high, &high)?.item::<f32>()?, 1.0);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    MarginRankingLoss(first, second, target) {
        /// The difference from which on the loss is 0.
        margin: f64 = 0.0
    } => |of, a, b, target| a.margin_ranking_loss(b, target, of.margin, of.reduction);
    /// The input is means of normal distributions; the third tensor is their variances. Like `torch.nn.GaussianNLLLoss`.
    ///
    /// ```
    /// use plimsoll::nn::GaussianNLLLoss;
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let (mean, one) = (Tensor::zeros(&[4], &device)?, Tensor::ones(&[4], &device)?);
    /// assert_eq!(GaussianNLLLoss::default().forward(&mean, &one, &one)?.item::<f32>()?, 0.5);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    GaussianNLLLoss(input, target, var) {
        /// Whether to add the constant term.
        full: bool = false,
        /// The least variance.
        eps: f64 = 1e-6
    } => |of, x, target, var| x.gaussian_nll_loss(target, var, of.full, of.eps, of.reduction);
}

/// The loss of a sequence of labels without their places in time. Like `torch.nn.CTCLoss`.
///
/// ```
/// use plimsoll::nn::CTCLoss;
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let log_probs = Tensor::zeros(&[5, 1, 3], &device)?.log_softmax(2)?;
/// let targets = Tensor::from_slice(&[1i64, 2], &[1, 2], &device)?;
/// let loss = CTCLoss::default().forward(&log_probs, &targets, &[5], &[2])?;
/// // 35 of the 3⁵ sequences of classes mean the labels 1 and 2; the mean is divided by the number of labels.
/// assert!((loss.item::<f32>()? + (35.0f32 / 243.0).ln() / 2.0).abs() < 1e-5);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CTCLoss {
    /// The class that stands for no label.
    pub blank: usize,
    /// How the losses of sequences are reduced to one number.
    pub reduction: Reduction,
    /// Whether the loss of a target that is too long for its input is 0 instead of infinite.
    pub zero_infinity: bool,
}

impl Default for CTCLoss {
    fn default() -> CTCLoss {
        CTCLoss { blank: 0, reduction: Reduction::Mean, zero_infinity: false }
    }
}

impl CTCLoss {
    /// The loss of logarithms of probabilities, `[time, batch, classes]`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::ctc_loss`].
    #[track_caller]
    pub fn forward(
        &self,
        log_probs: &Tensor,
        targets: &Tensor,
        input_lengths: &[usize],
        target_lengths: &[usize],
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let CTCLoss { blank, reduction, zero_infinity } = *self;
        log_probs.ctc_loss(targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    }
}
