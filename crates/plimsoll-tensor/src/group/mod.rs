//! Collectives on tensors among ranks: [`ProcessGroup`].
//!
//! A transport only moves bytes. All sums are computed by [`Tensor::ordered_sum`], in a fixed order of ranks. So sums
//! are bit-identical for any transport, on any hosts, and however a tensor is split for sending. `operators.rs` defines
//! the collectives as operators, which dispatch runs like any other. `engine.rs` moves the bytes, and `memory.rs` and `shared.rs` manage
//! the memory that other ranks can read. `watch.rs` ends the work of GPUs if a rank is lost. On a simulated
//! device, memory is requested, nothing is moved, and `nccl_bytes.rs` counts the memory that NCCL would use.
//! `functional.rs` has the collectives with derivatives.

mod engine;
mod functional;
mod memory;
mod nccl_bytes;
mod operators;
mod shared;
mod watch;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_dist::{Communicator, Content};

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dispatch::call;
use crate::error::{Error, Result};
use crate::label::{Category, Span, intern};
use crate::ops::{ordered_sum_into, want_dtype, want_float};
use crate::stream::Stream;
use crate::tensor::Tensor;

use engine::Engine;
use operators::{Collective, Move};

/// How the values of all ranks are combined. Like `torch.distributed.ReduceOp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The mean.
    Avg,
}

/// The number of collectives that a rank has called so far, and of bytes that it has sent, over all of its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of collectives.
    pub collectives: u64,
    /// Bytes that this rank has sent to others.
    pub sent_bytes: u64,
}

/// One rank of a group, and the collectives that it can call. Like `torch.distributed.ProcessGroup`, with the same
/// names; outputs are passed as arguments. Clones refer to the same rank.
///
/// All ranks must call the same collectives, in the same order, with tensors of the same sizes and types. Autograd records only
/// those that return a tensor, such as [`ProcessGroup::all_gather_tensor`]. NCCL moves the bytes of tensors on GPUs;
/// each rank has one GPU. A collective is queued on the current stream, and a later wait for the device returns an
/// error if a rank is lost. With `PLIMSOLL_CHECK_COLLECTIVES=1`, all ranks compare each call before it is queued. On a
/// simulated device, a collective requests memory and moves nothing.
///
/// ```
/// use plimsoll_tensor::{Device, ProcessGroup, ReduceOp, Tensor};
/// let ranks = ProcessGroup::threads(2);
/// let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
///     let each = ranks.iter().map(|rank| {
///         scope.spawn(move || {
///             let x = Tensor::full(&[3], 1.0 + rank.rank() as f64, plimsoll_tensor::DType::F32, &Device::cpu())?;
///             rank.all_reduce(&x, ReduceOp::Sum)?;
///             x.to_vec::<f32>()
///         })
///     });
///     let each: Vec<_> = each.collect();
///     each.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_, plimsoll_tensor::Error>>()
/// })?;
/// assert_eq!(sums, [[3.0; 3]; 2]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProcessGroup(Arc<Engine>);

impl AsRef<ProcessGroup> for ProcessGroup {
    fn as_ref(&self) -> &ProcessGroup {
        self
    }
}

impl ProcessGroup {
    /// A group that exchanges bytes through this communicator.
    pub fn new(communicator: Arc<Communicator>) -> ProcessGroup {
        ProcessGroup::with(communicator, false)
    }

    /// The ranks of a group of threads, in rank order. If one is dropped, the others treat it as lost.
    pub fn threads(size: usize) -> Vec<ProcessGroup> {
        Communicator::threads(size).into_iter().map(|rank| ProcessGroup::new(Arc::new(rank))).collect()
    }

    /// Rank `rank` of a simulated group of `size` ranks, for simulated devices. Each collective requests its memory and counts
    /// its bytes, but moves none. All ranks request the same memory, so one rank represents them all.
    pub fn simulated(rank: usize, size: usize) -> ProcessGroup {
        ProcessGroup::with(Arc::new(Communicator::simulated(rank, size)), true)
    }

    fn with(communicator: Arc<Communicator>, is_simulated: bool) -> ProcessGroup {
        ProcessGroup(Arc::new(Engine::new(communicator, is_simulated)))
    }

