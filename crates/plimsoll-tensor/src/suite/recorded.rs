//! Checks of recorded backward passes: their gradients must match those of a plain pass, and have correct derivatives.

use super::{Case, Draw, Form, draw, inputs, values};
use crate::autograd::{GradOptions, grad};
use crate::cpu::CpuConfig;
use crate::device::Device;
use crate::dispatch::Tensors;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// How the inputs of a case depend on each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Graph {
    /// Each input depends on the one before it.
    Chained,
    /// Inputs with the same shape are one tensor.
    Shared,
}

/// Compares the gradients of a recorded backward pass (`create_graph`) with those of a plain one, in graphs in which the inputs
/// depend on each other. They must be bit-identical, or differ by at most `1e-12` of the largest one in `float64` and 4
/// rounding errors in other types.
///
/// # Errors
/// A message with the first difference.
pub fn check_recorded(case: &Case) -> std::result::Result<(), String> {
    if !case.differentiable {
        return Ok(());
    }
    for float in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let graphs = [Graph::Chained, Graph::Shared];
        for &graph in if float == DType::F32 { &graphs[..] } else { &graphs[..1] } {
            let wrong = |what: String| format!("{}, {graph:?} inputs of {float}: {what}", case.name);
            match both_passes(case, float, graph) {
                Ok(found) => found
                    .iter()
                    .try_for_each(|(plain, recorded)| close(float, plain, recorded))
                    .map_err(wrong)?,
                // The operator rejects 16-bit floats, or these values.
                Err(_) if float != DType::F32 => {}
                Err(error) => return Err(wrong(format!("an error: {error}"))),
            }
        }
    }
    Ok(())
}

type Pair = (Vec<f64>, Vec<f64>);

fn close(float: DType, plain: &[f64], recorded: &[f64]) -> std::result::Result<(), String> {
    let rounding = match float {
        DType::F64 => 1e-12 / 4.0,
        DType::F32 => f64::from(f32::EPSILON) / 2.0,
        DType::F16 => f64::powi(2.0, -11),
        _ => f64::powi(2.0, -8),
    };
    let largest = plain.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
    let equal =
        |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 4.0 * rounding * largest;
    if plain.len() != recorded.len() {
        return Err(format!(
            "{} gradients where the pass is recorded, and {} else",
            recorded.len(),
            plain.len()
        ));
    }
    match (0..plain.len()).find(|&i| !equal(plain[i], recorded[i])) {
        None => Ok(()),
        Some(i) => {
            Err(format!("gradient {i} is {} where the pass is recorded, and {} else", recorded[i], plain[i]))
        }
    }
}

/// The gradients of every leaf, from a plain pass and from a recorded one through the same graph.
fn both_passes(case: &Case, float: DType, graph: Graph) -> Result<Vec<Pair>> {
    let device = Device::cpu_with(CpuConfig::default());
    let (leaves, outs) = run(case, float, graph, &device)?;
    let mut weights = Draw(7);
    let mut total: Option<Tensor> = None;
    for out in outs.iter().filter(|out| out.requires_grad()) {
        let of_out: Vec<f64> = (0..out.numel()).map(|_| weights.between(0.25, 1.0)).collect();
        let weight = Tensor::from_slice(&of_out, out.shape(), &device)?.to_dtype(out.dtype())?;
        let sum = out.mul(&weight)?.sum()?.to_dtype(float)?;
        total = Some(total.map_or(Ok(sum.clone()), |total| total.add(&sum))?);
    }
    let Some(total) = total else { return Ok(Vec::new()) };
    let asked: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
    let pass = |create_graph: bool| -> Result<Vec<Option<Vec<f64>>>> {
        grad(&[&total], &asked, allowing(create_graph))?
            .iter()
            .map(|grad| grad.as_ref().map(values).transpose())
            .collect()
    };
    let recorded = pass(true)?;
    let plain = pass(false)?;
    Ok(plain.into_iter().zip(recorded).map(|(a, b)| (a.unwrap_or_default(), b.unwrap_or_default())).collect())
}

/// The leaves, and the outputs of the case for inputs that are computed from the leaves.
fn run(case: &Case, float: DType, graph: Graph, device: &Device) -> Result<(Vec<Tensor>, Tensors)> {
    let drawn: Vec<Vec<f64>> = case.inputs.iter().enumerate().map(|(i, input)| draw(input, i)).collect();
    let mut leaves = Vec::new();
    for tensor in inputs(case, &drawn, Form::Dense, device)? {
        leaves.push(if tensor.dtype() == DType::F32 {
            tensor.to_dtype(float)?.requires_grad_(true)?
        } else {
            tensor
        });
    }
    let mut made: Vec<Tensor> = Vec::new();
    for leaf in &leaves {
        let mut before = made.iter().filter(|x| x.requires_grad());
        let tensor = match graph {
            _ if !leaf.requires_grad() => leaf.clone(),
            Graph::Chained => {
                // Keeps the sign and the spacing, so that the values stay in the domain of the case.
                let share = before.next_back().map(|x| x.mean()?.tanh()?.affine(0.01, 1.0)).transpose()?;
                share.map_or_else(|| leaf.affine(1.0, 0.0), |share| leaf.mul(&share))?
            }
            Graph::Shared => match before.clone().find(|x| x.shape() == leaf.shape()) {
                Some(same) => same.clone(),
                None => leaf.affine(1.0, 0.0)?,
            },
        };
        made.push(tensor);
    }
    let outs = (case.call)(&made.iter().collect::<Vec<_>>())?;
    Ok((leaves, outs))
}

