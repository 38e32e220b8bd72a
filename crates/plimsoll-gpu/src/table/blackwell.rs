//! Blackwell: compute capabilities 10.0 and 10.3 (data centre), 12.0 (graphics) and 12.1 (DGX Spark).

use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool, tera};

/// In listing order. Of GPUs with the same capability and memory size, a lookup by size finds the first.
pub(super) const GPUS: &[Gpu] = &[B200, GB200, B300, RTX_5090, RTX_5080, RTX_5070_TI, RTX_PRO_6000, GB10];

const B200: Gpu = Gpu {
    name: "B200",
    card: "NVIDIA B200",
    memory_bytes: 191_501_854_310,
    memory_source: "178.35 GiB in pytorch/ao#4002, to 0.01 GiB",
    capability: (10, 0),
    multiprocessors: 148,
    l2_bytes: 132_644_864,
    shared_bytes_per_multiprocessor: 233_472,
    shared_bytes_per_block: 232_448,
    threads_per_multiprocessor: 2048,
    blocks_per_multiprocessor: 32,
    bus_bits: 7680,
    clock_khz: 1_965_000,
    memory_clock_khz: 3_996_000,
    power_watts: 1000,
    bandwidth: Bandwidth::nvlink(7_700.0, 64.0, 900.0),
    flops: FlopRates {
        f64: tera(37.0),
        f32: tera(75.0),
        tf32: Some(tera(1_100.0)),
        f16: tera(2_250.0),
        bf16: Some(tera(2_250.0)),
        fp8: Some(tera(4_500.0)),
        i8: Some(tera(4_500.0)),
    },
    datasheet: "NVIDIA Blackwell datasheet (HGX B200, an eighth of it; sparse rates halved)",
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const GB200: Gpu = Gpu {
    name: "GB200",
    card: "NVIDIA GB200",
    memory_bytes: 197_901_355_581,
    memory_source: "184.31 GiB in PyTorch's messages, to 0.01 GiB",
    multiprocessors: 152,
    bus_bits: 8192,
    clock_khz: 2_062_000,
    power_watts: 1200,
    bandwidth: Bandwidth::nvlink(8_000.0, 64.0, 900.0),
    flops: FlopRates {
        f64: tera(40.0),
        f32: tera(80.0),
        tf32: Some(tera(1_250.0)),
        f16: tera(2_500.0),
        bf16: Some(tera(2_500.0)),
        fp8: Some(tera(5_000.0)),
        i8: Some(tera(5_000.0)),
    },
    datasheet: "NVIDIA GB200 NVL72 datasheet (one GPU of the superchip's two; sparse rates halved)",
    pool: Pool::Coherent,
    ..B200
};

const B300: Gpu = Gpu {
    name: "B300",
    card: "NVIDIA B300 SXM6 AC",
    memory_bytes: 287_429_948_866,
    memory_source: "267.69 GiB in PyTorch's messages, to 0.01 GiB",
    capability: (10, 3),
    clock_khz: 2_032_000,
    power_watts: 1100,
    flops: FlopRates {
        f64: tera(1.25),
        f32: tera(75.0),
        tf32: Some(tera(1_125.0)),
        f16: tera(2_250.0),
        bf16: Some(tera(2_250.0)),
        fp8: Some(tera(4_500.0)),
        i8: Some(tera(150.0)),
    },
    datasheet: "NVIDIA Blackwell technical brief (HGX B300, an eighth of it; sparse rates halved; bandwidths: the B200's)",
    ..B200
};

const RTX_5090: Gpu = Gpu {
    name: "RTX-5090",
    card: "NVIDIA GeForce RTX 5090",
    memory_bytes: 33_680_457_728,
    memory_source: "NVIDIA/nccl#1637, driver 570",
    capability: (12, 0),
    multiprocessors: 170,
    l2_bytes: 100_663_296,
    shared_bytes_per_multiprocessor: 102_400,
    shared_bytes_per_block: 101_376,
    threads_per_multiprocessor: 1536,
    blocks_per_multiprocessor: 24,
    bus_bits: 512,
    clock_khz: 2_550_000,
    memory_clock_khz: 14_001_000,
    power_watts: 575,
    bandwidth: Bandwidth::pcie(1_792.0, 64.0),
    flops: FlopRates {
        f64: tera(1.64),
        f32: tera(104.8),
        tf32: Some(tera(104.8)),
        f16: tera(209.5),
        bf16: Some(tera(209.5)),
        fp8: Some(tera(419.0)),
        i8: Some(tera(838.0)),
    },
    datasheet: "NVIDIA RTX Blackwell GPU Architecture, appendix A (GeForce RTX 5090)",
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const RTX_5080: Gpu = Gpu {
    name: "RTX-5080",
    card: "NVIDIA GeForce RTX 5080",
    memory_bytes: 16_621_523_435,
    memory_source: "15.48 GiB in Tencent-Hunyuan/Hunyuan3D-2#238, to 0.01 GiB",
    multiprocessors: 84,
    l2_bytes: 67_108_864,
    bus_bits: 256,
    clock_khz: 2_617_000,
    memory_clock_khz: 15_001_000,
    power_watts: 360,
    bandwidth: Bandwidth::pcie(960.0, 64.0),
    flops: FlopRates {
        f64: tera(0.88),
        f32: tera(56.3),
        tf32: Some(tera(56.3)),
        f16: tera(112.6),
        bf16: Some(tera(112.6)),
        fp8: Some(tera(225.1)),
        i8: Some(tera(450.2)),
    },
    datasheet: "NVIDIA RTX Blackwell GPU Architecture, appendix (GeForce RTX 5080)",
    ..RTX_5090
};

const RTX_5070_TI: Gpu = Gpu {
    name: "RTX-5070-Ti",
    card: "NVIDIA GeForce RTX 5070 Ti",
    memory_bytes: 16_611_540_992,
    memory_source: "15842 MiB in ggml's messages",
    multiprocessors: 70,
    l2_bytes: 50_331_648,
    bus_bits: 256,
    clock_khz: 2_452_000,
    memory_clock_khz: 14_001_000,
    power_watts: 300,
    bandwidth: Bandwidth::pcie(896.0, 64.0),
    flops: FlopRates {
        f64: tera(0.687),
        f32: tera(43.9),
        tf32: Some(tera(43.9)),
        f16: tera(87.9),
        bf16: Some(tera(87.9)),
        fp8: Some(tera(175.8)),
        i8: Some(tera(351.5)),
    },
    datasheet: "NVIDIA RTX Blackwell GPU Architecture, appendix (GeForce RTX 5070 Ti)",
    ..RTX_5090
};

const RTX_PRO_6000: Gpu = Gpu {
    name: "RTX-PRO-6000",
    card: "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    memory_bytes: 101_973_261_025,
    memory_source: "94.97 GiB in PyTorch's messages, to 0.01 GiB",
    multiprocessors: 188,
    l2_bytes: 134_217_728,
    clock_khz: 2_617_000,
    power_watts: 600,
    flops: FlopRates {
        f64: tera(1.97),
        f32: tera(126.0),
        tf32: Some(tera(251.9)),
        f16: tera(503.8),
        bf16: Some(tera(503.8)),
        fp8: Some(tera(1_007.6)),
        i8: Some(tera(1_007.6)),
    },
    datasheet: "NVIDIA RTX Blackwell PRO GPU Architecture, appendix (RTX PRO 6000 Blackwell Workstation Edition)",
    ..RTX_5090
};

/// The GPU of a DGX Spark. It shares LPDDR5X memory with the host: CUDA's total is the system's total (`MemTotal`), and
/// `nvidia-smi` shows no memory.
const GB10: Gpu = Gpu {
    name: "GB10",
    card: "NVIDIA GB10",
    memory_bytes: 130_663_006_208,
    memory_source: "unslothai/unsloth#10486: CUDA's total is MemTotal, byte for byte",
    capability: (12, 1),
    multiprocessors: 48,
    l2_bytes: 25_165_824,
    bus_bits: 256,
    clock_khz: 2_418_000,
    memory_clock_khz: 4_266_000,
    power_watts: 140,
    bandwidth: Bandwidth::pcie(273.0, 64.0),
    flops: FlopRates {
        f64: tera(0.46),
        f32: tera(29.7),
        tf32: Some(tera(62.5)),
        f16: tera(125.0),
        bf16: Some(tera(125.0)),
        fp8: Some(tera(250.0)),
        i8: Some(tera(250.0)),
    },
    datasheet: "NVIDIA DGX Spark datasheet (1 PFLOP/s of sparse FP4: 16-bit products an eighth; f32: its cores at their clock)",
    pool: Pool::Host,
    ..RTX_5090
};
