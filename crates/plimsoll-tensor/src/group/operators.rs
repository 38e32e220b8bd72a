//! Collectives as operators without derivatives. The communicator moves the bytes of host memory, and NCCL or copy engines those of
//! GPUs. A simulated device skips them, as it skips every kernel.

use std::sync::Arc;

use plimsoll_cuda::{self as gpu, Carrier, CollectiveStep, Step};
use plimsoll_dist::{Communicator, Content};

use crate::cuda::CudaCall;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};

/// Which bytes a collective moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// `buffer -> buffer`: collects the parts of all ranks. This rank's part is already in the buffer.
    AllGather,
    /// `input, output -> output`: part r of each rank's input goes to rank r. If this rank does not keep its own part,
    /// the output has one part less.
    AllToAll { keeps_own: bool },
    /// `buffer -> buffer`: copies the buffer of rank `root`.
    Broadcast { root: usize },
}

impl Move {
    /// Whether ranks can do this by reading each other's memory.
    pub(super) fn reads_peers(self) -> bool {
        matches!(self, Move::AllGather | Move::AllToAll { .. })
    }
}

/// A collective of one group.
#[derive(Clone, Debug)]
pub(super) struct Collective {
    pub(super) what: Move,
    pub(super) communicator: Arc<Communicator>,
    /// Moves the bytes if the tensors are on a GPU.
    pub(super) carrier: Option<Carrier>,
    /// The owner of the bytes, for use in messages.
    pub(super) label: String,
    /// The number of hosts that the ranks are on, for estimates.
    pub(super) hosts: usize,
}

impl Kernel for Collective {
    fn name(&self) -> &'static str {
        match self.what {
            Move::AllGather => "all_gather",
            Move::AllToAll { .. } => "all_to_all",
            Move::Broadcast { .. } => "broadcast",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let Some(carrier) = self.carrier.clone() else { return call.missing() };
        // The complete tensor, with a part for each rank.
        let out = call.outs[0];
        let whole = call.ins.first().copied().unwrap_or(out);
        let bytes = (whole.len() * whole.dtype.size()) as u64;
        let part_bytes = bytes / self.communicator.size() as u64;
        let collective = match self.what {
            Move::AllGather => gpu::Collective::AllGather { buffer: out.address, part_bytes },
            Move::AllToAll { keeps_own } => {
                let (send, receive) = (whole.address, out.address);
                gpu::Collective::AllToAll { send, receive, part_bytes, keeps_own }
            }
            Move::Broadcast { root } => gpu::Collective::Broadcast { buffer: out.address, bytes, root },
        };
        call.push(Step::Collective(CollectiveStep { carrier, collective }));
        Ok(())
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let CpuCall { ins, mut outs, .. } = call;
        let Some(out) = outs.pop() else { unreachable!("inferred") };
        let content = Content { label: &self.label, dtype: out.dtype().name() };
        let moved = match self.what {
            Move::AllGather => self.communicator.all_gather(out.bytes(), content),
            Move::AllToAll { keeps_own: true } => {
                self.communicator.all_to_all(ins[0].bytes(), out.bytes(), content)
            }
            Move::AllToAll { keeps_own: false } => {
                self.communicator.all_to_others(ins[0].bytes(), out.bytes(), content)
            }
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
        let (ranks, bytes) = (self.communicator.size(), ins[0].bytes());
        let bytes_received = match self.what {
            Move::AllGather | Move::AllToAll { .. } => bytes / ranks as u64 * (ranks as u64 - 1),
            Move::Broadcast { .. } => bytes,
        };
        Cost { bytes_received, ranks, hosts: self.hosts, ..Cost::streaming(0, ins, outs) }
    }
}