    /// A group of some of this group's ranks, in ascending order. Its members must call this with the same ranks and
    /// the same name, which messages show; groups with common members need different names. It uses the same
    /// connections and the same [stream](ProcessGroup::stream), and on GPUs its own NCCL communicator. Errors name
    /// ranks by their numbers in the world. Like `torch.distributed.new_group` with `use_local_synchronization=True`.
    ///
    /// ```
    /// use plimsoll_tensor::ProcessGroup;
    /// let ranks = ProcessGroup::threads(4);
    /// let odd = ranks[3].new_group(&[1, 3], "odd")?;
    /// assert_eq!((odd.rank(), odd.size(), odd.ranks()), (1, 2, &[1, 3][..]));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Distributed`]: the ranks are not in ascending order, one of them is not a rank of this group, or this rank is not
    /// among them.
    pub fn new_group(&self, ranks: &[usize], name: &str) -> Result<ProcessGroup> {
        Ok(ProcessGroup(Arc::new(self.0.part(ranks, name)?)))
    }

    /// The same ranks, over their own connections: another thread may call its collectives at the same time as this
    /// thread calls those of this group. All ranks must make the first call, which connects them; later calls return
    /// the same group. A simulated group returns itself.
    ///
    /// ```
    /// use plimsoll_tensor::ProcessGroup;
    /// let group = ProcessGroup::threads(1).remove(0);
    /// let beside = group.background()?;
    /// std::thread::spawn(move || beside.barrier()).join().unwrap()?;
    /// group.barrier()?;
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Distributed`].
    pub fn background(&self) -> Result<ProcessGroup> {
        if self.0.is_simulated {
            return Ok(self.clone());
        }
        self.0.background().map(ProcessGroup)
    }

    /// The members, by their ranks in the world.
    pub fn ranks(&self) -> &[usize] {
        &self.0.ranks
    }

    /// The name that [`ProcessGroup::new_group`] was given; empty for all ranks.
    pub fn name(&self) -> &str {
        self.0.communicator.name()
    }

    /// This rank's number, counted from 0.
    pub fn rank(&self) -> usize {
        self.0.communicator.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.communicator.size()
    }

    /// The number of collectives that this rank has called so far, and of bytes that it has sent.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            collectives: self.0.shared.collectives.load(Ordering::Relaxed),
            sent_bytes: self.0.shared.sent_bytes.load(Ordering::Relaxed),
        }
    }

    /// A stream of a device for collectives that run concurrently with computation. The caller synchronizes the two:
    ///
    /// ```
    /// use plimsoll_tensor::{Device, ProcessGroup, ReduceOp, Tensor, with_stream};
    /// let device = Device::cpu();
    /// let group = ProcessGroup::threads(1).remove(0);
    /// let gradient = Tensor::ones(&[4], &device)?;
    /// let side = group.stream(&device);
    /// side.wait_stream(&device.current_stream())?; // `gradient` is computed there
    /// with_stream(&side, || group.all_reduce(&gradient, ReduceOp::Avg))?;
    /// // … other work …
    /// device.current_stream().wait_stream(&side)?;
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// While this thread captures its work on a GPU, the stream is a branch of the captured graph.
    pub fn stream(&self, device: &Device) -> Stream {
        self.0.stream(device)
    }

    /// Waits until all ranks have called this. In a simulated group it returns at once.
    ///
    /// # Errors
    /// [`Error::Distributed`].
    pub fn barrier(&self) -> Result<()> {
        if self.0.is_simulated {
            return Ok(());
        }
        let lost = |source| Error::Distributed { op: "barrier", source: Box::new(source) };
        self.0.communicator.barrier().map_err(lost)
    }

    /// Gathers bytes that are not a tensor. Every rank passes the same number of bytes, and receives those of all
    /// ranks, in rank order. A simulated group returns copies of this rank's bytes.
    ///
    /// # Errors
    /// [`Error::Distributed`].
    pub fn all_gather_bytes(&self, own: &[u8], label: &str) -> Result<Vec<Vec<u8>>> {
        let mut all = own.repeat(self.size());
        if !self.0.is_simulated {
            let content = Content { label, dtype: "bytes" };
            let lost = |source| Error::Distributed { op: "all_gather", source: Box::new(source) };
            self.0.communicator.all_gather(&mut all, content).map_err(lost)?;
        }
        Ok((0..self.size()).map(|rank| all[rank * own.len()..(rank + 1) * own.len()].to_vec()).collect())
    }

