//! A measurement next to the value in the table of GPUs: [`Figure`].

use plimsoll_gpu::Gpu;
use plimsoll_gpu::nccl::Kernel;
use plimsoll_gpu::outside::{self, Library, Loading, PAGE_BYTES};

/// A measured number of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Figure {
    /// Its owner in reports.
    pub(super) owner: &'static str,
    /// Its name in a row; `None` for a figure that only tests a rule.
    pub(super) key: Option<&'static str>,
    pub(super) bytes: u64,
    /// The value in the table, or according to the rule, for this GPU.
    pub(super) expected: Option<outside::Figure>,
    /// How the figure was measured.
    pub(super) how: &'static str,
}

/// How a figure compares with the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// They differ by at most one page.
    Same,
    /// Further off.
    Different,
    /// The table has no figure.
    Unknown,
}

impl Figure {
    pub(super) fn matches(&self) -> Match {
        match self.expected {
            None => Match::Unknown,
            Some(expected) if expected.bytes.abs_diff(self.bytes) <= PAGE_BYTES => Match::Same,
            Some(_) => Match::Different,
        }
    }
}

/// The figure of a library or of PyTorch's streams, by its name in a row.
pub(super) fn of_library(key: &'static str, bytes: u64, gpu: &Gpu) -> Figure {
    let first = |library: Library, loading| Some(library.first_use(gpu, loading));
    let lazy = |library| first(library, Loading::Lazy);
    let (owner, expected, how) = match key {
        "kernels" => (Library::PyTorchKernels.name(), lazy(Library::PyTorchKernels), "the first kernel"),
        "kernels_eager" => (
            "PyTorch's kernels, all at once",
            first(Library::PyTorchKernels, Loading::Eager),
            "the first kernel with CUDA_MODULE_LOADING=EAGER",
        ),
        "cublas" => (Library::CuBlas.name(), lazy(Library::CuBlas), "a product, after the first kernel"),
        "cudnn" => (Library::CuDnn.name(), lazy(Library::CuDnn), "a convolution, after cuBLAS"),
        "cufft" => (Library::CuFft.name(), lazy(Library::CuFft), "a transform, after cuDNN"),
        "cusolver" => (Library::CuSolver.name(), lazy(Library::CuSolver), "an inverse, after cuFFT"),
        "cusparse" => (Library::CuSparse.name(), lazy(Library::CuSparse), "a sparse product, after cuSOLVER"),
        "nccl" => (
            Library::Nccl.name(),
            lazy(Library::Nccl),
            "the first all-reduce, minus that of a second group, minus the estimate for stacks",
        ),
        _ => (
            "streams",
            Some(outside::Figure { bytes: outside::stream_bytes(gpu, 128), basis: outside::Basis::Derived }),
            "PyTorch's 128 streams",
        ),
    };
    Figure { owner, key: Some(key), bytes, expected, how }
}

/// The bytes of stack that NCCL's kernel for the first all-reduce uses.
pub(super) fn ring_stack_bytes(gpu: &Gpu) -> u64 {
    outside::local_memory_bytes(gpu, Kernel::Ring.stack_bytes()) - outside::local_memory_bytes(gpu, 0)
}
