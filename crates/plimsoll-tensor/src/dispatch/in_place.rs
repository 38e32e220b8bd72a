//! The steps of an operator that changes its inputs in place.

use smallvec::SmallVec;

use super::handle::Call;
use super::launch::{Copy, charge, copy, launch};
use super::operands::Inputs;
use super::run::{Execution, Types, existing, gather, gathered};
use super::scratch::scratch;
use super::watch::watch;
use crate::data::Data;
use crate::error::{Error, Result};
use crate::inference;
use crate::kernel::Kernel;
use crate::operator::{Outputs, Place};

/// Runs an operator that changes inputs, after inference: lays out, allocates and launches. An input whose layout the kernel
/// cannot change directly is gathered, changed and copied back. An input that shares memory with a changed one is copied first,
/// so that no kernel reads memory that it writes.
pub(super) fn execute_in_place(
    call: &Call<'_>,
    ins: &[&Data],
    outputs: &Outputs,
    recording: bool,
) -> Result<Execution> {
    let Call { device, op, .. } = *call;
    may_change(call, ins, outputs, recording).map_err(Error::in_layer)?;
    // An optimizer step has thousands of tensors: look each up in a table instead of searching.
    let mut changing: SmallVec<[bool; 8]> = SmallVec::from_elem(false, ins.len());
    let mut targets: SmallVec<[usize; 8]> = SmallVec::new();
    for output in outputs {
        if let Place::InPlace(i) = output.place {
            changing[i] = true;
            targets.push(ins[i].storage.id());
        }
    }
    targets.sort_unstable();
    let changes = |i: usize| changing[i];
    let shares = |data: &Data| targets.binary_search(&data.storage.id()).is_ok();
    let (mut copies, types) = (Vec::new(), Types::of(device, op));
    for (i, data) in ins.iter().enumerate() {
        let dtype = types.of_kernel(data.dtype);
        if dtype != data.dtype || !op.takes(i, &data.layout) || (!changes(i) && shares(data)) {
            copies.push((i, gather(device, op, i, data, dtype)?));
        }
    }
    let lying: Inputs<'_> =
        ins.iter().enumerate().map(|(i, data)| gathered(&copies, i).unwrap_or(data)).collect();
    let read: Inputs<'_> = (0..ins.len()).filter(|&i| !changes(i)).map(|i| lying[i]).collect();
    let mut outs: SmallVec<[Data; 1]> = SmallVec::new();
    for output in outputs {
        outs.push(match output.place {
            Place::New => Data::alloc(device, output.layout.clone(), output.dtype, op.name())?,
            Place::View(_) | Place::InPlace(_) => existing(output.clone(), &lying),
        });
    }
    let mut wide: Vec<(usize, Data)> = Vec::new();
    for (i, _) in outputs.iter().enumerate().filter(|(_, output)| output.place == Place::New) {
        wide.extend(types.alloc_converted(device, &outs[i])?.map(|data| (i, data)));
    }
    let scratch = scratch(device, op, &lying, &outs)?;
    let before = if recording { values_before(call, ins, &shares)? } else { Vec::new() };
    let is_view = |i: usize| matches!(outputs[i].place, Place::View(_));
    let place = |i: usize| gathered(&wide, i).unwrap_or(&outs[i]);
    let written: Inputs<'_> = (0..outs.len()).filter(|&i| !is_view(i)).map(place).collect();
    if let Some(watch) = watch(device) {
        (0..ins.len()).filter(|&i| changes(i)).try_for_each(|i| watch.will_change(&ins[i].storage))?;
    }
    charge(call, &lying, outs.iter());
    launch(call, &read, &written, scratch.as_ref())?;
    drop((lying, read, written));
    wide.iter().try_for_each(|(i, data)| copy(device, data, &outs[*i]))?;
    for (output, out) in outputs.iter().zip(&mut outs) {
        let Place::InPlace(i) = output.place else { continue };
        if gathered(&copies, i).is_some() {
            copy(device, out, ins[i])?;
        }
        ins[i].storage.changed(op.name());
        *out = ins[i].clone();
    }
    if recording {
        // For inputs whose memory changed, the derivative gets the copies made before the change.
        copies.retain(|(i, _)| !changes(*i) && !before.iter().any(|(at, _)| at == i));
        copies.extend(before);
    }
    let changed = outputs.iter().map(|output| match output.place {
        Place::InPlace(i) => Some(i),
        Place::New | Place::View(_) => None,
    });
    Ok(Execution { outs, gathered: copies, changed: changed.collect(), has_views: false })
}

/// Copies of the inputs that the derivative reads and whose memory is about to change.
fn values_before(
    call: &Call<'_>,
    ins: &[&Data],
    changes: &dyn Fn(&Data) -> bool,
) -> Result<Vec<(usize, Data)>> {
    let wanted: SmallVec<[bool; 8]> = call.tensors.iter().map(|input| input.requires_grad()).collect();
    let saves = call.op.saves(&wanted);
    let mut before = Vec::new();
    for (i, data) in ins.iter().enumerate().filter(|&(i, data)| saves.has_input(i) && changes(data)) {
        let kept = Data::alloc(call.device, data.layout.dense(), data.dtype, Copy::AS_IT_IS.name())?;
        copy(call.device, data, &kept)?;
        before.push((i, kept));
    }
    Ok(before)
}

/// Rejects changes in place that would lose a gradient or are meaningless.
fn may_change(call: &Call<'_>, ins: &[&Data], outputs: &Outputs, recording: bool) -> Result<()> {
    let op = call.op;
    let targets = || {
        outputs.iter().filter_map(|output| match output.place {
            Place::InPlace(i) => Some(ins[i]),
            _ => None,
        })
    };
    if recording {
        let targets = outputs.iter().filter_map(|output| match output.place {
            Place::InPlace(i) => Some(call.tensors[i]),
            _ => None,
        });
        targets
            .filter(|target| target.dtype().is_float())
            .try_for_each(|target| target.may_record_change(op.name()))?;
    }
    if !inference::is_enabled() && targets().any(|target| target.storage.is_inference()) {
        return Err(Error::autograd(
            op.name(),
            "an inference tensor (made in `inference_mode`) cannot be changed in place outside of that mode: `copy` it first",
        ));
    }
    targets().try_for_each(|target| target.storage.may_be_written(op.name()))?;
    // Views of one storage may change together if they do not overlap, as the gradients in a bucket. Gaps count as parts of a view.
    let span = |target: &Data| {
        let (layout, size) = (&target.layout, target.dtype.size());
        (target.storage.id(), layout.offset() * size, layout.end() * size)
    };
    let mut spans: SmallVec<[(usize, usize, usize); 8]> =
        targets().filter(|target| !target.layout.is_empty()).map(span).collect();
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
        let message = "two of the tensors that it changes share memory: copy one first";
        return Err(Error::argument(op.name(), message));
    }
    for target in targets() {
        let layout = &target.layout;
        // A tensor without elements may have strides of 0 that mean nothing.
        if layout.is_empty() {
            continue;
        }
        if layout.shape().iter().zip(layout.strides()).any(|(&n, &stride)| n > 1 && stride == 0) {
            let message = "several elements of an expanded tensor share memory: copy it first";
            return Err(Error::shape(op.name(), message));
        }
    }
    Ok(())
}
