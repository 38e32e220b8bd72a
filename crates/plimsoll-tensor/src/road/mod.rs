//! The one road from an operator to a device: autocast, infer, lay out, allocate the outputs, allocate the scratch,
//! run, link.
//!
//! Every byte that an operation takes is taken here, in this order, on every device; a simulated one leaves
//! out the kernel. Back ends compute only; operators (`ops/`, and the users' own) say what there is to do.
//! No lock is held while memory is asked for: only around a kernel, or where one is queued.

mod again;
mod held;
mod into;
mod launch;
mod operands;
mod pinned;
mod scratch;
mod watch;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::autocast;
use crate::autograd::{Saved, is_grad_enabled, place};
use crate::backend::DeviceKind;
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::few::fill;
use crate::inference;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::operator::{Operator, Output, Outputs, Place, Recorded, Saves, Slot};
use crate::tensor::{Derivative, Node, Tensor};

pub(crate) use again::run_again;
use held::{Call, Holds, Owned};
pub use into::into_out;
pub(crate) use launch::{Copy, copy_to, read, write};
use launch::{copy, launch};
pub use operands::Tensors;
use operands::{Inputs, Metas, meta};
pub(crate) use pinned::{copy_pinned, copy_to_pinned, empty_pinned};
use scratch::{Scratch, scratch};
pub(crate) use watch::{Ran, Watch, set_watch};
use watch::{watch, watched};

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

fn held_call<H: Holds>(op: H, device: &Device, ins: &[&Tensor]) -> Result<Tensors> {
    let mut datas: Inputs<'_> = SmallVec::new();
    fill(&mut datas, ins.iter().map(|tensor| tensor.data()));
    let recording = is_grad_enabled() && ins.iter().any(|tensor| tensor.requires_grad());
    let mut run = Run::default();
    let shared = op.shared();
    lead(&Call { device, tensors: ins, op: &*op, shared: shared.as_ref() }, &datas, recording, &mut run)?;
    let has_views = run.has_views;
    let tensors = if !recording || !run.outs.iter().any(|data| data.dtype.is_float()) {
        run.into_tensors()
    } else {
        link(op, ins, run).map_err(Error::in_layer)?
    };
    if has_views {
        views(&tensors, ins);
    }
    Ok(watched(device, shared.as_ref(), &datas, tensors))
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
    Ok(watched(device, shared.as_ref(), &[], run.into_tensors()))
}

/// Room for a tensor whose values are whatever is there; `name` names the request.
pub(crate) fn empty(shape: &[usize], dtype: DType, device: &Device, name: &'static str) -> Result<Data> {
    device.late_error()?;
    Data::alloc(device, Layout::contiguous(shape), dtype, name)
}

/// What came of an operator.
#[derive(Default)]
struct Run {
    outs: SmallVec<[Data; 1]>,
    /// Copies of the inputs that a kernel could not take as they lie or are, by number.
    gathered: Vec<(usize, Data)>,
    /// For each output, the number of the input that it is, changed in place; empty where none is.
    changed: Vec<Option<usize>>,
    /// Whether outputs are views of inputs.
    has_views: bool,
}

impl Run {
    fn into_tensors(mut self) -> Tensors {
        let mut tensors = Tensors::new();
        for data in self.outs.drain(..) {
            tensors.push(Tensor::from_data(data));
        }
        tensors
    }
}

fn gathered(copies: &[(usize, Data)], i: usize) -> Option<&Data> {
    copies.iter().find(|(at, _)| *at == i).map(|(_, data)| data)
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

/// In which types a kernel reads and writes on a device. The host's kernels know few types; those of other devices are
/// written for the types of their tensors.
struct Types<'a> {
    kernel: &'a dyn Kernel,
    converts: bool,
}

impl<'a> Types<'a> {
    fn of(device: &Device, kernel: &'a dyn Operator) -> Types<'a> {
        Types { kernel, converts: device.facts().kind == DeviceKind::Cpu }
    }

    fn of_kernel(&self, dtype: DType) -> DType {
        // Asked for every tensor of every operator: the commonest type first.
        if dtype == DType::F32 || !self.converts { dtype } else { self.kernel.cpu_type(dtype) }
    }

    /// Where the kernel writes an output, if in another type.
    fn room(&self, device: &Device, out: &Data) -> Result<Option<Data>> {
        let dtype = self.of_kernel(out.dtype);
        if dtype == out.dtype {
            return Ok(None);
        }
        Data::alloc(device, out.layout.dense(), dtype, "to_dtype").map(Some)
    }
}

/// The road of an operator that changes inputs. What a kernel cannot change as it lies is gathered, changed and put
/// back; an input that shares memory with one that changes is copied first, so that no kernel reads what it writes.
fn change(call: &Call<'_>, ins: &[&Data], outputs: &Outputs, recording: bool) -> Result<Run> {
    let Call { device, op, .. } = *call;
    may_change(call, ins, outputs, recording).map_err(Error::in_layer)?;
    // An optimizer's step has thousands of tensors: each is looked up, none is searched for.
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
        wide.extend(types.room(device, &outs[i])?.map(|data| (i, data)));
    }
    let scratch = scratch(device, op, &lying, &outs)?;
    let before = if recording { values_before(call, ins, &shares)? } else { Vec::new() };
    let is_view = |i: usize| matches!(outputs[i].place, Place::View(_));
    let place = |i: usize| gathered(&wide, i).unwrap_or(&outs[i]);
    let written: Inputs<'_> = (0..outs.len()).filter(|&i| !is_view(i)).map(place).collect();
    if let Some(watch) = watch(device) {
        (0..ins.len()).filter(|&i| changes(i)).try_for_each(|i| watch.will_change(&ins[i].storage))?;
    }
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
        // What the derivative reads of memory that changed, as it was before.
        copies.retain(|(i, _)| !changes(*i) && !before.iter().any(|(at, _)| at == i));
        copies.extend(before);
    }
    let changed = outputs.iter().map(|output| match output.place {
        Place::InPlace(i) => Some(i),
        Place::New | Place::View(_) => None,
    });
    Ok(Run { outs, gathered: copies, changed: changed.collect(), has_views: false })
}

