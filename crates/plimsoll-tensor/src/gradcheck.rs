//! Checks derivatives against finite differences: [`gradcheck`] and [`gradgradcheck`], with PyTorch's tolerances.
//!
//! Each element of each input is changed by `eps` in both directions, in place, so a function may also read an input
//! that it captured, such as a layer's parameter. The differences of the outputs are a column of the numerical
//! Jacobian. The rows of the analytical Jacobian come from backward passes.

use crate::autograd::{GradOptions, enable_grad, grad, no_grad};
use crate::dispatch::Tensors;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Step size and tolerances. The defaults are PyTorch's, for inputs in `float64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradcheckOptions {
    /// The step by which each element is changed in both directions.
    pub eps: f64,
    /// Absolute tolerance.
    pub atol: f64,
    /// Tolerance relative to the numerical derivative.
    pub rtol: f64,
    /// The allowed difference between two backward passes through one graph.
    pub nondet_tol: f64,
}

impl Default for GradcheckOptions {
    fn default() -> GradcheckOptions {
        GradcheckOptions { eps: 1e-6, atol: 1e-5, rtol: 1e-3, nondet_tol: 0.0 }
    }
}

/// The return types of a checked function: one tensor, or several.
pub trait CheckedOutputs {
    /// Returns all outputs.
    fn into_outputs(self) -> Vec<Tensor>;
}

