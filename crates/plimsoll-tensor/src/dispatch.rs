//! The one road from an operation to a device: allocate the outputs, allocate the scratch, run, free
//! the scratch.
//!
//! Every byte that an operation takes is taken here, in this order, on every device. Back ends compute
//! only; `ops/` decide shapes; `autograd` links the results.

use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_alloc::{Category, StreamId, Tag};
use smallvec::SmallVec;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::label;
use crate::layout::Layout;
use crate::op::Op;
use crate::storage::Storage;
use crate::view::View;

/// The values of a tensor: a layout on a storage. Tensors add autograd to it.
#[derive(Clone)]
pub(crate) struct Data {
    pub(crate) storage: Storage,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
}

impl Data {
    /// Uninitialised room for a contiguous tensor; `op` names the request.
    pub(crate) fn alloc(device: &Device, shape: &[usize], dtype: DType, op: &'static str) -> Result<Data> {
        let bytes = (crate::layout::checked_len(shape)? * dtype.size()) as u64;
        Ok(Data { storage: Storage::alloc(device, bytes, op)?, layout: Layout::contiguous(shape), dtype })
    }

    /// As the device sees it.
    pub(crate) fn view(&self) -> View<'_> {
        View::new(self.storage.address(), self.storage.bytes(), self.dtype, &self.layout)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.layout.shape()
    }
}

/// Runs an operation whose output is new.
pub(crate) fn run(op: &Op, ins: &[&Data], shape: &[usize], dtype: DType) -> Result<Data> {
    let device = device_of(op, ins)?;
    let out = Data::alloc(device, shape, dtype, op.name())?;
    on_device(device, op, ins, &[&out])?;
    Ok(out)
}

/// Runs an operation with two new outputs.
pub(crate) fn run_two(op: &Op, ins: &[&Data], outs: [(&[usize], DType); 2]) -> Result<(Data, Data)> {
    let device = device_of(op, ins)?;
    let [a, b] = outs.map(|(shape, dtype)| Data::alloc(device, shape, dtype, op.name()));
    let (a, b) = (a?, b?);
    on_device(device, op, ins, &[&a, &b])?;
    Ok((a, b))
}

/// Runs an operation that has no inputs into a new tensor.
pub(crate) fn create(
    device: &Device,
    op: &Op,
    shape: &[usize],
    dtype: DType,
    name: &'static str,
) -> Result<Data> {
    let out = Data::alloc(device, shape, dtype, name)?;
    on_device(device, op, &[], &[&out])?;
    Ok(out)
}

/// Runs an operation that changes `outs`. An input that shares storage with an output is copied first,
/// so that a kernel never reads what it is writing.
pub(crate) fn run_in_place(op: &Op, ins: &[&Data], outs: &[&Data]) -> Result<()> {
    let device = device_of(op, &[outs, ins].concat())?;
    let copies: SmallVec<[Option<Data>; 4]> = ins
        .iter()
        .map(|input| {
            let shared = outs.iter().any(|out| out.storage.id() == input.storage.id());
            shared.then(|| run(&Op::Copy, &[input], input.shape(), input.dtype)).transpose()
        })
        .collect::<Result<_>>()?;
    let ins: SmallVec<[&Data; 4]> =
        ins.iter().zip(&copies).map(|(&input, copy)| copy.as_ref().unwrap_or(input)).collect();
    on_device(device, op, &ins, outs)?;
    outs.iter().for_each(|out| out.storage.changed());
    Ok(())
}

/// Copies host bytes into a contiguous tensor.
pub(crate) fn write(to: &Data, bytes: &[u8]) -> Result<()> {
    let _locks = Locks::take(&[], &[to]);
    to.storage.device().backend().write(to.view(), bytes, StreamId::default())
}

/// A contiguous tensor's bytes, or an error where the device has no values.
pub(crate) fn read(from: &Data, op: &'static str) -> Result<Vec<u8>> {
    let device = from.storage.device();
    if !device.has_values() {
        return Err(Error::NoValues { op, device: device.name().to_owned() });
    }
    let mut bytes = Vec::with_capacity(from.layout.len() * from.dtype.size());
    let _locks = Locks::take(&[from], &[]);
    device.backend().read(from.view(), &mut bytes, StreamId::default())?;
    Ok(bytes)
}

fn on_device(device: &Device, op: &Op, ins: &[&Data], outs: &[&Data]) -> Result<()> {
    let _locks = Locks::take(ins, outs);
    let ins: SmallVec<[View<'_>; 4]> = ins.iter().map(|data| data.view()).collect();
    let outs: SmallVec<[View<'_>; 4]> = outs.iter().map(|data| data.view()).collect();
    let scratch = Scratch::alloc(device, op, device.backend().scratch_bytes(op))?;
    device.backend().run(op, &ins, &outs, scratch.as_ref().map(Scratch::view), StreamId::default())
}

/// Room for one kernel, owned by the layer that runs it and freed when it returns.
struct Scratch {
    storage: Storage,
    layout: Layout,
}

impl Scratch {
    fn alloc(device: &Device, op: &Op, bytes: u64) -> Result<Option<Scratch>> {
        if bytes == 0 {
            return Ok(None);
        }
        let tag = Tag { category: Category::Workspace, label: label::current(op.name()).label };
        let storage = Storage::alloc_as(device, bytes, op.name(), tag)?;
        let layout = Layout::contiguous(&[usize::try_from(bytes).unwrap_or(usize::MAX) / DType::F32.size()]);
        Ok(Some(Scratch { storage, layout }))
    }

    fn view(&self) -> View<'_> {
        View::new(self.storage.address(), self.storage.bytes(), DType::F32, &self.layout)
    }
}

fn device_of<'a>(op: &Op, tensors: &[&'a Data]) -> Result<&'a Device> {
    let [first, rest @ ..] = tensors else {
        unreachable!("{} has no tensors: it goes through `create`", op.name());
    };
    let device = first.storage.device();
    match rest.iter().find(|data| data.storage.device() != device) {
        None => Ok(device),
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

/// The locks of all storages of one operation.
struct Locks<'a> {
    _held: SmallVec<[Held<'a>; 6]>,
}

enum Held<'a> {
    Reading(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>),
    Writing(#[allow(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>),
}

impl<'a> Locks<'a> {
    /// Takes each storage's lock once, in the order of their ids: two operations that want the same
    /// storages cannot wait for each other. A poisoned lock guards no Rust value, so it is taken anyway.
    fn take(ins: &[&'a Data], outs: &[&'a Data]) -> Locks<'a> {
        let mut wanted: SmallVec<[(usize, bool, &'a Storage); 6]> = SmallVec::new();
        wanted.extend(outs.iter().map(|data| (data.storage.id(), false, &data.storage)));
        wanted.extend(ins.iter().map(|data| (data.storage.id(), true, &data.storage)));
        // Writers sort before readers of the same storage, so the stronger lock is the one kept.
        wanted.sort_unstable_by_key(|&(id, reads, _)| (id, reads));
        wanted.dedup_by_key(|&mut (id, ..)| id);
        let held = wanted.into_iter().map(|(_, reads, storage)| match reads {
            true => Held::Reading(storage.lock().read().unwrap_or_else(PoisonError::into_inner)),
            false => Held::Writing(storage.lock().write().unwrap_or_else(PoisonError::into_inner)),
        });
        Locks { _held: held.collect() }
    }
}
