//! Hopper: compute capability 9.0.

use crate::gpu::{Bandwidth, FlopRates, Gpu, tera};

/// In listing order. Of GPUs with the same capability and memory size, a look-up by size finds the first.
pub(super) const GPUS: &[Gpu] = &[H200, H100, H100_PCIE, H20];

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
    ..SXM
};

const H100: Gpu = Gpu {
    name: "H100",
    card: "NVIDIA H100 80GB HBM3",
    memory_bytes: 85_017_493_504,
    memory_source: "measured, driver 580.159.04",
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
    ..SXM
};