impl CheckedOutputs for Tensor {
    fn into_outputs(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl CheckedOutputs for Vec<Tensor> {
    fn into_outputs(self) -> Vec<Tensor> {
        self
    }
}

impl CheckedOutputs for Tensors {
    fn into_outputs(self) -> Vec<Tensor> {
        self.into_vec()
    }
}

impl CheckedOutputs for (Tensor, Tensor) {
    fn into_outputs(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

/// Compares the derivatives of `f` with finite differences, for each input that requires a gradient. Like
/// `torch.autograd.gradcheck` with `fast_mode=False`. Use `float64`: in 32 bits the differences are too coarse for the
/// default tolerances.
///
/// ```
/// use plimsoll_tensor::gradcheck::{GradcheckOptions, gradcheck};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::from_slice(&[0.5, -1.0, 2.0], &[3], &Device::cpu())?.requires_grad_(true)?; // float64
/// gradcheck(|x| x[0].tanh()?.mul(&x[0]), &[&x], GradcheckOptions::default())?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If a derivative differs (the error gives the place and both Jacobians), or backward passes differ from each other;
/// if no input requires a gradient, or an input's elements share memory; or if the device computes no values. Also the
/// errors of `f`.
pub fn gradcheck<O: CheckedOutputs>(
    f: impl Fn(&[Tensor]) -> Result<O>,
    inputs: &[&Tensor],
    options: GradcheckOptions,
) -> Result<()> {
    let inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    let f = |inputs: &[Tensor]| f(inputs).map(CheckedOutputs::into_outputs);
    check("gradcheck", &f, &inputs, options)
}

/// Compares the second derivatives of `f` with finite differences of the first. Like `torch.autograd.gradgradcheck`. The
/// gradients of the outputs are random if `grad_outputs` is `None`.
///
/// ```
/// use plimsoll_tensor::gradcheck::{GradcheckOptions, gradgradcheck};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::from_slice(&[0.5, -1.0, 2.0], &[3], &Device::cpu())?.requires_grad_(true)?;
/// gradgradcheck(|x| x[0].tanh(), &[&x], None, GradcheckOptions::default())?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`gradcheck`]; also if `grad_outputs` does not have one gradient for each output that requires
/// one.
pub fn gradgradcheck<O: CheckedOutputs>(
    f: impl Fn(&[Tensor]) -> Result<O>,
    inputs: &[&Tensor],
    grad_outputs: Option<&[Tensor]>,
    options: GradcheckOptions,
) -> Result<()> {
    const NAME: &str = "gradgradcheck";
    let outputs = |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
        let all = enable_grad(|| f(inputs))?.into_outputs();
        Ok(all.into_iter().filter(Tensor::requires_grad).collect())
    };
    let mut all: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    let found = outputs(&all)?;
    match grad_outputs {
        Some(given) if given.len() != found.len() => {
            let message = format!("{} gradients for {} outputs that require one", given.len(), found.len());
            return Err(Error::argument(NAME, message));
        }
        Some(given) => all.extend_from_slice(given),
        None => {
            for output in &found {
                let random = Tensor::randn(output.shape(), output.device())?.to_dtype(output.dtype())?;
                all.push(random.requires_grad_(true)?);
            }
        }
    }
    let count = inputs.len();
    let first = |all: &[Tensor]| -> Result<Vec<Tensor>> {
        let (inputs, gradients) = all.split_at(count);
        let outputs = outputs(inputs)?;
        let wanting: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
        let options = GradOptions {
            gradients: gradients.iter().cloned().map(Some).collect(),
            create_graph: true,
            allow_unused: true,
            ..GradOptions::default()
        };
        Ok(grad(&outputs.iter().collect::<Vec<_>>(), &wanting, options)?.into_iter().flatten().collect())
    };
    check(NAME, &first, &all, options)
}

type Checked<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

fn check(name: &'static str, f: Checked<'_>, inputs: &[Tensor], options: GradcheckOptions) -> Result<()> {
    if !inputs.iter().any(Tensor::requires_grad) {
        return Err(Error::autograd(name, "no input requires a gradient: mark one with `requires_grad_`"));
    }
    for (i, input) in inputs.iter().enumerate().filter(|(_, input)| input.requires_grad()) {
        let lies = input.shape().iter().zip(input.strides());
        if lies.clone().any(|(&n, &stride)| n > 1 && stride == 0) {
            let message = format!(
                "elements of input {i} share memory (strides {:?}): `copy` it first",
                input.strides()
            );
            return Err(Error::autograd(name, message));
        }
    }
    let count = enable_grad(|| f(inputs))?.len();
    for (i, input) in inputs.iter().enumerate().filter(|(_, input)| input.requires_grad()) {
        let numerical = numerical(name, f, inputs, i, count, options.eps)?;
        // This must come last: the tensors that this run saves must not change before its backward passes.
        let outputs = enable_grad(|| f(inputs))?;
        for (o, (output, numerical)) in outputs.iter().zip(&numerical).enumerate() {
            if !output.dtype().is_float() {
                continue;
            }
            let [first, second] = [analytical(output, input)?, analytical(output, input)?];
            let at = Place { name, output: o, input: i, rows: output.numel(), columns: input.numel() };
            at.compare(&first, &second, |a, b| (a - b).abs() <= options.nondet_tol || a == b).map_err(
                |text| {
                    at.error(&format!(
                        "two backward passes through one graph differ, so it is not deterministic: {text}"
                    ))
                },
            )?;
            let close = |a: f64, n: f64| (a - n).abs() <= options.atol + options.rtol * n.abs() || a == n;
            at.compare(&first, numerical, close).map_err(|text| {
                let coarse = match inputs.iter().any(|input| input.requires_grad() && input.dtype() != DType::F64) {
                    true => "\nnot all inputs are of float64: in other types finite differences are too coarse for the default tolerances",
                    false => "",
                };
                at.error(&format!("the derivative differs from finite differences: {text}{coarse}"))
            })?;
        }
    }
    Ok(())
}

/// The derivative of each output with respect to each element of an input, in columns: `[input element][output element]`.
fn numerical(
    name: &'static str,
    f: Checked<'_>,
    inputs: &[Tensor],
    i: usize,
    outputs: usize,
    eps: f64,
) -> Result<Vec<Vec<f64>>> {
    let input = inputs[i].detach();
    let values = input.to_dtype(DType::F64)?.to_vec::<f64>()?;
    let set = |values: &[f64]| -> Result<()> {
        no_grad(|| input.copy_(&Tensor::from_slice(values, input.shape(), input.device())?))
    };
    let run = |values: &[f64]| -> Result<Vec<Vec<f64>>> {
        set(values)?;
        // A function that computes derivatives itself needs the graph, so the run is recorded; its graph is dropped here.
        let found = enable_grad(|| f(inputs))?;
        if found.len() != outputs {
            let message = format!("the function returned {outputs} outputs first, then {}", found.len());
            return Err(Error::autograd(name, message));
        }
        found.iter().map(|output| output.detach().to_dtype(DType::F64)?.to_vec::<f64>()).collect()
    };
    let columns = || -> Result<Vec<Vec<f64>>> {
        let mut jacobians = vec![Vec::new(); outputs];
        let mut moved = values.clone();
        for at in 0..values.len() {
            moved[at] = values[at] + eps;
            let above = run(&moved)?;
            moved[at] = values[at] - eps;
            let below = run(&moved)?;
            moved[at] = values[at];
            for (jacobian, (above, below)) in jacobians.iter_mut().zip(above.iter().zip(&below)) {
                jacobian.extend(above.iter().zip(below).map(|(above, below)| (above - below) / (2.0 * eps)));
            }
        }
        Ok(jacobians)
    };
    let found = columns();
    set(&values)?; // restores the value, even after an error
    found
}

/// Like [`numerical`], but from one backward pass for each element of the output.
fn analytical(output: &Tensor, input: &Tensor) -> Result<Vec<f64>> {
    let (rows, columns) = (output.numel(), input.numel());
    let mut jacobian = vec![0.0; rows * columns];
    if !output.requires_grad() {
        return Ok(jacobian); // no derivative: the differences must be 0
    }
    for row in 0..rows {
        let mut one = vec![0.0; rows];
        one[row] = 1.0;
        let one = Tensor::from_slice(&one, output.shape(), output.device())?.to_dtype(output.dtype())?;
        let options = GradOptions {
            gradients: vec![Some(one)],
            retain_graph: true,
            allow_unused: true,
            ..GradOptions::default()
        };
        let Some(gradient) = grad(&[output], &[input], options)?.remove(0) else { continue };
        let gradient = gradient.detach().to_dtype(DType::F64)?.to_vec::<f64>()?;
        gradient.into_iter().enumerate().for_each(|(column, value)| jacobian[column * rows + row] = value);
    }
    Ok(jacobian)
}

/// Identifies a Jacobian and its size; it has a row for each element of the output.
struct Place {
    name: &'static str,
    output: usize,
    input: usize,
    rows: usize,
    columns: usize,
}

impl Place {
    /// Describes the largest difference among those that are not `close`.
    fn compare(
        &self,
        found: &[f64],
        expected: &[f64],
        close: impl Fn(f64, f64) -> bool,
    ) -> Result<(), String> {
        let pairs = found.iter().zip(expected).enumerate();
        let apart: Vec<(usize, (&f64, &f64))> = pairs.filter(|(_, (a, n))| !close(**a, **n)).collect();
        let distance = |(a, n): (&f64, &f64)| if (a - n).is_nan() { f64::INFINITY } else { (a - n).abs() };
        let farthest = apart.iter().max_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let Some(&(at, (a, n))) = farthest else { return Ok(()) };
        let (row, column) = (at % self.rows, at / self.rows);
        let count = match apart.len() {
            1 => "1 derivative differs".to_owned(),
            n => format!("{n} of {} derivatives differ", found.len()),
        };
        Err(format!(
            "{count}, most of all for output element {row} and input element {column}: {a}, expected {n}{}",
            self.tables(found, expected)
        ))
    }

    /// Both Jacobians, if they fit on a screen.
    fn tables(&self, found: &[f64], expected: &[f64]) -> String {
        if self.rows > 8 || self.columns > 8 {
            return String::new();
        }
        let table = |values: &[f64]| -> String {
            let row = |row: usize| {
                let cells =
                    (0..self.columns).map(|column| format!("{:.6e}", values[column * self.rows + row]));
                format!("\n  {}", cells.collect::<Vec<_>>().join("  "))
            };
            (0..self.rows).map(row).collect()
        };
        format!("\nfound (rows are output elements):{}\nexpected:{}", table(found), table(expected))
    }

    fn error(&self, text: &str) -> Error {
        let Place { name, output, input, .. } = *self;
        Error::autograd(name, format!("output {output}, input {input}: {text}"))
    }
}
