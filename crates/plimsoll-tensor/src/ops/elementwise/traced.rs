//! Evaluates a row's expression in two more ways: as tensor operations, and as source code for a GPU's compiler.
//!
//! Both store their results on a thread-local tape. A value is an index into the tape, so it is `Copy`, as [`Real`] requires.

use std::cell::{Cell, RefCell};
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::real::Real;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

thread_local! {
    /// The tape index of the first input of the expression that is being traced.
    static FIRST: Cell<usize> = const { Cell::new(0) };
    static TENSORS: RefCell<Vec<Result<Tensor>>> = const { RefCell::new(Vec::new()) };
    static TEXTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A tensor on the tape, or a constant.
#[derive(Clone, Copy)]
pub(crate) enum Traced {
    Constant(f64),
    Tensor(usize),
}

impl Traced {
    /// Evaluates an expression on these tensors.
    #[track_caller]
    pub(crate) fn evaluate<const N: usize>(
        inputs: [&Tensor; N],
        expression: impl FnOnce([Traced; N]) -> Traced,
    ) -> Result<Tensor> {
        let start = TENSORS.with_borrow(Vec::len);
        let before = FIRST.replace(start);
        expression(Traced::inputs(inputs)).finish(start, before)
    }

    /// The inputs on the tape. Compiled once, not for each expression, as is the next one.
    fn inputs<const N: usize>(inputs: [&Tensor; N]) -> [Traced; N] {
        inputs.map(|tensor| Traced::push(Ok(tensor.clone())))
    }

    /// The value of this result of an expression whose tape begins at `start`. Ends
    /// this tape, and restores the first input of the outer expression.
    #[track_caller]
    fn finish(self, start: usize, before: usize) -> Result<Tensor> {
        let result = match self {
            Traced::Tensor(at) => Traced::take(at),
            // The expression does not depend on its inputs, so expand it to the first input's shape.
            Traced::Constant(value) => Traced::take(start).and_then(|x| x.affine(0.0, value)),
        };
        // Temporaries are dropped outside the borrow, because a drop may free memory.
        let made = TENSORS.with_borrow_mut(|tape| tape.split_off(start));
        drop(made);
        FIRST.set(before);
        result
    }

    fn push(tensor: Result<Tensor>) -> Traced {
        TENSORS.with_borrow_mut(|tape| {
            tape.push(tensor);
            Traced::Tensor(tape.len() - 1)
        })
    }

    /// The tensor at an index. If computing it failed, the error is returned once.
    #[track_caller]
    fn take(at: usize) -> Result<Tensor> {
        TENSORS.with_borrow_mut(|tape| match &tape[at] {
            Ok(tensor) => Ok(tensor.clone()),
            Err(_) => std::mem::replace(
                &mut tape[at],
                Err(Error::autograd("backward", "an earlier part of the derivative failed")),
            ),
        })
    }

    /// `then` where this condition is true, otherwise `otherwise`.
    fn choose(self, then: Traced, otherwise: Traced) -> Traced {
        let at = match self {
            Traced::Constant(holds) => return if holds == 0.0 { otherwise } else { then },
            Traced::Tensor(at) => at,
        };
        // A constant takes the dtype of the other operand, or of the first input.
        let chosen = Traced::take(at).and_then(|mask| {
            let of = match (then, otherwise) {
                (Traced::Tensor(at), _) | (_, Traced::Tensor(at)) => Traced::take(at)?.dtype(),
                _ => Traced::take(FIRST.get())?.dtype(),
            };
            let tensor = |x: Traced| match x {
                Traced::Tensor(at) => Traced::take(at),
                Traced::Constant(value) => Tensor::full(&[], value, of, mask.device()),
            };
            mask.where_cond(&tensor(then)?, &tensor(otherwise)?)
        });
        Traced::push(chosen)
    }

    #[track_caller]
    fn unary(self, f: impl FnOnce(&Tensor) -> Result<Tensor>, of: impl FnOnce(f64) -> f64) -> Traced {
        match self {
            Traced::Constant(value) => Traced::Constant(of(value)),
            Traced::Tensor(at) => Traced::push(Traced::take(at).and_then(|x| f(&x))),
        }
    }

    #[track_caller]
    fn binary(
        self,
        other: Traced,
        tensors: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
        left: impl FnOnce(&Tensor, f64) -> Result<Tensor>,
        right: impl FnOnce(f64, &Tensor) -> Result<Tensor>,
        of: impl FnOnce(f64, f64) -> f64,
    ) -> Traced {
        use Traced::{Constant, Tensor};
        match (self, other) {
            (Constant(a), Constant(b)) => Constant(of(a, b)),
            (Tensor(a), Constant(b)) => Traced::push(Traced::take(a).and_then(|a| left(&a, b))),
            (Constant(a), Tensor(b)) => Traced::push(Traced::take(b).and_then(|b| right(a, &b))),
            (Tensor(a), Tensor(b)) => {
                let both = Traced::take(a).and_then(|a| Ok((a, Traced::take(b)?)));
                Traced::push(both.and_then(|(a, b)| tensors(&a, &b)))
            }
        }
    }
}

impl Add for Traced {
    type Output = Traced;
    fn add(self, other: Traced) -> Traced {
        self.binary(other, |a, b| a.add(b), |a, b| a.affine(1.0, b), |a, b| b.affine(1.0, a), |a, b| a + b)
    }
}

impl Sub for Traced {
    type Output = Traced;
    fn sub(self, other: Traced) -> Traced {
        let scalar = |a: &Tensor, b: f64| a.affine(1.0, -b);
        self.binary(other, |a, b| a.sub(b), scalar, |a, b| b.affine(-1.0, a), |a, b| a - b)
    }
}

impl Mul for Traced {
    type Output = Traced;
    fn mul(self, other: Traced) -> Traced {
        self.binary(other, |a, b| a.mul(b), |a, b| a.affine(b, 0.0), |a, b| b.affine(a, 0.0), |a, b| a * b)
    }
}

impl Div for Traced {
    type Output = Traced;
    fn div(self, other: Traced) -> Traced {
        let scalar = |a: &Tensor, b: f64| a.affine(1.0 / b, 0.0);
        self.binary(other, |a, b| a.div(b), scalar, |a, b| b.reciprocal()?.affine(a, 0.0), |a, b| a / b)
    }
}

impl Neg for Traced {
    type Output = Traced;
    fn neg(self) -> Traced {
        self.unary(Tensor::neg, |x| -x)
    }
}

macro_rules! traced {
    ($($name:ident $tensor:path, $number:path);* $(;)?) => {$(
        fn $name(self) -> Traced {
            self.unary($tensor, $number)
        }
    )*};
}

impl Real for Traced {
    fn of(value: f64) -> Traced {
        Traced::Constant(value)
    }
    fn exp(self) -> Traced {
        self.unary(Tensor::exp, f64::exp)
    }
    fn ln(self) -> Traced {
        self.unary(Tensor::log, f64::ln)
    }
    fn sqrt(self) -> Traced {
        self.unary(Tensor::sqrt, f64::sqrt)
    }
    fn tanh(self) -> Traced {
        self.unary(Tensor::tanh, f64::tanh)
    }
    fn sigmoid(self) -> Traced {
        self.unary(Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp()))
    }
    fn erf(self) -> Traced {
        self.unary(Tensor::erf, libm::erf)
    }
    fn erfc(self) -> Traced {
        self.unary(Tensor::erfc, libm::erfc)
    }
    traced! {
        ln_gamma Tensor::lgamma, libm::lgamma;
        sin Tensor::sin, f64::sin;
        cos Tensor::cos, f64::cos;
        tan Tensor::tan, f64::tan;
        asin Tensor::asin, f64::asin;
        acos Tensor::acos, f64::acos;
        atan Tensor::atan, f64::atan;
        ln_1p Tensor::log1p, f64::ln_1p;
        exp_m1 Tensor::expm1, f64::exp_m1;
        floor Tensor::floor, f64::floor;
        ceil Tensor::ceil, f64::ceil;
        round Tensor::round, f64::round_ties_even;
        trunc Tensor::trunc, f64::trunc;
    }
    fn pow(self, exponent: Traced) -> Traced {
        let left = |a: &Tensor, b: f64| a.power(b);
        // c to the power of x is e to the power of x · ln c.
        let right = |a: f64, b: &Tensor| b.affine(a.ln(), 0.0)?.exp();
        self.binary(exponent, |a, b| a.pow(b), left, right, f64::powf)
    }
    fn angle(self, x: Traced) -> Traced {
        let left = |a: &Tensor, b: f64| a.atan2(&Tensor::full(&[], b, a.dtype(), a.device())?);
        let right = |a: f64, b: &Tensor| Tensor::full(&[], a, b.dtype(), b.device())?.atan2(b);
        self.binary(x, |a, b| a.atan2(b), left, right, f64::atan2)
    }
    fn modulo(self, divisor: Traced) -> Traced {
        self - (self / divisor).trunc() * divisor
    }
    /// Uses a mask, through which no gradient flows, so values that are not chosen have no effect.
    fn at_most(self, limit: Traced, then: Traced, otherwise: Traced) -> Traced {
        let below = |a: &Tensor, b: f64| a.detach().le_scalar(b);
        let above = |a: f64, b: &Tensor| b.detach().ge_scalar(a);
        let both = |a: &Tensor, b: &Tensor| a.detach().le(b.detach());
        let holds = self.binary(limit, both, below, above, |a, b| f64::from(u8::from(a <= b)));
        holds.choose(then, otherwise)
    }
    fn equals(self, other: Traced, then: Traced, otherwise: Traced) -> Traced {
        let left = |a: &Tensor, b: f64| a.detach().eq_scalar(b);
        let right = |a: f64, b: &Tensor| b.detach().eq_scalar(a);
        let both = |a: &Tensor, b: &Tensor| a.detach().eq(b.detach());
        let holds = self.binary(other, both, left, right, |a, b| f64::from(u8::from(a == b)));
        holds.choose(then, otherwise)
    }
}

