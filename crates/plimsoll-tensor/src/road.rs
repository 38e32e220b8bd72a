//! The one road from an operator to a device: autocast, infer, lay out, allocate the outputs, allocate the scratch,
//! run, link.
//!
//! Every byte that an operation takes is taken here, in this order, on every device; a simulated one leaves
//! out the kernel. Back ends compute only; operators (`ops/`, and the users' own) say what there is to do.
//! No lock is held while memory is asked for: only around a kernel, or where one is queued.

use std::ops::Deref;
use std::sync::Arc;

use plimsoll_alloc::{Category, StreamId, Tag};
use smallvec::SmallVec;

use crate::autocast;
use crate::autograd::{Saved, is_grad_enabled, place};
use crate::backend::DeviceKind;
use crate::backend::Launch;
use crate::cpu::kernels::convert::{AnyOperand, convert};
use crate::cpu::kernels::strided::copy_strided;
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::label;
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs, Place, Recorded, Saves, Slot};
use crate::storage::{Locks, Storage};
use crate::stream::{self, Event};
use crate::tensor::{Derivative, Node, Tensor};
use crate::view::{In, Out, View};
use crate::word::by_word;

/// The outputs of a call, in the operator's order.
pub type Tensors = SmallVec<[Tensor; 1]>;

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
    let datas: Inputs<'_> = ins.iter().map(|tensor| tensor.data()).collect();
    let recording = is_grad_enabled() && ins.iter().any(|tensor| tensor.requires_grad());
    let mut run = Run::default();
    let shared = op.shared();
    lead(&Call { device, op: &*op, shared: shared.as_ref() }, &datas, recording, &mut run)?;
    // A change in place was refused where it would have to be recorded.
    if !recording || run.changed || !run.outs.iter().any(|data| data.dtype.is_float()) {
        return Ok(watched(device, shared.as_ref(), &datas, run.into_tensors()));
    }
    let tensors = link(op, ins, run)?;
    Ok(watched(device, shared.as_ref(), &datas, tensors))
}

/// Lets what watches the device see an operator that has run.
fn watched(device: &Device, shared: Option<&Arc<dyn Operator>>, ins: &[&Data], outs: Tensors) -> Tensors {
    if let Some(op) = shared
        && let Some(watch) = watch(device)
    {
        watch.ran(&Ran { op, ins, outs: &outs });
    }
    outs
}

/// What is called between the operators of a device: `testing/evicting.rs` is one.
pub(crate) trait Watch: Send + Sync {
    /// An operator is about to change this storage.
    ///
    /// # Errors
    /// The change does not happen, and its caller gets the error.
    fn will_change(&self, storage: &Storage) -> Result<()>;

    /// An operator has run, and is recorded where it has to be.
    fn ran(&self, ran: &Ran<'_>);
}

/// An operator that has run.
pub(crate) struct Ran<'a> {
    pub(crate) op: &'a Arc<dyn Operator>,
    pub(crate) ins: &'a [&'a Data],
    pub(crate) outs: &'a [Tensor],
}

/// Lets `watch` see the operators of a device from now on; false where another one does.
pub(crate) fn set_watch(device: &Device, watch: Arc<dyn Watch>) -> bool {
    device.set_watch(Box::new(watch))
}

fn watch(device: &Device) -> Option<&Arc<dyn Watch>> {
    device.watch().and_then(|watch| watch.downcast_ref())
}

/// An output of an operator, computed once more: in memory of its own, outside the graph.
pub(crate) fn run_again(
    device: &Device,
    op: &Arc<dyn Operator>,
    ins: &[Data],
    output: usize,
) -> Result<Storage> {
    let ins: Inputs<'_> = ins.iter().collect();
    let mut run = Run::default();
    lead(&Call { device, op: &**op, shared: Some(op) }, &ins, false, &mut run)?;
    Ok(run.outs.swap_remove(output).storage)
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
    lead(&Call { device, op: &**op, shared: shared.as_ref() }, &[], false, &mut run)?;
    Ok(watched(device, shared.as_ref(), &[], run.into_tensors()))
}

/// How the road holds an operator. A device that computes at once borrows it; one that computes later, or is watched, shares
/// it, with its queue and with the derivative, which costs an allocation.
pub(crate) trait Holds: Deref<Target: Operator + Sized> + Send + Sync + 'static {
    /// A handle that can wait in a queue.
    fn shared(&self) -> Option<Arc<dyn Operator>>;
}

