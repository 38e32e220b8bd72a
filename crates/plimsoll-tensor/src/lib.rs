//! Tensors and autograd in which every byte has an owner and a purpose.
//!
//! This is the tensor library of Plimsoll: arrays of any rank on a device, derivatives that free memory
//! as they run, and an account of every byte by category and owner. It has no layers or optimizers;
//! those are in the crate `plimsoll`.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `dtype.rs`, `word.rs`, `autocast_mode.rs`, `inference.rs`, `error.rs`, `layout.rs`, `caller.rs`, `label.rs`, `random.rs`, `properties.rs`, `facts.rs`, `few.rs`, `unwind.rs`, `capturing.rs`, `alloc_conf.rs`, `tf32.rs`, `cost.rs`, `clock.rs` | element types, the switches of autocast and inference mode, errors, layouts, the lines of the program that request memory, owners of bytes, random numbers and generators, the properties of a device and those that an operator may depend on, short lists, panics as errors, whether a thread is capturing, the settings of a GPU's allocator, whether a GPU may multiply `float32` in TF32, what an operator computes and moves, the estimated time of a simulated GPU |
//! | `view.rs`, `cuda/`, `kernel.rs`, `backend.rs` | the views that kernels get, how an operator describes its work on an NVIDIA GPU, an operator's kernels, the device interface |
//! | `cpu/`, `sim.rs`, `device/`, `cuda_device/`, `cuda_times.rs` | the host, simulated devices, the device handle, NVIDIA GPUs, the times of their kernels |
//! | `stream.rs` | [`Stream`], [`Event`], and the current stream of a thread |
//! | `pinned.rs` | pinned host memory, for asynchronous copies and for offloaded tensors |
//! | `planned.rs` | requests for memory that are recorded, and served from an arena |
//! | `storage/`, `data.rs`, `history.rs` | one allocation, and where its bytes are; a storage with a layout; the memory history of a device |
//! | `tensor/` | [`Tensor`], the operation that created it, and the hooks of both |
//! | `offload/` | [`OffloadActivations`](offload::OffloadActivations), [`OffloadQueue`](offload::OffloadQueue): tensors that are copied to the host and back beside the computation |
//! | `autograd/` | the tensors that are saved for the backward pass, and the backward pass |
//! | `second.rs` | derivatives of derivatives |
//! | `operator.rs` | [`Operator`]: the trait of our operators and of user-defined ones |
//! | `autocast.rs` | mixed precision: the types in which operators get their inputs |
//! | `dispatch/` | [`call`]: how an operator runs on a device |
//! | `rematerialize/` | [`Device::rematerialize`]: tensors are evicted when memory runs out, and computed again |
//! | `checkpoint/` | [`checkpoint`](checkpoint::checkpoint): saved tensors are dropped and computed again; [`recompute_output`](checkpoint::recompute_output): the same for an operation's output |
//! | `save_on_cpu.rs` | [`save_on_cpu`](save_on_cpu::save_on_cpu): saved tensors are kept in host memory |
//! | `residency.rs` | tensors whose bytes are moved off their device and come back: [`State`], [`PinGuard`] |
//! | `lent.rs` | [`Tensor::lent`]: tensors that are gathered from the rows of several ranks while operations read them |
//! | `function.rs` | [`Function`]: a user-defined derivative for code made of tensor operations |
//! | `testing/` | asynchronous devices for tests |
//! | `gradcheck.rs` | checks derivatives of user-defined functions against finite differences |
//! | `suite/` | a suite of checks that every operator must pass |
//! | `ops/` | the operators, by family: one operator and its derivative per file |
//! | `packed.rs` | [`MemoryPlan`]: recorded requests, packed into an arena |
//! | `traced.rs` | [`Traced`]: a function whose memory is planned after it was recorded |
//! | `capture.rs` | [`Graph`]: captured work that can be replayed |
//! | `backend_suite.rs` | [`check_backend`]: a suite of checks that every device must pass |
//! | `group/` | [`ProcessGroup`]: collectives of tensors between ranks |
//!
//! Unsafe code is only in `view.rs` and `cpu/`.

