//! Activation functions as layers. They have no parameters; each is a method of [`Tensor`].

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Module, Scope};

/// Layers that have nothing to configure, from a method each.
macro_rules! plain {
    ($($(#[$doc:meta])* $layer:ident => $method:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            label: LabelId,
        }

        impl $layer {
            /// The layer; it has nothing to configure.
            ///
            /// # Errors
            /// None today; a `Result` like every layer's, so that all are built alike.
            pub fn new(scope: &Scope) -> Result<$layer> {
                Ok($layer { label: scope.label() })
            }
        }

        impl Module for $layer {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$method()
            }
        }
    )*};
}

plain! {
    /// `max(x, 0)`. As `torch.nn.ReLU`.
    ReLU => relu

    /// `1 / (1 + e^-x)`. As `torch.nn.Sigmoid`.
    Sigmoid => sigmoid

    /// Hyperbolic tangent. As `torch.nn.Tanh`.
    Tanh => tanh

    /// `x / (1 + e^-x)`, or swish. As `torch.nn.SiLU`.
    SiLU => silu

    /// `x · tanh(ln(1 + e^x))`. As `torch.nn.Mish`.
    Mish => mish

    /// `x · min(max(x + 3, 0), 6) / 6`. As `torch.nn.Hardswish`.
    Hardswish => hardswish

    /// `min(max(x + 3, 0), 6) / 6`. As `torch.nn.Hardsigmoid`.
    Hardsigmoid => hardsigmoid

    /// `ln(1 + e^x)`. As `torch.nn.Softplus` with its defaults.
    Softplus => softplus

    /// `ln(1 / (1 + e^-x))`. As `torch.nn.LogSigmoid`.
    LogSigmoid => log_sigmoid
}

/// Layers with a number or two, from a method that takes them.
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
            /// None today; a `Result` like every layer's, so that all are built alike.
            pub fn new(scope: &Scope) -> Result<$layer> {
                Ok($layer { label: scope.label(), $($number: $default),* })
            }

            $(
                /// The same layer with this one.
                pub fn $number(mut self, $number: $type) -> $layer {
                    self.$number = $number;
                    self
                }
            )*
        }

        impl Module for $layer {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$method($(self.$number),*)
            }
        }
    )*};
}

configured! {
    /// `x`, times `negative_slope` where it is negative. As `torch.nn.LeakyReLU`.
    LeakyReLU(negative_slope: f64 = 0.01) => leaky_relu

    /// `x`, and `alpha · (e^x - 1)` where it is negative. As `torch.nn.ELU`.
    ELU(alpha: f64 = 1.0) => elu

    /// `x`, but at least `min_val` and at most `max_val`. As `torch.nn.Hardtanh`.
    Hardtanh(min_val: f64 = -1.0, max_val: f64 = 1.0) => hardtanh

    /// `x`, but at least `min_val`, 0, and at most `max_val`, 6. As `torch.nn.ReLU6`.
    ReLU6(min_val: f64 = 0.0, max_val: f64 = 6.0) => hardtanh

    /// Exponentials along a dimension, the last unless another is set, over their sum. As `torch.nn.Softmax(dim)`.
    Softmax(dim: isize = -1) => softmax

    /// The logarithm of [`Softmax`]. As `torch.nn.LogSoftmax(dim)`.
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

/// `x · Φ(x)`, with the normal distribution's Φ. As `torch.nn.GELU`.
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
    /// The layer, with the error function.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope) -> Result<GELU> {
        Ok(GELU { label: scope.label(), approximate: Approximate::None })
    }

    /// The same layer with another way to compute Φ.
    pub fn approximate(mut self, approximate: Approximate) -> GELU {
        self.approximate = approximate;
        self
    }
}

impl Module for GELU {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        match self.approximate {
            Approximate::None => input.gelu(),
            Approximate::Tanh => input.gelu_tanh(),
        }
    }
}
