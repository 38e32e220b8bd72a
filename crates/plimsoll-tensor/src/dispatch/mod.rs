//! Dispatch: how every operator runs on a device. The steps are: autocast, infer, lay out, allocate the outputs,
//! allocate scratch memory, launch, record.
//!
//! | file | contents |
//! |---|---|
//! | this one | [`call`], and the steps in their order |
//! | `operands` | the lists of input and output tensors of a call |
//! | `handle` | an operator that is borrowed, or shared with a queue |
//! | `run` | the outputs, and the inputs in the form that a kernel takes |
//! | `into` | results in existing memory (`out=`) |
//! | `in_place` | the steps of an operator that changes its inputs |
//! | `scratch` | a kernel's scratch memory |
//! | `launch` | launching kernels and copying host bytes, under the locks of the storages |
//! | `pinned` | copies to and from pinned memory |
//! | `link` | saving the tensors that the derivative reads; linking the outputs to their node |
//! | `watch` | the observer that is notified of each operator that has run |
//! | `recompute` | running an operator again |
//!
//! All memory that an operation uses is allocated here, in this order, on every device; a simulated device only skips the
//! kernel. Back ends only compute; operators (in `ops/` and from users) define the computation. Locks are held only
//! while a kernel runs or is queued, never while memory is allocated.

mod handle;
mod in_place;
mod into;
mod launch;
mod link;
mod operands;
mod pinned;
mod recompute;
mod run;
mod scratch;
mod watch;

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::autocast;
use crate::autograd::{is_grad_enabled, place};
use crate::caller;
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::few::fill;
use crate::layout::Layout;
use crate::operator::{Operator, Place, Recorded, SavedTensors};
use crate::tensor::{Node, Tensor};

use handle::{Call, OperatorHandle, Owned};
use in_place::execute_in_place;
pub use into::into_out;
pub(crate) use launch::{Copy, copy_to, read, write};
use launch::{charge, copy, launch};
pub(crate) use link::link_by;
use link::{end_with_inputs, link, note_views, save};
pub use operands::Tensors;
use operands::{Inputs, Metas, meta};
pub(crate) use pinned::{copy_pinned, copy_to_pinned, empty_in_pinned, empty_pinned};
pub(crate) use recompute::rerun;
use run::{Execution, Types, existing, gather, gathered};
use scratch::Scratch;
use watch::notify;
pub(crate) use watch::{ExecutedOperator, Watch, set_watch};

/// Runs an operator on tensors of one device. Built-in and user-defined operators both run this way.
///
/// # Errors
/// Errors of the operator ([`Operator::infer`], its kernel). Also if tensors are on different devices; if an input to
/// change in place is recorded, is expanded, or shares memory with another input; or if memory runs out. After an
/// error, outputs that were already allocated are freed.
///
/// # Panics
/// If there are no tensors; use [`create`] for an operator without inputs.
#[track_caller]
pub fn call<O: Operator>(op: O, ins: &[&Tensor]) -> Result<Tensors> {
    caller::called(Location::caller());
    let Some(first) = ins.first() else {
        unreachable!("{} has no tensors: it goes through `create`", op.name());
    };
    let cast = if autocast::is_enabled() { autocast::inputs(op.autocast(), ins)? } else { None };
    match &cast {
        None => run_shared_or_owned(op, first.device(), ins),
        Some(cast) => run_shared_or_owned(op, first.device(), &borrowed(cast)),
    }
}

fn borrowed(tensors: &[Tensor]) -> SmallVec<[&Tensor; 4]> {
    tensors.iter().collect()
}

/// The steps after autocast. A device with a queue or an observer shares the operator; any other device borrows it.
fn run_shared_or_owned<O: Operator>(op: O, device: &Device, ins: &[&Tensor]) -> Result<Tensors> {
    match device.shares_operators() {
        false => run_and_record(Owned(op), device, ins),
        true => run_and_record(Arc::new(op) as Arc<dyn Operator>, device, ins),
    }
}

