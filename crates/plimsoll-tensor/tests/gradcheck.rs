//! `gradcheck` accepts correct derivatives and reports wrong ones.

use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_tensor::gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
use plimsoll_tensor::{
    DType, Device, Error, Function, FunctionBackward, Grads, Result, Save, SimConfig, Tensor, Tensors, apply,
};

fn leaf(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::cpu()).unwrap().requires_grad_(true).unwrap()
}

fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

const DEFAULT: GradcheckOptions = GradcheckOptions { eps: 1e-6, atol: 1e-5, rtol: 1e-3, nondet_tol: 0.0 };

/// `x²`, whose derivative is wrong by this factor, or differs from call to call.
#[derive(Debug)]
struct Square {
    factor: f64,
    drift: Option<&'static AtomicUsize>,
}

impl Function for Square {
    fn name(&self) -> &'static str {
        "my_square"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        save.tensor(ins[0])?;
        Ok([ins[0].square()?].into_iter().collect())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let drift = self.drift.map_or(0, |calls| calls.fetch_add(1, Ordering::Relaxed));
        let factor = self.factor * 2.0 + drift as f64 * 1e-9;
        let grad = at.grad(0).unwrap().mul(&at.saved(0)?)?.mul_scalar(factor)?;
        Ok([Some(grad)].into_iter().collect())
    }
}

fn square(factor: f64) -> impl Fn(&[Tensor]) -> Result<Tensors> {
    move |x| apply(Square { factor, drift: None }, &[&x[0]])
}

#[test]
fn the_defaults_are_pytorchs() {
    assert_eq!(GradcheckOptions::default(), DEFAULT);
}

#[test]
fn right_derivatives_pass_with_several_inputs_and_outputs_in_any_layout() {
    let (a, b) = (leaf(&[0.5, -1.0, 2.0, 0.25, 1.5, -0.75], &[2, 3]), leaf(&[1.5, -0.5, 2.5], &[3]));
    let f = |x: &[Tensor]| Ok((x[0].mul(&x[1])?.tanh()?, x[0].transpose(0, 1)?.softmax(0)?));
    gradcheck(f, &[&a, &b], DEFAULT).unwrap();
    gradgradcheck(f, &[&a, &b], None, DEFAULT).unwrap();
    let transposed = a.detach().transpose(0, 1).unwrap().requires_grad_(true).unwrap();
    gradcheck(|x| x[0].exp(), &[&transposed], DEFAULT).unwrap();
    gradcheck(square(1.0), &[&b], DEFAULT).unwrap();
}

#[test]
fn a_captured_input_is_checked_as_well() {
    let (w, x) = (leaf(&[0.5, -1.0], &[2]), leaf(&[2.0, 3.0], &[2]));
    gradcheck(|_| w.mul(&x)?.exp(), &[&w, &x], DEFAULT).unwrap();
    assert_eq!(w.to_vec::<f64>().unwrap(), [0.5, -1.0], "as it was");
}

#[test]
fn a_wrong_derivative_is_shown_with_its_place_and_both_jacobians() {
    let x = leaf(&[1.0, 3.0], &[2]);
    let found = text(gradcheck(square(0.5), &[&x], DEFAULT));
    let expected = "gradcheck: output 0, input 0: the derivative differs from finite differences: 2 of 4 derivatives \
                    differ, most of all for output element 1 and input element 1: 3, expected 6.0";
    assert!(found.starts_with(expected), "{found}");
    assert!(found.contains("\nfound (rows are output elements):\n  1.000000e0  0.000000e0\n"), "{found}");
    assert_eq!(x.to_vec::<f64>().unwrap(), [1.0, 3.0], "as it was");
}

#[test]
fn a_derivative_of_zero_is_wrong_where_the_function_has_a_slope() {
    let x = leaf(&[1.0], &[1]);
    let found = text(gradcheck(|x| x[0].detach().square(), &[&x], DEFAULT));
    assert!(found.contains("output element 0 and input element 0: 0, expected "), "{found}");
}

#[test]
fn backward_passes_that_differ_are_an_error_unless_that_is_allowed() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let x = leaf(&[1.0], &[1]);
    let f = |x: &[Tensor]| apply(Square { factor: 1.0, drift: Some(&CALLS) }, &[&x[0]]);
    let found = text(gradcheck(f, &[&x], DEFAULT));
    assert!(found.contains("two backward passes through one graph differ"), "{found}");
    gradcheck(f, &[&x], GradcheckOptions { nondet_tol: 1e-6, ..DEFAULT }).unwrap();
}

#[test]
fn what_cannot_be_checked_is_refused() {
    let x = leaf(&[1.0], &[1]);
    let none = x.detach();
    assert_eq!(
        text(gradcheck(|x| x[0].exp(), &[&none], DEFAULT)),
        "gradcheck: no input requires a gradient: mark one with `requires_grad_`"
    );
    let wide = x.detach().expand(&[3]).unwrap().requires_grad_(true).unwrap();
    assert!(text(gradcheck(|x| x[0].exp(), &[&wide], DEFAULT)).contains("share memory"));
    let short = x.to_dtype(DType::F32).unwrap().detach().requires_grad_(true).unwrap();
    assert!(text(gradcheck(|x| x[0].exp(), &[&short], DEFAULT)).contains("not all inputs are of float64"));
    let sim = Device::sim(SimConfig::new(1 << 30));
    let there = Tensor::ones(&[1], &sim).unwrap().requires_grad_(true).unwrap();
    assert!(matches!(gradcheck(|x| x[0].exp(), &[&there], DEFAULT), Err(Error::NoValues { .. })));
}

#[test]
fn a_wrong_second_derivative_is_found() {
    let x = leaf(&[0.7, 1.3], &[2]);
    gradgradcheck(|x| x[0].square()?.mul(&x[0]), &[&x], None, DEFAULT).unwrap();
    // The gradient has the value of 2x, but the derivative of 3x².
    let f = |x: &[Tensor]| apply(HalfRight, &[&x[0]]);
    gradcheck(f, &[&x], DEFAULT).unwrap();
    assert!(text(gradgradcheck(f, &[&x], None, DEFAULT)).starts_with("gradgradcheck: output 0, input 0: "));
}

/// `x²` with a correct gradient that cannot be differentiated again.
#[derive(Debug)]
struct HalfRight;

impl Function for HalfRight {
    fn name(&self) -> &'static str {
        "half_right"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        save.tensor(ins[0])?;
        Ok([ins[0].square()?].into_iter().collect())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let grad = at.grad(0).unwrap().mul(&at.saved(0)?.detach().mul_scalar(2)?)?;
        Ok([Some(grad)].into_iter().collect())
    }
}
