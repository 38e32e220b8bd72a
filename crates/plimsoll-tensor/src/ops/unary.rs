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
use crate::cuda::{self, CudaCall};
use crate::dtype::{DType, Scalar};
use crate::error::Error;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Autocast, Backward, Meta, Operator, Output, Outputs, Saves};
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

/// Of which types a row is, and of which its results are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Types {
    /// Of all; what is not of floating point gives `float32`.
    Floats,
    /// Of floating point only.
    FloatsOnly,
    /// Of numbers.
    Numbers,
    /// Of all; truth values give `int64`.
    Counts,
}

impl Types {
    /// The type of the result for an input of this type.
    fn result(self, op: &'static str, dtype: DType) -> Result<DType> {
        match self {
            Types::Floats => Ok(dtype.or_float()),
            Types::FloatsOnly => want_float(op, dtype).map(|()| dtype),
            Types::Numbers if dtype == DType::Bool => {
                Err(Error::DType { op, expected: "a type of numbers", got: dtype })
            }
            Types::Counts if dtype == DType::Bool => Ok(DType::I64),
            Types::Numbers | Types::Counts => Ok(dtype),
        }
    }
}

/// A row of the table.
pub(crate) trait Row: Clone + Debug + Send + Sync + 'static {
    const NAME: &'static str;
    const BACKWARD: &'static str;
    const READS: Reads;
    const TYPES: Types;
    const AUTOCAST: Autocast;
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

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let compute =
            if F::TYPES == Types::Floats { call.ins[0].dtype.or_float() } else { call.ins[0].dtype };
        let text = Text::of_expression(["a"], |[x]| self.0.value(x));
        cuda::elementwise::of_operator(call, &text, Some(compute))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let laid = Laid::of(out.layout(), [x.layout()]);
        if x.dtype() != DType::F32 {
            let compute = if F::TYPES == Types::Floats { x.dtype().or_float() } else { x.dtype() };
            elementwise::evaluate(
                &laid,
                [x],
                out,
                compute,
                |[x]| self.0.value(x),
                |[x]| self.0.value(x),
                |[x]| self.0.value(x),
            );
            return Ok(());
        }
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
        Ok(smallvec![Output::laid_out(x.layout.dense(), F::TYPES.result(F::NAME, x.dtype)?)])
    }

    fn autocast(&self) -> Autocast {
        F::AUTOCAST
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

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([g, v], [out]) = call.split();
        let laid = Laid::of(out.layout(), [g.layout(), v.layout()]);
        if [g.dtype(), v.dtype()] != [DType::F32; 2] {
            elementwise::evaluate(
                &laid,
                [g, v],
                out,
                elementwise::common_type_of(&[g, v]),
                |[g, v]| self.0.gradient(g, v),
                |[g, v]| self.0.gradient(g, v),
                |[g, v]| self.0.gradient(g, v),
            );
            return Ok(());
        }
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
        $vis:vis $name:ident => $row:ident $({ $($field:ident),* })? over $domain:ident of $types:ident
            $(autocast $cast:ident)? {
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
            const TYPES: Types = Types::$types;
            const AUTOCAST: Autocast = [$(Autocast::$cast,)? Autocast::AsGiven][0];
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
            $vis fn $name(&self $($(, $field: f64)*)?) -> Result<Tensor> {
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

pub(crate) use unary;

/// The gradient of a row's input from that of its output, and its input; for ReLU its output will do.
pub(crate) fn gradient<F: Row>(row: F, grad: &Tensor, read: &Tensor) -> Result<Tensor> {
    if is_grad_enabled() {
        return Traced::evaluate([grad, read], |[g, v]| row.gradient(g, v));
    }
    call_one(UnaryBackward(row), &[grad, read])
}

/// A row for the suite.
pub(crate) fn case<F: Row>(row: F, domain: Domain) -> Case {
    let op = Unary(row.clone());
    let values = move |ins: &[Vec<f64>]| vec![ins[0].iter().map(|&x| row.value(x)).collect()];
    Case::new(F::NAME, &[&[3, 4]], move |ins| call(op.clone(), ins)).over(domain).expect(values)
}

unary! {
    /// `-x`.
    pub neg => Negative over Any of Numbers { |x| -x, reads Nothing, |g, v| -g }

    /// `max(x, 0)`; not a number stays so, as in PyTorch.
    pub relu => Relu over Apart of Numbers {
        |x| x.at_most(R::of(0.0), R::of(0.0), x),
        reads Output,
        |g, y| y.at_most(R::of(0.0), R::of(0.0), g)
    }

    /// `e` to the power of `x`.
    pub exp => Exponential over Any of Floats autocast Full { |x| x.exp(), reads Output, |g, y| g * y }

    /// Natural logarithm. As `torch.log`.
    pub log => Logarithm over Positive of Floats autocast Full { |x| x.ln(), reads Input, |g, x| g / x }

    /// Square root.
    pub sqrt => SquareRoot over Positive of Floats { |x| x.sqrt(), reads Output, |g, y| g / (y * R::of(2.0)) }

    /// `x²`.
    pub square => Square over Any of Counts { |x| x * x, reads Input, |g, x| g * (x * R::of(2.0)) }

    /// `1 / x`.
    pub reciprocal => Reciprocal over Positive of Floats autocast Full { |x| R::of(1.0) / x, reads Output, |g, y| -g * y * y }

    /// Hyperbolic tangent.
    pub tanh => HyperbolicTangent over Any of Floats { |x| x.tanh(), reads Output, |g, y| g * (R::of(1.0) - y * y) }

    /// `1 / (1 + e^-x)`.
    pub sigmoid => Sigmoid over Any of Floats {
        |x| R::of(1.0) / (R::of(1.0) + (-x).exp()),
        reads Output,
        |g, y| g * (R::of(1.0) - y) * y
    }

    /// The error function, `2/√π` times the integral of `e^-t²` from 0 to `x`.
    pub erf => ErrorFunction over Any of Floats {
        |x| x.erf(),
        reads Input,
        |g, x| g * R::of(FRAC_2_SQRT_PI) * (-(x * x)).exp()
    }

    /// `x · Φ(x)`, with the normal distribution's Φ. As `torch.nn.functional.gelu`.
    pub gelu => Gelu over Any of FloatsOnly {
        |x| x * R::of(0.5) * (R::of(1.0) + (x * R::of(FRAC_1_SQRT_2)).erf()),
        reads Input,
        |g, x| g * (R::of(0.5) * (R::of(1.0) + (x * R::of(FRAC_1_SQRT_2)).erf())
            + x * R::of(0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI) * (x * x * R::of(-0.5)).exp())
    }

    /// An approximation of `gelu` by a hyperbolic tangent: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`. As
    /// `torch.nn.functional.gelu(approximate="tanh")`.
    pub gelu_tanh => GeluTanh over Any of FloatsOnly {
        |x| x * R::of(0.5) * (R::of(1.0) + (gelu_argument(x)).tanh()),
        reads Input,
        |g, x| g * gelu_slope(x, gelu_argument(x).tanh())
    }

    /// `mul * x + add`, of floating point.
    pub affine => Affine { mul, add } over Any of Floats { |x| x * mul + add, reads Nothing, |g, v| g * mul }

    /// `mul * x + add` of whole numbers, which wrap; of floating point it is [`Tensor::affine`].
    pub(crate) affine_whole => AffineWhole { mul, add } over Any of Counts {
        |x| x * mul + add,
        reads Nothing,
        |g, v| g * mul
    }

    /// 1 where `x <= 0`, else 0; no gradient flows.
    pub not_positive => NotPositive over Apart of Numbers {
        |x| x.at_most(R::of(0.0), R::of(1.0), R::of(0.0)),
        reads Nothing,
        |g, v| g * R::of(0.0)
    }
}

/// `√(2/π) · (x + 0.044715 x³)`.
#[inline(always)]
fn gelu_argument<R: Real>(x: R) -> R {
    (x + x * x * x * R::of(0.044_715)) * R::of(FRAC_2_SQRT_PI * FRAC_1_SQRT_2)
}

/// The derivative of `gelu_tanh`, with `t` the hyperbolic tangent in it.
#[inline(always)]
fn gelu_slope<R: Real>(x: R, t: R) -> R {
    let inner = (R::of(1.0) + x * x * R::of(3.0 * 0.044_715)) * R::of(FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    (R::of(1.0) + t) * R::of(0.5) + x * R::of(0.5) * (R::of(1.0) - t * t) * inner
}

impl Tensor {
    /// `x + value`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn add_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.with_scalars(Scalar::Int(1), value.into())
    }

    /// `x - value`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn sub_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        let negative = match value.into() {
            Scalar::Int(value) => Scalar::Int(value.wrapping_neg()),
            Scalar::Float(value) => Scalar::Float(-value),
        };
        self.with_scalars(Scalar::Int(1), negative)
    }

    /// `x * value`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn mul_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.with_scalars(value.into(), Scalar::Int(0))
    }

    /// `x / value`, of floating point.
    ///
    /// # Errors
    /// Out of memory.
    pub fn div_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.affine(1.0 / value.into().to_f64(), 0.0)
    }

    fn with_scalars(&self, mul: Scalar, add: Scalar) -> Result<Tensor> {
        let (factor, summand) = (mul.to_f64(), add.to_f64());
        match add.result_type(mul.result_type(self.dtype())) {
            result if result.is_float() => self.affine(factor, summand),
            _ => self.affine_whole(factor, summand),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_text_for_the_gpus_compiler() {
        let text = |kernel: &dyn Kernel| kernel.expression().unwrap();
        assert_eq!(text(&Unary(Relu {})), "(a <= C(0.0) ? C(0.0) : a)");
        assert_eq!(text(&UnaryBackward(Relu {})), "(b <= C(0.0) ? C(0.0) : a)");
        assert_eq!(text(&Unary(Affine { mul: 2.5, add: -1.0 })), "((a * C(2.5)) + C(-1.0))");
        assert_eq!(text(&Unary(Sigmoid {})), "(C(1.0) / (C(1.0) + exp((-a))))");
    }
}
