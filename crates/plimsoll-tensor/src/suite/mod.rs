//! Checks that every operator must pass, both ours and user-defined ones.
//!
//! A [`Case`] is one call with random inputs from a fixed seed. [`check`] compares its values with a naive
//! formula, runs it on inputs with other layouts, compares its derivatives with finite differences, and
//! compares its memory requests on a simulated device with those on the host, one by one. The cases of an
//! operator are in its file, in a function `cases`; [`OPERATORS`](crate::OPERATORS) lists them all.

mod comparison;
mod recorded;

pub use comparison::{Comparison, compare_cases};
pub use recorded::{check_recorded, check_second};

use crate::autograd::{BackwardOptions, no_grad};
use crate::cpu::CpuConfig;
use crate::device::Device;
use crate::dispatch::Tensors;
use crate::dtype::{DType, Element, by_dtype};
use crate::error::{Error, Result};
use crate::sim::SimConfig;
use crate::tensor::Tensor;

type Call = dyn Fn(&[&Tensor]) -> Result<Tensors> + Send + Sync;
type Formula = dyn Fn(&[Vec<f64>]) -> Vec<Vec<f64>> + Send + Sync;

/// The range of an input's random values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Domain {
    /// -1.5 to 1.5.
    Any,
    /// 0.5 to 2, for logarithms, roots and divisors.
    Positive,
    /// -0.9 to 0.9.
    Inside,
    /// 0.1 to 0.9.
    Portion,
    /// 1.1 to 3.
    AboveOne,
    /// Values that are 0.1 apart and at least 0.05 from zero, in any order, so that no small step crosses a kink.
    Apart,
    /// Integers from 0 up to, but not including, this one, for indices.
    Below(usize),
}

/// One input of a case.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its type.
    pub dtype: DType,
    /// The range of its values.
    pub domain: Domain,
}

/// Returns the cases of the operators in a file.
pub(crate) type Cases = fn() -> Vec<Case>;

/// One call to an operator.
pub struct Case {
    /// The operator and its arguments, for use in messages.
    pub name: String,
    inputs: Vec<Sample>,
    call: Box<Call>,
    formula: Option<Box<Formula>>,
    differentiable: bool,
}

impl Case {
    /// A call with 32-bit floats in these shapes.
    pub fn new(
        name: impl Into<String>,
        shapes: &[&[usize]],
        call: impl Fn(&[&Tensor]) -> Result<Tensors> + Send + Sync + 'static,
    ) -> Case {
        let sample =
            |shape: &&[usize]| Sample { shape: shape.to_vec(), dtype: DType::F32, domain: Domain::Any };
        let inputs = shapes.iter().map(sample).collect();
        Case { name: name.into(), inputs, call: Box::new(call), formula: None, differentiable: true }
    }

    /// The same case, with all floating-point inputs from a different domain.
    #[must_use]
    pub fn over(mut self, domain: Domain) -> Case {
        self.inputs.iter_mut().filter(|input| input.dtype.is_float()).for_each(|input| input.domain = domain);
        self
    }

    /// The same case with one more input.
    #[must_use]
    pub fn and(mut self, shape: &[usize], dtype: DType, domain: Domain) -> Case {
        self.inputs.push(Sample { shape: shape.to_vec(), dtype, domain });
        self
    }

    /// The same case with a formula that computes its outputs from its inputs, all row-major.
    #[must_use]
    pub fn expect(mut self, formula: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>> + Send + Sync + 'static) -> Case {
        self.formula = Some(Box::new(formula));
        self
    }

    /// The same case, without a derivative to check.
    #[must_use]
    pub fn without_derivative(mut self) -> Case {
        self.differentiable = false;
        self
    }
}

/// The layout of an input in its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Row-major, without gaps.
    Dense,
    /// Column-major.
    Permuted,
    /// The middle of a larger tensor, surrounded by other values.
    Framed,
}