/// A CUDA C++ expression; the element type is called `C` in it.
#[derive(Clone, Copy)]
pub(crate) struct Text(usize);

impl Text {
    /// The source code of an expression with these variable names.
    pub(crate) fn of_expression<const N: usize>(
        names: [&str; N],
        expression: impl FnOnce([Text; N]) -> Text,
    ) -> String {
        let start = TEXTS.with_borrow(Vec::len);
        expression(Text::variables(names)).finish(start)
    }

    /// Compiled once, not for each expression, as is the next one.
    fn variables<const N: usize>(names: [&str; N]) -> [Text; N] {
        names.map(|name| Text::push(name.to_owned()))
    }

    /// The source code of this result of an expression whose texts begin at `start`.
    fn finish(self, start: usize) -> String {
        TEXTS.with_borrow_mut(|tape| tape.split_off(start).swap_remove(self.0 - start))
    }

    fn push(text: String) -> Text {
        TEXTS.with_borrow_mut(|tape| {
            tape.push(text);
            Text(tape.len() - 1)
        })
    }

    fn get(self) -> String {
        TEXTS.with_borrow(|tape| tape[self.0].clone())
    }

    fn infix(self, sign: &str, other: Text) -> Text {
        Text::push(format!("({} {sign} {})", self.get(), other.get()))
    }

