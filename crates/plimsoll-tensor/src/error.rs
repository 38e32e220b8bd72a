//! The errors of tensor operations, each with its numbers and what to do about it.
//!
//! Running out of memory, wrong shapes and missing values are returned as [`Error`]. A broken invariant of ours is a bug and
//! panics.

use plimsoll_alloc::{self as alloc, Bytes};

use crate::dtype::DType;
use crate::label;

/// The result of operations that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on tensors failed. A failed operation frees the outputs that it had allocated and
/// leaves its inputs unchanged. A backward pass is many operations: after an error, some leaves have their
/// gradients and the graph is freed, as in PyTorch. Drop the gradients and run the forward pass again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is out of memory, or the request exceeds its memory limit.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// The allocator or its driver failed for a reason other than running out of memory.
    #[error("{device}: {source}")]
    Allocator {
        /// The device's name.
        device: String,
        /// The allocator's error.
        source: alloc::Error,
    },
    /// The shapes do not match.
    #[error("{op}: {message}")]
    Shape {
        /// The operation that was called.
        op: &'static str,
        /// The mismatch, with the shapes.
        message: String,
    },
    /// The operation does not support this element type.
    #[error("{op}: expected {expected}, got {got}; convert with `to_dtype`")]
    DType {
        /// The operation that was called.
        op: &'static str,
        /// The type or types that the operation supports.
        expected: &'static str,
        /// The type of the tensor.
        got: DType,
    },
    /// The tensors of one operation are on different devices.
    #[error("{op}: tensors on {first} and on {second}; move one with `to_device`")]
    Device {
        /// The operation that was called.
        op: &'static str,
        /// The device of the first tensor.
        first: String,
        /// The device that differs.
        second: String,
    },
    /// A value was read on a simulated device, which computes nothing and does not rehearse.
    #[error(
        "{op}: {device} computes no values, so there is nothing to read; run on `cpu` to get numbers, or call \
         `Device::rehearse` to read zeros"
    )]
    NoValues {
        /// The operation that needed the value.
        op: &'static str,
        /// The device's name.
        device: String,
    },
    /// A class index is out of range.
    #[error("{op}: target {value} in row {row} is not a class: classes are 0 to {last}", last = .classes.saturating_sub(1))]
    Target {
        /// The operation that was called.
        op: &'static str,
        /// The index of the row.
        row: usize,
        /// The value found there.
        value: i64,
        /// The number of classes.
        classes: usize,
    },
    /// A tensor kept for the backward pass was changed in place after it was saved.
    #[error(
        "backward of {node}: a tensor it saved was changed in place by {changed_by} (version {found}, saved at {saved}); \
         copy it before the change"
    )]
    SavedModified {
        /// The operation whose derivative needed it.
        node: &'static str,
        /// The operation that changed it last.
        changed_by: &'static str,
        /// The version when it was saved.
        saved: u32,
        /// Version found now.
        found: u32,
    },
    /// A backward pass ran through a graph that an earlier pass had freed.
    #[error(
        "backward of {node}: its saved tensors were freed by an earlier backward pass, finished or failed; \
         retain the graph in that pass to allow a second one, or run the forward pass again"
    )]
    GraphFreed {
        /// The operation that was reached.
        node: &'static str,
    },
    /// Autograd does not support the request.
    #[error("{op}: {message}")]
    Autograd {
        /// The operation that was requested.
        op: &'static str,
        /// Why the operation is not possible, and what to do.
        message: String,
    },
    /// A derivative produced NaN, in anomaly mode.
    #[error("backward of {op}{}: the gradient of input {input} contains NaN; the operation was called here:\n{place}", owned(.owner))]
    Anomaly {
        /// The operation that was differentiated.
        op: &'static str,
        /// The layer that called the operation; empty outside a layer.
        owner: String,
        /// The index of the input.
        input: usize,
        /// Where the operation was called.
        place: String,
    },
    /// The operator has no kernel for this kind of device.
    #[error(
        "{op}: there is no kernel for {device}; move the tensors with `to_device`, or implement `Kernel::{device}`"
    )]
    NoKernel {
        /// The operation that was called.
        op: &'static str,
        /// The kind of device.
        device: &'static str,
    },
    /// Offloaded or evicted bytes could not be brought back to their device. They stay where they are, and the next
    /// operation on them tries again.
    #[error("{op}: the bytes of {owner} cannot be moved back to {device}: {cause}")]
    NotResident {
        /// The operation that needed the bytes.
        op: &'static str,
        /// The owner of the bytes.
        owner: String,
        /// The device's name.
        device: String,
        /// The cause: no memory, or a recipe that failed.
        cause: Box<Error>,
    },
    /// The system could not provide pinned host memory.
    #[error("{op}{}: {source}", owned(.owner))]
    PinnedMemory {
        /// The operation that was called.
        op: &'static str,
        /// The owner of the bytes; empty if they have none.
        owner: String,
        /// The allocator's error.
        source: alloc::PinnedError,
    },
    /// Work that an earlier call queued on an asynchronous device failed. The call that returns this error did nothing. The
    /// results of the failed work are undefined.
    #[error("{device}: {op}{}, queued by an earlier call, failed: {cause}", owned(.owner))]
    Late {
        /// The device's name.
        device: String,
        /// The operation that failed.
        op: &'static str,
        /// The layer that called the operation; empty outside a layer.
        owner: String,
        /// The reason for the failure.
        cause: Box<Error>,
    },
    /// A captured step cannot contain this operation, because a replay would not repeat it, or would repeat it with the
    /// same values.
    #[error("{op}: cannot be captured: {why}")]
    Captured {
        /// The operation that was called.
        op: &'static str,
        /// The reason why the operation cannot be captured, and advice on what to do.
        why: &'static str,
    },
    /// NVIDIA's driver or a library is missing or reports an error, or a kernel does not compile.
    #[error("{device}: {op}: {source}")]
    Cuda {
        /// The device's name.
        device: String,
        /// The operation that was called.
        op: &'static str,
        /// The missing library or the failed call, and what to do about it.
        source: plimsoll_cuda::CudaError,
    },
    /// The ranks of a group cannot continue together: one is lost, late, or in a different collective.
    #[error("{op}: {source}")]
    Distributed {
        /// The collective that was called.
        op: &'static str,
        /// Which rank, and why.
        source: Box<plimsoll_dist::Error>,
    },
    /// A matrix has no result: it is singular, not positive-definite, or not finite. PyTorch's `LinAlgError`.
    #[error("{op}{}: {message}", .batch.map_or_else(String::new, |at| format!(" (batch element {at})")))]
    LinAlg {
        /// The operation that was called.
        op: &'static str,
        /// The place of the matrix in the batch, counted row by row; `None` if there is no batch.
        batch: Option<usize>,
        /// What is wrong with the matrix.
        message: String,
    },
    /// An argument is out of range.
    #[error("{op}: {message}")]
    Argument {
        /// The operation that was called.
        op: &'static str,
        /// What is wrong with the argument.
        message: String,
    },
    /// A hook on the gradient of an operation's output, or of a leaf, failed or panicked.
    #[error("{op}{}: a hook on its gradient failed: {cause}", owned(.owner))]
    Hook {
        /// The operation; `accumulate_grad` for a leaf.
        op: &'static str,
        /// The layer that called the operation, or the leaf's owner; empty if there is none.
        owner: String,
        /// The reason for the failure.
        cause: Box<Error>,
    },
    /// An operation that a layer called has failed. Errors that already name an owner are not wrapped in this variant.
    #[error("{owner}: {error}")]
    InLayer {
        /// The layer.
        owner: String,
        /// The error of the layer.
        error: Box<Error>,
    },
}