/// An operator that nobody else holds.
struct Owned<O>(O);

impl<O> Deref for Owned<O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.0
    }
}

impl<O: Operator> Holds for Owned<O> {
    fn shared(&self) -> Option<Arc<dyn Operator>> {
        None
    }
}

impl<O: Operator> Holds for Arc<O> {
    fn shared(&self) -> Option<Arc<dyn Operator>> {
        Some(self.clone())
    }
}

/// An operator on the road to a device.
struct Call<'a> {
    device: &'a Device,
    op: &'a dyn Operator,
    shared: Option<&'a Arc<dyn Operator>>,
}

/// Room for a tensor whose values are whatever is there; `name` names the request.
pub(crate) fn empty(shape: &[usize], dtype: DType, device: &Device, name: &'static str) -> Result<Data> {
    device.late_error()?;
    Data::alloc(device, Layout::contiguous(shape), dtype, name)
}

/// Copies host bytes into a contiguous tensor.
pub(crate) fn write(to: &Data, bytes: &[u8]) -> Result<()> {
    let device = to.storage.device();
    let locks = lock(&[], &[to], "write")?;
    device.backend().write(to.view(&locks), bytes, use_on_current_stream(device, [to]))
}

/// A contiguous tensor's bytes, or an error where the device has no values.
pub(crate) fn read(from: &Data, op: &'static str) -> Result<Vec<u8>> {
    let device = from.storage.device();
    if !device.has_values() {
        return Err(Error::NoValues { op, device: device.name().to_owned() });
    }
    device.late_error()?;
    let mut bytes = Vec::with_capacity(from.layout.len() * from.dtype.size());
    let locks = lock(&[from], &[], op)?;
    device.backend().read(from.view(&locks), &mut bytes, use_on_current_stream(device, [from]))?;
    drop(locks);
    device.late_error()?; // of the work that the values come from
    Ok(bytes)
}

fn lock<'a>(reads: &[&'a Data], writes: &[&'a Data], op: &'static str) -> Result<Locks<'a>> {
    Locks::take(reads.iter().map(|data| &data.storage), writes.iter().map(|data| &data.storage), op)
}

/// Copies between pinned memory of the host and a device, on that device's current stream. Both are contiguous. Where the
/// device computes later, so does the copy: the host waits for it when it uses the pinned memory.
pub(crate) fn copy_pinned(from: &Data, to: &Data, device: &Device, op: &'static str) -> Result<()> {
    device.late_error()?;
    let on = device.current_stream();
    // Written, too, as far as the host is concerned: nothing else uses the pinned memory until the copy is noted.
    let locks = lock(&[], &[from, to], op)?;
    if device.has_values() {
        device.backend().copy(from.view(&locks), to.view(&locks), on.id())?;
    }
    let (there, pinned) = if to.storage.device() == device { (to, from) } else { (from, to) };
    use_on_current_stream(device, [there]);
    if device.queues().is_some() {
        let copied = Event::new();
        if let Err(error) = copied.record_now(&on) {
            // Without an event, the host cannot know when it may use the pinned memory: it waits for everything.
            device.synchronize()?;
            return Err(error);
        }
        pinned.storage.is_copied_until(copied, &on);
    }
    Ok(())
}

/// A row-major copy in pinned memory, on the host.
pub(crate) fn copy_to_pinned(from: &Data, op: &'static str) -> Result<Data> {
    let pinned = empty_pinned(from, from.storage.device(), op)?;
    copy(from.storage.device(), from, &pinned)?;
    Ok(pinned)
}

/// Room in pinned memory for a row-major copy.
pub(crate) fn empty_pinned(like: &Data, host: &Device, op: &'static str) -> Result<Data> {
    let layout = Layout::contiguous(like.layout.shape());
    let storage = Storage::alloc_pinned(host, (layout.len() * like.dtype.size()) as u64, op)?;
    Ok(Data { storage, layout, dtype: like.dtype })
}

/// The current stream, which is noted as a user of these storages where it runs beside their own.
fn use_on_current_stream<'a>(device: &Device, datas: impl IntoIterator<Item = &'a Data>) -> StreamId {
    let on = stream::current(device);
    if device.queues().is_some() {
        datas.into_iter().for_each(|data| data.storage.record_stream(on));
    }
    on
}

