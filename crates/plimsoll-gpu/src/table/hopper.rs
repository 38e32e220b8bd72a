//! Hopper: compute capability 9.0.

use crate::figure::{Basis, Figure};
use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool, tera};

/// In listing order. Among GPUs with the same capability and memory size, a lookup by size finds the first.
pub(super) const GPUS: &[Gpu] = &[H200, H100, H100_PCIE, H20, GH200];

const fn measured(bytes: u64) -> Option<Figure> {
    Some(Figure::new(bytes, Basis::Measured))
}

/// How much memory libraries use on a GPU of this generation, measured on an H100 and an H200 with PyTorch 2.11 for
/// CUDA 13.0, NCCL 2.28.9 and driver 580.159.04 (`outside/libraries.rs`).
const CODE: KnownBytes = KnownBytes {
    kernels: measured(96_468_992),
    kernels_eager: measured(767_557_632),
    cublas: measured(71_303_168),
    cudnn: measured(16_777_216),
    cufft: measured(8_388_608),
    cusolver: measured(100_663_296),
    cusparse: measured(2_097_152),
    nccl: measured(111_149_056),
    ..KnownBytes::NONE
};

/// The properties that these GPUs share. They have the same chip, with different memory or with fewer multiprocessors.
const SXM: Gpu = Gpu {
    name: "",
    card: "",
    memory_bytes: 0,
    memory_source: "",
    capability: (9, 0),
    multiprocessors: 132,
    l2_bytes: 52_428_800,
    shared_bytes_per_multiprocessor: 233_472,
    shared_bytes_per_block: 232_448,
    threads_per_multiprocessor: 2048,
    blocks_per_multiprocessor: 32,
    bus_bits: 5120,
    clock_khz: 1_980_000,
    memory_clock_khz: 2_619_000,
    power_watts: 700,
    bandwidth: Bandwidth::nvlink(3_352.0, 64.0, 450.0),
    flops: FlopRates {
        f64: tera(66.9),
        f32: tera(66.9),
        tf32: Some(tera(494.7)),
        f16: tera(989.4),
        bf16: Some(tera(989.4)),
        fp8: Some(tera(1978.9)),
        i8: Some(tera(1978.9)),
    },
    datasheet: "NVIDIA H100 Tensor Core GPU Architecture, table 2 (H100 SXM5)",
    pool: Pool::Own,
    known: KnownBytes { context: measured(552_402_944), ..CODE },
};

const H200: Gpu = Gpu {
    name: "H200",
    card: "NVIDIA H200",
    memory_bytes: 150_109_880_320,
    memory_source: "measured, driver 580.159.04",
    l2_bytes: 62_914_560,
    bus_bits: 6016,
    memory_clock_khz: 3_201_000,
    bandwidth: Bandwidth::nvlink(4_800.0, 64.0, 450.0),
    datasheet: "NVIDIA H200 Tensor Core GPU datasheet (SXM), digits as in the H100's white paper",
    known: KnownBytes { reserve: measured(644_939_776), ..SXM.known },
    ..SXM
};

const H100: Gpu = Gpu {
    name: "H100",
    card: "NVIDIA H100 80GB HBM3",
    memory_bytes: 85_017_493_504,
    memory_source: "measured, driver 580.159.04",
    known: KnownBytes { reserve: measured(503_316_480), ..SXM.known },
    ..SXM
};

const H100_PCIE: Gpu = Gpu {
    name: "H100-PCIe",
    card: "NVIDIA H100 PCIe",
    memory_bytes: 84_943_044_608,
    memory_source: "81008 MiB in PyTorch's device properties",
    multiprocessors: 114,
    clock_khz: 1_755_000,
    memory_clock_khz: 1_593_000,
    power_watts: 350,
    bandwidth: Bandwidth::nvlink(2_000.0, 64.0, 300.0),
    flops: FlopRates {
        f64: tera(51.2),
        f32: tera(51.2),
        tf32: Some(tera(378.0)),
        f16: tera(756.0),
        bf16: Some(tera(756.0)),
        fp8: Some(tera(1_513.0)),
        i8: Some(tera(1_513.0)),
    },
    datasheet: "NVIDIA H100 Tensor Core GPU Architecture (H100 PCIe; sparse rates halved)",
    known: CODE,
    ..SXM
};

const H20: Gpu = Gpu {
    name: "H20",
    card: "NVIDIA H20",
    memory_bytes: 102_010_716_160,
    memory_source: "97285 MiB in PyTorch's device properties",
    multiprocessors: 78,
    l2_bytes: 62_914_560,
    bus_bits: 6144,
    power_watts: 400,
    bandwidth: Bandwidth::nvlink(4_000.0, 64.0, 450.0),
    flops: FlopRates {
        f64: tera(1.0),
        f32: tera(39.5),
        tf32: Some(tera(74.0)),
        f16: tera(148.0),
        bf16: Some(tera(148.0)),
        fp8: Some(tera(296.0)),
        i8: Some(tera(296.0)),
    },
    datasheet: "NVIDIA H20 datasheet (f32: its cores at their clock; the datasheet's 44 is above that)",
    known: CODE,
    ..SXM
};

/// The GPU of a Grace Hopper superchip. The host's memory is a second pool, which the GPU accesses over NVLink-C2C.
const GH200: Gpu = Gpu {
    name: "GH200",
    card: "NVIDIA GH200 480GB",
    memory_bytes: 101_876_624_261,
    memory_source: "94.88 GiB in Lightning-AI/litgpt#1892, to 0.01 GiB",
    l2_bytes: 62_914_560,
    bus_bits: 6144,
    power_watts: 900,
    bandwidth: Bandwidth::nvlink(4_000.0, 450.0, 450.0),
    datasheet: "NVIDIA GH200 Grace Hopper Superchip datasheet (HBM3; NVLink-C2C in place of PCIe)",
    pool: Pool::Coherent,
    ..SXM
};