/// The step in both directions. In 32 bits, rounding then causes an error of about 6e-6 of an output, and curvature an
/// error of 2e-5 of its third derivative.
const STEP: f64 = 1e-2;
/// Relative to the largest derivative, or to 1: this is larger than both errors, and far smaller than the effect of a wrong
/// factor.
const SLOPE_TOLERANCE: f64 = 4e-3;
/// Relative to the largest value, or to 1: the error of rounding to 24 bits in sums of a few hundred terms.
const VALUE_TOLERANCE: f64 = 1e-5;

/// Runs all checks on a case.
///
/// # Errors
/// A message with the first difference.
pub fn check(case: &Case) -> std::result::Result<(), String> {
    let wrong = |what: String| format!("{}: {what}", case.name);
    let host = Device::cpu_with(CpuConfig::default());
    let drawn = drawn(case);
    let failed = |error: Error| wrong(format!("an error: {error}"));
    let mut dense = None;
    for form in [Form::Dense, Form::Permuted, Form::Framed] {
        let outs = no_grad(|| run(case, &drawn, form, &host)).map_err(failed)?;
        let got: Vec<Vec<f64>> = outs.iter().map(values).collect::<Result<_>>().map_err(failed)?;
        if let Some(formula) = &case.formula {
            let what = format!("{form:?} inputs, against the formula");
            compare(&got, &formula(&drawn), VALUE_TOLERANCE, &what).map_err(wrong)?;
        }
        let first = dense.get_or_insert_with(|| got.clone());
        compare(&got, first, VALUE_TOLERANCE, &format!("{form:?} inputs, against dense ones"))
            .map_err(wrong)?;
        if case.differentiable {
            slopes(case, &drawn, form, &host).map_err(wrong)?;
        }
    }
    same_requests(case, &Device::cpu_with(CpuConfig::default()), &Device::sim(SimConfig::new(1 << 36)))
        .map_err(wrong)
}

/// Runs a case and its derivative on another device that has values. Its results must match the host's bit for bit, for every
/// layout of the inputs.
///
/// # Errors
/// A message with the first difference.
pub fn check_on(case: &Case, device: &Device) -> std::result::Result<(), String> {
    let drawn = drawn(case);
    let host = Device::cpu_with(CpuConfig::default());
    for form in [Form::Dense, Form::Permuted, Form::Framed] {
        let bits = |device: &Device| all_bits(case, &drawn, form, device);
        let failed = |error: Error| format!("{}: an error: {error}", case.name);
        let (expected, got) = (bits(&host).map_err(failed)?, bits(device).map_err(failed)?);
        if expected != got {
            let name = &case.name;
            return Err(format!("{name}: {form:?} inputs: the bits on {device} are not the host's"));
        }
    }
    Ok(())
}

/// Relative to the largest value, or to 1, because other kernels add in a different order.
const OTHER_KERNELS_TOLERANCE: f64 = 1e-4;

/// The result of a case on a device with its own kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its values match the host's, except for rounding.
    Agrees,
    /// This operator has no kernel on the device yet.
    Missing(&'static str),
}

/// Runs a case and its derivative on a device with its own kernels. Its values must match the host's except for rounding, for
/// every layout of the inputs.
///
/// # Errors
/// A message with the first difference.
pub fn check_near(case: &Case, device: &Device) -> std::result::Result<Outcome, String> {
    [Form::Dense, Form::Permuted, Form::Framed].into_iter().try_fold(Outcome::Agrees, |outcome, form| {
        match outcome {
            Outcome::Agrees => near(case, device, form, DType::F32),
            other => Ok(other),
        }
    })
}

/// Like [`check_near`], but with row-major inputs of a different floating-point type. If the host rejects the operators
/// or values of a case in this type, the case passes.
///
/// # Errors
/// The same errors as [`check_near`]; also if the device rejects a case that the host accepts.
pub fn check_near_in(case: &Case, device: &Device, float: DType) -> std::result::Result<Outcome, String> {
    near(case, device, Form::Dense, float)
}

