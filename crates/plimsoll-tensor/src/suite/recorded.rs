//! What a pass that is recorded must give: the gradients of a plain one, and a right derivative of them.

use super::{Case, Draw, Form, draw, inputs, values};
use crate::autograd::{GradOptions, grad};
use crate::cpu::CpuConfig;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::gradcheck::{GradcheckOptions, gradgradcheck};
use crate::road::Tensors;
use crate::tensor::Tensor;

/// How the inputs of a case depend on each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Graph {
    /// Each on the one before it.
    Chained,
    /// Those of one shape are one tensor.
    Shared,
}

/// Compares the gradients of a pass that is recorded (`create_graph`) with those of one that is not, in graphs where the inputs
/// depend on each other: equal to the bit, or within `1e-12` of the largest in `float64` and 4 roundings in other types.
///
/// # Errors
/// The first difference, in a sentence.
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
                // Short floats that an operator refuses, or whose values do not fit it.
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

/// The gradients of every leaf, of a plain pass and of a recorded one through the same graph.
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
        let options = GradOptions { create_graph, allow_unused: true, ..GradOptions::default() };
        grad(&[&total], &asked, options)?.iter().map(|grad| grad.as_ref().map(values).transpose()).collect()
    };
    let recorded = pass(true)?;
    let plain = pass(false)?;
    Ok(plain.into_iter().zip(recorded).map(|(a, b)| (a.unwrap_or_default(), b.unwrap_or_default())).collect())
}

/// The leaves, and what the case makes of inputs that are made from them.
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
        let before = made.iter().filter(|x| x.requires_grad());
        let tensor = match graph {
            _ if !leaf.requires_grad() => leaf.clone(),
            Graph::Chained => {
                // Of the same sign, and as far from each other: in the domain of the case.
                let share = before.last().map(|x| x.mean()?.tanh()?.affine(0.01, 1.0)).transpose()?;
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

/// Compares the second derivatives of a case with finite differences of its first, in `float64`.
///
/// # Errors
/// The first difference; an operator without a second derivative ([`Error::Autograd`](crate::Error::Autograd)).
pub fn check_second(case: &Case) -> Result<()> {
    if !case.differentiable {
        return Ok(());
    }
    let device = Device::cpu_with(CpuConfig::default());
    let drawn: Vec<Vec<f64>> = case.inputs.iter().enumerate().map(|(i, input)| draw(input, i)).collect();
    let mut leaves = Vec::new();
    for tensor in inputs(case, &drawn, Form::Dense, &device)? {
        let is_input = tensor.dtype() == DType::F32;
        leaves.push(if is_input { tensor.to_dtype(DType::F64)?.requires_grad_(true)? } else { tensor });
    }
    let f = |ins: &[Tensor]| -> Result<Vec<Tensor>> {
        Ok((case.call)(&ins.iter().collect::<Vec<_>>())?.into_iter().collect())
    };
    let all: Vec<&Tensor> = leaves.iter().collect();
    gradgradcheck(f, &all, None, GradcheckOptions::default())
}