/// Copies of the inputs that the derivative reads and whose memory changes.
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

/// Notes of which inputs these outputs are views.
fn views(outs: &[Tensor], ins: &[&Tensor]) {
    let is_recording = is_grad_enabled();
    for out in outs.iter().filter(|out| out.dtype().is_float()) {
        let of = ins.iter().find(|input| input.data().storage.id() == out.data().storage.id());
        of.into_iter().for_each(|of| out.is_view_of(of, is_recording));
    }
}

/// An output in the memory of an input.
fn existing(output: Output, ins: &[&Data]) -> Data {
    let (layout, i) = match output.place {
        Place::View(i) => (output.layout, i),
        Place::InPlace(i) => (ins[i].layout.clone(), i),
        Place::New => unreachable!("an output with memory of its own"),
    };
    // A changed input is what the kernel changes: a converted copy has another type than the output.
    let dtype = if output.place == Place::InPlace(i) { ins[i].dtype } else { output.dtype };
    Data { storage: ins[i].storage.clone(), layout, dtype }
}

/// A copy of an input in the type that the kernel reads: in the same order of dimensions if the kernel takes that,
/// else row-major.
fn gather(device: &Device, op: &dyn Operator, i: usize, data: &Data, dtype: DType) -> Result<Data> {
    let dense = data.layout.dense();
    let layout = if op.takes(i, &data.layout) && op.takes(i, &dense) {
        dense
    } else {
        Layout::contiguous(data.layout.shape())
    };
    let name = if dtype == data.dtype { Copy::AS_IT_IS.name() } else { "to_dtype" };
    let copy = Data::alloc(device, layout, dtype, name)?;
    self::copy(device, data, &copy)?;
    Ok(copy)
}

/// Refuses changes in place that would lose a gradient or have no meaning.
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
    let mut storages: SmallVec<[usize; 8]> = targets().map(|target| target.storage.id()).collect();
    storages.sort_unstable();
    if storages.windows(2).any(|pair| pair[0] == pair[1]) {
        let message = "two of the tensors that it changes share memory: copy one first";
        return Err(Error::argument(op.name(), message));
    }
    for target in targets() {
        let layout = &target.layout;
        if layout.shape().iter().zip(layout.strides()).any(|(&n, &stride)| n > 1 && stride == 0) {
            let message = "several elements of an expanded tensor are one: copy it first";
            return Err(Error::shape(op.name(), message));
        }
    }
    Ok(())
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

/// Records the operator with what its derivative reads.
fn link<H: Holds>(op: H, ins: &[&Tensor], mut run: Run) -> Result<Tensors> {
    let mut wanted: SmallVec<[bool; 4]> = SmallVec::new();
    fill(&mut wanted, ins.iter().map(|input| input.requires_grad()));
    let saves = op.saves(&wanted);
    let mut saved = SmallVec::new();
    if saves != Saves::NOTHING {
        for (i, input) in ins.iter().enumerate().filter(|&(i, _)| saves.has_input(i)) {
            // A gathered copy is what the derivative would gather again; one of another type is only larger.
            let same_type = |copy: &&Data| copy.dtype == input.dtype();
            let data = gathered(&run.gathered, i).filter(same_type).unwrap_or(input.data());
            saved.push((Slot::Input(i), Saved::new(data, op.name())?));
        }
        for (i, data) in run.outs.iter().enumerate().filter(|&(i, _)| saves.has_output(i)) {
            saved.push((Slot::Output(i), Saved::new(data, op.name())?));
        }
    }
    let name = op.name();
    let node = Node::new(name, ins, run.outs.len(), Arc::new(Recorded { op, saved }), place());
    let mut tensors = Tensors::new();
    for (i, data) in run.outs.drain(..).enumerate() {
        let differentiable = data.dtype.is_float();
        if let Some(&Some(changed)) = run.changed.get(i) {
            if differentiable {
                ins[changed].record_change(&node, i);
            }
            tensors.push(ins[changed].clone());
            continue;
        }
        tensors.push(Tensor::linked(data, differentiable.then(|| (node.clone(), i))));
    }
    Ok(tensors)
}

/// Links a tensor that came about in another way than by an operator on one device.
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
