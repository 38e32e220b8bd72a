//! Tensors and autograd in which every byte has an owner and a reason.
//!
//! The tensor library of Plimsoll: arrays of any rank on a device, derivatives that free as they go, and
//! an account of every byte by what it is for and whose it is. It knows nothing of layers or optimizers;
//! the crate `plimsoll` has those.
//!
//! Where to look, from the bottom up; a file uses only those above it:
//!
//! | file | what it holds |
//! |---|---|
//! | `dtype.rs`, `word.rs`, `autocast_mode.rs`, `inference.rs`, `error.rs`, `layout.rs`, `label.rs`, `random.rs`, `properties.rs`, `facts.rs`, `few.rs`, `unwind.rs`, `capturing.rs`, `alloc_conf.rs`, `tf32.rs` | what elements are, the switches of autocast and inference mode, what can go wrong, where elements lie, whose bytes are, which random numbers and generators, what a device says of itself and what an operator may know of it, short lists, panics as errors, whether a thread captures what it queues, the settings of a GPU's allocator, whether a GPU may multiply `float32` in TF32 |
//! | `view.rs`, `cuda/`, `kernel.rs`, `backend.rs` | what a kernel sees, how one describes its work on an NVIDIA GPU, what an operator's kernels are, the seam to devices |
//! | `cpu/`, `sim.rs`, `device.rs`, `cuda_device/`, `cuda_times.rs` | the host, simulated devices, NVIDIA GPUs with the times of their kernels, and the handle of one |
//! | `stream.rs` | [`Stream`], [`Event`], and the current stream of a thread |
//! | `pinned.rs` | pinned host memory, for asynchronous copies and for what leaves its device |
//! | `storage/`, `data.rs`, `history.rs` | one allocation, and where its bytes are; a layout on it; what happened to a device's memory |
//! | `tensor/` | [`Tensor`], the operation that made it, the hooks of both |
//! | `autograd/` | what is kept for the way back, and the way back |
//! | `second.rs` | derivatives of derivatives |
//! | `operator.rs` | [`Operator`]: what ours and the users' own say of themselves |
//! | `autocast.rs` | mixed precision: the types in which operators get their inputs |
//! | `dispatch/` | [`call`]: how an operator runs on a device |
//! | `checkpoint/` | [`checkpoint`](checkpoint::checkpoint): what is saved is dropped and computed again; [`recompute_output`](checkpoint::recompute_output): what an operation gives |
//! | `save_on_cpu.rs` | [`save_on_cpu`](save_on_cpu::save_on_cpu): what is saved waits in host memory |
//! | `residency.rs` | tensors whose bytes leave their device and come back: [`State`], [`PinGuard`] |
//! | `function.rs` | [`Function`]: a derivative of the users' own for a piece made of tensors |
//! | `testing/` | devices for tests: one that computes later |
//! | `gradcheck.rs` | derivatives against finite differences, for a function of the users' own |
//! | `suite/` | what every operator must do, as a suite of checks |
//! | `ops/` | what can be computed, by family: an operator a file, with its derivative |
//! | `capture.rs` | [`Graph`]: captured work that is replayed |
//! | `group/` | [`ProcessGroup`]: collectives of tensors between ranks |
//!
//! Unsafe code is in `view.rs` and `cpu/` only.

#![deny(unsafe_code)]

mod alloc_conf;
pub mod autocast;
mod autocast_mode;
pub mod autograd;
mod backend;
mod capture;
mod capturing;
pub mod checkpoint;
#[allow(unsafe_code)]
mod cpu;
pub mod cuda;
mod cuda_device;
mod cuda_times;
mod data;
mod device;
mod dispatch;
mod dtype;
mod error;
mod facts;
mod few;
mod function;
pub mod gradcheck;
mod group;
pub mod history;
mod inference;
mod kernel;
pub mod label;
mod layout;
mod operator;
mod ops;
pub mod pinned;
mod properties;
mod random;
mod residency;
pub mod save_on_cpu;
mod second;
mod sim;
mod storage;
mod stream;
pub mod suite;
mod tensor;
pub mod testing;
mod tf32;
mod unwind;
#[allow(unsafe_code)]
mod view;
mod word;

pub use autograd::{
    BackwardOptions, InferenceMode, NoGrad, enable_grad, inference_mode, is_grad_enabled,
    is_inference_mode_enabled, no_grad,
};
pub use capture::{Graph, GraphPool};
pub use cpu::CpuConfig;
pub use cpu::kernels::loss::Reduction;
pub use cuda::CudaCall;
pub use cuda_device::{CudaReport, cuda_report};
pub use cuda_times::{KernelTime, cuda_kernel_times};
pub use device::{Device, Owner};
pub use dispatch::{Tensors, call, create, into_out};
pub use dtype::{DType, Element, Scalar, Stored, bf16, f16, promote, result_type};
pub use error::{Error, OutOfMemory, Result};
pub use facts::{DeviceFacts, DeviceKind};
pub use function::{Function, FunctionBackward, Save, apply};
pub use group::{ProcessGroup, ReduceOp, Traffic};
pub use kernel::{CpuCall, Kernel, Varies};
pub use label::Category;
pub use layout::{Dims, Layout};
pub use operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Place, Saves};
pub use ops::{
    Activation, AttentionOptions, AvgPool1dOptions, AvgPool2dOptions, AvgPool3dOptions, AvgPoolOptions,
    BagMode, BatchNormArgs, BatchNormOptions, Cell, Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions,
    ConvPadding, ConvTranspose1dOptions, ConvTranspose2dOptions, ConvTranspose3dOptions,
    ConvTransposeOptions, CrossEntropyOptions, GridPadding, GridSampleMode, GridSampleOptions,
    InterpolateMode, Interpolation, MaxPool1dOptions, MaxPool2dOptions, MaxPool3dOptions, MaxPoolOptions,
    MemoryFormat, OPERATORS, PadMode, RecurrentLayer, RecurrentState, ReshapeTo, ResizeTo, Rotary,
    ScatterReduction, Tolerance, WindowOptions, unscale_,
};
pub use plimsoll_alloc::{Bytes, CategoryBytes, Gauges, MemoryInfo, Segment, StreamId};
pub use properties::{Bandwidth, DeviceProperties, FlopRates};
pub use random::{Generator, RngState, with_generator};
pub use residency::PinGuard;
pub use sim::SimConfig;
pub use storage::State;
pub use stream::{Event, Stream, with_stream};
pub use tensor::{Grads, HookHandle, Tensor};
pub use tf32::{allow_tf32_in_convolutions, allow_tf32_in_matmul};
pub use view::{In, Out};

/// The parameters of operators that are more than numbers.
pub mod op {
    pub use crate::cpu::kernels::loss::Reduction;
    pub use crate::cpu::kernels::optim::{
        AdafactorStep, AdagradStep, AdamStep, Decay, LionStep, LrAdjustment, MuonStep, RmsPropStep, Rule,
        SgdStep,
    };
    pub use crate::ops::{Slot, clip_norm_, clip_value_, optimizer_step, optimizer_step_rounded};
    pub use crate::random::{Distribution, RandomStream};
}
