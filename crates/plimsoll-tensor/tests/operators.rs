//! Runs every operator through the conformance suite, and dispatches a user-defined operator in the same way.

use plimsoll_tensor::suite::{Case, check};
use plimsoll_tensor::{
    Backward, CpuCall, Device, Error, Grads, In, Kernel, Meta, OPERATORS, Operator, Out, Output, Outputs,
    Result, Saves, SimConfig, Tensor, call,
};

#[test]
fn every_operator_passes_the_suite() {
    let cases: Vec<Case> = OPERATORS.iter().flat_map(|(_, cases)| cases()).collect();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let failures: Vec<String> = cases.iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The sum and the difference of two tensors of the same shape: an operator with two outputs.
#[derive(Debug)]
struct SumAndDifference;

impl Kernel for SumAndDifference {
    fn name(&self) -> &'static str {
        "sum_and_difference"
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([a, b], [sum, difference]): ([In<'_>; 2], [Out<'_>; 2]) = call.split();
        let pairs = || a.elements::<f32>().iter().zip(b.elements::<f32>());
        sum.elements::<f32>().iter_mut().zip(pairs()).for_each(|(out, (a, b))| *out = a + b);
        difference.elements::<f32>().iter_mut().zip(pairs()).for_each(|(out, (a, b))| *out = a - b);
        Ok(())
    }
}

impl Operator for SumAndDifference {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = ins else { return Err(Error::argument(self.name(), "needs two tensors")) };
        if a.shape() != b.shape() {
            return Err(Error::shape(self.name(), format!("{:?} with {:?}", a.shape(), b.shape())));
        }
        Ok([Output::new(a.shape(), a.dtype), Output::new(a.shape(), a.dtype)].into_iter().collect())
    }

    fn takes(&self, _: usize, layout: &plimsoll_tensor::Layout) -> bool {
        layout.is_contiguous()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let [first, second] = [at.grad(0), at.grad(1)];
        let a = match (first, second) {
            (Some(sum), Some(difference)) => Some((sum + difference)?),
            (one, other) => one.or(other).cloned(),
        };
        let b = match (first, second) {
            (Some(sum), Some(difference)) => Some((sum - difference)?),
            (Some(sum), None) => Some(sum.clone()),
            (None, difference) => difference.map(Tensor::neg).transpose()?,
        };
        Ok([a, b].into_iter().collect())
    }
}

#[test]
fn a_users_operator_with_two_outputs_passes_the_same_suite() {
    let formula = |ins: &[Vec<f64>]| {
        let both = |f: fn(f64, f64) -> f64| ins[0].iter().zip(&ins[1]).map(|(&a, &b)| f(a, b)).collect();
        vec![both(|a, b| a + b), both(|a, b| a - b)]
    };
    let case = Case::new("a user's", &[&[3, 4], &[3, 4]], |ins| call(SumAndDifference, ins)).expect(formula);
    check(&case).unwrap();
    let device = Device::cpu();
    let (a, b) = (Tensor::ones(&[2], &device).unwrap(), Tensor::ones(&[3], &device).unwrap());
    let error = call(SumAndDifference, &[&a, &b]).unwrap_err();
    assert_eq!(error.to_string(), "sum_and_difference: [2] with [3]");
}

/// An operator with neither kernel nor derivative.
#[derive(Debug)]
struct Nameless;

impl Kernel for Nameless {
    fn name(&self) -> &'static str {
        "nameless"
    }
}

impl Operator for Nameless {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok([Output::new(ins[0].shape(), ins[0].dtype)].into_iter().collect())
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0)
    }
}

#[test]
fn a_missing_kernel_and_a_missing_derivative_are_named_and_nothing_stays() {
    let device = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    let x = Tensor::ones(&[4], &device).unwrap();
    let before = device.memory_allocated();
    assert_eq!(
        call(Nameless, &[&x]).unwrap_err().to_string(),
        "nameless: there is no kernel for cpu; move the tensors with `to_device`, or implement `Kernel::cpu`"
    );
    assert_eq!(device.memory_allocated(), before);

    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::ones(&[4], &device).unwrap().requires_grad_(true).unwrap();
    let y = call(Nameless, &[&x]).unwrap().remove(0);
    let error = y.sum().unwrap().backward().unwrap_err();
    assert!(matches!(error, Error::Autograd { op: "nameless", .. }), "{error}");
    drop(y);
    assert_eq!(device.memory_allocated(), 512, "what it had saved went with the graph");
}

#[test]
fn channels_last_stays_so_through_elementwise_operators() {
    let device = Device::cpu();
    let x = Tensor::randn(&[2, 5, 6, 3], &device).unwrap().permute(&[0, 3, 1, 2]).unwrap();
    let y = (&x.relu().unwrap() * &x.exp().unwrap()).unwrap();
    assert_eq!(y.strides(), x.strides());
    let naive = |x: f32| x.max(0.0) * x.exp();
    let expected: Vec<f32> = x.to_vec::<f32>().unwrap().into_iter().map(naive).collect();
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    assert!(y.to_vec::<f32>().unwrap().iter().zip(&expected).all(close));
}