fn near(case: &Case, device: &Device, form: Form, float: DType) -> std::result::Result<Outcome, String> {
    let drawn = drawn(case);
    let name = &case.name;
    let failed = |error: Error| format!("{name}: {form:?} inputs of {float}: an error: {error}");
    let host = Device::cpu_with(CpuConfig::default());
    let expected = match all_values(case, &drawn, form, float, &host) {
        Err(_) if float != DType::F32 => return Ok(Outcome::Agrees),
        other => other.map_err(failed)?,
    };
    let got = match all_values(case, &drawn, form, float, device) {
        Err(Error::NoKernel { op, .. }) => return Ok(Outcome::Missing(op)),
        other => other.map_err(failed)?,
    };
    let what = format!("{name}: {form:?} inputs of {float}, {device} against the host");
    let tolerance = match float {
        DType::BF16 => 3e-2,
        DType::F16 => 4e-3,
        _ => OTHER_KERNELS_TOLERANCE,
    };
    compare(&got, &expected, tolerance, &what).map(|()| Outcome::Agrees)
}

/// The bits of a case's outputs and of its inputs' gradients.
fn all_bits(case: &Case, drawn: &[Vec<f64>], form: Form, device: &Device) -> Result<Vec<Vec<u64>>> {
    let values = all_values(case, drawn, form, DType::F32, device)?;
    Ok(values.into_iter().map(|values| values.into_iter().map(f64::to_bits).collect()).collect())
}

/// The values of a case's outputs and of its inputs' gradients.
fn all_values(
    case: &Case,
    drawn: &[Vec<f64>],
    form: Form,
    float: DType,
    device: &Device,
) -> Result<Vec<Vec<f64>>> {
    let is_other = |x: &Tensor| x.dtype() == DType::F32 && float != DType::F32;
    let typed = inputs(case, drawn, form, device)?.into_iter();
    let typed = typed.map(|x| if is_other(&x) { x.to_dtype(float) } else { Ok(x) });
    let leaves = typed.collect::<Result<Vec<Tensor>>>()?;
    for leaf in leaves.iter().filter(|leaf| leaf.dtype().is_float() && case.differentiable) {
        leaf.requires_grad_(true)?;
    }
    let outs = (case.call)(&leaves.iter().collect::<Vec<_>>())?;
    for out in outs.iter().filter(|out| out.requires_grad()) {
        let gradient = Some(out.detach().ones_like()?);
        let options = BackwardOptions { gradient, retain_graph: true, ..BackwardOptions::default() };
        out.backward_with(options)?;
    }
    let grads = leaves.iter().filter_map(Tensor::grad);
    outs.iter().cloned().chain(grads).map(|tensor| values(&tensor)).collect()
}

/// SplitMix64, whose random numbers are the same on every machine.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        // 24 bits, the precision of a 32-bit float.
        low + (high - low) * ((self.next() >> 40) as f64 / 16_777_216.0)
    }
}

/// The values of a case's inputs.
fn drawn(case: &Case) -> Vec<Vec<f64>> {
    case.inputs.iter().enumerate().map(|(i, input)| draw(input, i)).collect()
}

fn draw(input: &Sample, seed: usize) -> Vec<f64> {
    let (len, mut draw) = (input.shape.iter().product::<usize>(), Draw(seed as u64));
    let rounded = |x: f64| f64::from(x as f32);
    match input.domain {
        Domain::Any => (0..len).map(|_| rounded(draw.between(-1.5, 1.5))).collect(),
        Domain::Positive => (0..len).map(|_| rounded(draw.between(0.5, 2.0))).collect(),
        Domain::Inside => (0..len).map(|_| rounded(draw.between(-0.9, 0.9))).collect(),
        Domain::Portion => (0..len).map(|_| rounded(draw.between(0.1, 0.9))).collect(),
        Domain::AboveOne => (0..len).map(|_| rounded(draw.between(1.1, 3.0))).collect(),
        Domain::Below(n) => (0..len).map(|_| draw.below(n) as f64).collect(),
        Domain::Apart => {
            let mut ranks: Vec<usize> = (0..len).collect();
            (1..len).rev().for_each(|i| ranks.swap(i, draw.below(i + 1)));
            ranks.into_iter().map(|rank| rounded((rank as f64 - (len / 2) as f64 + 0.5) * 0.1)).collect()
        }
    }
}

