//! What a block costs, from one run of it: the bytes that it saves, and the time of its kernels.

use std::sync::{Arc, Mutex, PoisonError};

use super::first_run::FirstRun;
use super::schedule::BlockCost;
use super::step::Step;
use crate::autograd::{enable_grad, saved_tensors_hooks};
use crate::clock;
use crate::error::{Error, Result};
use crate::storage::{Storage, WeakStorage};
use crate::tensor::Tensor;

/// The costs of blocks that run one after the other on this input. Each runs once more than in training, and only one of them
/// keeps what it saves. Random numbers and running statistics stay as they are.
///
/// # Errors
/// The errors of the blocks; a block that changes its input in place.
pub(super) fn profile(blocks: &[Step], input: &Tensor) -> Result<Vec<BlockCost>> {
    // Nothing is saved here: an enclosing checkpoint would count it.
    FirstRun::conditions(&[input]).run_again(|| {
        let mut x = input.detach();
        let mut costs = Vec::with_capacity(blocks.len());
        for (number, block) in blocks.iter().enumerate() {
            let (cost, out) = one(block, x, number)?;
            costs.push(cost);
            x = out;
        }
        Ok(costs)
    })
}

/// The cost of a block, and its output without a graph.
fn one(block: &Step, input: Tensor, number: usize) -> Result<(BlockCost, Tensor)> {
    let input = if input.dtype().is_float() { input.requires_grad_(true)? } else { input };
    let version = input.data().storage.version();
    let saved: Arc<Mutex<Vec<Storage>>> = Arc::default();
    let list = saved.clone();
    let pack = move |tensor: &Tensor| {
        list.lock().unwrap_or_else(PoisonError::into_inner).push(tensor.data().storage.clone());
        Ok(())
    };
    let unpack =
        |(): &()| Err(Error::autograd("checkpoint_sequential", "a block must not run a backward pass"));
    let (out, forward_seconds) =
        clock::metered(|| saved_tensors_hooks(pack, unpack, || enable_grad(|| block.forward(&input))));
    if input.data().storage.version() != version {
        let message = format!(
            "block {number} changes its input in place, so it cannot be computed again from it: join it with the block before"
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
        ..BlockCost::default()
    };
    let mut inner: Vec<(WeakStorage, u64)> = Vec::new();
    let saved = std::mem::take(&mut *saved.lock().unwrap_or_else(PoisonError::into_inner));
    for storage in saved {
        let id = storage.id();
        cost.saves_input |= id == from;
        cost.saves_output |= id == to && id != from;
        if id != from && id != to && inner.iter().all(|(known, _)| known.id() != id) {
            inner.push((storage.downgrade(), storage.rounded_bytes()));
        }
    }
    let detached = out.detach();
    drop(out); // And with it the graph.
    // Parameters, masks and tables are still there: the block does not own them.
    cost.inner_bytes =
        inner.iter().filter(|(storage, _)| storage.upgrade().is_none()).map(|(_, bytes)| bytes).sum();
    Ok((cost, detached))
}
