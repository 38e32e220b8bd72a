//! Elementwise functions of one operand: strided input, contiguous output.
//!
//! A function is one line in [`unary`]; the loops are shared and vectorised per instruction set. The gradient
//! of relu lives here too, next to the function it mirrors.

use super::exp::{exp, tanh};
use super::parallel::{PIECE, for_each_piece};
use super::simd::vectorize;
use super::walk::Walk;
use crate::op::UnaryFn;

/// `out[i] = function(src[i])` for each position of `shape`, row-major.
pub(crate) fn unary(function: UnaryFn, shape: &[usize], src: &[f32], strides: &[usize], out: &mut [f32]) {
    with_function!(function, f => map(shape, src, strides, out, f));
}

/// The gradient of relu: `out[i]` is `grad[i]` where `y[i]`, relu's output (or input), is above 0, else 0.
/// As PyTorch, the gradient passes where `y` is NaN.
pub(crate) fn relu_backward(grad: &[f32], y: &[f32], out: &mut [f32]) {
    assert_eq!(grad.len(), out.len(), "relu_backward: grad against out");
    assert_eq!(y.len(), out.len(), "relu_backward: y against out");
    for_each_piece(out, PIECE, |at, out| {
        let (grad, y) = (&grad[at..][..out.len()], &y[at..][..out.len()]);
        vectorize(
            #[inline(always)]
            || {
                for ((out, &g), &y) in out.iter_mut().zip(grad).zip(y) {
                    *out = if y <= 0.0 { 0.0 } else { g };
                }
            },
        );
    });
}

/// Evaluates `$body` with `$f` bound to the closure of `$function`: one compiled loop per function.
macro_rules! with_function {
    ($function:expr, $f:ident => $body:expr) => {
        match $function {
            UnaryFn::Neg => with_function!(|x| -x, $f, $body),
            UnaryFn::Relu => with_function!(|x| if x < 0.0 { 0.0 } else { x }, $f, $body),
            UnaryFn::Exp => with_function!(|x| exp(x), $f, $body),
            UnaryFn::Ln => with_function!(|x| x.ln(), $f, $body),
            UnaryFn::Sqrt => with_function!(|x| x.sqrt(), $f, $body),
            UnaryFn::Square => with_function!(|x| x * x, $f, $body),
            UnaryFn::Sigmoid => with_function!(|x| 1.0 / (1.0 + exp(-x)), $f, $body),
            UnaryFn::Tanh => with_function!(|x| tanh(x), $f, $body),
            UnaryFn::Affine { mul, add } => with_function!(|x| x * mul + add, $f, $body),
        }
    };
    (|$x:ident| $value:expr, $f:ident, $body:expr) => {{
        let $f = function(
            #[inline(always)]
            |$x: f32| -> f32 { $value },
        );
        $body
    }};
}
use with_function;

/// The identity: `#[inline(always)]` is allowed on an argument, not on a `let`.
fn function<F: Fn(f32) -> f32>(f: F) -> F {
    f
}

fn map(shape: &[usize], src: &[f32], strides: &[usize], out: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    let walk = Walk::new(shape, [strides]);
    assert_eq!(out.len(), walk.len(), "unary: out against shape {shape:?}");
    assert!(src.len() >= walk.span(0), "unary: src of {} where {} are read", src.len(), walk.span(0));
    let [stride] = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                walk.for_each_run(
                    start..start + piece.len(),
                    #[inline(always)]
                    |at, [from], len| {
                        let out = &mut piece[at - start..][..len];
                        let src = &src[from..];
                        match stride {
                            1 => out.iter_mut().zip(src).for_each(
                                #[inline(always)]
                                |(out, &x)| *out = f(x),
                            ),
                            0 => out.fill(f(src[0])),
                            _ => out.iter_mut().enumerate().for_each(
                                #[inline(always)]
                                |(i, out)| *out = f(src[i * stride]),
                            ),
                        }
                    },
                );
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn every_function_matches_its_formula_on_any_strides() {
        type Formula = fn(f32) -> f32;
        let functions: [(UnaryFn, Formula); 9] = [
            (UnaryFn::Neg, |x| -x),
            (UnaryFn::Relu, |x| x.max(0.0)),
            (UnaryFn::Exp, f32::exp),
            (UnaryFn::Ln, f32::ln),
            (UnaryFn::Sqrt, f32::sqrt),
            (UnaryFn::Square, |x| x * x),
            (UnaryFn::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
            (UnaryFn::Tanh, f32::tanh),
            (UnaryFn::Affine { mul: 3.0, add: -1.0 }, |x| x * 3.0 - 1.0),
        ];
        for (shape, strides) in strided_cases() {
            let src = random(1000, 1);
            for (function, formula) in functions {
                let expected: Vec<f32> = offsets(&shape, &strides).map(|at| formula(src[at])).collect();
                let mut out = vec![0.0; expected.len()];
                unary(function, &shape, &src, &strides, &mut out);
                assert_close(&out, &expected, 1e-6);
            }
        }
    }

    #[test]
    fn relu_keeps_nan_and_infinity() {
        let src = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 2.0];
        let mut out = [9.0; 5];
        unary(UnaryFn::Relu, &[5], &src, &[1], &mut out);
        assert!(out[0].is_nan());
        assert_eq!(out[1..], [f32::INFINITY, 0.0, 0.0, 2.0]);
    }

    #[test]
    fn relu_passes_the_gradient_where_its_output_is_above_zero() {
        let mut out = [9.0; 4];
        relu_backward(&[1.0, 2.0, 3.0, 4.0], &[0.0, 5.0, -1.0, f32::NAN], &mut out);
        assert_eq!(out, [0.0, 2.0, 0.0, 4.0]);
    }
}
