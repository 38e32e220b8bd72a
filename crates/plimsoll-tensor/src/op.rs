//! Operations as data: what a device is asked to compute.
//!
//! An [`Op`] carries everything but the tensors: which function, which sizes, which constants. A back end
//! matches on it once; traces, simulation and tests read its name. The functions that users call, with
//! their shape rules and derivatives, are in `ops/`; the road from there to a device is `dispatch.rs`.

use crate::layout::Dims;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryFn {
    /// `-x`
    Neg,
    /// `max(x, 0)`; not a number stays so.
    Relu,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Ln,
    /// Square root.
    Sqrt,
    /// `x²`
    Square,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `mul * x + add`
    Affine {
        /// Factor.
        mul: f32,
        /// Summand.
        add: f32,
    },
}

impl UnaryFn {
    /// PyTorch's name for it.
    pub fn name(self) -> &'static str {
        match self {
            UnaryFn::Neg => "neg",
            UnaryFn::Relu => "relu",
            UnaryFn::Exp => "exp",
            UnaryFn::Ln => "log",
            UnaryFn::Sqrt => "sqrt",
            UnaryFn::Square => "square",
            UnaryFn::Sigmoid => "sigmoid",
            UnaryFn::Tanh => "tanh",
            UnaryFn::Affine { .. } => "affine",
        }
    }
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryFn {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
}

impl BinaryFn {
    /// PyTorch's name for it.
    pub fn name(self) -> &'static str {
        match self {
            BinaryFn::Add => "add",
            BinaryFn::Sub => "sub",
            BinaryFn::Mul => "mul",
            BinaryFn::Div => "div",
        }
    }
}

/// Sizes of a convolution: `[batch, in_channels, in_h, in_w]` with filters
/// `[out_channels, in_channels, kernel_h, kernel_w]` gives `[batch, out_channels, out_h, out_w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named in the line above")]
pub struct Conv2dShape {
    pub batch: usize,
    pub in_channels: usize,
    pub in_h: usize,
    pub in_w: usize,
    pub out_channels: usize,
    pub kernel_h: usize,
    pub kernel_w: usize,
    /// Distance between neighbouring windows, vertical and horizontal; at least 1.
    pub stride: [usize; 2],
    /// Zeros on both sides, vertical and horizontal.
    pub padding: [usize; 2],
}

impl Conv2dShape {
    /// Rows of the output.
    pub fn out_h(&self) -> usize {
        (self.in_h + 2 * self.padding[0] - self.kernel_h) / self.stride[0] + 1
    }

    /// Columns of the output.
    pub fn out_w(&self) -> usize {
        (self.in_w + 2 * self.padding[1] - self.kernel_w) / self.stride[1] + 1
    }
}

/// Sizes of pooling: each of `planes` images of `in_h` × `in_w` on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dShape {
    /// Batch times channels.
    pub planes: usize,
    /// Rows of the input.
    pub in_h: usize,
    /// Columns of the input.
    pub in_w: usize,
    /// Size of the window, vertical and horizontal.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
    /// Places outside the image on both sides; at most half the window, so that every window meets the image.
    pub padding: [usize; 2],
}

impl Pool2dShape {
    /// Rows of the output.
    pub fn out_h(&self) -> usize {
        (self.in_h + 2 * self.padding[0] - self.kernel[0]) / self.stride[0] + 1
    }

    /// Columns of the output.
    pub fn out_w(&self) -> usize {
        (self.in_w + 2 * self.padding[1] - self.kernel[1]) / self.stride[1] + 1
    }
}

/// How a loss over many elements becomes one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Divided by the number of elements (or rows).
    Mean,
    /// Added up.
    Sum,
}

/// A distribution to draw values from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Evenly in `low..high`.
    Uniform {
        /// Smallest value.
        low: f32,
        /// Values stay below this.
        high: f32,
    },
    /// The normal distribution.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
}

/// Which random numbers: one of 2^64 independent streams of a seed. The same everywhere, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    /// The generator's seed.
    pub seed: u64,
    /// The stream of that seed.
    pub stream: u64,
}

/// One step of stochastic gradient descent on one parameter, as `torch.optim.SGD` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Momentum factor; 0 keeps no buffer.
    pub momentum: f64,
    /// Dampening of the gradient that enters the momentum buffer.
    pub dampening: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Whether the momentum buffer is new: it then becomes the gradient itself.
    pub first: bool,
}

/// How Adam's weight decay acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Added to the gradient: `torch.optim.Adam`.
    InGradient,
    /// Shrinks the parameter: `torch.optim.AdamW`.
    Decoupled,
}

/// One step of Adam on one parameter, as `torch.optim.Adam` or `AdamW` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty, or decay of the parameter itself.
    pub weight_decay: f64,
    /// How weight decay acts.
    pub decay: Decay,
    /// Number of this step, from 1.
    pub step: u64,
}

