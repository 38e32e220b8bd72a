//! Activation functions: more rows of the table in `unary.rs`, one kernel and one derivative each.
//!
//! Each saves only the input, which its derivative reads. [`Tensor::swiglu`], which takes two tensors, is in `pairs.rs`.

use super::real::Real;
use super::unary::{Reads, Row, Types, Unary, case, unary};
use crate::dispatch::call_one;
use crate::error::Result;
use crate::operator::Autocast;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `ln(1 + e^x)`, without overflow.
#[inline(always)]
pub(super) fn softplus<R: Real>(x: R) -> R {
    let magnitude = x.at_most(R::of(0.0), -x, x);
    x.at_most(R::of(0.0), R::of(0.0), x) + (-magnitude).exp().ln_1p()
}

/// `then` if `x` is strictly between -3 and 3, otherwise `below` or `above`.
#[inline(always)]
fn within_three<R: Real>(x: R, below: R, then: R, above: R) -> R {
    x.at_most(R::of(-3.0), below, (-x).at_most(R::of(-3.0), above, then))
}

unary! {
    /// `x / (1 + e^-x)`, or swish. Like `torch.nn.functional.silu`.
    pub silu => Silu over Any of FloatsOnly in place silu_ {
        |x| x / (R::of(1.0) + (-x).exp()),
        reads Input,
        |g, x| g * (x.sigmoid() * (R::of(1.0) + x * (R::of(1.0) - x.sigmoid())))
    }

    /// `x · min(max(x + 3, 0), 6) / 6`. Like `torch.nn.functional.hardswish`.
    pub hardswish => Hardswish over Apart of FloatsOnly in place hardswish_ {
        // Minus infinity times 0 is NaN, as in PyTorch.
        |x| within_three(x, x * R::of(0.0), x * (x + R::of(3.0)) / R::of(6.0), x),
        reads Input,
        |g, x| x.equals(x, within_three(x, R::of(0.0), g * (x / R::of(3.0) + R::of(0.5)), g), g)
    }

    /// `min(max(x + 3, 0), 6) / 6`. Like `torch.nn.functional.hardsigmoid`.
    pub hardsigmoid => Hardsigmoid over Apart of FloatsOnly in place hardsigmoid_ {
        |x| within_three(x, R::of(0.0), (x + R::of(3.0)) / R::of(6.0), R::of(1.0)),
        reads Input,
        |g, x| x.equals(x, within_three(x, R::of(0.0), g / R::of(6.0), R::of(0.0)), R::of(0.0))
    }

    /// `x` clamped between `low` and `high`; the gradient is 0 at and beyond the bounds. Like `torch.nn.functional.hardtanh`.
    pub hardtanh => Hardtanh { low, high } over Apart of Numbers in place hardtanh_ {
        |x| x.at_most(low, low, (-x).at_most(-high, high, x)),
        reads Input,
        |g, x| x.at_most(low, R::of(0.0), (-x).at_most(-high, R::of(0.0), g))
    }

    /// `x` clamped between `low` and `high`; the gradient is 0 beyond the bounds. Implements `Tensor::clamp`. Infinite bounds
    /// have no effect.
    pub(crate) clamp_to named "clamp" => Clamp { low, high } over Apart of Numbers {
        // If `high` is less than `low`, the result is `high`, as in PyTorch.
        |x| (-(x.at_most(low, low, x))).at_most(-high, high, x.at_most(low, low, x)),
        reads Input,
        // The gradient flows at a bound, as in PyTorch 2.11.
        |g, x| low.at_most(x, x.at_most(high, g, R::of(0.0)), R::of(0.0))
    }

    /// `x`, multiplied by `slope` where negative. Like `torch.nn.functional.leaky_relu`.
    pub leaky_relu => LeakyRelu { slope } over Apart of FloatsOnly in place leaky_relu_ {
        |x| x.at_most(R::of(0.0), x * slope, x),
        reads Input,
        |g, x| R::of(0.0).at_most(x, x.equals(R::of(0.0), g * slope, g), g * slope)
    }

    /// `x` where positive, otherwise `alpha · (e^x - 1)`. Like `torch.nn.functional.elu`.
    pub elu => Elu { alpha } over Apart of FloatsOnly in place elu_ {
        |x| x.at_most(R::of(0.0), alpha * x.at_most(R::of(0.0), x, R::of(0.0)).exp_m1(), x),
        reads Input,
        |g, x| x.at_most(R::of(0.0), g * alpha * x.at_most(R::of(0.0), x, R::of(0.0)).exp(), g)
    }

    /// `ln(1 + e^x)`. Like `torch.nn.functional.softplus`.
    pub softplus => Softplus over Any of FloatsOnly autocast Full {
        |x| softplus(x),
        reads Input,
        |g, x| g * x.sigmoid()
    }

    /// `ln(1 / (1 + e^-x))`. Like `torch.nn.functional.logsigmoid`.
    pub log_sigmoid => LogSigmoid over Any of FloatsOnly {
        |x| -softplus(-x),
        reads Input,
        |g, x| g * (-x).sigmoid()
    }

    /// `x · tanh(ln(1 + e^x))`. Like `torch.nn.functional.mish`.
    pub mish => Mish over Any of FloatsOnly in place mish_ {
        |x| x * softplus(x).tanh(),
        reads Input,
        |g, x| {
            let t = softplus(x).tanh();
            g * (t + x * x.sigmoid() * (R::of(1.0) - t * t))
        }
    }
}
