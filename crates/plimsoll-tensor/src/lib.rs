//! Tensors and autograd in which every byte has an owner and a reason.
//!
//! The tensor library of Plimsoll: arrays of any rank on a device, derivatives that free as they go, and
//! an account of every byte by what it is for and whose it is. It knows nothing of layers or optimizers;
//! the crate `plimsoll` has those.
//!
//! Where to look:
//!
//! | file | what it holds |
//! |---|---|
//! | `tensor.rs` | [`Tensor`]: making, reading, `grad`, `backward` |
//! | `ops/` | what can be computed; each operation with its derivative |
//! | `autograd/` | recording, what is kept, and the way back |
//! | `op.rs`, `dispatch.rs` | operations as data, and the one road from there to a device |
//! | `storage.rs`, `label.rs` | one allocation, and whose it is |
//! | `layout.rs`, `dtype.rs`, `view.rs` | where elements lie, what they are, and what a kernel sees |
//! | `device.rs`, `backend.rs`, `cpu/`, `sim.rs` | [`Device`], the seam, and the two devices |
//! | `error.rs` | [`Error`]: what can go wrong; [`OutOfMemory`] with its numbers |
//! | `history.rs` | what happened to a device's memory, kept for later |
//!
//! Unsafe code is in `view.rs` and `cpu/` only.

#![deny(unsafe_code)]

mod autograd;
mod backend;
#[allow(unsafe_code)]
mod cpu;
mod device;
mod dispatch;
mod dtype;
mod error;
pub mod history;
pub mod label;
mod layout;
pub mod op;
mod ops;
mod sim;
mod storage;
mod tensor;
#[allow(unsafe_code)]
mod view;

pub use autograd::{BackwardOptions, NoGrad, is_grad_enabled, no_grad};
pub use cpu::CpuConfig;
pub use device::{Device, Owner};
pub use dtype::{DType, Element};
pub use error::{Error, OutOfMemory, Result};
pub use label::Category;
pub use layout::{Dims, Layout};
pub use ops::{Conv2dOptions, MaxPool2dOptions, ReshapeTo};
pub use plimsoll_alloc::{Bytes, CategoryBytes, Gauges, MemoryInfo, Segment};
pub use sim::SimConfig;
pub use tensor::Tensor;
