//! What a block costs, measured in one run: the bytes that it saves, and the time of its kernels.

use super::first_run::FirstRun;
use super::schedule::BlockCost;
use super::step::Sequence;
use crate::autograd::{enable_grad, hooks_are_open, observing};
use crate::clock;
use crate::error::{Error, Result};
use crate::offload;
use crate::storage::WeakStorage;
use crate::tensor::Tensor;

/// The costs of blocks that run one after the other on this input. Each block runs an extra time, and only one block at
/// a time keeps what it saves. Random number generators and running statistics do not change.
///
/// # Errors
/// The errors of the blocks, or if a block changes its input in place.
pub(super) fn profile(blocks: &dyn Sequence, input: &Tensor) -> Result<Vec<BlockCost>> {
    // Nothing is saved here: an enclosing checkpoint would count it.
    let recipes_are_used = !hooks_are_open();
    FirstRun::conditions(&[input]).run_again(|| {
        let mut x = input.detach();
        let mut costs = Vec::with_capacity(blocks.len());
        for number in 0..blocks.len() {
            let (mut cost, out) = one(blocks, x, number)?;
            if !recipes_are_used {
                cost.inner_bytes += std::mem::take(&mut cost.recipe_bytes);
            }
            costs.push(cost);
            x = out;
        }
        Ok(costs)
    })
}

/// The cost of a block, and its output without a graph.
fn one(blocks: &dyn Sequence, input: Tensor, number: usize) -> Result<(BlockCost, Tensor)> {
    let input = if input.dtype().is_float() { input.requires_grad_(true)? } else { input };
    let version = input.data().storage.version();
    let ((out, forward_seconds), observed) =
        observing(|| clock::metered(|| enable_grad(|| blocks.run(number..number + 1, &input))));
    if input.data().storage.version() != version {
        let message = format!(
            "block {number} changes its input in place, so it cannot be recomputed from it: join it with the previous block"
        );
        return Err(Error::argument("checkpoint_sequential", message));
    }
    let out = out.map_err(|why| match &why {
        Error::Autograd { .. } if number > 0 => {
            let message = format!("block {number} cannot run alone, to be measured: {why}");
            Error::argument("checkpoint_sequential", message)
        }
        _ => why,
    })?;
    let (from, to) = (input.data().storage.id(), out.data().storage.id());
    let mut cost = BlockCost {
        input_bytes: input.data().storage.rounded_bytes(),
        output_bytes: out.data().storage.rounded_bytes(),
        forward_seconds,
        tail_seconds: forward_seconds - observed.seconds,
        ..BlockCost::default()
    };
    let mut inner: Vec<(WeakStorage, u64, bool)> = Vec::new();
    for (storage, is_recipe) in observed.saved {
        let id = storage.id();
        cost.saves_input |= id == from;
        cost.saves_output |= id == to && id != from;
        if id != from && id != to && inner.iter().all(|(known, ..)| known.id() != id) {
            inner.push((storage.downgrade(), storage.rounded_bytes(), is_recipe));
        }
    }
    cost.largest_bytes = inner.iter().map(|(_, bytes, _)| *bytes).max().unwrap_or(0);
    if cost.saves_input {
        cost.largest_bytes = cost.largest_bytes.max(cost.input_bytes);
    }
    let detached = out.detach();
    drop(out); // The graph is dropped with it.
    // Parameters, masks and tables still exist: the block does not own them.
    for (_, bytes, is_recipe) in inner.iter().filter(|(storage, ..)| !storage.is_alive()) {
        *(if *is_recipe { &mut cost.recipe_bytes } else { &mut cost.inner_bytes }) += bytes;
    }
    let bytes = cost.inner_bytes + cost.input_bytes;
    cost.copy_seconds = offload::copy_seconds(input.device(), bytes).unwrap_or(0.0);
    Ok((cost, detached))
}
