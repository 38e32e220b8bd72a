//! `libcuda`: the calls that begin with `cu`, which PyTorch's allocator makes for expandable segments, and
//! Triton and `torch.compile` for their kernels. What the runtime can do is done there; the errors have the
//! same numbers.

mod allocation;
mod context;
mod export;
mod green;
mod module;
mod streams;

/// The driver's handle of a device's context: its number, from 1.
type ContextHandle = u64;