fn owned(owner: &str) -> String {
    if owner.is_empty() { String::new() } else { format!(" in {owner}") }
}

impl Error {
    /// The error for shapes that do not match in `op`.
    pub fn shape(op: &'static str, message: impl Into<String>) -> Error {
        Error::Shape { op, message: message.into() }
    }

    /// The error for a request that autograd does not support.
    pub fn autograd(op: &'static str, message: impl Into<String>) -> Error {
        Error::Autograd { op, message: message.into() }
    }

    /// The error for an argument of `op` that is out of range.
    pub fn argument(op: &'static str, message: impl Into<String>) -> Error {
        Error::Argument { op, message: message.into() }
    }

    /// The out-of-memory report, if this error is one or is caused by one.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self.root() {
            Error::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }

    /// The error of a process group, if this is one or was caused by one.
    pub fn distributed(&self) -> Option<&plimsoll_dist::Error> {
        match self.root() {
            Error::Distributed { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The error that caused this one, or this one if no other did.
    fn root(&self) -> &Error {
        match self {
            Error::NotResident { cause, .. } | Error::Late { cause, .. } | Error::Hook { cause, .. } => {
                cause.root()
            }
            Error::InLayer { error, .. } => error.root(),
            error => error,
        }
    }

    /// The error without the [`Error::InLayer`] around it.
    ///
    /// ```
    /// use plimsoll_tensor::label::{Span, intern};
    /// use plimsoll_tensor::{Device, Error, Tensor};
    /// let x = Tensor::ones(&[2, 3], &Device::cpu())?;
    /// let _layer = Span::layer(intern("fc1"));
    /// let error = x.matmul(&x).unwrap_err();
    /// assert_eq!(error.to_string(), "fc1: matmul: [2, 3] times [2, 3]");
    /// assert!(matches!(error.without_layer(), Error::Shape { op: "matmul", .. }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn without_layer(&self) -> &Error {
        match self {
            Error::InLayer { error, .. } => error.without_layer(),
            error => error,
        }
    }

    /// Wraps an error that names no owner in [`Error::InLayer`] with the current layer.
    #[cold]
    pub(crate) fn in_layer(self) -> Error {
        let names_owner = matches!(
            self,
            Error::OutOfMemory(_)
                | Error::NotResident { .. }
                | Error::PinnedMemory { .. }
                | Error::Late { .. }
                | Error::Anomaly { .. }
                | Error::Hook { .. }
                | Error::Distributed { .. }
                | Error::InLayer { .. }
        );
        let owner = label::text(label::current_layer());
        if names_owner || owner.is_empty() { self } else { Error::InLayer { owner, error: Box::new(self) } }
    }
}

/// A failed memory request: the owner, the operation, and the owners of the memory in use.
#[derive(Clone, Debug, thiserror::Error)]
pub struct OutOfMemory {
    /// The device's name.
    pub device: String,
    /// The layer that requested the memory, or the operation if no layer was open.
    pub label: String,
    /// The operation that requested the memory.
    pub op: &'static str,
    /// The allocator's numbers.
    pub numbers: alloc::OutOfMemory,
    /// On a device that rematerializes, the owners of what could not be evicted, largest first: the limit must be larger than this,
    /// or the program smaller. Empty on other devices.
    pub irreducible: Vec<label::Owner>,
}

/// How many owners of memory that cannot be evicted the message names.
const NAMED: usize = 5;

impl OutOfMemory {
    /// The memory limit or the device's memory, whichever is smaller.
    pub fn bound_bytes(&self) -> u64 {
        self.numbers.limit_bytes.unwrap_or(u64::MAX).min(self.numbers.device_total_bytes)
    }

    /// Whether the request was within the limit and the system refused it anyway, because of a different limit of the
    /// process, or because others use the memory.
    pub fn is_system_refusal(&self) -> bool {
        self.bound_bytes().saturating_sub(self.numbers.reserved_bytes) >= self.numbers.segment_bytes
    }

    /// Bytes of the device used by others, such as other processes. `None` if they leave enough for the request.
    pub fn held_by_others_bytes(&self) -> Option<u64> {
        let n = &self.numbers;
        let others =
            n.device_total_bytes.saturating_sub(n.reserved_bytes.saturating_add(n.device_free_bytes));
        (others > 0 && n.device_free_bytes < n.segment_bytes).then_some(others)
    }
}

/// A size. Displaying it adds the exact bytes if two decimals would round it.
struct Exactly(u64);

impl std::fmt::Display for Exactly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) => Bytes(bytes).fmt(f),
            bytes => write!(f, "{} ({bytes} bytes)", Bytes(bytes)),
        }
    }
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OutOfMemory { device, label, op, numbers: n, irreducible } = self;
        write!(f, "out of memory on {device}: {label} asked for {}", Bytes(n.requested_bytes))?;
        write!(f, " ({}, by {op}); ", n.category.name())?;
        let left = self.bound_bytes().saturating_sub(n.reserved_bytes);
        let reserved = Bytes(n.reserved_bytes);
        match n.limit_bytes {
            Some(limit) if limit <= n.device_total_bytes => {
                let (limit, left) = (Exactly(limit), Exactly(left));
                write!(f, "the limit is {limit}, of which {reserved} is reserved and {left} is left, but ")?;
            }
            _ => {
                let device = Bytes(n.device_total_bytes);
                write!(f, "the device has {device}, of which {reserved} is reserved")?;
                match self.held_by_others_bytes() {
                    None => write!(f, " and {} is left, but ", Bytes(left))?,
                    Some(others) => {
                        let (others, free) = (Bytes(others), Bytes(n.device_free_bytes));
                        write!(f, ", {others} is held by others and {free} is left, and ")?;
                    }
                }
            }
        }
        match self.is_system_refusal() && self.held_by_others_bytes().is_none() {
            true => write!(f, "the system refused a segment of {}", Bytes(n.segment_bytes))?,
            false => write!(f, "the request needs a segment of {}", Bytes(n.segment_bytes))?,
        }
        write!(
            f,
            "; {} of the reserved bytes is cached, and the largest free block for a request of this size is {}",
            Bytes(n.reserved_bytes.saturating_sub(n.allocated_bytes)),
            Bytes(n.largest_free_block_bytes),
        )?;
        let mut before = format!("; {} is held by ", Bytes(n.allocated_bytes));
        for (category, bytes) in n.by_category.iter().filter(|&(_, bytes)| bytes > 0) {
            write!(f, "{before}{} ({})", category.plural(), Bytes(bytes))?;
            ", ".clone_into(&mut before);
        }
        let mut before = "; what can be evicted is evicted, and the largest owners of the rest are ";
        for label::Owner { label, category, bytes, .. } in irreducible.iter().take(NAMED) {
            write!(f, "{before}{label} ({}, {})", category.name(), Bytes(*bytes))?;
            before = ", ";
        }
        if irreducible.len() > NAMED {
            let rest: u64 = irreducible[NAMED..].iter().map(|owner| owner.bytes).sum();
            write!(f, " and {} more ({})", irreducible.len() - NAMED, Bytes(rest))?;
        }
        Ok(())
    }
}
