//! Functions of each element: one row of the table at the end makes an operator.
//!
//! A row is a name, an expression of the element, what the derivative reads (the input, the output or neither),
//! and the gradient as an expression of the incoming one and of what was saved. From it come the host's
//! kernels, the text of a GPU's, the derivative of any order, a method of [`Tensor`] and test cases.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::fmt::Debug;

use smallvec::smallvec;

use super::elementwise::{self, Laid};
use super::real::Real;
use super::traced::{Text, Traced};
use super::want_float;
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::elementwise::{map, zip};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// What a row's derivative reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Nothing,
    Input,
    Output,
}

/// A row of the table.
pub(crate) trait Row: Clone + Debug + Send + Sync + 'static {
    const NAME: &'static str;
    const BACKWARD: &'static str;
    const READS: Reads;
    /// The function.
    fn value<R: Real>(&self, x: R) -> R;
    /// The gradient of `x`: `g` is the output's, `v` what was saved (`g` again where nothing was).
    fn gradient<R: Real>(&self, g: R, v: R) -> R;
}

/// A function of each element.
#[derive(Clone, Debug)]
pub(crate) struct Unary<F>(pub(crate) F);

impl<F: Row> Kernel for Unary<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a"], |[x]| self.0.value(x)))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let laid = Laid::of(out.layout(), [x.layout()]);
        let [x] = laid.operands::<f32, 1>([x]);
        map(
            laid.shape(),
            x,
            out.elements::<f32>(),
            #[inline(always)]
            |x| self.0.value(x),
        );
        Ok(())
    }
}

impl<F: Row> Operator for Unary<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = elementwise::inputs(F::NAME, ins)?;
        want_float(F::NAME, x.dtype)?;
        Ok(smallvec![Output::laid_out(x.layout.dense(), x.dtype)])
    }

    fn saves(&self, _: &[bool]) -> Saves {
        match F::READS {
            Reads::Nothing => Saves::NOTHING,
            Reads::Input => Saves::input(0),
            Reads::Output => Saves::output(0),
        }
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let saved = match F::READS {
            Reads::Nothing => grad.clone(),
            Reads::Input => at.input(0)?,
            Reads::Output => at.output(0)?,
        };
        let result = if is_grad_enabled() {
            Traced::evaluate([grad, &saved], |[g, v]| self.0.gradient(g, v))
        } else {
            call_one(UnaryBackward(self.0.clone()), &[grad, &saved])
        };
        Ok(smallvec![Some(result?)])
    }
}

/// The gradient of a function of each element, in one pass and without temporaries.
#[derive(Clone, Debug)]
pub(crate) struct UnaryBackward<F>(F);

impl<F: Row> Kernel for UnaryBackward<F> {
    fn name(&self) -> &'static str {
        F::BACKWARD
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a", "b"], |[g, v]| self.0.gradient(g, v)))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([g, v], [out]) = call.split();
        let laid = Laid::of(out.layout(), [g.layout(), v.layout()]);
        let [g, v] = laid.operands::<f32, 2>([g, v]);
        zip(
            laid.shape(),
            g,
            v,
            out.elements::<f32>(),
            #[inline(always)]
            |g, v| self.0.gradient(g, v),
        );
        Ok(())
    }
}

impl<F: Row> Operator for UnaryBackward<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [g, v] = elementwise::inputs(F::BACKWARD, ins)?;
        want_float(F::BACKWARD, g.dtype)?;
        elementwise::equal_shapes(F::BACKWARD, &[g, v])?;
        Ok(smallvec![Output::laid_out(v.layout.dense(), g.dtype)])
    }
}

