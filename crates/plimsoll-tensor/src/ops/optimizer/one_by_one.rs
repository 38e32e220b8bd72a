//! Optimizer rules that a GPU's kernels apply to one parameter at a time, because there is no kernel for all parameters at
//! once.

use crate::cpu::kernels::optim::{AdamStep, Decay, LrAdjustment, Rule, SgdStep};
use crate::cuda::CudaCall;
use crate::cuda::optimizer::one_by_one::{self as rules, Adafactor, Muon, Stepped};
use crate::error::Result;

fn sign(maximize: bool) -> f64 {
    if maximize { -1.0 } else { 1.0 }
}

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

fn twelve<const N: usize>(numbers: [f64; N]) -> [f64; 12] {
    std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0.0))
}

/// The scratch memory for a parameter of this shape, in bytes.
pub(super) fn scratch(rule: &Rule, shape: &[usize]) -> u64 {
    match rule {
        Rule::Adafactor(_) => rules::adafactor_scratch(shape),
        Rule::Muon(_) => rules::muon_scratch(shape),
        _ => 0,
    }
}

/// One step of one parameter.
pub(super) fn step(call: &mut CudaCall<'_>, rule: &Rule, slot: &Stepped<'_>) -> Result<()> {
    let at = slot.step as f64;
    let rule = match rule {
        Rule::Adafactor(of) => {
            let rate = of.lr.min(at.sqrt().recip());
            let eps1 = of.eps1.unwrap_or(f64::from(f32::EPSILON));
            let keep = if of.weight_decay == 0.0 { 1.0 } else { 1.0 - of.lr * of.weight_decay };
            let (weight, sign) = (at.powf(of.beta2_decay), sign(of.maximize));
            return rules::adafactor(
                call,
                slot,
                &Adafactor { weight, eps1, eps2: of.eps2, rate, d: of.d, keep, sign },
            );
        }
        Rule::Muon(of) => {
            let &[rows, columns] = slot.parameter.shape() else { return call.missing() };
            let ratio = rows as f64 / columns as f64;
            let adjusted = match of.adjustment {
                LrAdjustment::Original => ratio.max(1.0).sqrt(),
                LrAdjustment::MatchRmsAdamW => 0.2 * (rows.max(columns) as f64).sqrt(),
                LrAdjustment::SpectralUnclamped => ratio.sqrt(),
            };
            let muon = Muon {
                momentum: of.momentum,
                nesterov: of.nesterov,
                eps: of.eps,
                coefficients: of.coefficients,
                iterations: of.iterations,
                keep: 1.0 - of.lr * of.weight_decay,
                rate: of.lr * adjusted,
            };
            return rules::muon(call, slot, &muon);
        }
        Rule::AdamW8bit(_) => return call.missing(),
        Rule::RmsProp(of) => {
            let buffer = of.momentum > 0.0;
            let values = [of.lr, of.alpha, 1.0 - of.alpha, of.eps, of.weight_decay, sign(of.maximize)];
            let [a, b, c, d, e, f] = values;
            let mean = of.centered.then_some(1 + usize::from(buffer));
            let state = [Some(0), buffer.then_some(1), mean];
            rules::Rule {
                number: 0,
                values: twelve([a, b, c, d, e, f, of.momentum, flag(of.centered)]),
                state,
            }
        }
        Rule::Adagrad(of) => {
            let rate = of.lr / (1.0 + (at - 1.0) * of.lr_decay);
            let values = twelve([rate, of.eps, of.weight_decay, sign(of.maximize)]);
            rules::Rule { number: 1, values, state: [Some(0), None, None] }
        }
        Rule::Lion(of) => {
            let shrink = 1.0 - of.lr * of.weight_decay;
            let values = twelve([of.lr, of.beta1, 1.0 - of.beta1, of.beta2, 1.0 - of.beta2, shrink]);
            rules::Rule { number: 2, values, state: [Some(0), None, None] }
        }
        Rule::Sgd(SgdStep { lr, momentum, dampening, weight_decay, nesterov, maximize, .. }) => {
            let first = flag(slot.step == 1);
            let values =
                [*lr, *weight_decay, *momentum, 1.0 - dampening, first, flag(*nesterov), sign(*maximize)];
            let state = [(*momentum != 0.0).then_some(0), None, None];
            rules::Rule { number: 3, values: twelve(values), state }
        }
        Rule::Adam(AdamStep { lr, beta1, beta2, eps, weight_decay, decay, amsgrad, maximize, .. }) => {
            let (in_grad, shrink) = match decay {
                Decay::InGradient => (*weight_decay, 1.0),
                Decay::Decoupled => (0.0, 1.0 - lr * weight_decay),
            };
            let (root, size) = ((1.0 - beta2.powf(at)).sqrt(), lr / (1.0 - beta1.powf(at)));
            let of = [size, in_grad, shrink, 1.0 - beta1, *beta2, 1.0 - beta2, root, *eps, sign(*maximize)];
            let [a, b, c, d, e, f, g, h, i] = of;
            let values = twelve([a, b, c, d, e, f, g, h, i, flag(*amsgrad)]);
            rules::Rule { number: 4, values, state: [Some(0), Some(1), amsgrad.then_some(2)] }
        }
    };
    rules::step(call, slot, &rule)
}