/// Runs an operator and records it. Only the part that creates the derivative is generic; it is compiled once for each
/// operator that is owned, and once for all that are shared.
fn run_and_record<H: OperatorHandle>(op: H, device: &Device, ins: &[&Tensor]) -> Result<Tensors> {
    let shared = op.shared();
    let (mut execution, mut saved) = (Execution::default(), SmallVec::new());
    let call = Call { device, tensors: ins, op: op.operator(), shared: shared.as_ref() };
    if !run_and_save(&call, &mut execution, &mut saved)? {
        return Ok(link_outputs(ins, device, shared.as_ref(), execution, None));
    }
    let name = op.operator().name();
    let derivative = Arc::new(Recorded { op, saved });
    let node = Node::new(name, ins, execution.outs.len(), derivative, place());
    Ok(link_outputs(ins, device, shared.as_ref(), execution, Some(node)))
}

/// Runs the operator. Returns whether it must be recorded; if so, saves the tensors that its derivative reads.
fn run_and_save(call: &Call<'_>, execution: &mut Execution, saved: &mut SavedTensors) -> Result<bool> {
    let mut datas: Inputs<'_> = SmallVec::new();
    fill(&mut datas, call.tensors.iter().map(|tensor| tensor.data()));
    let recording = is_grad_enabled() && call.tensors.iter().any(|tensor| tensor.requires_grad());
    if recording {
        end_with_inputs(call, &datas).map_err(Error::in_layer)?;
    }
    execute(call, &datas, recording, execution)?;
    let recorded = recording && execution.outs.iter().any(|data| data.dtype.is_float());
    if recorded {
        save(call, execution, saved).map_err(Error::in_layer)?;
    }
    Ok(recorded)
}

/// The last step: turns the outputs into tensors, linked to the node that recorded them.
fn link_outputs(
    ins: &[&Tensor],
    device: &Device,
    shared: Option<&Arc<dyn Operator>>,
    mut execution: Execution,
    node: Option<Arc<Node>>,
) -> Tensors {
    let has_views = execution.has_views;
    let tensors = match node {
        None => execution.into_tensors(),
        Some(node) => link(&node, ins, &mut execution),
    };
    if has_views {
        note_views(&tensors, ins);
    }
    notify(device, shared, ins, tensors)
}

/// [`call`] for an operator with one output.
#[track_caller]
pub(crate) fn call_one<O: Operator>(op: O, ins: &[&Tensor]) -> Result<Tensor> {
    let mut outs = call(op, ins)?;
    assert_eq!(outs.len(), 1, "outputs of an operator that has one");
    Ok(outs.remove(0))
}

/// Runs an operator that has no inputs.
///
/// # Errors
/// The same errors as [`call`].
#[allow(clippy::needless_pass_by_value, reason = "as `call`")]
#[track_caller]
pub fn create<O: Operator>(op: O, device: &Device) -> Result<Tensors> {
    caller::called(Location::caller());
    match device.shares_operators() {
        false => execute_create(&Owned(op), device),
        true => execute_create(&(Arc::new(op) as Arc<dyn Operator>), device),
    }
}

fn execute_create(op: &dyn OperatorHandle, device: &Device) -> Result<Tensors> {
    let mut execution = Execution::default();
    let (op, shared) = (op.operator(), op.shared());
    execute(&Call { device, tensors: &[], op, shared: shared.as_ref() }, &[], false, &mut execution)?;
    Ok(link_outputs(&[], device, shared.as_ref(), execution, None))
}

/// An uninitialized tensor; `name` labels the allocation.
#[track_caller]
pub(crate) fn empty(shape: &[usize], dtype: DType, device: &Device, name: &'static str) -> Result<Data> {
    caller::called(Location::caller());
    device.late_error()?;
    Data::alloc(device, Layout::contiguous(shape), dtype, name)
}

