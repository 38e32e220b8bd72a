//! Ampere: compute capabilities 8.0 (data centre) and 8.6 (graphics).

use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool, tera};

/// In listing order. Of GPUs with the same capability and memory size, a lookup by size finds the first.
pub(super) const GPUS: &[Gpu] =
    &[A100_80GB, A100_40GB, A30, RTX_3090, RTX_3080, RTX_3070, RTX_3060, A10G, A40, A6000, RTX_A5000];

const A100_80GB: Gpu = Gpu {
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
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const A100_40GB: Gpu = Gpu {
    name: "A100-40GB",
    card: "NVIDIA A100-SXM4-40GB",
    memory_bytes: 42_298_834_944,
    memory_source: "bottlerocket-os/bottlerocket#3873, driver 535",
    memory_clock_khz: 1_215_000,
    bandwidth: Bandwidth::nvlink(1_555.0, 32.0, 300.0),
    ..A100_80GB
};

const A30: Gpu = Gpu {
    name: "A30",
    card: "NVIDIA A30",
    memory_bytes: 25_265_145_118,
    memory_source: "23.53 GiB in google/RB-Modulation#5, to 0.01 GiB",
    multiprocessors: 56,
    l2_bytes: 25_165_824,
    bus_bits: 3072,
    clock_khz: 1_440_000,
    memory_clock_khz: 1_215_000,
    power_watts: 165,
    bandwidth: Bandwidth::nvlink(933.0, 32.0, 100.0),
    flops: FlopRates {
        f64: tera(10.3),
        f32: tera(10.3),
        tf32: Some(tera(82.0)),
        f16: tera(165.0),
        bf16: Some(tera(165.0)),
        fp8: None,
        i8: Some(tera(330.0)),
    },
    datasheet: "NVIDIA A30 Tensor Core GPU datasheet",
    ..A100_80GB
};

const RTX_3090: Gpu = Gpu {
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
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const RTX_3080: Gpu = Gpu {
    name: "RTX-3080",
    card: "NVIDIA GeForce RTX 3080",
    memory_bytes: 10_501_195_038,
    memory_source: "9.78 GiB in zai-org/CogVideo#34, to 0.01 GiB",
    multiprocessors: 68,
    l2_bytes: 5_242_880,
    bus_bits: 320,
    clock_khz: 1_710_000,
    memory_clock_khz: 9_501_000,
    power_watts: 320,
    bandwidth: Bandwidth::pcie(760.0, 32.0),
    flops: FlopRates {
        f64: tera(0.465),
        f32: tera(29.8),
        tf32: Some(tera(29.8)),
        f16: tera(59.5),
        bf16: Some(tera(59.5)),
        fp8: None,
        i8: Some(tera(238.0)),
    },
    datasheet: "NVIDIA Ampere GA102 GPU Architecture (GeForce RTX 3080 with 10 GB)",
    ..RTX_3090
};

const RTX_3070: Gpu = Gpu {
    name: "RTX-3070",
    card: "NVIDIA GeForce RTX 3070",
    memory_bytes: 8_353_711_390,
    memory_source: "7.78 GiB in akshitac8/OW-DETR#46, to 0.01 GiB",
    multiprocessors: 46,
    l2_bytes: 4_194_304,
    bus_bits: 256,
    clock_khz: 1_725_000,
    memory_clock_khz: 7_001_000,
    power_watts: 220,
    bandwidth: Bandwidth::pcie(448.0, 32.0),
    flops: FlopRates {
        f64: tera(0.317),
        f32: tera(20.3),
        tf32: Some(tera(20.3)),
        f16: tera(40.6),
        bf16: Some(tera(40.6)),
        fp8: None,
        i8: Some(tera(162.6)),
    },
    datasheet: "NVIDIA Ampere GA102 GPU Architecture, appendix (GeForce RTX 3070)",
    ..RTX_3090
};

const RTX_3060: Gpu = Gpu {
    name: "RTX-3060",
    card: "NVIDIA GeForce RTX 3060",
    memory_bytes: 12_616_466_432,
    memory_source: "11.75 GiB in Kunhao-Liu/StyleGaussian#12, to 0.01 GiB",
    multiprocessors: 28,
    l2_bytes: 2_359_296,
    bus_bits: 192,
    clock_khz: 1_777_000,
    memory_clock_khz: 7_501_000,
    power_watts: 170,
    bandwidth: Bandwidth::pcie(360.0, 32.0),
    flops: FlopRates {
        f64: tera(0.199),
        f32: tera(12.7),
        tf32: Some(tera(12.7)),
        f16: tera(25.5),
        bf16: Some(tera(25.5)),
        fp8: None,
        i8: Some(tera(101.9)),
    },
    datasheet: "NVIDIA's specifications of the GeForce RTX 3060 with 12 GB (rates per core and clock: the RTX 3090's)",
    ..RTX_3090
};

const A10G: Gpu = Gpu {
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

const A40: Gpu = Gpu {
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

const A6000: Gpu = Gpu {
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

const RTX_A5000: Gpu = Gpu {
    name: "RTX-A5000",
    card: "NVIDIA RTX A5000",
    memory_bytes: 25_426_206_392,
    memory_source: "23.68 GiB in zai-org/GLM-4#730, to 0.01 GiB",
    multiprocessors: 64,
    clock_khz: 1_695_000,
    memory_clock_khz: 8_001_000,
    power_watts: 230,
    bandwidth: Bandwidth::nvlink(768.0, 32.0, 56.25),
    flops: FlopRates {
        f64: tera(0.434),
        f32: tera(27.8),
        tf32: Some(tera(55.6)),
        f16: tera(111.1),
        bf16: Some(tera(111.1)),
        fp8: None,
        i8: Some(tera(222.2)),
    },
    datasheet: "NVIDIA RTX A5000 datasheet (its sparse tensor rate halved; other types: the A6000's ratios)",
    ..A40
};
