//! Reasons why a call fails, and each library's number for them.

use std::ffi::c_int;

/// The result of a call.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An invalid argument: a null pointer, an unknown address, a size of zero.
    InvalidValue,
    /// The device has less free memory than requested.
    OutOfMemory,
    /// A device number that does not exist.
    InvalidDevice,
    /// A stream, event, graph or memory that was never created, or was destroyed.
    InvalidHandle,
    /// No such symbol.
    NotFound,
    /// The kernel is compiled for other devices.
    NoKernelImage,
    /// The stand-in does not support the call.
    NotSupported,
    /// Access to this peer is already enabled.
    PeerAccessAlreadyEnabled,
    /// The work is not complete yet.
    NotReady,
    /// The call is not allowed during a capture.
    CaptureUnsupported,
    /// The capture began on another stream.
    CaptureUnmatched,
    /// The number in `PLIMSOLL_STANDIN_FAULT`.
    Injected(c_int),
    /// The number that the real library returned.
    Status(c_int),
}

/// The library whose status codes apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libcudart`: `cudaError_t`.
    Runtime,
    /// `libcuda`: `CUresult`; the same numbers as far as the stand-in uses them.
    Driver,
    /// `libnvidia-ml`: `nvmlReturn_t`.
    Nvml,
    /// `libcublas` and `libcublasLt`: `cublasStatus_t`.
    Blas,
    /// `libcudnn`, version 9: `cudnnStatus_t`.
    Dnn,
    /// `libnccl`: `ncclResult_t`.
    Nccl,
    /// `libcusparse` and `libcusparseLt`: `cusparseStatus_t`.
    Sparse,
    /// `libcusolver`: `cusolverStatus_t`.
    Solver,
    /// `libcufft`: `cufftResult`.
    Fft,
    /// `libnvjpeg`: `nvjpegStatus_t`.
    Jpeg,
    /// `libcupti`: `CUptiResult`.
    Profiler,
}

impl Failure {
    /// The library's number for this failure, from its header.
    pub(crate) fn code(self, library: Library) -> c_int {
        let (memory, unsupported, invalid) = match (self, library) {
            (Failure::Injected(code) | Failure::Status(code), _) => return code,
            (_, Library::Runtime | Library::Driver) => return self.cuda(),
            (_, Library::Nvml) => (20, 3, 2),
            (_, Library::Blas) => (3, 15, 7),
            (_, Library::Dnn) => (4004, 3000, 2000),
            (_, Library::Nccl) => (1, 5, 4),
            (_, Library::Sparse) => (2, 10, 3),
            (_, Library::Solver) => (2, 9, 3),
            (_, Library::Fft) => (2, 16, 4),
            (_, Library::Jpeg) => (5, 9, 2),
            (_, Library::Profiler) => (8, 27, 1),
        };
        match self {
            Failure::OutOfMemory => memory,
            Failure::NotSupported => unsupported,
            _ => invalid,
        }
    }

    fn cuda(self) -> c_int {
        match self {
            Failure::InvalidValue => 1,
            Failure::OutOfMemory => 2,
            Failure::InvalidDevice => 101,
            Failure::NoKernelImage => 209,
            Failure::InvalidHandle => 400,
            Failure::NotFound => 500,
            Failure::NotReady => 600,
            Failure::PeerAccessAlreadyEnabled => 704,
            Failure::NotSupported => 801,
            Failure::CaptureUnsupported => 900,
            Failure::CaptureUnmatched => 903,
            Failure::Injected(code) | Failure::Status(code) => code,
        }
    }
}
