//! The conformance suite's cases of steps whose state is in 8 bits, or that round stochastically.

use smallvec::SmallVec;

use super::step::{Slot, optimizer_step, optimizer_step_stochastic};
use crate::cpu::kernels::optim::{AdamStep, AdamW8bitStep, Decay, Rule};
use crate::dtype::DType;
use crate::error::Result;
use crate::suite::Case;
use crate::tensor::Tensor;

/// The first step of a parameter in `bfloat16`, with new state.
fn first_step(rule: &Rule, w: &Tensor, grad: &Tensor, seed: Option<u64>) -> Result<()> {
    let zeros = |(nth, shape): (usize, &SmallVec<[usize; 4]>)| {
        let dtype = rule.state_dtype(nth, w.shape()).unwrap_or(w.dtype());
        Tensor::zeros(shape, w.device())?.to_dtype(dtype)
    };
    let state: Vec<Tensor> =
        rule.state_shapes(w.shape()).iter().enumerate().map(zeros).collect::<Result<_>>()?;
    let slot = Slot { parameter: w, grad, state: &state, step: 1 };
    match seed {
        Some(seed) => optimizer_step_stochastic(rule, &[slot], &[seed]),
        None => optimizer_step(rule, &[slot]),
    }
}

/// Cases for the conformance suite.
pub(super) fn cases() -> Vec<Case> {
    let (lr, beta1, beta2, eps, weight_decay) = (0.5, 0.9, 0.999, 1e-8, 0.1);
    let in_8_bits =
        |min_8bit_size| Rule::AdamW8bit(AdamW8bitStep { lr, beta1, beta2, eps, weight_decay, min_8bit_size });
    let decay = Decay::Decoupled;
    let adam = |amsgrad| {
        Rule::Adam(AdamStep { lr, beta1, beta2, eps, weight_decay, decay, amsgrad, maximize: false, step: 1 })
    };
    let stepped = |rule: Rule, seed: Option<u64>| {
        move |ins: &[&Tensor]| {
            let w = ins[0].copy()?;
            // Stochastic rounding does not change values that are exact in bfloat16, so all values are 0 here.
            let (w, grad) = match seed {
                Some(_) => (w.mul_scalar(0.0)?.to_dtype(DType::BF16)?, ins[1].mul_scalar(0.0)?),
                None => (w, ins[1].clone()),
            };
            first_step(&rule, &w, &grad.contiguous()?, seed)?;
            Ok(vec![w].into())
        }
    };
    let naive = |ins: &[Vec<f64>]| {
        let moved = ins[0].iter().zip(&ins[1]).map(|(p, g)| (p - 0.5 * g / (g.abs() + 1e-8)) * 0.95);
        vec![moved.collect()]
    };
    let zeros = |ins: &[Vec<f64>]| vec![vec![0.0; ins[0].len()]];
    let shapes: [&[usize]; 2] = [&[7, 90], &[7, 90]];
    let case = |name: &str, rule, seed| Case::new(name, &shapes, stepped(rule, seed)).without_derivative();
    vec![
        case("adamw8bit", in_8_bits(1), None).expect(naive),
        case("adamw8bit of a small parameter", in_8_bits(10_000), None).expect(naive),
        case("adamw8bit, rounded stochastically", in_8_bits(1), Some(3)).expect(zeros),
        case("adamw, rounded stochastically", adam(false), Some(3)).expect(zeros),
        case("adamw with amsgrad, rounded stochastically", adam(true), Some(3)).expect(zeros),
    ]
}
