//! Collectives as operators without derivatives: each moves bytes of the host's memory. A simulated device leaves them out, as it
//! does every kernel.

use std::sync::Arc;

use plimsoll_dist::{Communicator, Content};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};

/// What moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// `buffer -> buffer`: the parts of all ranks, of which this rank's is there.
    AllGather,
    /// `input, output -> output`: part r of each rank's input goes to rank r.
    AllToAll,
    /// `buffer -> buffer`: what rank `root` has.
    Broadcast { root: usize },
}

/// A collective of one group.
#[derive(Clone, Debug)]
pub(super) struct Collective {
    pub(super) what: Move,
    pub(super) communicator: Arc<Communicator>,
    /// Whose bytes they are.
    pub(super) label: String,
}

impl Kernel for Collective {
    fn name(&self) -> &'static str {
        match self.what {
            Move::AllGather => "all_gather",
            Move::AllToAll => "all_to_all",
            Move::Broadcast { .. } => "broadcast",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let CpuCall { ins, mut outs, .. } = call;
        let Some(out) = outs.pop() else { unreachable!("inferred") };
        let content = Content { label: &self.label, dtype: out.dtype().name() };
        let moved = match self.what {
            Move::AllGather => self.communicator.all_gather(out.bytes(), content),
            Move::AllToAll => self.communicator.all_to_all(ins[0].bytes(), out.bytes(), content),
            Move::Broadcast { root } => self.communicator.broadcast(out.bytes(), root, content),
        };
        moved.map_err(|source| Error::Distributed { op: self.name(), source: Box::new(source) })
    }
}

impl Operator for Collective {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let changed = ins.len() - 1;
        Ok([Output::in_place(changed, &ins[changed])].into_iter().collect())
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }
}
