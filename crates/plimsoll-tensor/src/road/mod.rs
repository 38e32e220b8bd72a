//! The one road from an operator to a device: autocast, infer, lay out, allocate the outputs, allocate the scratch,
//! run, link.
//!
//! Every byte that an operation takes is taken here, in this order, on every device; a simulated one leaves
//! out the kernel. Back ends compute only; operators (`ops/`, and the users' own) say what there is to do.
//! No lock is held while memory is asked for: only around a kernel, or where one is queued.

mod again;
mod change;
mod held;
mod into;
mod launch;
mod link;
mod operands;
mod pinned;
mod run;
mod scratch;
mod watch;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::autocast;
use crate::autograd::{is_grad_enabled, place};
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::few::fill;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::operator::{Operator, Place, Recorded, SavedTensors};
use crate::tensor::{Node, Tensor};

pub(crate) use again::run_again;
use change::change;
use held::{Call, Holds, Owned};
pub use into::into_out;
pub(crate) use launch::{Copy, copy_to, read, write};
use launch::{copy, launch};
pub(crate) use link::link_by;
use link::{link, save, views};
pub use operands::Tensors;
use operands::{Inputs, Metas, meta};
pub(crate) use pinned::{copy_pinned, copy_to_pinned, empty_in_pinned, empty_pinned};
use run::{Run, Types, existing, gather, gathered};
use scratch::Scratch;
use watch::watched;
pub(crate) use watch::{Ran, Watch, set_watch};

/// Runs an operator on tensors of one device. Ours and the users' own take this road.
///
/// # Errors
/// What the operator reports ([`Operator::infer`], its kernel); tensors of two devices; an input changed in
/// place that takes part in recording, is expanded, or shares memory with another; out of memory. Nothing is
/// left behind: outputs that were already allocated are freed.
///
/// # Panics
/// Without tensors: an operator that has no inputs goes through [`create`].
pub fn call<O: Operator>(op: O, ins: &[&Tensor]) -> Result<Tensors> {
    let Some(first) = ins.first() else {
        unreachable!("{} has no tensors: it goes through `create`", op.name());
    };
    if autocast::is_enabled()
        && let Some(cast) = autocast::inputs(op.autocast(), ins)?
    {
        return travel(op, first.device(), &cast.iter().collect::<SmallVec<[&Tensor; 4]>>());
    }
    travel(op, first.device(), ins)
}

/// The rest of the road, with inputs in the types that autocast leaves.
fn travel<O: Operator>(op: O, device: &Device, ins: &[&Tensor]) -> Result<Tensors> {
    match device.shares_operators() {
        false => held_call(Owned(op), device, ins),
        true => held_call(Arc::new(op), device, ins),
    }
}

/// Generic is only what makes the derivative: this is compiled once for each operator.
fn held_call<H: Holds>(op: H, device: &Device, ins: &[&Tensor]) -> Result<Tensors> {
    let shared = op.shared();
    let (mut run, mut saved) = (Run::default(), SmallVec::new());
    let call = Call { device, tensors: ins, op: &*op, shared: shared.as_ref() };
    if !go(&call, &mut run, &mut saved)? {
        return Ok(arrive(ins, device, shared.as_ref(), run, None));
    }
    let name = op.name();
    let derivative = Arc::new(Recorded { op, saved });
    let node = Node::new(name, ins, run.outs.len(), derivative, place());
    Ok(arrive(ins, device, shared.as_ref(), run, Some(node)))
}

/// Runs the operator; says whether it is to be recorded, and then keeps what its derivative reads.
fn go(call: &Call<'_>, run: &mut Run, saved: &mut SavedTensors) -> Result<bool> {
    let mut datas: Inputs<'_> = SmallVec::new();
    fill(&mut datas, call.tensors.iter().map(|tensor| tensor.data()));
    let recording = is_grad_enabled() && call.tensors.iter().any(|tensor| tensor.requires_grad());
    lead(call, &datas, recording, run)?;
    let recorded = recording && run.outs.iter().any(|data| data.dtype.is_float());
    if recorded {
        save(call, run, saved).map_err(Error::in_layer)?;
    }
    Ok(recorded)
}

/// The end of the road: the outputs as tensors, linked to the node that recorded them.
fn arrive(
    ins: &[&Tensor],
    device: &Device,
    shared: Option<&Arc<dyn Operator>>,
    mut run: Run,
    node: Option<Arc<Node>>,
) -> Tensors {
    let has_views = run.has_views;
    let tensors = match node {
        None => run.into_tensors(),
        Some(node) => link(&node, ins, &mut run),
    };
    if has_views {
        views(&tensors, ins);
    }
    watched(device, shared, ins, tensors)
}

/// [`call`] of an operator with one output.
pub(crate) fn call_one<O: Operator>(op: O, ins: &[&Tensor]) -> Result<Tensor> {
    let mut outs = call(op, ins)?;
    assert_eq!(outs.len(), 1, "outputs of an operator that has one");
    Ok(outs.remove(0))
}