/// An operation. Inputs and outputs are named in the order in which they are passed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// `() -> out`: every element becomes the value.
    Fill(f64),
    /// `() -> out`: 0, 1, 2, … times `step`, plus `start`.
    Arange {
        /// First value.
        start: f64,
        /// Distance between values.
        step: f64,
    },
    /// `() -> out`: random values.
    Random(Distribution, RandomStream),
    /// `x -> out`: the same elements in the output's layout, broadcast.
    Copy,
    /// `x -> out`: each element converted to the output's type; both contiguous.
    Cast,
    /// `x -> out`: a function of each element.
    Unary(UnaryFn),
    /// `a, b -> out`: a function of each pair, broadcast.
    Binary(BinaryFn),
    /// `b -> a` in place: `a += alpha * b`.
    AddAssign {
        /// Factor on what is added.
        alpha: f32,
    },
    /// `b -> a` in place: `a *= b`.
    MulAssign,
    /// `grad, y -> out`: the gradient where `y > 0`.
    ReluBackward,
    /// `x -> out`: the sum over the dimensions marked, times `scale`.
    Sum {
        /// One mark per dimension of the input.
        reduced: Dims,
        /// Factor on each sum: 1, or one over the count for a mean.
        scale: f32,
    },
    /// `x -> index`: where the largest value along the last dimension is; the first of equals.
    ArgMax,
    /// `a, b -> out`: matrix product over the last two dimensions, batched over the leading ones.
    Matmul,
    /// `x, w[, bias] -> out`: `x · wᵀ + bias`, rows of `x` against rows of `w`.
    Linear,
    /// `x, w[, bias] -> out`.
    Conv2d(Conv2dShape),
    /// `grad, w -> grad of x`.
    Conv2dBackwardInput(Conv2dShape),
    /// `grad, x -> grad of w`.
    Conv2dBackwardWeight(Conv2dShape),
    /// `x -> out, index`: the largest value of each window and its place in it.
    MaxPool2d(Pool2dShape),
    /// `grad, index -> grad of x`.
    MaxPool2dBackward(Pool2dShape),
    /// `x -> out`: softmax over the last dimension.
    Softmax,
    /// `grad, y -> grad of x`, from the output `y`.
    SoftmaxBackward,
    /// `x -> out`: logarithm of the softmax over the last dimension.
    LogSoftmax,
    /// `grad, y -> grad of x`, from the output `y`.
    LogSoftmaxBackward,
    /// `log_probabilities, target -> loss`.
    NllLoss(Reduction),
    /// `grad, target -> grad of log_probabilities`.
    NllLossBackward(Reduction),
    /// `x, target -> loss`.
    MseLoss(Reduction),
    /// `grad, x, target -> grad of x`; scaled by `sign` (−1 gives the target's gradient).
    MseLossBackward(Reduction, f32),
    /// `grad -> param[, momentum_buffer]` in place.
    Sgd(SgdStep),
    /// `grad -> param, exp_avg, exp_avg_sq` in place.
    Adam(AdamStep),
}

impl Op {
    /// PyTorch's name for it where it has one: for traces, errors and the owner of bytes outside any layer.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Fill(_) => "fill",
            Op::Arange { .. } => "arange",
            Op::Random(Distribution::Uniform { .. }, _) => "uniform",
            Op::Random(Distribution::Normal { .. }, _) => "normal",
            Op::Copy => "copy",
            Op::Cast => "to_dtype",
            Op::Unary(f) => f.name(),
            Op::Binary(f) => f.name(),
            Op::AddAssign { .. } => "add_",
            Op::MulAssign => "mul_",
            Op::ReluBackward => "relu_backward",
            Op::Sum { .. } => "sum",
            Op::ArgMax => "argmax",
            Op::Matmul => "matmul",
            Op::Linear => "linear",
            Op::Conv2d(_) => "conv2d",
            Op::Conv2dBackwardInput(_) => "conv2d_backward_input",
            Op::Conv2dBackwardWeight(_) => "conv2d_backward_weight",
            Op::MaxPool2d(_) => "max_pool2d",
            Op::MaxPool2dBackward(_) => "max_pool2d_backward",
            Op::Softmax => "softmax",
            Op::SoftmaxBackward => "softmax_backward",
            Op::LogSoftmax => "log_softmax",
            Op::LogSoftmaxBackward => "log_softmax_backward",
            Op::NllLoss(_) => "nll_loss",
            Op::NllLossBackward(_) => "nll_loss_backward",
            Op::MseLoss(_) => "mse_loss",
            Op::MseLossBackward(..) => "mse_loss_backward",
            Op::Sgd(_) => "sgd",
            Op::Adam(_) => "adam",
        }
    }
}
