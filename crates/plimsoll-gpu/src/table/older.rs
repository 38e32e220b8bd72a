//! Turing, Volta and Pascal: compute capabilities 7.5, 7.0 and 6.0. PyTorch for CUDA 13 supports only the first of
//! these, PyTorch for CUDA 12.6 all three.

use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool, tera};

/// In listing order. Of GPUs with the same capability and memory size, a lookup by size finds the first.
pub(super) const GPUS: &[Gpu] = &[T4, RTX_2080_TI, V100_32GB, V100_16GB, P100];

const T4: Gpu = Gpu {
    name: "T4",
    card: "Tesla T4",
    memory_bytes: 15_837_691_904,
    memory_source: "14.75 GiB in hpcaitech/Open-Sora#697",
    capability: (7, 5),
    multiprocessors: 40,
    l2_bytes: 4_194_304,
    shared_bytes_per_multiprocessor: 65_536,
    shared_bytes_per_block: 65_536,
    threads_per_multiprocessor: 1024,
    blocks_per_multiprocessor: 16,
    bus_bits: 256,
    clock_khz: 1_590_000,
    memory_clock_khz: 5_001_000,
    power_watts: 70,
    bandwidth: Bandwidth::pcie(320.0, 16.0),
    flops: FlopRates {
        f64: tera(0.254),
        f32: tera(8.1),
        tf32: None,
        f16: tera(65.0),
        bf16: None,
        fp8: None,
        i8: Some(tera(130.0)),
    },
    datasheet: "NVIDIA T4 datasheet (f64: a 32nd of f32, as of its chip)",
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const RTX_2080_TI: Gpu = Gpu {
    name: "RTX-2080-Ti",
    card: "NVIDIA GeForce RTX 2080 Ti",
    memory_bytes: 11_554_258_944,
    memory_source: "11019 MiB in PyTorch's device properties",
    multiprocessors: 68,
    l2_bytes: 5_767_168,
    bus_bits: 352,
    clock_khz: 1_545_000,
    memory_clock_khz: 7_000_000,
    power_watts: 250,
    bandwidth: Bandwidth::nvlink(616.0, 16.0, 50.0),
    flops: FlopRates {
        f64: tera(0.42),
        f32: tera(13.4),
        tf32: None,
        f16: tera(53.8),
        bf16: None,
        fp8: None,
        i8: Some(tera(215.2)),
    },
    datasheet: "NVIDIA Turing GPU Architecture, appendix (GeForce RTX 2080 Ti, reference)",
    ..T4
};

const V100_32GB: Gpu = Gpu {
    name: "V100-32GB",
    card: "Tesla V100-SXM2-32GB",
    memory_bytes: 34_079_768_576,
    memory_source: "31.74 GiB in liucongg/ChatGLM-Finetuning#73",
    capability: (7, 0),
    multiprocessors: 80,
    l2_bytes: 6_291_456,
    shared_bytes_per_multiprocessor: 98_304,
    shared_bytes_per_block: 98_304,
    threads_per_multiprocessor: 2048,
    blocks_per_multiprocessor: 32,
    bus_bits: 4096,
    clock_khz: 1_530_000,
    memory_clock_khz: 877_000,
    power_watts: 300,
    bandwidth: Bandwidth::nvlink(900.0, 16.0, 150.0),
    flops: FlopRates {
        f64: tera(7.8),
        f32: tera(15.7),
        tf32: None,
        f16: tera(125.0),
        bf16: None,
        fp8: None,
        i8: Some(tera(62.8)),
    },
    datasheet: "NVIDIA V100 datasheet (SXM2; i8: four times f32, by its dot product of four)",
    pool: Pool::Own,
    known: KnownBytes::NONE,
};

const V100_16GB: Gpu = Gpu {
    name: "V100-16GB",
    card: "Tesla V100-SXM2-16GB",
    memory_bytes: 16_942_891_008,
    memory_source: "15.78 GiB in kchengiva/Shift-GCN#34",
    ..V100_32GB
};

const P100: Gpu = Gpu {
    name: "P100",
    card: "Tesla P100-PCIE-16GB",
    memory_bytes: 17_071_734_784,
    memory_source: "16280 MiB in PyTorch's device properties, to the MiB",
    capability: (6, 0),
    multiprocessors: 56,
    l2_bytes: 4_194_304,
    shared_bytes_per_multiprocessor: 65_536,
    shared_bytes_per_block: 49_152,
    clock_khz: 1_328_500,
    memory_clock_khz: 715_000,
    power_watts: 250,
    bandwidth: Bandwidth::pcie(732.0, 16.0),
    flops: FlopRates {
        f64: tera(4.7),
        f32: tera(9.3),
        tf32: None,
        f16: tera(18.7),
        bf16: None,
        fp8: None,
        i8: None,
    },
    datasheet: "NVIDIA Tesla P100 datasheet (PCIe)",
    ..V100_32GB
};