/// Runs an operator that has no inputs.
///
/// # Errors
/// As [`call`].
#[allow(clippy::needless_pass_by_value, reason = "as `call`")]
pub fn create<O: Operator>(op: O, device: &Device) -> Result<Tensors> {
    match device.shares_operators() {
        false => held_create(&Owned(op), device),
        true => held_create(&Arc::new(op), device),
    }
}

fn held_create<H: Holds>(op: &H, device: &Device) -> Result<Tensors> {
    let mut run = Run::default();
    let shared = op.shared();
    lead(&Call { device, tensors: &[], op: &**op, shared: shared.as_ref() }, &[], false, &mut run)?;
    Ok(arrive(&[], device, shared.as_ref(), run, None))
}

/// Room for a tensor whose values are whatever is there; `name` names the request.
pub(crate) fn empty(shape: &[usize], dtype: DType, device: &Device, name: &'static str) -> Result<Data> {
    device.late_error()?;
    Data::alloc(device, Layout::contiguous(shape), dtype, name)
}

/// All of the road but linking.
fn lead(call: &Call<'_>, ins: &[&Data], recording: bool, run: &mut Run) -> Result<()> {
    let Call { device, op, .. } = *call;
    device.late_error()?;
    one_device(op, device, ins).map_err(Error::in_layer)?;
    let mut metas: Metas<'_> = SmallVec::new();
    fill(&mut metas, ins.iter().map(|data| meta(data)));
    let mut outputs = op.infer(&metas).map_err(Error::in_layer)?;
    if outputs.iter().any(|output| matches!(output.place, Place::InPlace(_))) {
        *run = change(call, ins, &outputs, recording)?;
        return Ok(());
    }
    if outputs.iter().all(|output| matches!(output.place, Place::View(_))) {
        run.outs.extend(outputs.into_iter().map(|output| existing(output, ins)));
        run.has_views = true;
        return Ok(());
    }
    // Layout policy: what a kernel cannot take as it lies, or reads in another type, is copied first.
    let types = Types::of(device, op);
    for (i, data) in ins.iter().enumerate() {
        let dtype = types.of_kernel(data.dtype);
        if dtype != data.dtype || !op.takes(i, &data.layout) {
            run.gathered.push((i, gather(device, op, i, data, dtype)?));
        }
    }
    // The inputs as the kernel takes them, and what is known of those.
    let copied: Inputs<'_>;
    let copied_metas: Metas<'_>;
    let (lying, metas) = if run.gathered.is_empty() {
        (ins, &metas)
    } else {
        copied = ins.iter().enumerate().map(|(i, data)| gathered(&run.gathered, i).unwrap_or(data)).collect();
        copied_metas = copied.iter().map(|data| meta(data)).collect();
        (&copied[..], &copied_metas)
    };
    let mut written: SmallVec<[usize; 4]> = SmallVec::new();
    for (i, output) in outputs.drain(..).enumerate() {
        if output.place == Place::New {
            if let Some(target) = into::target(op, i, &output, device, lying, recording)? {
                written.push(i);
                run.outs.push(target);
                continue;
            }
            // Built where it stays: a layout is large enough for its moves to be seen in `bench dispatch`.
            let storage = Data::room(device, &output.layout, output.dtype, op.name())?;
            written.push(i);
            run.outs.push(Data { storage, layout: output.layout, dtype: output.dtype });
        } else {
            run.outs.push(existing(output, lying));
            run.has_views = true;
        }
    }
    let mut wide: Vec<(usize, Data)> = Vec::new();
    for &i in &written {
        wide.extend(types.room(device, &run.outs[i])?.map(|data| (i, data)));
    }
    let scratch = {
        let mut outs = Metas::new();
        fill(&mut outs, run.outs.iter().enumerate().map(|(i, out)| meta(gathered(&wide, i).unwrap_or(out))));
        Scratch::alloc(device, op, op.scratch(metas, &outs, device.facts()))?
    };
    let mut to: Inputs<'_> = SmallVec::new();
    fill(&mut to, written.iter().map(|&i| gathered(&wide, i).unwrap_or(&run.outs[i])));
    launch(call, lying, &to, scratch.as_ref())?;
    wide.iter().try_for_each(|(i, data)| copy(device, data, &run.outs[*i]))
}

fn one_device(op: &dyn Operator, device: &Device, ins: &[&Data]) -> Result<()> {
    match ins.iter().find(|data| data.storage.device() != device) {
        None => Ok(()),
        Some(other) => Err(Error::Device {
            op: op.name(),
            first: device.name().to_owned(),
            second: match other.storage.device().name() {
                // Names need not differ.
                name if name == device.name() => format!("another device called {name}"),
                name => name.to_owned(),
            },
        }),
    }
}