fn tensor(values: &[f64], input: &Sample, form: Form, device: &Device) -> Result<Tensor> {
    let dense = by_dtype!(input.dtype, T => {
        let values: Vec<T> = values.iter().map(|&x| T::from_f64(x)).collect();
        Tensor::from_slice(&values, &input.shape, device)?
    });
    match form {
        Form::Dense => Ok(dense),
        Form::Permuted => {
            let reversed: Vec<isize> = (0..input.shape.len() as isize).rev().collect();
            dense.permute(&reversed)?.copy()?.permute(&reversed)
        }
        Form::Framed => {
            let larger: Vec<usize> = input.shape.iter().map(|n| n + 2).collect();
            // 77 would show up in any result that used it.
            let around = Tensor::full(&larger, 77.0, input.dtype, device)?;
            let middle = (0..input.shape.len())
                .try_fold(around, |x, dim| x.narrow(dim as isize, 1, input.shape[dim]))?;
            middle.copy_(&dense)?;
            Ok(middle)
        }
    }
}

fn run(case: &Case, drawn: &[Vec<f64>], form: Form, device: &Device) -> Result<Tensors> {
    let inputs = inputs(case, drawn, form, device)?;
    (case.call)(&inputs.iter().collect::<Vec<_>>())
}

fn inputs(case: &Case, drawn: &[Vec<f64>], form: Form, device: &Device) -> Result<Vec<Tensor>> {
    drawn.iter().zip(&case.inputs).map(|(values, input)| tensor(values, input, form, device)).collect()
}

/// A tensor's values in 64 bits, row-major.
fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    by_dtype!(tensor.dtype(), T => Ok(tensor.to_vec::<T>()?.into_iter().map(Element::to_f64).collect()))
}

fn compare(
    got: &[Vec<f64>],
    expected: &[Vec<f64>],
    tolerance: f64,
    what: &str,
) -> std::result::Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{what}: {} outputs where {} are expected", got.len(), expected.len()));
    }
    for (output, (got, expected)) in got.iter().zip(expected).enumerate() {
        if got.len() != expected.len() {
            return Err(format!(
                "{what}: output {output} has {} elements, not {}",
                got.len(),
                expected.len()
            ));
        }
        let largest = expected.iter().filter(|x| x.is_finite()).fold(1.0f64, |max, x| max.max(x.abs()));
        let equal = |(got, expected): (&f64, &f64)| {
            got == expected
                || (got.is_nan() && expected.is_nan())
                || (got - expected).abs() <= tolerance * largest
        };
        if let Some(at) = got.iter().zip(expected).position(|pair| !equal(pair)) {
            return Err(format!("{what}: output {output}[{at}] is {}, not {}", got[at], expected[at]));
        }
    }
    Ok(())
}

