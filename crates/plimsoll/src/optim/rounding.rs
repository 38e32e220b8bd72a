//! Stochastic rounding of `bfloat16` parameters: [`Rounding`].

use std::collections::BTreeMap;

use plimsoll_tensor::op::{Rule, Slot, optimizer_step, optimizer_step_stochastic};
use plimsoll_tensor::{DType, Error, Result, Tensor};
use twox_hash::XxHash3_64;

use super::algorithm::Algorithm;
use super::numbers::ParameterStep;

/// How the parameters of a group are rounded stochastically.
#[derive(Clone, Debug)]
pub(super) struct Rounding {
    /// The seed of the optimizer.
    pub(super) seed: u64,
    /// The seed of each parameter.
    seeds: Vec<u64>,
}

// Note [Seeds of stochastic rounding]
// The random bits of a step follow from the optimizer's seed, the parameter's name (and how many before it have the same name), the
// number of the step and the position of the element, not from the device's generator. So replicas on several ranks, whose
// generators differ, round alike; and a replayed step, a resumed run or a run with other groups rounds as the original one did.

impl Rounding {
    pub(super) fn new(seed: u64, parameters: &[Tensor]) -> Rounding {
        let mut earlier: BTreeMap<String, u64> = BTreeMap::new();
        let seed_of = |parameter: &Tensor| {
            let name = parameter.label();
            let of_name = XxHash3_64::oneshot_with_seed(seed, name.as_bytes());
            let count = earlier.entry(name).or_default();
            *count += 1;
            of_name.wrapping_add(*count - 1)
        };
        let seeds = parameters.iter().map(seed_of).collect();
        Rounding { seed, seeds }
    }

    /// Rejects what cannot be rounded stochastically.
    pub(super) fn check<O: Algorithm>(
        options: &O,
        parameters: &[Tensor],
        master_weights: bool,
    ) -> Result<()> {
        let refused = |why: String| Err(Error::argument(O::NAME, why));
        if options.rule().is_none_or(|rule| rule.is_whole()) {
            return refused(
                "this optimizer does not round stochastically: use AdamW, or master weights".to_owned(),
            );
        }
        if master_weights {
            return refused("stochastic rounding replaces master weights: use one of them".to_owned());
        }
        let half = parameters.iter().find(|parameter| parameter.dtype() == DType::F16);
        half.map_or(Ok(()), |parameter| {
            let label = parameter.label();
            refused(format!("{label} is float16; stochastic rounding is for bfloat16: use master weights"))
        })
    }

    /// Steps by a kernel. Parameters of types other than `bfloat16` are not rounded.
    pub(super) fn step<'a>(
        &self,
        rule: &Rule,
        parameters: &'a [Tensor],
        work: &[&'a ParameterStep],
    ) -> Result<()> {
        let is_short = |work: &&ParameterStep| parameters[work.at].dtype() == DType::BF16;
        let (short, exact): (Vec<&ParameterStep>, Vec<&ParameterStep>) =
            work.iter().copied().partition(is_short);
        let slots = |work: &[&'a ParameterStep]| -> Vec<Slot<'a>> {
            work.iter().map(|work| work.slot(parameters)).collect()
        };
        let seeds: Vec<u64> = short.iter().map(|work| self.seeds[work.at]).collect();
        optimizer_step_stochastic(rule, &slots(&short), &seeds)?;
        optimizer_step(rule, &slots(&exact))
    }
}