type Inputs<'a> = SmallVec<[&'a Data; 4]>;
type Metas<'a> = SmallVec<[Meta<'a>; 4]>;

/// What came of an operator.
#[derive(Default)]
struct Run {
    outs: SmallVec<[Data; 1]>,
    /// Copies of the inputs that a kernel could not take as they lie or are, by number.
    gathered: Vec<(usize, Data)>,
    /// Whether outputs are inputs that changed.
    changed: bool,
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
    one_device(op, device, ins)?;
    let metas: Metas<'_> = ins.iter().map(|data| meta(data)).collect();
    let mut outputs = op.infer(&metas)?;
    if outputs.iter().any(|output| matches!(output.place, Place::InPlace(_))) {
        *run = change(call, ins, &outputs, recording)?;
        return Ok(());
    }
    if outputs.iter().all(|output| matches!(output.place, Place::View(_))) {
        run.outs.extend(outputs.into_iter().map(|output| existing(output, ins)));
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
    let mut lying: Inputs<'_> = SmallVec::from_slice(ins);
    run.gathered.iter().for_each(|(i, data)| lying[*i] = data);
    let mut written: SmallVec<[usize; 4]> = SmallVec::new();
    for (i, output) in outputs.drain(..).enumerate() {
        if output.place == Place::New {
            // Built where it stays: a layout is large enough for its moves to be seen in `bench dispatch`.
            let storage = Data::room(device, &output.layout, output.dtype, op.name())?;
            written.push(i);
            run.outs.push(Data { storage, layout: output.layout, dtype: output.dtype });
        } else {
            run.outs.push(existing(output, &lying));
        }
    }
    let mut wide: Vec<(usize, Data)> = Vec::new();
    for &i in &written {
        wide.extend(types.room(device, &run.outs[i])?.map(|data| (i, data)));
    }
    let scratch = {
        let outs: Metas<'_> =
            run.outs.iter().enumerate().map(|(i, out)| meta(gathered(&wide, i).unwrap_or(out))).collect();
        let moved: Metas<'_>;
        let ins = if run.gathered.is_empty() {
            &metas
        } else {
            moved = lying.iter().map(|data| meta(data)).collect();
            &moved
        };
        Scratch::alloc(device, op, op.scratch(ins, &outs, device.facts()))?
    };
    let written: Inputs<'_> = written.iter().map(|&i| gathered(&wide, i).unwrap_or(&run.outs[i])).collect();
    launch(call, &lying, &written, scratch.as_ref())?;
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
    may_change(op, ins, outputs, recording)?;
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
        ins[i].storage.changed();
        *out = ins[i].clone();
    }
    Ok(Run { outs, gathered: copies, changed: true })
}

fn meta(data: &Data) -> Meta<'_> {
    Meta { layout: &data.layout, dtype: data.dtype }
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

