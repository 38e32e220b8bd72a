//! The properties of a GPU: [`Gpu`], [`Bandwidth`], [`FlopRates`], [`Pool`], [`KnownBytes`].

use crate::figure::Figure;

/// A GPU model.
///
/// ```
/// let gpu = plimsoll_gpu::named("A100-80GB")?;
/// assert_eq!(gpu.card, "NVIDIA A100-SXM4-80GB");
/// assert_eq!((gpu.capability, gpu.multiprocessors), ((8, 0), 108));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    /// The name that selects it: `A100-80GB`.
    pub name: &'static str,
    /// The name that the driver reports: `NVIDIA A100-SXM4-80GB`.
    pub card: &'static str,
    /// Total memory as the driver reports it, in bytes. The driver reserves some memory for itself, a different amount
    /// in each version, so this varies by up to one percent.
    pub memory_bytes: u64,
    /// The source of `memory_bytes`.
    pub memory_source: &'static str,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// The size of the L2 cache.
    pub l2_bytes: i32,
    /// The shared memory of a multiprocessor.
    pub shared_bytes_per_multiprocessor: i32,
    /// The maximum shared memory of a block that opts in.
    pub shared_bytes_per_block: i32,
    /// The maximum number of resident threads per multiprocessor.
    pub threads_per_multiprocessor: i32,
    /// The maximum number of resident blocks per multiprocessor.
    pub blocks_per_multiprocessor: i32,
    /// The width of the memory bus.
    pub bus_bits: i32,
    /// The boost clock of the multiprocessors.
    pub clock_khz: i32,
    /// The memory clock; the memory transfers twice per cycle.
    pub memory_clock_khz: i32,
    /// Default power limit.
    pub power_watts: u32,
    /// The memory, PCIe and NVLink bandwidth.
    pub bandwidth: Bandwidth,
    /// Matrix-multiply rates.
    pub flops: FlopRates,
    /// The NVIDIA document that gives `bandwidth`, `flops` and `power_watts`.
    pub datasheet: &'static str,
    /// Whether it has its own memory.
    pub pool: Pool,
    /// The memory outside PyTorch's allocator that is known for this GPU.
    pub known: KnownBytes,
}

/// Whether a GPU has its own memory.
///
/// ```
/// use plimsoll_gpu::{Pool, named};
/// assert_eq!(named("GB10")?.pool, Pool::Host);
/// assert_eq!(named("GH200")?.pool, Pool::Coherent);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// It has its own memory.
    Own,
    /// It has its own memory, and can also access the host's memory at the host's addresses.
    Coherent,
    /// It has no memory of its own: it shares the host's memory.
    Host,
}

/// The memory outside PyTorch's allocator that is known for a GPU, because it was measured or given. `None` means that it is
/// computed by a rule or taken from another GPU ([`crate::outside`]).
///
/// ```
/// let known = plimsoll_gpu::named("H100")?.known;
/// assert_eq!(known.reserve.map(|figure| figure.bytes), Some(503_316_480));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownBytes {
    /// The driver's reserve, if the GPU's total memory is the same as in its row.
    pub reserve: Option<Figure>,
    /// A process's context.
    pub context: Option<Figure>,
    /// PyTorch's 128 streams.
    pub streams: Option<Figure>,
    /// PyTorch's kernels, loaded lazily.
    pub kernels: Option<Figure>,
    /// PyTorch's kernels, all loaded at once.
    pub kernels_eager: Option<Figure>,
    /// cuBLAS at its first handle.
    pub cublas: Option<Figure>,
    /// cuDNN at its first handle.
    pub cudnn: Option<Figure>,
    /// cuFFT at the first plan.
    pub cufft: Option<Figure>,
    /// cuSOLVER at its first handle.
    pub cusolver: Option<Figure>,
    /// cuSPARSE at its first handle.
    pub cusparse: Option<Figure>,
    /// NCCL at the first communicator.
    pub nccl: Option<Figure>,
}

impl KnownBytes {
    /// Nothing is known.
    pub(crate) const NONE: KnownBytes = KnownBytes {
        reserve: None,
        context: None,
        streams: None,
        kernels: None,
        kernels_eager: None,
        cublas: None,
        cudnn: None,
        cufft: None,
        cusolver: None,
        cusparse: None,
        nccl: None,
    };
}

/// Bytes per second from the datasheet; achieved rates are lower.
///
/// ```
/// let gpu = plimsoll_gpu::named("H100")?;
/// let weights_bytes = 16_000_000_000_u64;
/// // Reading all weights once takes at least 4.8 ms.
/// let ns = u128::from(weights_bytes) * 1_000_000_000 / u128::from(gpu.bandwidth.memory_bytes_per_s);
/// assert_eq!(ns / 100_000, 47);
/// assert!(gpu.bandwidth.nvlink_bytes_per_s > Some(gpu.bandwidth.pcie_bytes_per_s));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// Between the GPU and its memory.
    pub memory_bytes_per_s: u64,
    /// Between the GPU and the host over PCIe, in each direction.
    pub pcie_bytes_per_s: u64,
    /// To other GPUs over all NVLinks combined, in each direction; `None` without NVLink.
    pub nvlink_bytes_per_s: Option<u64>,
}

/// Dense matrix-multiply operations per second, by type; a multiply-add counts as two. These are the datasheet's peaks without
/// structured sparsity, on tensor cores where they support the type. 16-bit and 8-bit products accumulate in f32 (i8 in
/// i32), as in PyTorch. `None` means that the GPU has no instruction for this type.
///
/// ```
/// let flops = plimsoll_gpu::named("T4")?.flops;
/// assert_eq!((flops.f16, flops.bf16), (65_000_000_000_000, None));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlopRates {
    /// Double precision.
    pub f64: u64,
    /// Single precision, not rounded to TF32.
    pub f32: u64,
    /// Single precision with inputs rounded to TF32.
    pub tf32: Option<u64>,
    /// Half precision.
    pub f16: u64,
    /// bfloat16.
    pub bf16: Option<u64>,
    /// Both 8-bit floating-point types, e4m3 and e5m2.
    pub fp8: Option<u64>,
    /// 8-bit integers.
    pub i8: Option<u64>,
}

/// Multiplies by 10⁹, the unit of datasheets (GB/s, GFLOP/s).
pub(crate) const fn giga(number: f64) -> u64 {
    (number * 1e9) as u64
}

/// Multiplies by 10¹², the unit of datasheets (TB/s, TFLOP/s).
pub(crate) const fn tera(number: f64) -> u64 {
    (number * 1e12) as u64
}

impl Bandwidth {
    /// A GPU without NVLink. Memory bandwidth and PCIe bandwidth (in each direction) are in gigabytes per second.
    pub(crate) const fn pcie(memory: f64, pcie: f64) -> Bandwidth {
        Bandwidth { memory_bytes_per_s: giga(memory), pcie_bytes_per_s: giga(pcie), nvlink_bytes_per_s: None }
    }

    /// Like [`Bandwidth::pcie`], with NVLink. All are in gigabytes per second; PCIe and NVLink are in each direction.
    pub(crate) const fn nvlink(memory: f64, pcie: f64, nvlink: f64) -> Bandwidth {
        Bandwidth { nvlink_bytes_per_s: Some(giga(nvlink)), ..Bandwidth::pcie(memory, pcie) }
    }
}