    fn call(self, function: &str) -> Text {
        Text::push(format!("{function}({})", self.get()))
    }
}

macro_rules! infix {
    ($($trait:ident $method:ident $sign:literal),*) => {$(
        impl $trait for Text {
            type Output = Text;
            fn $method(self, other: Text) -> Text {
                self.infix($sign, other)
            }
        }
    )*};
}
infix!(Add add "+", Sub sub "-", Mul mul "*", Div div "/");

impl Neg for Text {
    type Output = Text;
    fn neg(self) -> Text {
        Text::push(format!("(-{})", self.get()))
    }
}

macro_rules! text {
    ($($name:ident $function:literal),*) => {$(
        fn $name(self) -> Text {
            self.call($function)
        }
    )*};
}

impl Real for Text {
    fn of(value: f64) -> Text {
        Text::push(format!("C({value:?})"))
    }
    fn exp(self) -> Text {
        self.call("exp")
    }
    fn ln(self) -> Text {
        self.call("log")
    }
    fn sqrt(self) -> Text {
        self.call("sqrt")
    }
    fn tanh(self) -> Text {
        self.call("tanh")
    }
    fn erf(self) -> Text {
        self.call("erf")
    }
    fn erfc(self) -> Text {
        self.call("erfc")
    }
    text!(ln_gamma "lgamma", sin "sin", cos "cos", tan "tan", asin "asin", acos "acos", atan "atan", ln_1p "log1p",
        exp_m1 "expm1", floor "floor", ceil "ceil", round "rint", trunc "trunc");
    fn angle(self, x: Text) -> Text {
        Text::push(format!("atan2({}, {})", self.get(), x.get()))
    }
    fn modulo(self, divisor: Text) -> Text {
        Text::push(format!("modulo({}, {})", self.get(), divisor.get()))
    }
    fn pow(self, exponent: Text) -> Text {
        Text::push(format!("pow({}, {})", self.get(), exponent.get()))
    }
    fn at_most(self, limit: Text, then: Text, otherwise: Text) -> Text {
        let [x, limit, then, otherwise] = [self, limit, then, otherwise].map(Text::get);
        Text::push(format!("({x} <= {limit} ? {then} : {otherwise})"))
    }
    fn equals(self, other: Text, then: Text, otherwise: Text) -> Text {
        let [x, other, then, otherwise] = [self, other, then, otherwise].map(Text::get);
        Text::push(format!("({x} == {other} ? {then} : {otherwise})"))
    }
}