/// Compares the derivatives with how a weighted sum of the outputs changes over a small step in either direction.
fn slopes(case: &Case, drawn: &[Vec<f64>], form: Form, device: &Device) -> std::result::Result<(), String> {
    let failed = |error: Error| format!("an error in the derivative: {error}");
    let leaves = inputs(case, drawn, form, device).map_err(failed)?;
    for leaf in leaves.iter().filter(|leaf| leaf.dtype().is_float()) {
        leaf.requires_grad_(true).map_err(failed)?;
    }
    let outs = (case.call)(&leaves.iter().collect::<Vec<_>>()).map_err(failed)?;
    let floats = || outs.iter().enumerate().filter(|(_, out)| out.dtype().is_float());
    let weights: Vec<Vec<f64>> = outs
        .iter()
        .enumerate()
        .map(|(i, out)| {
            draw(&Sample { shape: out.shape().to_vec(), dtype: DType::F32, domain: Domain::Any }, 100 + i)
        })
        .collect();
    for (i, out) in floats() {
        let sample = Sample { shape: out.shape().to_vec(), dtype: out.dtype(), domain: Domain::Any };
        let gradient = Some(tensor(&weights[i], &sample, form, device).map_err(failed)?);
        let options = BackwardOptions { gradient, retain_graph: true, ..BackwardOptions::default() };
        out.backward_with(options).map_err(failed)?;
    }
    let sum = |points: &[Vec<f64>]| -> Result<f64> {
        let outs = no_grad(|| run(case, points, Form::Dense, device))?;
        let mut total = 0.0;
        for (i, out) in outs.iter().enumerate().filter(|(_, out)| out.dtype().is_float()) {
            total += values(out)?.iter().zip(&weights[i]).map(|(y, w)| y * w).sum::<f64>();
        }
        Ok(total)
    };
    let mut points = drawn.to_vec();
    for (i, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.dtype().is_float()) {
        let mut expected = Vec::new();
        for at in 0..points[i].len() {
            let middle = points[i][at];
            let (up, down) = (f64::from((middle + STEP) as f32), f64::from((middle - STEP) as f32));
            points[i][at] = up;
            let above = sum(&points).map_err(failed)?;
            points[i][at] = down;
            let below = sum(&points).map_err(failed)?;
            points[i][at] = middle;
            expected.push((above - below) / (up - down));
        }
        let got = match leaf.grad() {
            Some(grad) => values(&grad).map_err(failed)?,
            None => vec![0.0; expected.len()],
        };
        let what = format!("{form:?} inputs, the derivative of input {i} against finite differences");
        compare(&[got], &[expected], SLOPE_TOLERANCE, &what)?;
    }
    Ok(())
}

/// Checks that a run and its derivative make the same requests on both devices. Nothing else may use them at the same time.
pub(crate) fn same_requests(case: &Case, one: &Device, other: &Device) -> std::result::Result<(), String> {
    let drawn = drawn(case);
    let account = |device: &Device| -> Result<[i64; 3]> {
        let stat = |key: &str| device.memory_stats().get(key).copied().unwrap_or(-1);
        device.reset_peak_memory_stats();
        let before = [stat("allocation.all.allocated"), stat("requested_bytes.all.allocated")];
        let live = stat("allocated_bytes.all.current");
        let leaves = inputs(case, &drawn, Form::Dense, device)?;
        if case.differentiable {
            for leaf in leaves.iter().filter(|leaf| leaf.dtype().is_float()) {
                leaf.requires_grad_(true)?;
            }
        }
        let outs = (case.call)(&leaves.iter().collect::<Vec<_>>())?;
        for out in outs.iter().filter(|out| out.requires_grad() && case.differentiable) {
            let gradient = Some(out.detach().ones_like()?);
            out.backward_with(BackwardOptions {
                gradient,
                retain_graph: true,
                ..BackwardOptions::default()
            })?;
        }
        let [requests, bytes] = before;
        Ok([
            stat("allocation.all.allocated") - requests,
            stat("requested_bytes.all.allocated") - bytes,
            stat("allocated_bytes.all.peak") - live,
        ])
    };
    let failed = |error: Error| format!("an error on one of two devices: {error}");
    let here = match account(one) {
        Err(Error::NoKernel { .. }) => return Ok(()), // its values are missing too
        here => here.map_err(failed)?,
    };
    let there = account(other).map_err(failed)?;
    if here != there {
        return Err(format!("requests, bytes and peak are {here:?} on {one} and {there:?} on {other}"));
    }
    Ok(())
}
