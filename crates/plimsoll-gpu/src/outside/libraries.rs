//! The GPU memory that libraries use from their first use on ([`Library`]), and that streams and graphs use.
//!
//! Measured with PyTorch 2.11 for CUDA 13.0 and driver 580.159.04 on H100 and H200. Code is compiled for each generation of GPUs,
//! so its size differs between generations. A GPU's row contains what is known about it ([`crate::KnownBytes`]);
//! otherwise, the H100's sizes are assumed.

use super::pages::{PAGE_BYTES, whole_pages};
use crate::Gpu;
use crate::figure::{Basis, Figure};

/// The size of a stream. PyTorch creates 128 streams at once, which take 73,400,320 bytes.
const STREAM_BYTES: u64 = 573_440;

/// The number of streams that PyTorch creates at once.
const PYTORCH_STREAMS: u64 = 128;

/// The size of each cuBLAS handle after the first, measured on an H200. The first use of cuBLAS contains one.
pub const CUBLAS_HANDLE_BYTES: u64 = 67_108_864;

/// The size of a kernel in an instantiated graph.
const NODE_BYTES: u64 = 2355;

/// When modules are loaded: `CUDA_MODULE_LOADING`.
///
/// ```
/// use plimsoll_gpu::outside::{Library, Loading};
/// let gpu = plimsoll_gpu::named("H100")?;
/// let bytes = |loading| Library::PyTorchKernels.first_use(gpu, loading).bytes;
/// assert!(bytes(Loading::Eager) > 7 * bytes(Loading::Lazy));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loading {
    /// With the first kernel that needs them. The default.
    Lazy,
    /// All at once.
    Eager,
}

/// A library that uses memory from its first use on.
///
/// ```
/// use plimsoll_gpu::outside::{Basis, Library, Loading};
/// let first = |gpu| plimsoll_gpu::named(gpu).map(|gpu| Library::CuBlas.first_use(gpu, Loading::Lazy));
/// assert_eq!(first("H100")?.bytes, 71_303_168);
/// assert_eq!(first("A100-80GB")?.basis, Basis::Assumed);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// PyTorch's kernels, at the first launch.
    PyTorchKernels,
    /// cuBLAS, at its first handle. Its workspaces are not included, because PyTorch allocates them.
    CuBlas,
    /// cuDNN, at its first handle.
    CuDnn,
    /// cuFFT, at the first plan.
    CuFft,
    /// cuSOLVER, at its first handle.
    CuSolver,
    /// cuSPARSE, at its first handle.
    CuSparse,
    /// NCCL, at the first communicator.
    Nccl,
}

impl Library {
    /// All libraries in the table.
    pub const ALL: [Library; 7] = [
        Library::PyTorchKernels,
        Library::CuBlas,
        Library::CuDnn,
        Library::CuFft,
        Library::CuSolver,
        Library::CuSparse,
        Library::Nccl,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Library::PyTorchKernels => "PyTorch's kernels",
            Library::CuBlas => "cuBLAS",
            Library::CuDnn => "cuDNN",
            Library::CuFft => "cuFFT",
            Library::CuSolver => "cuSOLVER",
            Library::CuSparse => "cuSPARSE",
            Library::Nccl => "NCCL",
        }
    }

    /// The bytes that its first use needs on a GPU. If they are not known for this GPU, the H100's are assumed. For
    /// cuDNN, this is the maximum: depending on what was loaded before, it needs less, or even nothing.
    pub fn first_use(self, gpu: &Gpu, loading: Loading) -> Figure {
        let bytes = match (self, loading) {
            (Library::PyTorchKernels, Loading::Lazy) => 96_468_992,
            (Library::PyTorchKernels, Loading::Eager) => 767_557_632,
            (Library::CuBlas, _) => 71_303_168,
            (Library::CuDnn, _) => 16_777_216,
            (Library::CuFft, _) => 8_388_608,
            (Library::CuSolver, _) => 100_663_296,
            (Library::CuSparse, _) => 2_097_152,
            (Library::Nccl, _) => 111_149_056,
        };
        let known = match (self, loading) {
            (Library::PyTorchKernels, Loading::Lazy) => gpu.known.kernels,
            (Library::PyTorchKernels, Loading::Eager) => gpu.known.kernels_eager,
            (Library::CuBlas, _) => gpu.known.cublas,
            (Library::CuDnn, _) => gpu.known.cudnn,
            (Library::CuFft, _) => gpu.known.cufft,
            (Library::CuSolver, _) => gpu.known.cusolver,
            (Library::CuSparse, _) => gpu.known.cusparse,
            (Library::Nccl, _) => gpu.known.nccl,
        };
        known.unwrap_or(Figure::new(bytes, Basis::Assumed))
    }
}

