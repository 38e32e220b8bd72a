//! Ada Lovelace: compute capability 8.9.

use crate::gpu::{Bandwidth, FlopRates, Gpu, tera};

pub(super) const RTX_4090: Gpu = Gpu {
    name: "RTX-4090",
    card: "NVIDIA GeForce RTX 4090",
    memory_bytes: 25_382_879_232,
    memory_source: "23.64 GiB in 3DTopia/Phidias-Diffusion#8",
    capability: (8, 9),
    multiprocessors: 128,
    l2_bytes: 75_497_472,
    shared_bytes_per_multiprocessor: 102_400,
    shared_bytes_per_block: 101_376,
    threads_per_multiprocessor: 1536,
    blocks_per_multiprocessor: 24,
    bus_bits: 384,
    clock_khz: 2_520_000,
    memory_clock_khz: 10_501_000,
    power_watts: 450,
    bandwidth: Bandwidth::pcie(1_008.0, 32.0),
    flops: FlopRates {
        f64: tera(1.29),
        f32: tera(82.6),
        tf32: Some(tera(82.6)),
        f16: tera(165.2),
        bf16: Some(tera(165.2)),
        fp8: Some(tera(330.3)),
        i8: Some(tera(660.6)),
    },
    datasheet: "NVIDIA Ada GPU Architecture, appendix A (GeForce RTX 4090)",
};

pub(super) const L40S: Gpu = Gpu {
    name: "L40S",
    card: "NVIDIA L40S",
    memory_bytes: 47_695_527_936,
    memory_source: "44.42 GiB in stepfun-ai/Step-Video-T2V#8",
    multiprocessors: 142,
    l2_bytes: 100_663_296,
    memory_clock_khz: 9_001_000,
    power_watts: 350,
    bandwidth: Bandwidth::pcie(864.0, 32.0),
    flops: FlopRates {
        f64: tera(1.43),
        f32: tera(91.6),
        tf32: Some(tera(183.0)),
        f16: tera(362.05),
        bf16: Some(tera(362.05)),
        fp8: Some(tera(733.0)),
        i8: Some(tera(733.0)),
    },
    datasheet: "NVIDIA L40S datasheet (f64: a 64th of f32, as of its chip)",
    ..RTX_4090
};

pub(super) const L4: Gpu = Gpu {
    name: "L4",
    card: "NVIDIA L4",
    memory_bytes: 23_583_784_960,
    memory_source: "bottlerocket-os/bottlerocket-kernel-kit#139, driver 535",
    multiprocessors: 58,
    l2_bytes: 50_331_648,
    bus_bits: 192,
    clock_khz: 2_040_000,
    memory_clock_khz: 6_251_000,
    power_watts: 72,
    bandwidth: Bandwidth::pcie(300.0, 32.0),
    flops: FlopRates {
        f64: tera(0.473),
        f32: tera(30.3),
        tf32: Some(tera(60.0)),
        f16: tera(121.0),
        bf16: Some(tera(121.0)),
        fp8: Some(tera(242.5)),
        i8: Some(tera(242.5)),
    },
    datasheet: "NVIDIA L4 datasheet (sparse rates halved; f64: a 64th of f32, as of its chip)",
    ..RTX_4090
};
