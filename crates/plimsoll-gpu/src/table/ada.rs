//! Ada Lovelace: compute capability 8.9.

use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool, tera};

/// In listing order. Among GPUs with the same capability and memory size, a lookup by size finds the
/// first.
pub(super) const GPUS: &[Gpu] = &[
    RTX_4090,
    RTX_4080,
    RTX_4080_SUPER,
    RTX_4070_TI_SUPER,
    RTX_4070,
    RTX_4060_TI_16GB,
    RTX_6000_ADA,
    L40S,
    L40,
    L4,
];

const RTX_4090: Gpu = Gpu {
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
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const RTX_4080: Gpu = Gpu {
    name: "RTX-4080",
    card: "NVIDIA GeForce RTX 4080",
    memory_bytes: 16_828_596_224,
    memory_source: "16049 MiB in PyTorch's device properties",
    multiprocessors: 76,
    l2_bytes: 67_108_864,
    bus_bits: 256,
    clock_khz: 2_505_000,
    memory_clock_khz: 11_201_000,
    power_watts: 320,
    bandwidth: Bandwidth::pcie(716.8, 32.0),
    flops: FlopRates {
        f64: tera(0.761),
        f32: tera(48.7),
        tf32: Some(tera(48.7)),
        f16: tera(97.5),
        bf16: Some(tera(97.5)),
        fp8: Some(tera(194.9)),
        i8: Some(tera(389.9)),
    },
    datasheet: "NVIDIA Ada GPU Architecture, appendix (GeForce RTX 4080)",
    ..RTX_4090
};

const RTX_4080_SUPER: Gpu = Gpu {
    name: "RTX-4080-SUPER",
    card: "NVIDIA GeForce RTX 4080 SUPER",
    memory_bytes: 16_750_372_454,
    memory_source: "15.60 GiB in shanice-l/UNOPose#4, to 0.01 GiB",
    multiprocessors: 80,
    l2_bytes: 67_108_864,
    bus_bits: 256,
    clock_khz: 2_550_000,
    memory_clock_khz: 11_501_000,
    power_watts: 320,
    bandwidth: Bandwidth::pcie(736.3, 32.0),
    flops: FlopRates {
        f64: tera(0.816),
        f32: tera(52.2),
        tf32: Some(tera(52.2)),
        f16: tera(104.4),
        bf16: Some(tera(104.4)),
        fp8: Some(tera(208.9)),
        i8: Some(tera(417.8)),
    },
    datasheet: "NVIDIA's specifications of the GeForce RTX 4080 SUPER (rates per core and clock: the RTX 4090's)",
    ..RTX_4090
};

const RTX_4070_TI_SUPER: Gpu = Gpu {
    name: "RTX-4070-Ti-SUPER",
    card: "NVIDIA GeForce RTX 4070 Ti SUPER",
    memory_bytes: 16_750_372_454,
    memory_source: "15.60 GiB in kinggongzilla/whatsapp-ai-clone#12, to 0.01 GiB",
    multiprocessors: 66,
    l2_bytes: 50_331_648,
    bus_bits: 256,
    clock_khz: 2_610_000,
    memory_clock_khz: 10_501_000,
    power_watts: 285,
    bandwidth: Bandwidth::pcie(672.0, 32.0),
    flops: FlopRates {
        f64: tera(0.689),
        f32: tera(44.1),
        tf32: Some(tera(44.1)),
        f16: tera(88.2),
        bf16: Some(tera(88.2)),
        fp8: Some(tera(176.4)),
        i8: Some(tera(352.8)),
    },
    datasheet: "NVIDIA's specifications of the GeForce RTX 4070 Ti SUPER (rates per core and clock: the RTX 4090's)",
    ..RTX_4090
};

const RTX_4070: Gpu = Gpu {
    name: "RTX-4070",
    card: "NVIDIA GeForce RTX 4070",
    memory_bytes: 12_481_200_128,
    memory_source: "11903 MiB in ggml's messages",
    multiprocessors: 46,
    l2_bytes: 37_748_736,
    bus_bits: 192,
    clock_khz: 2_475_000,
    memory_clock_khz: 10_501_000,
    power_watts: 200,
    bandwidth: Bandwidth::pcie(504.0, 32.0),
    flops: FlopRates {
        f64: tera(0.455),
        f32: tera(29.1),
        tf32: Some(tera(29.1)),
        f16: tera(58.3),
        bf16: Some(tera(58.3)),
        fp8: Some(tera(116.6)),
        i8: Some(tera(233.2)),
    },
    datasheet: "NVIDIA's specifications of the GeForce RTX 4070 (rates per core and clock: the RTX 4090's)",
    ..RTX_4090
};

const RTX_4060_TI_16GB: Gpu = Gpu {
    name: "RTX-4060-Ti-16GB",
    card: "NVIDIA GeForce RTX 4060 Ti",
    memory_bytes: 16_718_495_744,
    memory_source: "15944 MiB in ggml's messages",
    multiprocessors: 34,
    l2_bytes: 33_554_432,
    bus_bits: 128,
    clock_khz: 2_535_000,
    memory_clock_khz: 9_001_000,
    power_watts: 165,
    bandwidth: Bandwidth::pcie(288.0, 16.0),
    flops: FlopRates {
        f64: tera(0.345),
        f32: tera(22.1),
        tf32: Some(tera(22.1)),
        f16: tera(44.1),
        bf16: Some(tera(44.1)),
        fp8: Some(tera(88.3)),
        i8: Some(tera(176.5)),
    },
    datasheet: "NVIDIA's specifications of the GeForce RTX 4060 Ti with 16 GB (rates per core and clock: the RTX 4090's)",
    ..RTX_4090
};

const L40S: Gpu = Gpu {
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

const L40: Gpu = Gpu {
    name: "L40",
    card: "NVIDIA L40",
    memory_bytes: 47_674_136_985,
    memory_source: "44.40 GiB in QwenLM/Qwen3-VL#2097, to 0.01 GiB",
    clock_khz: 2_490_000,
    power_watts: 300,
    flops: FlopRates {
        f64: tera(1.41),
        f32: tera(90.5),
        tf32: Some(tera(90.5)),
        f16: tera(181.05),
        bf16: Some(tera(181.05)),
        fp8: Some(tera(362.0)),
        i8: Some(tera(362.0)),
    },
    datasheet: "NVIDIA L40 datasheet (f64: a 64th of f32, as of its chip)",
    ..L40S
};

const RTX_6000_ADA: Gpu = Gpu {
    name: "RTX-6000-Ada",
    card: "NVIDIA RTX 6000 Ada Generation",
    memory_bytes: 50_983_862_272,
    memory_source: "48622 MiB in PyTorch's device properties, ECC off",
    clock_khz: 2_505_000,
    memory_clock_khz: 10_001_000,
    power_watts: 300,
    bandwidth: Bandwidth::pcie(960.0, 32.0),
    flops: FlopRates {
        f64: tera(1.42),
        f32: tera(91.1),
        tf32: Some(tera(182.1)),
        f16: tera(364.2),
        bf16: Some(tera(364.2)),
        fp8: Some(tera(728.5)),
        i8: Some(tera(728.5)),
    },
    datasheet: "NVIDIA RTX 6000 Ada datasheet (its sparse FP8 rate halved; other types: the L40S's ratios)",
    ..L40S
};

const L4: Gpu = Gpu {
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
