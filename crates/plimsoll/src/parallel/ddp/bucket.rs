//! Buckets of gradients: flat buffers that are exchanged in one piece.

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{ProcessGroup, ReduceOp, Result, Tensor, no_grad};

/// Gradients begin at multiples of this, so that wide loads work.
const ALIGN_BYTES: usize = 16;

/// A flat buffer with the gradients of some parameters, one behind the other.
pub(super) struct GradientBucket {
    buffer: Tensor,
    pub(super) slots: Vec<Slot>,
    /// How many gradients of this pass have not come.
    pub(super) missing: usize,
}

/// The place of one gradient.
pub(super) struct Slot {
    /// Number of its parameter.
    pub(super) parameter: usize,
    /// The part of the buffer, in the parameter's shape.
    view: Tensor,
}

impl GradientBucket {
    /// A bucket for these parameters, which have one type and device, filled with zeros. It divides into `ranks` equal parts.
    pub(super) fn new(
        number: usize,
        members: &[usize],
        parameters: &[(String, Tensor)],
        ranks: usize,
    ) -> Result<GradientBucket> {
        let first = &parameters[members[0]].1;
        let align = ALIGN_BYTES / first.dtype().size();
        let (mut starts, mut len) = (Vec::new(), 0usize);
        for &member in members {
            starts.push(len);
            len = (len + parameters[member].1.numel()).next_multiple_of(align);
        }
        // Equal parts for all ranks.
        let len = len.next_multiple_of(ranks);
        let buffer = {
            let _owner = Span::of(Category::Gradient, intern(&format!("bucket {number}")));
            Tensor::full(&[len], 0.0, first.dtype(), first.device())?
        };
        let slot = |(&parameter, start): (&usize, usize)| {
            let tensor = &parameters[parameter].1;
            let view = buffer.narrow(0, start, tensor.numel())?.view(tensor.shape())?;
            Ok(Slot { parameter, view })
        };
        let slots = members.iter().zip(starts).map(slot).collect::<Result<Vec<Slot>>>()?;
        Ok(GradientBucket { missing: slots.len(), buffer, slots })
    }

    /// Bytes of the buffer.
    pub(super) fn bytes(&self) -> u64 {
        self.buffer.storage_bytes()
    }

    /// Moves a parameter's gradient here, unless it is here already; one without a gradient is zero.
    pub(super) fn put(&self, slot: usize, parameter: &Tensor) -> Result<()> {
        let Slot { view, .. } = &self.slots[slot];
        no_grad(|| match parameter.grad() {
            Some(grad) if grad.shares_storage(view) && grad.storage_offset() == view.storage_offset() => {
                Ok(())
            }
            Some(grad) => {
                view.copy_(&grad)?;
                drop(grad);
                parameter.set_grad(Some(view.clone()))
            }
            None => view.zero_(),
        })
    }

    /// Makes a parameter without a gradient have the one that came here from other ranks.
    pub(super) fn give(&self, slot: usize, parameter: &Tensor) -> Result<()> {
        parameter.set_grad(Some(self.slots[slot].view.clone()))
    }

    /// Makes all gradients the means of all ranks'.
    pub(super) fn exchange(&self, group: &ProcessGroup) -> Result<()> {
        group.all_reduce(&self.buffer, ReduceOp::Avg)
    }
}