#![deny(unsafe_code)]

mod alloc_conf;
pub mod autocast;
mod autocast_mode;
pub mod autograd;
pub mod backend;
mod backend_suite;
pub mod caller;
mod capture;
mod capturing;
pub mod checkpoint;
mod clock;
mod cost;
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
mod lent;
pub mod offload;
mod operator;
mod ops;
mod packed;
pub mod pinned;
mod planned;
mod properties;
mod random;
mod rematerialize;
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
mod traced;
mod unwind;
#[allow(unsafe_code)]
mod view;
mod word;

pub use autograd::{
    BackwardOptions, InferenceMode, NoGrad, enable_grad, inference_mode, is_grad_enabled,
    is_inference_mode_enabled, no_grad,
};
pub use backend_suite::check_backend;
pub use capture::{Graph, GraphPool};
pub use clock::TimelineSpan;
pub use cpu::CpuConfig;
pub use cpu::kernels::loss::Reduction;
pub use cuda::CudaCall;
pub use cuda_device::{CudaReport, cuda_report};
pub use cuda_times::{KernelTime, cuda_kernel_times};
pub use device::{Device, EventHandle, MemoryAction, MemoryEvent, ReadPlace, Rehearsal};
pub use dispatch::{Tensors, call, create, into_out};
pub use dtype::{DType, Element, Scalar, Stored, bf16, f16, promote, result_type};
pub use error::{Error, OutOfMemory, Result};
pub use facts::{DeviceFacts, DeviceKind};
pub use function::{Function, FunctionBackward, Save, apply};
pub use group::{ProcessGroup, ReduceOp, Traffic};
pub use kernel::{CpuCall, Kernel, Varies};
pub use label::Category;
pub use label::Owner;
pub use layout::{Dims, Layout};
pub use operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Place, Saves};
pub use ops::{
    Activation, AttentionOptions, AvgPool1dOptions, AvgPool2dOptions, AvgPool3dOptions, AvgPoolOptions,
    BagMode, BatchNormArgs, BatchNormOptions, Cell, Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions,
    ConvPadding, ConvTranspose1dOptions, ConvTranspose2dOptions, ConvTranspose3dOptions,
    ConvTransposeOptions, CrossEntropyOptions, GridPadding, GridSampleMode, GridSampleOptions,
    InterpolateMode, Interpolation, MaxPool1dOptions, MaxPool2dOptions, MaxPool3dOptions, MaxPoolOptions,
    MemoryFormat, OPERATORS, PadMode, RecurrentLayer, RecurrentState, ReshapeTo, ResizeTo, Rotary,
    ScatterReduction, Tolerance, WhereValue, WindowOptions, unscale_,
};
pub use ops::{fft, linalg};
pub use packed::{MemoryPlan, TracedDifference, TracedPlan};
pub use plimsoll_alloc::{BlockState, Bytes, CategoryBytes, Gauges, MemoryInfo, Segment, StreamId};
pub use properties::{Bandwidth, DeviceProperties, FlopRates};
pub use random::{Generator, RngState, with_generator};
pub use residency::PinGuard;
pub use sim::SimConfig;
pub use storage::State;
pub use stream::{Event, Stream, with_stream};
pub use tensor::{Freed, Grads, HookHandle, StorageUses, Tensor};
pub use tf32::{allow_tf32_in_convolutions, allow_tf32_in_matmul};
pub use traced::Traced;
pub use view::{In, Out};

/// The types of operator parameters that are not plain numbers.
pub mod op {
    pub use crate::cpu::kernels::loss::Reduction;
    pub use crate::cpu::kernels::optim::{
        AdafactorStep, AdagradStep, AdamStep, AdamW8bitStep, Decay, LionStep, LrAdjustment, MuonStep,
        RmsPropStep, Rule, SgdStep,
    };
    pub use crate::ops::{
        CapturedUpdate, Slot, capture_update, captured_updates, clip_norm_, clip_value_, foreach_copy_,
        optimizer_step, optimizer_step_rounded, optimizer_step_stochastic,
    };
    pub use crate::random::{Distribution, RandomStream};
}
