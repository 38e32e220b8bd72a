//! Finds the blocks of a model that are buffers: tensors that `register_buffer` adds to a module, next to its parameters.
//!
//! PyTorch moves parameters and buffers to the device in one function, `Module._apply`: first the parameters, then
//! their gradients, then the buffers, each on a separate line. PyTorch's batch norms create parameters and buffers
//! in one `__init__`, in the same order.

use std::collections::{BTreeMap, BTreeSet};

use super::origin::{Activity, Origins};
use super::passes::{PassKind, Passes};
use crate::snapshot::{FrameId, Snapshot, StackId};
use crate::timeline::Life;

/// For each stack, by its id, whether its blocks are a module's buffers.
pub(super) fn of_stacks(
    snapshot: &Snapshot,
    lives: &[Life],
    origins: &Origins,
    passes: &Passes,
) -> Vec<bool> {
    let mut found = vec![false; snapshot.stacks.len()];
    let mut applied: BTreeMap<u32, BTreeSet<StackId>> = BTreeMap::new();
    let mut made: BTreeMap<u32, BTreeSet<StackId>> = BTreeMap::new();
    let backward = passes.iter().find(|pass| pass.kind == PassKind::Backward).map(|pass| pass.first);
    // Tensors moved after a backward pass may be gradients.
    let mut has_gradients = false;
    for life in lives {
        let Some(stack) = life.stack.filter(|_| origins.get(life.stack).activity == Activity::Building)
        else {
            continue;
        };
        // Recurrent layers copy their weights into one tensor after they were moved.
        if line_of(snapshot, stack, "/torch/nn/modules/rnn.py", "flatten_parameters").is_some() {
            continue;
        }
        if let Some(line) = line_of(snapshot, stack, "/torch/nn/modules/module.py", "_apply") {
            applied.entry(line).or_default().insert(stack);
            has_gradients |= backward.is_some() && life.born > backward;
        } else if let Some(line) = line_of(snapshot, stack, "/torch/nn/modules/batchnorm.py", "__init__") {
            made.entry(line).or_default().insert(stack);
        }
    }
    let parameters = if has_gradients { 2 } else { 1 };
    let lines: Vec<u32> = made.keys().copied().collect();
    let of_buffers =
        applied.into_values().skip(parameters).chain(made.into_values().skip(parameters_of_norm(&lines)));
    of_buffers.flatten().for_each(|stack| found[stack.index()] = true);
    found
}

/// The line of the innermost frame of this function; `None` if the stack has no such frame.
fn line_of(snapshot: &Snapshot, stack: StackId, file: &str, function: &str) -> Option<u32> {
    let is_it = |id: FrameId| {
        let frame = snapshot.stacks.get_frame(id);
        let texts = [frame.filename, frame.name].map(|text| snapshot.texts.get(text));
        texts[1] == function && texts[0].replace('\\', "/").ends_with(file)
    };
    let id = snapshot.stacks.frame_ids(stack).find(|&id| is_it(id))?;
    u32::try_from(snapshot.stacks.get_frame(id).line).ok()
}

/// How many lines of a norm's `__init__` create parameters. The lines for weight and bias are adjacent. The lines for
/// mean and variance come some lines later, three lines apart.
fn parameters_of_norm(lines: &[u32]) -> usize {
    match lines {
        [weight, bias, ..] if bias - weight <= 2 => 2,
        [weight, mean, ..] if mean - weight > 5 => 1,
        [_] => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_norm_separate_its_parameters_from_its_buffers() {
        assert_eq!(parameters_of_norm(&[53, 55, 64, 67, 73]), 2);
        assert_eq!(parameters_of_norm(&[53, 64, 67, 73]), 1); // without a bias
        assert_eq!(parameters_of_norm(&[64, 67, 73]), 0); // not affine
        assert_eq!(parameters_of_norm(&[53, 55]), 2); // no running statistics
        assert_eq!(parameters_of_norm(&[]), 0);
    }
}
