//! Launches kernels, and copies host bytes, under the locks of the storages.

use std::panic::Location;
use std::sync::Arc;

use plimsoll_alloc::StreamId;
use smallvec::SmallVec;

use super::handle::Call;
use super::operands::{Metas, meta};
use super::scratch::Scratch;
use crate::backend::Queues;
use crate::caller;
use crate::capturing;
use crate::clock;
use crate::cpu::kernels::convert::{AnyOperand, convert};
use crate::cpu::kernels::strided::copy_strided;
use crate::cuda::{self, CudaCall};
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::few::fill;
use crate::kernel::{CpuCall, Kernel};
use crate::label;
use crate::operator::Operator;
use crate::storage::Locks;
use crate::stream;
use crate::view::{In, Launch, Out, View};
use crate::word::by_word;

/// Copies the values of one tensor into another of the same shape.
pub(super) fn copy(device: &Device, from: &Data, to: &Data) -> Result<()> {
    let shared = device.queues().map(|_| Arc::new(Copy::AS_IT_IS) as Arc<dyn Operator>);
    let call = Call { device, tensors: &[], op: &Copy::AS_IT_IS, shared: shared.as_ref() };
    charge(&call, &[from], [to].into_iter());
    launch(&call, &[from], &[to], None)
}

type Views<'a> = SmallVec<[View<'a>; 4]>;

/// Adds a call to the clocks of a simulated GPU, and to this thread's meter. The tensors are the operator's, in its order.
pub(super) fn charge<'a>(call: &Call<'_>, ins: &[&Data], outs: impl ExactSizeIterator<Item = &'a Data>) {
    let is_metered = clock::is_metered();
    if !is_metered && !call.device.computes_nothing() {
        return; // Every operator on a real device comes here.
    }
    let clocks = call.device.clocks();
    if !is_metered && clocks.is_none() {
        return;
    }
    let ins: Metas<'_> = ins.iter().map(|data| meta(data)).collect();
    let outs: Metas<'_> = outs.map(meta).collect();
    let dtype = ins.first().or(outs.first()).map(|first| first.dtype);
    let (op, cost) = (call.op.name(), call.op.cost(&ins, &outs));
    clock::meter(call.device.properties(), op, &cost, dtype);
    if let Some(clocks) = clocks {
        clocks.run(op, cost, dtype, stream::current(call.device));
    }
}

/// Runs or queues a kernel while holding the locks of its tensors, so kernels that two threads queue on one tensor do
/// not interleave.
pub(super) fn launch(
    call: &Call<'_>,
    ins: &[&Data],
    outs: &[&Data],
    scratch: Option<&Scratch>,
) -> Result<()> {
    let written = outs.iter().map(|data| &data.storage).chain(scratch.map(|scratch| &scratch.storage));
    if call.device.computes_nothing() && ins.iter().chain(outs).all(|data| data.storage.is_here()) {
        return Ok(()); // A simulated kernel takes no time: no other thread can see it half done.
    }
    let mut locks = Locks::new();
    locks.take(ins.iter().map(|data| &data.storage), written, call.op.name())?;
    let (mut in_views, mut out_views) = (Views::new(), Views::new());
    fill(&mut in_views, ins.iter().map(|data| data.view(&locks)));
    fill(&mut out_views, outs.iter().map(|data| data.view(&locks)));
    let scratch = scratch.map(|scratch| scratch.view(&locks));
    let launch = Launch { ins: &in_views, outs: &out_views, scratch };
    match (call.device.queues(), call.shared) {
        (Some(queues), Some(op)) => {
            let on = use_on_current_stream(call.device, ins.iter().chain(outs).copied());
            capturing::check_stream(call.device.number(), on, call.op.name())?;
            queues.launch(op.clone(), launch, on, label::current_layer())
        }
        _ => call.device.backend().run(call.op, launch).map_err(Error::in_layer),
    }
}

/// Copies elements to the output's layout and dtype, with broadcasting. This is the only kernel that dispatch itself
/// needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    /// The dtype of the output, if it differs from the input's.
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

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, out) = (call.ins[0], call.outs[0]);
        cuda::elementwise::copy(call, x, out)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        copy_to(x, out);
        Ok(())
    }
}

/// Copies an input into an output to which it broadcasts, converting between dtypes if needed.
///
/// # Panics
/// If it does not broadcast.
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

/// Copies host bytes into a contiguous tensor.
pub(crate) fn write(to: &Data, bytes: &[u8]) -> Result<()> {
    let device = to.storage.device();
    let why = "host values would be the same in each replay: pass a tensor to the step";
    capturing::refuse(device.number(), "to_device", why)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let locks = lock(&[], &[to], "write")?;
    device.backend().write(to.view(&locks), bytes, use_on_current_stream(device, [to]))
}

/// A contiguous tensor's bytes; zeros in a rehearsal, and an error if the device has no values otherwise.
#[track_caller]
pub(crate) fn read(from: &Data, op: &'static str) -> Result<Vec<u8>> {
    caller::called(Location::caller());
    let device = from.storage.device();
    device.want_readable(op)?;
    let why = "there are no values before the replay: return the tensor, and read it afterwards";
    capturing::refuse(device.number(), op, why)?;
    device.late_error()?;
    let size = from.layout.len() * from.dtype.size();
    if !device.has_values() {
        device.count_read(op, from.storage.tag().label, size as u64);
        return Ok(vec![0; size]);
    }
    let mut bytes = Vec::with_capacity(size);
    if from.layout.is_empty() {
        return Ok(bytes);
    }
    if from.storage.read_offloaded(from.dtype, &from.layout, &mut bytes)? {
        return Ok(bytes);
    }
    let locks = lock(&[from], &[], op)?;
    device.backend().read(from.view(&locks), &mut bytes, use_on_current_stream(device, [from]))?;
    drop(locks);
    device.late_error()?; // errors of the work that computed the values
    Ok(bytes)
}

pub(super) fn lock<'a>(reads: &[&'a Data], writes: &[&'a Data], op: &'static str) -> Result<Locks<'a>> {
    let mut locks = Locks::new();
    locks.take(reads.iter().map(|data| &data.storage), writes.iter().map(|data| &data.storage), op)?;
    Ok(locks)
}

/// Returns the current stream. If it is not the stream of these storages, it is recorded as a user of them.
pub(super) fn use_on_current_stream<'a>(
    device: &Device,
    datas: impl IntoIterator<Item = &'a Data>,
) -> StreamId {
    let on = stream::current(device);
    if device.queues().is_some_and(Queues::records_uses) {
        datas.into_iter().for_each(|data| data.storage.record_stream(on));
    }
    on
}