fn scratch(device: &Device, op: &dyn Operator, ins: &[&Data], outs: &[Data]) -> Result<Option<Scratch>> {
    let ins: Metas<'_> = ins.iter().map(|data| meta(data)).collect();
    let outs: Metas<'_> = outs.iter().map(meta).collect();
    Scratch::alloc(device, op, op.scratch(&ins, &outs, device.facts()))
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

/// The values of one tensor into another of the same shape.
fn copy(device: &Device, from: &Data, to: &Data) -> Result<()> {
    let shared = device.queues().map(|_| Arc::new(Copy::AS_IT_IS) as Arc<dyn Operator>);
    launch(&Call { device, op: &Copy::AS_IT_IS, shared: shared.as_ref() }, &[from], &[to], None)
}

/// Runs a kernel under the locks of its tensors, or queues it under them: two threads then queue what they do to a
/// tensor one after the other.
fn launch(call: &Call<'_>, ins: &[&Data], outs: &[&Data], scratch: Option<&Scratch>) -> Result<()> {
    let written = outs.iter().map(|data| &data.storage).chain(scratch.map(|scratch| &scratch.storage));
    let locks = Locks::take(ins.iter().map(|data| &data.storage), written, call.op.name())?;
    let in_views: SmallVec<[View<'_>; 4]> = ins.iter().map(|data| data.view(&locks)).collect();
    let out_views: SmallVec<[View<'_>; 4]> = outs.iter().map(|data| data.view(&locks)).collect();
    let scratch = scratch.map(|scratch| scratch.view(&locks));
    let launch = Launch { ins: &in_views, outs: &out_views, scratch };
    match (call.device.queues(), call.shared) {
        (Some(queues), Some(op)) => {
            let on = use_on_current_stream(call.device, ins.iter().chain(outs).copied());
            queues.launch(op.clone(), launch, on, label::current_layer())
        }
        _ => call.device.backend().run(call.op, launch),
    }
}

/// The same elements in the output's layout and type, broadcast: the one kernel that the road itself needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    /// The type of the output, where it is not the input's.
    pub(crate) to: Option<DType>,
}

impl Copy {
    pub(crate) const AS_IT_IS: Copy = Copy { to: None };
}

impl Kernel for Copy {
    fn name(&self) -> &'static str {
        if self.to.is_some() { "to_dtype" } else { "copy" }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        copy_to(x, out);
        Ok(())
    }
}

/// Copies an input over an output to which it broadcasts, converted where their types differ.
///
/// # Panics
/// When it does not broadcast.
pub(crate) fn copy_to(x: In<'_>, out: Out<'_>) {
    let layout = x.layout().expand(out.shape());
    let layout =
        layout.unwrap_or_else(|| unreachable!("{:?} does not broadcast to {:?}", x.shape(), out.shape()));
    let (shape, strides, dtype) = (out.shape(), out.strides(), out.dtype());
    if x.dtype() == dtype {
        by_word!(dtype, W => copy_strided::<W>(shape, x.words(), layout.strides(), out.words(), strides));
    } else {
        let from = AnyOperand { bytes: x.bytes(), dtype: x.dtype(), strides: layout.strides() };
        convert(shape, from, (out.bytes(), dtype, strides));
    }
}

/// Refuses changes in place that would lose a gradient or have no meaning.
fn may_change(op: &dyn Operator, ins: &[&Data], outputs: &Outputs, recording: bool) -> Result<()> {
    if recording {
        return Err(Error::autograd(
            op.name(),
            "a change in place that involves a tensor which wants a gradient cannot be recorded; do it under \
             `no_grad`, or on a detached tensor",
        ));
    }
    let targets = || {
        outputs.iter().filter_map(|output| match output.place {
            Place::InPlace(i) => Some(ins[i]),
            _ => None,
        })
    };
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
    let wanted: SmallVec<[bool; 4]> = ins.iter().map(|input| input.requires_grad()).collect();
    let saves = op.saves(&wanted);
    let mut saved = SmallVec::new();
    if saves != Saves::NOTHING {
        for (i, input) in ins.iter().enumerate().filter(|&(i, _)| saves.has_input(i)) {
            // A gathered copy is what the derivative would gather again; one of another type is only larger.
            let same_type = |copy: &&Data| copy.dtype == input.dtype();
            let data = gathered(&run.gathered, i).filter(same_type).unwrap_or(input.data());
            saved.push((Slot::Input(i), Saved::new(data)?));
        }
        for (i, data) in run.outs.iter().enumerate().filter(|&(i, _)| saves.has_output(i)) {
            saved.push((Slot::Output(i), Saved::new(data)?));
        }
    }
    let name = op.name();
    let node = Node::new(name, ins, run.outs.len(), Arc::new(Recorded { op, saved }), place());
    let mut tensors = Tensors::new();
    for (i, data) in run.outs.drain(..).enumerate() {
        let differentiable = data.dtype.is_float();
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

/// Room for one kernel, owned by the layer that runs it and freed when it returns.
struct Scratch {
    storage: Storage,
    layout: Layout,
}

impl Scratch {
    fn alloc(device: &Device, op: &dyn Operator, bytes: u64) -> Result<Option<Scratch>> {
        if bytes == 0 {
            return Ok(None);
        }
        let tag = Tag { category: Category::Workspace, label: label::current(op.name()).label };
        let storage = Storage::alloc_as(device, bytes, op.name(), tag)?;
        let layout = Layout::contiguous(&[usize::try_from(bytes).unwrap_or(usize::MAX) / DType::F32.size()]);
        Ok(Some(Scratch { storage, layout }))
    }

    fn view<'a>(&'a self, locks: &'a Locks<'_>) -> View<'a> {
        View::new(locks.address(&self.storage), self.storage.bytes(), DType::F32, &self.layout)
    }
}