/// The bytes that cuBLAS uses on a GPU with this many handles. PyTorch creates one for each thread that computes a product: training
/// has two, because the backward pass runs in a thread of its own.
///
/// ```
/// use plimsoll_gpu::outside::cublas;
/// let gpu = plimsoll_gpu::named("H200")?;
/// assert_eq!(cublas(gpu, 1).bytes, 71_303_168);
/// assert_eq!(cublas(gpu, 2).bytes, 138_412_032);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn cublas(gpu: &Gpu, handles: u64) -> Figure {
    let first = Library::CuBlas.first_use(gpu, Loading::Lazy);
    let more = CUBLAS_HANDLE_BYTES.min(first.bytes).saturating_mul(handles.saturating_sub(1));
    Figure::new(first.bytes.saturating_add(more), first.basis)
}

/// The bytes that this many streams use together on a GPU. Later streams reuse the memory of destroyed ones.
///
/// ```
/// let gpu = plimsoll_gpu::named("H100")?;
/// assert_eq!(plimsoll_gpu::outside::stream_bytes(gpu, 128), 73_400_320);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn stream_bytes(gpu: &Gpu, streams: u64) -> u64 {
    let known = gpu.known.streams.map(|figure| figure.bytes / PYTORCH_STREAMS);
    whole_pages(streams.saturating_mul(known.unwrap_or(STREAM_BYTES)))
}

/// The bytes that a graph with this many kernels uses once it is instantiated, accurate to one page. We measured none
/// for 1,000 kernels, and 25,165,824 for 10,000.
///
/// ```
/// assert_eq!(plimsoll_gpu::outside::graph_bytes(100), 0);
/// ```
pub fn graph_bytes(nodes: u64) -> u64 {
    nodes.saturating_mul(NODE_BYTES) / PAGE_BYTES * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::context::context;
    use super::*;
    use crate::named;

    #[test]
    fn the_first_uses_of_the_measured_run_add_up_to_what_it_had_outside() {
        let gpu = named("H100").unwrap();
        let first = |library: Library| library.first_use(gpu, Loading::Lazy);
        let run = [
            (Library::PyTorchKernels, 96_468_992),
            (Library::CuBlas, 167_772_160),
            (Library::CuDnn, 184_549_376),
            (Library::CuFft, 192_937_984),
            (Library::CuSolver, 293_601_280),
        ];
        let mut outside_bytes = 0;
        for (library, measured_bytes) in run {
            outside_bytes += first(library).bytes;
            assert_eq!(
                (outside_bytes, first(library).basis),
                (measured_bytes, Basis::Measured),
                "{library:?}"
            );
        }
        // A process that uses all of them has the 845 MB measured on an H200.
        assert_eq!(context(gpu).bytes + outside_bytes, 846_004_224);
        assert_eq!(Library::PyTorchKernels.first_use(gpu, Loading::Eager).bytes, 767_557_632);
        assert_eq!(first(Library::CuSparse).bytes, 2_097_152);
        assert_eq!(first(Library::Nccl).bytes, 111_149_056);
    }

    #[test]
    fn a_generation_that_nobody_measured_has_assumed_sizes() {
        for library in Library::ALL {
            let first = |gpu| library.first_use(named(gpu).unwrap(), Loading::Lazy);
            assert_eq!(first("RTX-4090"), Figure { basis: Basis::Assumed, ..first("H100") });
        }
    }

    #[test]
    fn streams_share_pages() {
        let stream_bytes = |streams| stream_bytes(named("H100").unwrap(), streams);
        assert_eq!(stream_bytes(0), 0);
        assert_eq!(stream_bytes(1), 2 << 20);
        assert_eq!(stream_bytes(128), 73_400_320);
        // Measured for 64 streams: 35,651,584, which is one page less.
        assert_eq!(stream_bytes(64), 35_651_584 + (2 << 20));
        // Five NCCL communicators with two streams each, in addition to PyTorch's 128. Measured: 1, 1, 0, 1 and 0 more pages.
        let pages = |streams| stream_bytes(streams) >> 21;
        let more: Vec<u64> = (0..5).map(|comm| pages(130 + 2 * comm) - pages(128 + 2 * comm)).collect();
        assert_eq!(more, [1, 1, 0, 1, 0]);
    }

    #[test]
    fn a_graph_takes_pages_for_its_kernels() {
        // Measured: 0 for 1,000 kernels, 25,165,824 for 10,000.
        assert_eq!(graph_bytes(1_000), 2 << 20);
        assert_eq!(graph_bytes(10_000), 25_165_824 - (2 << 20));
    }
}