/// The step in both directions. Rounding then causes an error of about 1e-10 of the sum, and curvature a smaller one.
const STEP: f64 = 1e-6;
/// Relative to the largest derivative, or to 1.
const TOLERANCE: f64 = 1e-6;

/// Compares the second derivatives of a case with finite differences of its first derivatives along two random directions, in
/// `float64`. Directions along which the first derivative jumps are left out.
///
/// # Errors
/// The difference, or [`Error::Autograd`] if an operator has no second derivative.
pub fn check_second(case: &Case) -> Result<()> {
    if !case.differentiable {
        return Ok(());
    }
    let device = Device::cpu_with(CpuConfig::default());
    let drawn: Vec<Vec<f64>> = case.inputs.iter().enumerate().map(|(i, input)| draw(input, i)).collect();
    let given = inputs(case, &drawn, Form::Dense, &device)?;
    let outs = (case.call)(&given.iter().collect::<Vec<_>>())?;
    // The values of the floating-point inputs, and of the gradients from which the first pass starts.
    let mut random = Draw(11);
    let mut point: Vec<Vec<f64>> = Vec::new();
    point.extend(
        drawn.iter().zip(&given).filter(|(_, x)| x.dtype() == DType::F32).map(|(values, _)| values.clone()),
    );
    let starts = outs.iter().map(|out| (0..out.numel()).map(|_| random.between(0.25, 1.0)).collect());
    point.extend(starts);
    let slope = |point: &[Vec<f64>]| slope(case, &given, point, &device);
    let (total, leaves) = slope(&point)?;
    let found = match total.requires_grad() {
        true => grad(&[&total], &leaves.iter().collect::<Vec<_>>(), allowing(false))?,
        false => vec![None; leaves.len()],
    };
    for _ in 0..2 {
        let direction: Vec<Vec<f64>> =
            point.iter().map(|values| values.iter().map(|_| random.between(-1.0, 1.0)).collect()).collect();
        let (mut along, mut largest) = (0.0, 1.0f64);
        for (gradient, direction) in found.iter().zip(&direction) {
            let Some(gradient) = gradient else { continue };
            for (slope, d) in values(gradient)?.iter().zip(direction) {
                along += slope * d;
                largest = largest.max(slope.abs());
            }
        }
        let side = |step: f64| -> Result<f64> {
            let moved = |(values, d): (&Vec<f64>, &Vec<f64>)| {
                values.iter().zip(d).map(|(x, d)| x + step * d).collect()
            };
            let moved: Vec<Vec<f64>> = point.iter().zip(&direction).map(moved).collect();
            slope(&moved)?.0.item::<f64>()
        };
        let differences = |step: f64| -> Result<f64> { Ok((side(step)? - side(-step)?) / (2.0 * step)) };
        let expected = differences(STEP)?;
        let near = TOLERANCE * largest * (point.iter().map(Vec::len).sum::<usize>() as f64).sqrt();
        let is_near = (along - expected).abs() <= near.max(TOLERANCE * expected.abs());
        // Where the first derivative jumps (as for a maximum with two equal elements), half the step gives twice the difference
        // quotient.
        let jumps = || -> Result<bool> { Ok((differences(STEP / 2.0)? / expected - 2.0).abs() < 0.01) };
        if !is_near && (along.is_nan() || !jumps()?) {
            let message = format!(
                "the second derivative along a direction is {along}, finite differences give {expected}"
            );
            return Err(Error::autograd("check_second", message));
        }
    }
    Ok(())
}

fn allowing(create_graph: bool) -> GradOptions {
    GradOptions { create_graph, allow_unused: true, ..GradOptions::default() }
}

/// The weighted sum of a case's first derivatives at a point, and the leaves that it depends on: inputs and initial gradients.
fn slope(
    case: &Case,
    given: &[Tensor],
    point: &[Vec<f64>],
    device: &Device,
) -> Result<(Tensor, Vec<Tensor>)> {
    let mut values = point.iter();
    let mut leaf = |shape: &[usize]| -> Result<Tensor> {
        let values = values.next().map_or(&[][..], Vec::as_slice);
        Tensor::from_slice(values, shape, device)?.requires_grad_(true)
    };
    let mut ins = Vec::new();
    for x in given {
        ins.push(if x.dtype() == DType::F32 { leaf(x.shape())? } else { x.clone() });
    }
    let outs = (case.call)(&ins.iter().collect::<Vec<_>>())?;
    let mut leaves: Vec<Tensor> = ins.iter().filter(|x| x.requires_grad()).cloned().collect();
    let asked = leaves.len();
    let (mut roots, mut starts) = (Vec::new(), Vec::new());
    for out in &outs {
        let start = leaf(out.shape())?;
        if out.requires_grad() {
            let start = start.to_dtype(out.dtype())?;
            roots.push(out);
            starts.push(Some(start));
        }
        leaves.push(start);
    }
    let mut total = Tensor::full(&[], 0.0, DType::F64, device)?;
    if roots.is_empty() {
        return Ok((total, leaves));
    }
    let options = GradOptions { gradients: starts, ..allowing(true) };
    let firsts = grad(&roots, &leaves[..asked].iter().collect::<Vec<_>>(), options)?;
    let mut weights = Draw(13);
    for first in firsts.iter().flatten() {
        let of: Vec<f64> = (0..first.numel()).map(|_| weights.between(0.25, 1.0)).collect();
        let weight = Tensor::from_slice(&of, first.shape(), device)?;
        total = total.add(&first.mul(&weight)?.sum()?)?;
    }
    Ok((total, leaves))
}
