//! Activation functions as layers. They have no parameters; each is a method of [`Tensor`].

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Defines layers without options, each of which calls one method.
macro_rules! plain {
    ($($(#[$doc:meta])* $layer:ident => $method:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            label: LabelId,
        }

        impl $layer {
            /// Makes the layer; it has no options.
            ///
            /// # Errors
            /// None today; it returns a `Result` so that all layers are constructed in the same way.
            pub fn new(scope: &Scope) -> Result<$layer> {
                Ok($layer { label: scope.label() })
            }
        }

        impl Module for $layer {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$method()
            }
        }
    )*};
}

plain! {
    /// `max(x, 0)`. Like `torch.nn.ReLU`.
    ReLU => relu

    /// `1 / (1 + e^-x)`. Like `torch.nn.Sigmoid`.
    Sigmoid => sigmoid

    /// Hyperbolic tangent. Like `torch.nn.Tanh`.
    Tanh => tanh

    /// `x / (1 + e^-x)`, or swish. Like `torch.nn.SiLU`.
    SiLU => silu

    /// `x · tanh(ln(1 + e^x))`. Like `torch.nn.Mish`.
    Mish => mish

    /// `x · min(max(x + 3, 0), 6) / 6`. Like `torch.nn.Hardswish`.
    Hardswish => hardswish

    /// `min(max(x + 3, 0), 6) / 6`. Like `torch.nn.Hardsigmoid`.
    Hardsigmoid => hardsigmoid

    /// `ln(1 / (1 + e^-x))`. Like `torch.nn.LogSigmoid`.
    LogSigmoid => log_sigmoid

    /// `x / (1 + |x|)`. Like `torch.nn.Softsign`.
    Softsign => softsign

    /// `x - tanh(x)`. Like `torch.nn.Tanhshrink`.
    Tanhshrink => tanhshrink

    /// An exponential curve below 0 that keeps mean 0 and deviation 1. Like `torch.nn.SELU`.
    SELU => selu
}

/// Defines layers with one or two parameters, which are passed to a method.
macro_rules! configured {
    ($($(#[$doc:meta])* $layer:ident($($number:ident: $type:ty = $default:expr),*) => $method:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            label: LabelId,
            $($number: $type,)*
        }

        impl $layer {
            /// The layer with PyTorch's defaults.
            ///
            /// # Errors
            /// None today; it returns a `Result` so that all layers are constructed in the same way.
            pub fn new(scope: &Scope) -> Result<$layer> {
                Ok($layer { label: scope.label(), $($number: $default),* })
            }

            $(
                /// Returns the layer with this value.
                pub fn $number(mut self, $number: $type) -> $layer {
                    self.$number = $number;
                    self
                }
            )*
        }

        impl Module for $layer {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$method($(self.$number),*)
            }
        }
    )*};
}

configured! {
    /// `x`, multiplied by `negative_slope` where `x` is negative. Like `torch.nn.LeakyReLU`.
    LeakyReLU(negative_slope: f64 = 0.01) => leaky_relu

    /// `x`, but `alpha · (e^x - 1)` where `x` is negative. Like `torch.nn.ELU`.
    ELU(alpha: f64 = 1.0) => elu

    /// `x`, but `alpha · (e^(x / alpha) - 1)` where `x` is negative. Like `torch.nn.CELU`.
    CELU(alpha: f64 = 1.0) => celu

    /// `x`, but 0 if `|x| <= lambda`. Like `torch.nn.Hardshrink`.
    Hardshrink(lambda: f64 = 0.5) => hardshrink

    /// `x` moved by `lambda` towards 0. Like `torch.nn.Softshrink`.
    Softshrink(lambda: f64 = 0.5) => softshrink

    /// `x` where it is above `threshold`, else `value`. Like `torch.nn.Threshold`.
    Threshold(threshold: f64 = 0.0, value: f64 = 0.0) => threshold

    /// `ln(1 + e^(beta · x)) / beta`, but `x` where `beta · x` is above `threshold`. Like `torch.nn.Softplus`.
    Softplus(beta: f64 = 1.0, threshold: f64 = 20.0) => softplus_with

    /// Half of a dimension times the sigmoid of the other half. Like `torch.nn.GLU`.
    GLU(dim: isize = -1) => glu

    /// The softmax of `-x`. Like `torch.nn.Softmin(dim)`.
    Softmin(dim: isize = -1) => softmin

    /// `x`, but at least `min_val` and at most `max_val`. Like `torch.nn.Hardtanh`.
    Hardtanh(min_val: f64 = -1.0, max_val: f64 = 1.0) => hardtanh

    /// `x`, but at least `min_val`, 0, and at most `max_val`, 6. Like `torch.nn.ReLU6`.
    ReLU6(min_val: f64 = 0.0, max_val: f64 = 6.0) => hardtanh

    /// Exponentials divided by their sum along a dimension, by default the last. Like `torch.nn.Softmax(dim)`.
    Softmax(dim: isize = -1) => softmax

    /// The logarithm of [`Softmax`]. Like `torch.nn.LogSoftmax(dim)`.
    LogSoftmax(dim: isize = -1) => log_softmax
}

/// How [`GELU`] computes the normal distribution's Φ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approximate {
    /// By the error function; `approximate="none"` in PyTorch.
    #[default]
    None,
    /// By a hyperbolic tangent; `approximate="tanh"`.
    Tanh,
}

/// `x · Φ(x)`, with the normal distribution's Φ. Like `torch.nn.GELU`.
///
/// ```
/// use plimsoll::nn::{Approximate, GELU, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let gelu = GELU::new(&Scope::new(&device, 1))?.approximate(Approximate::Tanh);
/// assert!((gelu.forward(&Tensor::ones(&[1], &device)?)?.item::<f32>()? - 0.8412).abs() < 1e-4);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GELU {
    label: LabelId,
    approximate: Approximate,
}

impl GELU {
    /// Makes the layer, with the error function.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(scope: &Scope) -> Result<GELU> {
        Ok(GELU { label: scope.label(), approximate: Approximate::None })
    }

    /// Returns the layer with a different way to compute Φ.
    pub fn approximate(mut self, approximate: Approximate) -> GELU {
        self.approximate = approximate;
        self
    }
}

impl Module for GELU {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        match self.approximate {
            Approximate::None => input.gelu(),
            Approximate::Tanh => input.gelu_tanh(),
        }
    }
}

/// `x` where it is positive, else `x` times a trained weight. There is one weight for all channels or one for each (dimension 1).
/// Like `torch.nn.PReLU`.
///
/// ```
/// use plimsoll::nn::{Module, PReLU, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let prelu = PReLU::new(&Scope::new(&device, 1), 1)?;
/// let y = prelu.forward(&Tensor::from_slice(&[-4.0f32, 2.0], &[2], &device)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PReLU {
    label: LabelId,
    weight: Parameter,
}

impl PReLU {
    /// A layer with 1 weight, or one for each channel; initially 0.25.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, num_parameters: usize) -> Result<PReLU> {
        PReLU::with_init(scope, num_parameters, 0.25)
    }

    /// A layer whose weights are initially `init`.
    ///
    /// # Errors
    /// The same errors as [`PReLU::new`].
    pub fn with_init(scope: &Scope, num_parameters: usize, init: f64) -> Result<PReLU> {
        let weight = scope.parameter("weight", &[num_parameters], Init::Constant(init))?;
        Ok(PReLU { label: scope.label(), weight })
    }
}

impl Module for PReLU {
    members!(weight);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.prelu(&self.weight)
    }
}
