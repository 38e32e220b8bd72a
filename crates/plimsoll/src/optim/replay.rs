//! An optimizer's part in replaying a captured step: the step numbers and the current options.

use std::collections::BTreeMap;

use plimsoll_tensor::{Graph, Result, Tensor};

use super::algorithm::Algorithm;
use super::groups::{MASTER, ParamGroup};

/// Sets the step numbers of the graph's steps that belong to these groups. Returns how many there are.
pub(super) fn replay<O: Algorithm>(groups: &mut [ParamGroup<O>], graph: &mut Graph) -> Result<usize> {
    let mut places: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut own = 0;
    for group in groups.iter_mut().filter(|group| group.options.rule().is_none()) {
        group.options.check()?;
        let next = |at: usize| group.states[at].next_step::<O>(false, false);
        let stepped = group.numbers.replay(&group.options, &group.parameters, graph, next)?;
        own += usize::from(stepped.is_some());
        stepped.into_iter().flatten().for_each(|at| group.states[at].steps += 1);
    }
    for (number, group) in groups.iter().enumerate() {
        group.options.check()?;
        for (at, (parameter, state)) in group.parameters.iter().zip(&group.states).enumerate() {
            let stepped = [Some(parameter), state.get(MASTER)].into_iter().flatten();
            places.extend(stepped.map(|tensor| (tensor.id(), (number, at))));
        }
    }
    for step in 0..graph.step_count() {
        let place = |parameter: &Tensor| places.get(&parameter.id()).copied();
        let found: Option<Vec<(usize, usize)>> = graph.step_parameters(step).iter().map(place).collect();
        let Some(found) = found else { continue };
        let Some(&(group, _)) = found.first() else { continue };
        let next = |&(group, at): &(usize, usize)| groups[group].next_replayed(at);
        let numbers: Vec<u64> = found.iter().map(next).collect();
        let Some(rule) = groups[group].options.rule() else { continue };
        graph.set_step(step, &rule, &numbers)?;
        found.iter().for_each(|&(group, at)| groups[group].states[at].steps += 1);
        own += 1;
    }
    Ok(own)
}
