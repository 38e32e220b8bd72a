//! Buckets of gradients: flat buffers, each of which is all-reduced as one tensor.

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::op::foreach_copy_;
use plimsoll_tensor::{Device, ProcessGroup, ReduceOp, Result, Tensor, no_grad, with_stream};

use crate::parallel::lanes::{LaneSums, Passes};

/// The alignment of gradients in a bucket, so that kernels can use wide loads.
const ALIGN_BYTES: usize = 16;

/// A flat buffer that holds the gradients of several parameters, one after another.
pub(super) struct GradientBucket {
    buffer: Tensor,
    pub(super) slots: Vec<Slot>,
    /// The number of gradients that have not arrived yet in this pass.
    pub(super) missing: usize,
    /// The sums over the lanes of a batch so far, if there are lanes.
    pub(super) sums: LaneSums,
}

/// The place of one gradient.
pub(super) struct Slot {
    /// The number of its parameter.
    pub(super) parameter: usize,
    /// The part of the buffer that holds it, viewed in the parameter's shape.
    view: Tensor,
}

impl GradientBucket {
    /// Creates a bucket for these parameters, which must have the same type, and fills it with zeros.
    pub(super) fn new(
        number: usize,
        members: &[usize],
        parameters: &[(String, Tensor)],
        group: &ProcessGroup,
    ) -> Result<GradientBucket> {
        let first = &parameters[members[0]].1;
        let align = ALIGN_BYTES / first.dtype().size();
        let (mut starts, mut len) = (Vec::new(), 0usize);
        for &member in members {
            starts.push(len);
            len = (len + parameters[member].1.numel()).next_multiple_of(align);
        }
        // The buffer must divide into equal parts for all ranks.
        let len = len.next_multiple_of(group.size());
        let buffer = {
            let _owner = Span::of(Category::Gradient, intern(&format!("bucket {number}")));
            group.empty_shared(&[len], first.dtype(), first.device())?
        };
        no_grad(|| buffer.zero_())?;
        let slot = |(&parameter, start): (&usize, usize)| {
            let tensor = &parameters[parameter].1;
            let view = buffer.narrow(0, start, tensor.numel())?.view(tensor.shape())?;
            Ok(Slot { parameter, view })
        };
        let slots = members.iter().zip(starts).map(slot).collect::<Result<Vec<Slot>>>()?;
        Ok(GradientBucket { missing: slots.len(), buffer, slots, sums: LaneSums::default() })
    }

    pub(super) fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// Bytes of the buffer.
    pub(super) fn bytes(&self) -> u64 {
        self.buffer.storage_bytes()
    }

    /// Moves gradients that are not in the bucket yet into it. For parameters without a gradient, writes zeros.
    pub(super) fn fill(&self, parameters: &[(String, Tensor)]) -> Result<()> {
        let (mut to, mut from, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        for Slot { parameter, view } in &self.slots {
            let parameter = &parameters[*parameter].1;
            match parameter.grad() {
                Some(grad) if grad.shares_storage(view) && grad.storage_offset() == view.storage_offset() => {
                }
                Some(grad) => {
                    to.push(view.clone());
                    from.push(grad.detach().contiguous()?);
                    moved.push(parameter);
                }
                None => no_grad(|| view.zero_())?,
            }
        }
        foreach_copy_(&to, &from)?;
        drop(from);
        moved.iter().zip(to).try_for_each(|(parameter, view)| parameter.set_grad(Some(view)))
    }

    /// Sets the gradient of a parameter that has none on this rank to the mean gradient from the bucket.
    pub(super) fn give(&self, slot: usize, parameter: &Tensor) -> Result<()> {
        parameter.set_grad(Some(self.slots[slot].view.clone()))
    }

    /// Replaces each gradient with its mean over all ranks, while the rest of the backward pass runs:
    /// [`GradientBucket::wait`]. With lanes, adds it to the sums; the last pass replaces it with the mean over all
    /// lanes.
    pub(super) fn exchange(
        &mut self,
        parameters: &[(String, Tensor)],
        group: &ProcessGroup,
        passes: Option<&Passes>,
    ) -> Result<()> {
        self.fill(parameters)?;
        let device = self.device();
        let side = group.stream(device);
        side.wait_stream(&device.current_stream())?;
        let GradientBucket { buffer, sums, .. } = self;
        with_stream(&side, || {
            let Some(passes) = passes else { return group.all_reduce(buffer, ReduceOp::Avg) };
            sums.add(buffer, group, None, &buffer.label())?;
            if !passes.is_last() {
                return Ok(());
            }
            let len = buffer.numel() / group.size();
            let own = buffer.narrow(0, group.rank() * len, len)?;
            sums.mean_into(&own, passes)?;
            group.all_gather_into_tensor(buffer, &own)
        })
    }

    /// Makes later work on the current stream wait for all exchanges so far.
    pub(super) fn wait(&self, group: &ProcessGroup) -> Result<()> {
        let device = self.device();
        device.current_stream().wait_stream(&group.stream(device))
    }
}
