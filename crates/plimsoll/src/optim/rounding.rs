//! Steps that round `bfloat16` parameters stochastically.

use plimsoll_tensor::op::{Rule, Slot, optimizer_step, optimizer_step_stochastic};
use plimsoll_tensor::{DType, Error, Result};

use super::algorithm::Algorithm;
use super::groups::ParamGroup;
use super::numbers::ParameterStep;

impl<O: Algorithm> ParamGroup<O> {
    /// Rejects what cannot be rounded stochastically.
    pub(super) fn check_rounding(&self) -> Result<()> {
        let refused = |why: String| Err(Error::argument(O::NAME, why));
        if self.rounding_seed.is_none() {
            return Ok(());
        }
        if self.options.rule().is_none_or(|rule| rule.is_whole()) {
            return refused(
                "this optimizer does not round stochastically: use AdamW, or master weights".to_owned(),
            );
        }
        if self.master_weights {
            return refused("stochastic rounding replaces master weights: use one of them".to_owned());
        }
        let half = self.parameters.iter().find(|parameter| parameter.dtype() == DType::F16);
        half.map_or(Ok(()), |parameter| {
            let label = parameter.label();
            refused(format!("{label} is float16; stochastic rounding is for bfloat16: use master weights"))
        })
    }

    /// The seed of the parameter at this place.
    fn seed_of(&self, seed: u64, at: usize) -> u64 {
        let name = self.parameters[at].label();
        let earlier = self.parameters[..at].iter().filter(|other| other.label() == name).count();
        parameter_seed(seed.wrapping_add(earlier as u64), &name)
    }

    /// Steps by a kernel that rounds `bfloat16` parameters stochastically.
    pub(super) fn step_randomly<'a>(
        &'a self,
        rule: &Rule,
        seed: u64,
        work: &[&'a ParameterStep],
    ) -> Result<()> {
        let is_short = |work: &&ParameterStep| self.parameters[work.at].dtype() == DType::BF16;
        let (short, exact): (Vec<&ParameterStep>, Vec<&ParameterStep>) =
            work.iter().copied().partition(is_short);
        let slots = |work: &[&'a ParameterStep]| -> Vec<Slot<'a>> {
            work.iter().map(|work| work.slot(&self.parameters)).collect()
        };
        let seeds: Vec<u64> = short.iter().map(|work| self.seed_of(seed, work.at)).collect();
        optimizer_step_stochastic(rule, &slots(&short), &seeds)?;
        optimizer_step(rule, &slots(&exact))
    }
}

// Note [Seeds of stochastic rounding]
// The random bits of a step follow from the optimizer's seed, the parameter's name (and how many before it have the same), the number of the step and the
// position of the element, not from the device's generator. So replicas on several ranks, whose generators differ, round alike; and a replayed step,
// a resumed run or other groups round as the run itself.

/// The seed of a parameter of this name: Note [Seeds of stochastic rounding].
fn parameter_seed(seed: u64, name: &str) -> u64 {
    // FNV-1a, then a round of SplitMix64.
    let hash = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let x = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
