//! Recording: saves the tensors that the derivative reads, and links the outputs to their node.

use std::sync::Arc;

use smallvec::SmallVec;

use super::handle::Call;
use super::operands::{Metas, Tensors, meta};
use super::run::{Execution, gathered};
use crate::autograd::{Saved, is_grad_enabled, observe_seconds, place, tensors_left};
use crate::clock;
use crate::data::Data;
use crate::error::Result;
use crate::few::fill;
use crate::operator::{Place, SavedTensors, Saves, Slot};
use crate::tensor::{Derivative, Node, Tensor};

/// Saves the tensors that the derivative reads.
pub(super) fn save(call: &Call<'_>, execution: &Execution, saved: &mut SavedTensors) -> Result<()> {
    let (op, ins) = (call.op, call.tensors);
    let mut wanted: SmallVec<[bool; 4]> = SmallVec::new();
    fill(&mut wanted, ins.iter().map(|input| input.requires_grad()));
    let saves = op.saves(&wanted);
    if saves == Saves::NOTHING {
        return Ok(());
    }
    for (i, input) in ins.iter().enumerate().filter(|&(i, _)| saves.has_input(i)) {
        // Saving a gathered copy means that the derivative need not gather again; a copy in a different dtype would only be
        // larger.
        let same_type = |copy: &&Data| copy.dtype == input.dtype();
        let data = gathered(&execution.gathered, i).filter(same_type).unwrap_or(input.data());
        saved.push((Slot::Input(i), Saved::new(data, op.name())?));
    }
    for (i, data) in execution.outs.iter().enumerate().filter(|&(i, _)| saves.has_output(i)) {
        saved.push((Slot::Output(i), Saved::new(data, op.name())?));
    }
    if let Some(meter) = clock::metered_until_now() {
        observe_seconds(if saves.has_outputs() { meter.seconds } else { meter.without_last_operator });
    }
    Ok(())
}

/// Saves the inputs of an operator that does not have to run, because they are the last that a recomputed checkpointed
/// piece needs.
pub(super) fn end_with_inputs(call: &Call<'_>, ins: &[&Data]) -> Result<()> {
    let Some(left) = tensors_left() else { return Ok(()) };
    let wanted: SmallVec<[bool; 4]> = call.tensors.iter().map(|input| input.requires_grad()).collect();
    let saves = call.op.saves(&wanted);
    let mut own = (0..ins.len()).filter(|&i| saves.has_input(i));
    if left != own.clone().count() || left == 0 || saves.has_outputs() {
        return Ok(());
    }
    let metas: Metas<'_> = ins.iter().map(|data| meta(data)).collect();
    let outputs = call.op.infer(&metas)?;
    let is_recorded = outputs.iter().any(|output| output.dtype.is_float());
    if !is_recorded || outputs.iter().any(|output| matches!(output.place, Place::InPlace(_))) {
        return Ok(());
    }
    own.try_for_each(|i| Saved::new(ins[i], call.op.name()).map(drop))
}

/// Makes tensors of the outputs, linked to the node that recorded them.
pub(super) fn link(node: &Arc<Node>, ins: &[&Tensor], execution: &mut Execution) -> Tensors {
    let mut tensors = Tensors::new();
    for (i, data) in execution.outs.drain(..).enumerate() {
        let differentiable = data.dtype.is_float();
        if let Some(&Some(changed)) = execution.changed.get(i) {
            if differentiable {
                ins[changed].record_change(node, i);
            }
            tensors.push(ins[changed].clone());
            continue;
        }
        tensors.push(Tensor::linked(data, differentiable.then(|| (node.clone(), i))));
    }
    tensors
}

/// Records which of these outputs are views of which inputs.
pub(super) fn note_views(outs: &[Tensor], ins: &[&Tensor]) {
    let is_recording = is_grad_enabled();
    for out in outs.iter().filter(|out| out.dtype().is_float()) {
        let of = ins.iter().find(|input| input.data().storage.id() == out.data().storage.id());
        of.into_iter().for_each(|of| out.is_view_of(of, is_recording));
    }
}

/// Links a tensor that no single-device operator produced, such as a copy to another device.
pub(crate) fn link_by<D: Derivative + 'static>(
    out: Tensor,
    ins: &[&Tensor],
    name: &'static str,
    derivative: impl FnOnce() -> D,
) -> Tensor {
    if !is_grad_enabled() || !out.dtype().is_float() || !ins.iter().any(|input| input.requires_grad()) {
        return out;
    }
    let node = Node::new(name, ins, 1, Arc::new(derivative()), place());
    Tensor::linked(out.data().clone(), Some((node, 0)))
}