    /// Fills `output` with the concatenated inputs of all ranks. `input` may be this rank's part of `output`. Like
    /// `torch.distributed.all_gather_into_tensor`.
    ///
    /// # Errors
    /// If the sizes do not match; or [`Error::Distributed`].
    pub fn all_gather_into_tensor(&self, output: &Tensor, input: &Tensor) -> Result<()> {
        const NAME: &str = "all_gather_into_tensor";
        self.want_parts(NAME, output, input)?;
        no_grad(|| {
            let own = self.part(output)?;
            if !(own.shares_storage(input) && own.storage_offset() == input.storage_offset()) {
                own.copy_(&input.reshape(&[-1])?)?;
            }
            self.run(Move::AllGather, &[output], output.label())
        })
    }

    /// Sends part r of `input` to rank r, and fills part r of `output` with what rank r sent to this rank. Like
    /// `torch.distributed.all_to_all_single` with equal parts.
    ///
    /// # Errors
    /// If the sizes do not match; or [`Error::Distributed`].
    pub fn all_to_all_single(&self, output: &Tensor, input: &Tensor) -> Result<()> {
        const NAME: &str = "all_to_all_single";
        want_alike(NAME, output, input)?;
        if output.numel() != input.numel() || !input.numel().is_multiple_of(self.size()) {
            let (out, own, size) = (output.numel(), input.numel(), self.size());
            let message = format!(
                "{own} elements to send, but room for {out}: both must be equal, and a multiple of {size}"
            );
            return Err(Error::shape(NAME, message));
        }
        no_grad(|| self.run(Move::AllToAll { keeps_own: true }, &[input, output], input.label()))
    }

    /// Writes this rank's part of the sum, or mean, of all ranks' inputs to `output`. Like
    /// `torch.distributed.reduce_scatter_tensor`. 16-bit floats are sent in 16 bits, and summed in 32 bits; if `output` has 32 bits,
    /// the sum is not rounded.
    ///
    /// # Errors
    /// If the sizes or types do not match, the type is not a floating-point type, or memory runs out for the received
    /// parts; or [`Error::Distributed`].
    pub fn reduce_scatter_tensor(&self, output: &Tensor, input: &Tensor, op: ReduceOp) -> Result<()> {
        const NAME: &str = "reduce_scatter_tensor";
        want_float(NAME, input.dtype())?;
        if output.dtype() != input.dtype().accumulator() {
            want_dtype(NAME, output.dtype(), input.dtype())?;
        }
        self.want_parts_of(NAME, input, output)?;
        no_grad(|| {
            let received = self.exchange(input)?;
            let own = self.part(input)?;
            self.sum_into(output, &received, Some(&own), op)
        })
    }

    /// Replaces `tensor` with the sum, or mean, of all ranks' tensors. Like `torch.distributed.all_reduce`. The sum is
    /// computed as a balanced tree over the ranks, in 32 bits or more. It is bit-identical on all ranks and with any transport.
    ///
    /// # Errors
    /// If the type is not a floating-point type, or memory runs out for the received parts; or [`Error::Distributed`].
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<()> {
        want_float("all_reduce", tensor.dtype())?;
        if self.size() == 1 {
            return Ok(());
        }
        no_grad(|| {
            let (count, size) = (tensor.numel(), self.size());
            if tensor.is_contiguous() && count.is_multiple_of(size) {
                return self.reduce_buffer(&tensor.view(&[-1])?, op);
            }
            let _owner = Span::of(Category::Workspace, intern(&format!("{} padded", tensor.label())));
            let padded = Tensor::full(&[count.next_multiple_of(size)], 0.0, tensor.dtype(), tensor.device())?;
            let filled = padded.narrow(0, 0, count)?;
            filled.copy_(&tensor.reshape(&[-1])?)?;
            self.reduce_buffer(&padded, op)?;
            tensor.copy_(&filled.view(tensor.shape())?)
        })
    }

    /// [`ProcessGroup::all_reduce`] of a flat buffer with equal parts, which are exchanged, summed and gathered in
    /// place.
    fn reduce_buffer(&self, buffer: &Tensor, op: ReduceOp) -> Result<()> {
        let received = self.exchange(buffer)?;
        self.sum_into(&self.part(buffer)?, &received, None, op)?;
        drop(received);
        self.run(Move::AllGather, &[buffer], buffer.label())
    }

