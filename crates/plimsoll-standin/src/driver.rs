//! `libcuda`: the calls that begin with `cu`. PyTorch's allocator makes these calls for expandable segments, and
//! Triton and `torch.compile` make them for their kernels. Calls that the runtime API also has are implemented
//! there; errors have the same numbers.

mod allocation;
mod context;
mod cubin;
mod export;
mod graph;
mod green;
mod module;
mod ptx;
mod streams;

/// The driver's handle of a device's context: the device's number, from 1.
type ContextHandle = u64;
