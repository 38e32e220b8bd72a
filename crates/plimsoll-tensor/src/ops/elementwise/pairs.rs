//! The functions of two elements: rows of the table in `binary.rs`.

use super::binary::{Binary, Reads, Row, Types, binary, row_cases};
use super::real::Real;
use crate::dispatch::call_one;
use crate::error::Result;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `√(a² + b²)`, without squares that overflow or underflow.
#[inline(always)]
fn length<R: Real>(a: R, b: R) -> R {
    let (zero, infinite) = (R::of(0.0), R::of(f64::INFINITY));
    let (a, b) = (a.at_most(zero, -a, a), b.at_most(zero, -b, b));
    let most = a.at_most(b, b, a);
    let (x, y) = (a / most, b / most);
    most.equals(zero, zero, most.equals(infinite, infinite, most * (x * x + y * y).sqrt()))
}

binary! {
    /// `self + other`, broadcast.
    add => Sum over Any of All {
        |a, b| a + b,
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// `self - other`, broadcast. Not for `bool`: see [`Tensor::logical_xor`] and [`Tensor::logical_not`].
    sub => Difference over Any of EachNumbers in place sub_ {
        |a, b| a - b,
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| -g
    }

    /// `self * other`, element by element, broadcast.
    mul => Product over Any of All in place mul_ as operations {
        |a, b| a * b,
        left reads Other: |g, a, b| g * b,
        right reads Other: |g, a, b| g * a
    }

    /// `self / other`, element by element, broadcast.
    div => Quotient over Positive of Floats in place div_ as operations {
        |a, b| a / b,
        left reads Other: |g, a, b| g / b,
        right reads Both: |g, a, b| -g * ((a / b) / b)
    }

    /// `self` to the power of `other`, broadcast.
    pow => PowerOf over Positive of Numbers in place pow_ {
        |a, b| a.pow(b),
        left reads Both: |g, a, b| b.equals(R::of(0.0), R::of(0.0), g * b * a.pow(b - R::of(1.0))),
        // The logarithm of 0 is not needed if the power is 0 anyway.
        right reads Both: |g, a, b| a.equals(
            R::of(0.0),
            R::of(0.0).at_most(b, R::of(0.0), g * a.pow(b) * a.ln()),
            g * a.pow(b) * a.ln()
        )
    }

    /// The larger of the two, broadcast; NaN if either is NaN. Equal elements share the gradient.
    maximum => Maximum over Apart of All {
        |a, b| b.equals(b, a.at_most(b, b, a), b),
        left reads Both: |g, a, b| a.equals(b, g * R::of(0.5), a.at_most(b, R::of(0.0), g)),
        right reads Both: |g, a, b| a.equals(b, g * R::of(0.5), b.at_most(a, R::of(0.0), g))
    }

    /// The smaller of the two, broadcast; NaN if either is NaN. Equal elements share the gradient.
    minimum => Minimum over Apart of All {
        |a, b| b.equals(b, b.at_most(a, b, a), b),
        left reads Both: |g, a, b| a.equals(b, g * R::of(0.5), b.at_most(a, R::of(0.0), g)),
        right reads Both: |g, a, b| a.equals(b, g * R::of(0.5), a.at_most(b, R::of(0.0), g))
    }

    /// The angle of the point `(other, self)`, from -π to π, broadcast.
    atan2 => Angle over Positive of Floats {
        |a, b| a.angle(b),
        // The gradient is 0 at (0, 0), as in PyTorch.
        left reads Both: |g, a, b| {
            let length = length(a, b);
            length.equals(R::of(0.0), R::of(0.0), g * (b / length) / length)
        },
        right reads Both: |g, a, b| {
            let length = length(a, b);
            length.equals(R::of(0.0), R::of(0.0), -g * (a / length) / length)
        }
    }

    /// `self / (1 + e^-self) * other`, broadcast: SwiGLU's product of a gate and a value. It saves only these two.
    swiglu => SwiGlu over Any of Floats {
        |a, b| a / (R::of(1.0) + (-a).exp()) * b,
        left reads Both: |g, a, b| {
            let s = a.sigmoid();
            g * b * (s * (R::of(1.0) + a * (R::of(1.0) - s)))
        },
        right reads Other: |g, a, b| g * (a * a.sigmoid())
    }

    /// `ln(e^self + e^other)` without overflow, broadcast.
    logaddexp => LogAddExp over Any of Floats {
        |a, b| {
            let (high, low) = (a.at_most(b, b, a), a.at_most(b, a, b));
            // The difference of infinities of the same sign is NaN.
            a.equals(b, a + R::of(std::f64::consts::LN_2), high + (low - high).exp().ln_1p())
        },
        left reads Both: |g, a, b| g * (a - b).sigmoid(),
        right reads Both: |g, a, b| g * (b - a).sigmoid()
    }

    /// `√(self² + other²)`, broadcast.
    hypot => Hypotenuse over Positive of Floats {
        |a, b| length(a, b),
        left reads Both: |g, a, b| g * (a / length(a, b)),
        right reads Both: |g, a, b| g * (b / length(a, b))
    }

    /// `self · ln(other)`, and 0 where `self` is 0, broadcast.
    xlogy => TimesLogarithm over Positive of Floats {
        |a, b| a.equals(R::of(0.0), b.equals(b, R::of(0.0), b), a * b.ln()),
        left reads Both: |g, a, b| a.equals(R::of(0.0), b.at_most(R::of(0.0), R::of(0.0), g * b.ln()), g * b.ln()),
        right reads Both: |g, a, b| g * a / b
    }

    /// `self` where positive, otherwise `self · other`, broadcast. Implements [`Tensor::prelu`].
    leaky_by => LeakyBy over Apart of Floats {
        |a, b| a.at_most(R::of(0.0), a * b, a),
        left reads Both: |g, a, b| R::of(0.0).at_most(a, a.equals(R::of(0.0), g * b, g), g * b),
        right reads Both: |g, a, b| R::of(0.0).at_most(a, R::of(0.0), g * a)
    }

    /// Whether `self == other`, broadcast: a `bool` tensor.
    eq => Equal over Any of Truth {
        |a, b| a.equals(b, R::of(1.0), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self != other`, broadcast: a `bool` tensor. NaN differs from everything.
    ne => NotEqual over Any of Truth {
        |a, b| a.equals(b, R::of(0.0), R::of(1.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self <= other`, broadcast: a `bool` tensor.
    le => AtMost over Any of Truth {
        |a, b| a.at_most(b, R::of(1.0), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self >= other`, broadcast: a `bool` tensor.
    ge => AtLeast over Any of Truth {
        |a, b| b.at_most(a, R::of(1.0), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self < other`, broadcast: a `bool` tensor.
    lt => Less over Any of Truth {
        |a, b| a.at_most(b, a.equals(b, R::of(0.0), R::of(1.0)), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self > other`, broadcast: a `bool` tensor.
    gt => Greater over Any of Truth {
        |a, b| b.at_most(a, a.equals(b, R::of(0.0), R::of(1.0)), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }
}
