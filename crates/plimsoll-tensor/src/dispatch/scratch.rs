//! Scratch memory of a kernel.

use plimsoll_alloc::{Category, Tag};

use super::operands::{Metas, meta};
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::label;
use crate::layout::Layout;
use crate::operator::Operator;
use crate::storage::{Locks, Storage};
use crate::view::View;

pub(super) fn scratch(
    device: &Device,
    op: &dyn Operator,
    ins: &[&Data],
    outs: &[Data],
) -> Result<Option<Scratch>> {
    let ins: Metas<'_> = ins.iter().map(|data| meta(data)).collect();
    let outs: Metas<'_> = outs.iter().map(meta).collect();
    Scratch::alloc(device, op, op.scratch(&ins, &outs, device.facts()))
}

/// Scratch memory of one kernel. Its owner is the layer that runs it, and it is freed when the kernel returns.
pub(super) struct Scratch {
    pub(super) storage: Storage,
    layout: Layout,
}

impl Scratch {
    pub(super) fn alloc(device: &Device, op: &dyn Operator, bytes: u64) -> Result<Option<Scratch>> {
        if bytes == 0 {
            return Ok(None);
        }
        let tag = Tag { category: Category::Workspace, label: label::current(op.name()).label };
        let storage = Storage::alloc_as(device, bytes, op.name(), tag)?;
        let layout = Layout::contiguous(&[usize::try_from(bytes).unwrap_or(usize::MAX) / DType::F32.size()]);
        Ok(Some(Scratch { storage, layout }))
    }

    pub(super) fn view<'a>(&'a self, locks: &'a Locks<'_>) -> View<'a> {
        View::new(locks.address(&self.storage), self.storage.bytes(), DType::F32, &self.layout)
    }
}