    /// Replaces the values of `tensor` with those of rank `src`, on all ranks. Like `torch.distributed.broadcast`.
    ///
    /// # Errors
    /// If `src` is not a rank; or [`Error::Distributed`].
    pub fn broadcast(&self, tensor: &Tensor, src: usize) -> Result<()> {
        if src >= self.size() {
            let message = format!("rank {src} of {}: ranks are numbered from 0", self.size());
            return Err(Error::argument("broadcast", message));
        }
        no_grad(|| self.run(Move::Broadcast { root: src }, &[tensor], tensor.label()))
    }

    fn run(&self, what: Move, tensors: &[&Tensor], label: String) -> Result<()> {
        let (size, rank) = (self.size() as u64, self.rank());
        let bytes = tensors[0].numel() as u64 * tensors[0].dtype().size() as u64;
        let sent = match what {
            Move::AllGather | Move::AllToAll { .. } => bytes / size * (size - 1),
            Move::Broadcast { root } if root == rank => bytes * (size - 1),
            Move::Broadcast { .. } => 0,
        };
        self.0.shared.collectives.fetch_add(1, Ordering::Relaxed);
        self.0.shared.sent_bytes.fetch_add(sent, Ordering::Relaxed);
        let engine = &self.0;
        let content = Content { label: &label, dtype: tensors[0].dtype().name() };
        let carrier = engine.begin(tensors[0], what, bytes, content)?;
        let (communicator, hosts) = (Arc::clone(&engine.communicator), engine.hosts.hosts);
        let collective = Collective { what, communicator, carrier, label, hosts };
        call(collective, tensors).map(drop)
    }

    /// Sends each rank its part of a tensor. Returns what the other ranks have sent to this one, in rank order.
    fn exchange(&self, sent: &Tensor) -> Result<Tensor> {
        let received = {
            let _owner = Span::of(Category::Workspace, intern(&format!("{} received", sent.label())));
            let len = sent.numel() / self.size() * (self.size() - 1);
            Tensor::empty(&[len], sent.dtype(), sent.device())?
        };
        if self.size() > 1 {
            self.run(Move::AllToAll { keeps_own: false }, &[sent, &received], sent.label())?;
        }
        Ok(received)
    }

    /// This rank's part of a tensor, as a flat view.
    fn part(&self, whole: &Tensor) -> Result<Tensor> {
        let len = whole.numel() / self.size();
        whole.view(&[-1])?.narrow(0, self.rank() * len, len)
    }

    /// Writes the sum of the received parts and this rank's own one, which is in `output` if it is not given.
    fn sum_into(&self, output: &Tensor, received: &Tensor, own: Option<&Tensor>, op: ReduceOp) -> Result<()> {
        let scale = match op {
            ReduceOp::Sum => 1.0,
            ReduceOp::Avg => 1.0 / self.size() as f64,
        };
        let others = received.view(&[self.size() - 1, output.numel()])?;
        ordered_sum_into(&output.view(&[-1])?, &others, own, self.rank(), scale)
    }

    /// Returns an error unless `whole` has the same type as `part`, and room for one `part` of each rank.
    fn want_parts(&self, op: &'static str, whole: &Tensor, part: &Tensor) -> Result<()> {
        want_alike(op, whole, part)?;
        self.want_parts_of(op, whole, part)
    }

    /// Returns an error unless `whole` has exactly room for one `part` of each rank.
    fn want_parts_of(&self, op: &'static str, whole: &Tensor, part: &Tensor) -> Result<()> {
        want_same_device(op, whole, part)?;
        if whole.numel() == part.numel() * self.size() && whole.is_contiguous() && part.is_contiguous() {
            return Ok(());
        }
        let message = format!(
            "{:?} for {} parts of {:?}: the complete tensor needs as many elements as all parts together, and both must be contiguous",
            whole.shape(),
            self.size(),
            part.shape()
        );
        Err(Error::shape(op, message))
    }
}

fn want_alike(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    want_same_device(op, a, b)?;
    want_dtype(op, b.dtype(), a.dtype())
}

fn want_same_device(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.device() == b.device() {
        return Ok(());
    }
    let (first, second) = (a.device().name().to_owned(), b.device().name().to_owned());
    Err(Error::Device { op, first, second })
}