macro_rules! unary {
    ($(
        $(#[$doc:meta])*
        $name:ident => $row:ident $({ $($field:ident),* })? over $domain:ident {
            |$x:ident| $value:expr,
            reads $reads:ident,
            |$g:ident, $v:ident| $gradient:expr
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $row { $($(pub(crate) $field: f64),*)? }

        impl Row for $row {
            const NAME: &'static str = stringify!($name);
            const BACKWARD: &'static str = concat!(stringify!($name), "_backward");
            const READS: Reads = Reads::$reads;
            #[inline(always)]
            fn value<R: Real>(&self, $x: R) -> R {
                $(let $row { $($field),* } = self; $(let $field = R::of(*$field);)*)?
                $value
            }
            #[inline(always)]
            #[allow(unused_variables, reason = "a gradient need not read everything")]
            fn gradient<R: Real>(&self, $g: R, $v: R) -> R {
                $(let $row { $($field),* } = self; $(let $field = R::of(*$field);)*)?
                $gradient
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// A type without such a function; out of memory.
            pub fn $name(&self $($(, $field: f64)*)?) -> Result<Tensor> {
                call_one(Unary($row { $($($field),*)? }), &[self])
            }
        }
    )*

    /// What the conformance suite runs: every row.
    pub(crate) fn cases() -> Vec<Case> {
        vec![$(case($row { $($($field: 1.5),*)? }, Domain::$domain)),*]
    }
    };
}

fn case<F: Row>(row: F, domain: Domain) -> Case {
    let op = Unary(row.clone());
    let values = move |ins: &[Vec<f64>]| vec![ins[0].iter().map(|&x| row.value(x)).collect()];
    Case::new(F::NAME, &[&[3, 4]], move |ins| call(op.clone(), ins)).over(domain).expect(values)
}

unary! {
    /// `-x`.
    neg => Negative over Any { |x| -x, reads Nothing, |g, v| -g }

    /// `max(x, 0)`; not a number stays so, as in PyTorch.
    relu => Relu over Apart {
        |x| x.at_most(R::of(0.0), R::of(0.0), x),
        reads Output,
        |g, y| y.at_most(R::of(0.0), R::of(0.0), g)
    }

    /// `e` to the power of `x`.
    exp => Exponential over Any { |x| x.exp(), reads Output, |g, y| g * y }

    /// Natural logarithm. As `torch.log`.
    log => Logarithm over Positive { |x| x.ln(), reads Input, |g, x| g / x }

    /// Square root.
    sqrt => SquareRoot over Positive { |x| x.sqrt(), reads Output, |g, y| g / (y * R::of(2.0)) }

    /// `x²`.
    square => Square over Any { |x| x * x, reads Input, |g, x| g * (x * R::of(2.0)) }

    /// `1 / x`.
    reciprocal => Reciprocal over Positive { |x| R::of(1.0) / x, reads Output, |g, y| -g * y * y }

    /// Hyperbolic tangent.
    tanh => HyperbolicTangent over Any { |x| x.tanh(), reads Output, |g, y| g * (R::of(1.0) - y * y) }

    /// `1 / (1 + e^-x)`.
    sigmoid => Sigmoid over Any {
        |x| R::of(1.0) / (R::of(1.0) + (-x).exp()),
        reads Output,
        |g, y| g * (R::of(1.0) - y) * y
    }

    /// The error function, `2/√π` times the integral of `e^-t²` from 0 to `x`.
    erf => ErrorFunction over Any {
        |x| x.erf(),
        reads Input,
        |g, x| g * R::of(FRAC_2_SQRT_PI) * (-(x * x)).exp()
    }

    /// `x · Φ(x)`, with the normal distribution's Φ. As `torch.nn.functional.gelu`.
    gelu => Gelu over Any {
        |x| x * R::of(0.5) * (R::of(1.0) + (x * R::of(FRAC_1_SQRT_2)).erf()),
        reads Input,
        |g, x| g * (R::of(0.5) * (R::of(1.0) + (x * R::of(FRAC_1_SQRT_2)).erf())
            + x * R::of(0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI) * (x * x * R::of(-0.5)).exp())
    }

    /// `mul * x + add`.
    affine => Affine { mul, add } over Any { |x| x * mul + add, reads Nothing, |g, v| g * mul }

    /// 1 where `x <= 0`, else 0; no gradient flows.
    not_positive => NotPositive over Apart {
        |x| x.at_most(R::of(0.0), R::of(1.0), R::of(0.0)),
        reads Nothing,
        |g, v| g * R::of(0.0)
    }
}

impl Tensor {
    /// `x + value`.
    ///
    /// # Errors
    /// As [`Tensor::affine`].
    pub fn add_scalar(&self, value: f64) -> Result<Tensor> {
        self.affine(1.0, value)
    }

    /// `x * value`.
    ///
    /// # Errors
    /// As [`Tensor::affine`].
    pub fn mul_scalar(&self, value: f64) -> Result<Tensor> {
        self.affine(value, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_text_for_the_gpus_compiler() {
        let text = |kernel: &dyn Kernel| kernel.expression().unwrap();
        assert_eq!(text(&Unary(Relu {})), "(a <= 0.0f ? 0.0f : a)");
        assert_eq!(text(&UnaryBackward(Relu {})), "(b <= 0.0f ? 0.0f : a)");
        assert_eq!(text(&Unary(Affine { mul: 2.5, add: -1.0 })), "((a * 2.5f) + -1.0f)");
        assert_eq!(text(&Unary(Sigmoid {})), "(1.0f / (1.0f + expf((-a))))");
    }
}