/// Infers, lays out, allocates and launches: every step except recording.
fn execute(call: &Call<'_>, ins: &[&Data], recording: bool, execution: &mut Execution) -> Result<()> {
    let Call { device, op, .. } = *call;
    device.late_error()?;
    one_device(op, device, ins).map_err(Error::in_layer)?;
    // Requesting memory for an output must not evict what the operator reads.
    let _stay = match device.evicts() {
        true => ins.iter().map(|data| data.storage.guard(op.name())).collect::<Result<Vec<_>>>()?,
        false => Vec::new(),
    };
    let mut metas: Metas<'_> = SmallVec::new();
    fill(&mut metas, ins.iter().map(|data| meta(data)));
    let mut outputs = op.infer(&metas).map_err(Error::in_layer)?;
    if outputs.iter().any(|output| matches!(output.place, Place::InPlace(_))) {
        *execution = execute_in_place(call, ins, &outputs, recording)?;
        return Ok(());
    }
    if outputs.iter().all(|output| matches!(output.place, Place::View(_))) {
        execution.outs.extend(outputs.into_iter().map(|output| existing(output, ins)));
        execution.has_views = true;
        return Ok(());
    }
    // Layout policy: an input whose layout the kernel cannot read, or that it reads in a different dtype, is copied first.
    let types = Types::of(device, op);
    for (i, data) in ins.iter().enumerate() {
        let dtype = types.of_kernel(data.dtype);
        if dtype != data.dtype || !op.takes(i, &data.layout) {
            execution.gathered.push((i, gather(device, op, i, data, dtype)?));
        }
    }
    // The inputs in the form that the kernel reads, and their known values.
    let copied: Inputs<'_>;
    let copied_metas: Metas<'_>;
    let (lying, metas) = if execution.gathered.is_empty() {
        (ins, &metas)
    } else {
        copied = ins
            .iter()
            .enumerate()
            .map(|(i, data)| gathered(&execution.gathered, i).unwrap_or(data))
            .collect();
        copied_metas = copied.iter().map(|data| meta(data)).collect();
        (&copied[..], &copied_metas)
    };
    let mut written: SmallVec<[usize; 4]> = SmallVec::new();
    for (i, output) in outputs.drain(..).enumerate() {
        if output.place == Place::New {
            if let Some(target) = into::target(op, i, &output, device, lying, recording)? {
                written.push(i);
                execution.outs.push(target);
                continue;
            }
            // Built directly in its final location: moving a layout takes enough time to show up in `bench dispatch`.
            let storage = Data::alloc_storage(device, &output.layout, output.dtype, op.name())?;
            written.push(i);
            execution.outs.push(Data { storage, layout: output.layout, dtype: output.dtype });
        } else {
            execution.outs.push(existing(output, lying));
            execution.has_views = true;
        }
    }
    let mut wide: Vec<(usize, Data)> = Vec::new();
    for &i in &written {
        wide.extend(types.alloc_converted(device, &execution.outs[i])?.map(|data| (i, data)));
    }
    let scratch = {
        let mut outs = Metas::new();
        fill(
            &mut outs,
            execution.outs.iter().enumerate().map(|(i, out)| meta(gathered(&wide, i).unwrap_or(out))),
        );
        Scratch::alloc(device, op, op.scratch(metas, &outs, device.facts()))?
    };
    let mut to: Inputs<'_> = SmallVec::new();
    fill(&mut to, written.iter().map(|&i| gathered(&wide, i).unwrap_or(&execution.outs[i])));
    if !to.is_empty() {
        charge(call, lying, execution.outs.iter());
    }
    launch(call, lying, &to, scratch.as_ref())?;
    wide.iter().try_for_each(|(i, data)| copy(device, data, &execution.outs[*i]))
}

fn one_device(op: &dyn Operator, device: &Device, ins: &[&Data]) -> Result<()> {
    match ins.iter().find(|data| data.storage.device() != device) {
        None => Ok(()),
        Some(other) => Err(Error::Device {
            op: op.name(),
            first: device.name().to_owned(),
            second: match other.storage.device().name() {
                // Device names need not be unique.
                name if name == device.name() => format!("another device called {name}"),
                name => name.to_owned(),
            },
        }),
    }
}
