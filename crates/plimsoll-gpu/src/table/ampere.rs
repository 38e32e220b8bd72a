//! Ampere: compute capabilities 8.0 (data centre) and 8.6 (graphics).

use crate::gpu::{Bandwidth, FlopRates, Gpu, tera};

pub(super) const A100_80GB: Gpu = Gpu {
    name: "A100-80GB",
    card: "NVIDIA A100-SXM4-80GB",
    memory_bytes: 84_986_036_224,
    memory_source: "ekondis/mixbench#47, to the MiB",
    capability: (8, 0),
    multiprocessors: 108,
    l2_bytes: 41_943_040,
    shared_bytes_per_multiprocessor: 167_936,
    shared_bytes_per_block: 166_912,
    threads_per_multiprocessor: 2048,
    blocks_per_multiprocessor: 32,
    bus_bits: 5120,
    clock_khz: 1_410_000,
    memory_clock_khz: 1_593_000,
    power_watts: 400,
    bandwidth: Bandwidth::nvlink(2_039.0, 32.0, 300.0),
    flops: FlopRates {
        f64: tera(19.5),
        f32: tera(19.5),
        tf32: Some(tera(156.0)),
        f16: tera(312.0),
        bf16: Some(tera(312.0)),
        fp8: None,
        i8: Some(tera(624.0)),
    },
    datasheet: "NVIDIA A100 Tensor Core GPU datasheet (SXM)",
};

pub(super) const A100_40GB: Gpu = Gpu {
    name: "A100-40GB",
    card: "NVIDIA A100-SXM4-40GB",
    memory_bytes: 42_298_834_944,
    memory_source: "bottlerocket-os/bottlerocket#3873, driver 535",
    memory_clock_khz: 1_215_000,
    bandwidth: Bandwidth::nvlink(1_555.0, 32.0, 300.0),
    ..A100_80GB
};

pub(super) const RTX_3090: Gpu = Gpu {
    name: "RTX-3090",
    card: "NVIDIA GeForce RTX 3090",
    memory_bytes: 25_425_870_848,
    memory_source: "23.68 GiB in wutong16/HyperDreamer#4",
    capability: (8, 6),
    multiprocessors: 82,
    l2_bytes: 6_291_456,
    shared_bytes_per_multiprocessor: 102_400,
    shared_bytes_per_block: 101_376,
    threads_per_multiprocessor: 1536,
    blocks_per_multiprocessor: 16,
    bus_bits: 384,
    clock_khz: 1_695_000,
    memory_clock_khz: 9_751_000,
    power_watts: 350,
    bandwidth: Bandwidth::nvlink(936.0, 32.0, 56.25),
    flops: FlopRates {
        f64: tera(0.556),
        f32: tera(35.6),
        tf32: Some(tera(35.6)),
        f16: tera(71.0),
        bf16: Some(tera(71.0)),
        fp8: None,
        i8: Some(tera(284.0)),
    },
    datasheet: "NVIDIA Ampere GA102 GPU Architecture, appendix (GeForce RTX 3090)",
};

pub(super) const A10G: Gpu = Gpu {
    name: "A10G",
    card: "NVIDIA A10G",
    memory_bytes: 23_684_186_112,
    memory_source: "22587 MiB in PyTorch 2.15's device properties",
    multiprocessors: 80,
    clock_khz: 1_710_000,
    memory_clock_khz: 6_251_000,
    power_watts: 300,
    bandwidth: Bandwidth::pcie(600.0, 32.0),
    flops: FlopRates {
        f64: tera(0.547),
        f32: tera(35.0),
        tf32: Some(tera(35.0)),
        f16: tera(70.0),
        bf16: Some(tera(70.0)),
        fp8: None,
        i8: Some(tera(140.0)),
    },
    datasheet: "NVIDIA A10G Tensor Core GPU datasheet (f64: a 64th of f32, as of its chip)",
    ..RTX_3090
};

pub(super) const A40: Gpu = Gpu {
    name: "A40",
    card: "NVIDIA A40",
    memory_bytes: 47_622_127_616,
    memory_source: "45416 MiB in PyTorch's device properties",
    multiprocessors: 84,
    clock_khz: 1_740_000,
    memory_clock_khz: 7_251_000,
    power_watts: 300,
    bandwidth: Bandwidth::nvlink(696.0, 32.0, 56.25),
    flops: FlopRates {
        f64: tera(0.584),
        f32: tera(37.4),
        tf32: Some(tera(74.8)),
        f16: tera(149.7),
        bf16: Some(tera(149.7)),
        fp8: None,
        i8: Some(tera(299.3)),
    },
    datasheet: "NVIDIA A40 datasheet (f64: a 64th of f32, as of its chip)",
    ..RTX_3090
};

pub(super) const A6000: Gpu = Gpu {
    name: "A6000",
    card: "NVIDIA RTX A6000",
    memory_bytes: 51_040_485_376,
    memory_source: "48676 MiB in PyTorch's device properties",
    clock_khz: 1_800_000,
    memory_clock_khz: 8_001_000,
    bandwidth: Bandwidth::nvlink(768.0, 32.0, 56.25),
    flops: FlopRates {
        f64: tera(0.605),
        f32: tera(38.7),
        tf32: Some(tera(77.4)),
        f16: tera(154.8),
        bf16: Some(tera(154.8)),
        fp8: None,
        i8: Some(tera(309.7)),
    },
    datasheet: "NVIDIA Ampere GA102 GPU Architecture, appendix (RTX A6000)",
    ..A40
};
