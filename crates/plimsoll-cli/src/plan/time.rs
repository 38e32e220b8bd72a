//! An estimate of a step's time: [`Work`], the operators of a step, against the GPU's bandwidth and FLOP/s.
//!
//! On the GPU, each operator takes the longest of its arithmetic, its memory traffic and the start of a kernel; the
//! host needs about the same time for each operator, and the step takes the longer of the two. The choice of kernels
//! and the program's own work on the host are unknown, so the figures are good for comparing sets, not as absolute
//! times. The constants are fitted to programs on an H200 (note 0019).

use plimsoll_gpu::Gpu;

use crate::predict::trial::{End, Trial};
use crate::techniques::{Set, Time, Value};

/// The share of the datasheet's matrix rate that PyTorch's matrix products reach.
const PRODUCTS: f64 = 0.7;
/// The same for convolutions on tensor cores; f32 values run in TF32.
const CONVOLUTIONS: f64 = 0.2;
/// The share of the datasheet's bandwidth that element-wise operators, normalizations and reductions reach.
const TRAFFIC: f64 = 0.42;
/// The same for convolutions, which read their input several times.
const CONVOLUTION_TRAFFIC: f64 = 0.2;
/// The share of the datasheet's PCIe bandwidth that copies from and to pinned memory reach: 55.3 of 64 GB/s
/// on an H200 (note 0019).
const PINNED: f64 = 0.86;
/// Bytes per second of the disk that saved tensors move to, in each direction: an assumption, for an NVMe SSD. The row's note says so.
const DISK_BYTES_PER_S: f64 = 2e9;
/// The share of the datasheet's NVLink or PCIe bandwidth that a collective reaches.
const WIRE: f64 = 0.7;
/// Copies and computation overlap, except for this share of the shorter one. Fitted to programs on an H200
/// (note 0019).
const EXPOSED: f64 = 0.1;
/// The share of a step that the forward pass takes: a third of the matrix products.
const FORWARD: f64 = 1.0 / 3.0;
/// Seconds that the GPU needs for a kernel that does almost nothing.
const KERNEL_S: f64 = 3e-6;
/// Seconds that the host needs for an operator, with the Python and the dispatch around it.
const HOST_S: f64 = 32e-6;
/// Seconds of host time for each checkpointed block, besides its operators, with PyTorch's checkpointing or
/// ours: measured on an H200's host (note 0019).
const AGAIN_S: f64 = 0.6e-3;
/// The memory traffic under bf16 autocast: half for products and activations, the same for parameters and optimizers.
const NARROW: f64 = 0.6;

/// The prefix of a convolution's type.
const CONVOLUTION: &str = "conv ";

/// The operators of one step.
#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    rows: Vec<Row>,
    /// Repeated blocks.
    blocks: u64,
    /// Repeated blocks inside those blocks.
    pub(super) nested: u64,
}

#[derive(Debug, Clone)]
struct Row {
    phase: Phase,
    rate: Rate,
    is_convolution: bool,
    flops: f64,
    bytes: f64,
    number: f64,
}

/// The part of a step in which an operator ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The forward pass of a block, and of a block inside it.
    Block(u64, Option<u64>),
    /// The rest of the model's forward pass.
    Root,
    /// The backward pass, the optimizer, and all else.
    Rest,
}

/// The arithmetic rate that applies to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    F64,
    F32,
    Tf32,
    F16,
    Bf16,
}

/// Products of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// Of f32, not rounded to TF32.
    F32,
    /// Of 16 bits.
    Narrow,
}

/// The cost of a set, compared with the program as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    /// Estimated seconds of a step.
    pub(super) step_s: f64,
    /// FLOPs of a step beyond those of the program as it is.
    pub(super) extra_flops: u64,
    /// Bytes that a step moves over PCIe, both directions together.
    pub(super) pcie_bytes: u64,
    /// Bytes that a GPU sends to the others in a step.
    pub(super) wire_bytes: u64,
}

impl Work {
    /// Reads what a counting trial reported; empty if it did not run to its end.
    pub(super) fn of(trial: &Trial) -> Work {
        // A run that failed counted only part of a step.
        let counted = trial.technique("count").filter(|_| trial.end == End::Ran);
        let Some(counted) = counted else { return Work::default() };
        let row = |(phase, rate, flops, bytes, number): &(String, String, u64, u64, u64)| Row {
            phase: Phase::of(phase),
            is_convolution: rate.starts_with(CONVOLUTION),
            rate: match rate.trim_start_matches(CONVOLUTION) {
                "f64" => Rate::F64,
                "tf32" => Rate::Tf32,
                "f16" => Rate::F16,
                "bf16" => Rate::Bf16,
                _ => Rate::F32,
            },
            flops: *flops as f64,
            bytes: *bytes as f64,
            number: *number as f64,
        };
        Work { rows: counted.work.iter().map(row).collect(), blocks: counted.blocks, nested: counted.nested }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Seconds of a step in which some products have this rate; `None`: all have their own.
    pub(super) fn products_at(&self, gpu: &Gpu, rate: Option<(Products, u64)>) -> f64 {
        let host_s: f64 = self.rows.iter().map(|row| row.number * HOST_S).sum();
        let seconds = |row: &Row| {
            let products = match row.rate {
                Rate::F32 => Some(Products::F32),
                Rate::F16 | Rate::Bf16 => Some(Products::Narrow),
                Rate::F64 | Rate::Tf32 => None,
            };
            let own_s = row.seconds(gpu, false, 1.0);
            match rate {
                Some((of, rate)) if products == Some(of) && !row.is_convolution && row.flops > 0.0 => {
                    let traffic = row.bytes / (TRAFFIC * gpu.bandwidth.memory_bytes_per_s as f64);
                    let arithmetic = row.flops / (PRODUCTS * rate as f64);
                    own_s.min(row.number * arithmetic.max(traffic).max(KERNEL_S))
                }
                _ => own_s,
            }
        };
        self.rows.iter().map(seconds).sum::<f64>().max(host_s)
    }

    fn flops(&self) -> f64 {
        self.rows.iter().map(|row| row.flops * row.number).sum()
    }

    /// The cost of a set whose trial is known, compared with the program as it is. With `has_types`, the
    /// operators were counted under the set's autocast. `devices` is the number of GPUs that fsdp uses.
    pub(super) fn cost(
        &self,
        gpu: &Gpu,
        devices: u32,
        set: &Set,
        trial: &Trial,
        base: &Work,
        has_types: bool,
    ) -> Cost {
        let (mut again, mut nested_again, mut parts) = (0, 0, 1.0);
        let (mut is_narrow, mut is_split, mut share, mut computed_again) = (false, false, 1.0, 0.0);
        for &(technique, value) in set.entries() {
            match (technique.row().time, technique.row().value) {
                (Time::Again, _) => again = value.unwrap_or(self.blocks),
                (Time::AllAgain, _) => again = self.blocks,
                (Time::NestedAgain, _) => nested_again = value.unwrap_or(self.nested),
                (Time::Parts, _) => parts = value.unwrap_or(1) as f64,
                (Time::PartsAgain, _) => (parts, is_split) = (value.unwrap_or(1) as f64, true),
                (Time::Budget, Value::Percent { default }) => {
                    // At most the forward pass is recomputed. How much faster compiled kernels are is unknown.
                    computed_again = FORWARD * (1.0 - value.unwrap_or(default) as f64 / 100.0);
                }
                (Time::Sharded, _) => share = 1.0 / f64::from(devices),
                (Time::Narrow, _) => is_narrow = !has_types,
                (
                    Time::Same
                    | Time::Copies
                    | Time::WeightCopies
                    | Time::StepCopies
                    | Time::DiskCopies
                    | Time::Budget,
                    _,
                ) => {}
            }
        }
        let (mut cost, mut flops, mut host_s) = (Cost::default(), 0.0, 0.0);
        for row in &self.rows {
            let is_forward = row.phase != Phase::Rest;
            let is_again = matches!(row.phase, Phase::Block(nth, inner)
                if nth < again || inner.is_some_and(|inner| inner < nested_again));
            // A split batch computes its complete forward pass twice, and checkpointed blocks three times.
            let times = 1.0 + f64::from(u8::from(is_again)) + f64::from(u8::from(is_split && is_forward));
            let row = Row { flops: row.flops * share, bytes: row.bytes * share, ..*row };
            cost.step_s += times * row.seconds(gpu, is_narrow, parts);
            host_s += times * row.number * parts * HOST_S;
            flops += times * row.flops * row.number;
        }
        let blocks = again.min(self.blocks) + nested_again.min(self.nested);
        cost.step_s = cost.step_s.max(host_s + blocks as f64 * parts * AGAIN_S);
        cost.extra_flops = (flops - base.flops() * share).max(0.0) as u64;
        cost.step_s *= 1.0 + computed_again;
        let reported = |time: Time| -> u64 {
            let techniques = set.techniques().filter(|it| it.row().time == time);
            techniques.filter_map(|it| trial.technique(it.name())).map(|it| it.bytes).sum()
        };
        let pinned_bytes_per_s = PINNED * gpu.bandwidth.pcie_bytes_per_s as f64;
        let moved = reported(Time::Copies) as f64 * parts;
        let (in_step, fetched) = (reported(Time::StepCopies), reported(Time::WeightCopies));
        cost.pcie_bytes = 2 * (moved as u64 + in_step) + fetched;
        // Copies overlap with the computation: a pass takes as long as the longer of the two, plus a part of the shorter.
        let copies = moved / pinned_bytes_per_s;
        cost.wire_bytes = reported(Time::Sharded);
        let wire = gpu.bandwidth.nvlink_bytes_per_s.unwrap_or(gpu.bandwidth.pcie_bytes_per_s);
        let sent = cost.wire_bytes as f64 / (WIRE * wire as f64);
        // Parameters are gathered in both passes, and gradients are reduced in the second.
        let passes = [(FORWARD, copies + sent / 3.0), (1.0 - FORWARD, copies + sent * 2.0 / 3.0)];
        let step_s = cost.step_s;
        let together = |a: f64, b: f64| a.max(b) + EXPOSED * a.min(b);
        cost.step_s = passes.map(|(part, moving)| together(step_s * part, moving)).iter().sum();
        cost.step_s = together(cost.step_s, fetched as f64 / pinned_bytes_per_s);
        cost.step_s += 2.0 * in_step as f64 / pinned_bytes_per_s;
        cost.step_s += 2.0 * reported(Time::DiskCopies) as f64 * parts / DISK_BYTES_PER_S;
        cost
    }
}

impl Phase {
    /// Reads `block 3`, `block 3.12`, `root` or `rest`.
    fn of(text: &str) -> Phase {
        let Some(numbers) = text.strip_prefix("block ") else {
            return if text == "root" { Phase::Root } else { Phase::Rest };
        };
        let (block, nested) = numbers.split_once('.').unwrap_or((numbers, ""));
        block.parse().map_or(Phase::Rest, |block| Phase::Block(block, nested.parse().ok()))
    }
}

impl Row {
    /// Seconds that these operators take on the GPU, each split into this many parts.
    fn seconds(&self, gpu: &Gpu, is_narrow: bool, parts: f64) -> f64 {
        let flops = gpu.flops;
        let rate = match if is_narrow { Rate::Bf16 } else { self.rate } {
            Rate::F64 => flops.f64,
            Rate::F32 => flops.f32,
            Rate::Tf32 => flops.tf32.unwrap_or(flops.f32),
            Rate::F16 => flops.f16,
            Rate::Bf16 => flops.bf16.unwrap_or(flops.f32),
        };
        let bytes = if is_narrow { self.bytes * NARROW } else { self.bytes };
        let has_tensor_cores = is_narrow || !matches!(self.rate, Rate::F64 | Rate::F32);
        let reached = if self.is_convolution && has_tensor_cores { CONVOLUTIONS } else { PRODUCTS };
        let share = if self.is_convolution { CONVOLUTION_TRAFFIC } else { TRAFFIC };
        let arithmetic = self.flops / (reached * rate as f64);
        let traffic = bytes / (share * gpu.bandwidth.memory_bytes_per_s as f64);
        self.number * parts * (arithmetic.max(traffic) / parts).max(KERNEL_S)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A step of one product.
    pub(in crate::plan) fn products(rate: &str, flops: f64) -> Work {
        let rate = match rate {
            "tf32" => Rate::Tf32,
            "bf16" => Rate::Bf16,
            _ => Rate::F32,
        };
        let row = Row { phase: Phase::Root, rate, is_convolution: false, flops, bytes: 1e6, number: 1.0 };
        Work { rows: vec![row], blocks: 0, nested: 0 }
    }

    fn work() -> Work {
        let row = |phase, flops: f64, bytes: f64| Row {
            phase,
            rate: Rate::F32,
            is_convolution: false,
            flops,
            bytes,
            number: 1.0,
        };
        let rows = vec![
            row(Phase::of("block 0"), 1e12, 1e9),
            row(Phase::of("block 1.0"), 1e12, 1e9),
            row(Phase::Root, 1e12, 1e9),
            row(Phase::Rest, 6e12, 3e9),
        ];
        Work { rows, blocks: 2, nested: 1 }
    }

    fn trial() -> Trial {
        Trial { steps: 3, ..Trial::without_answer(End::Ran) }
    }

    fn cost(set: &str) -> Cost {
        let gpu = plimsoll_gpu::named("H100").unwrap();
        let set = if set.is_empty() { Set::default() } else { Set::parse(set).unwrap() };
        work().cost(gpu, 2, &set, &trial(), &work(), false)
    }

    #[test]
    fn computing_again_costs_the_flops_of_what_is_computed_again() {
        for (set, extra) in [
            ("", 0.0),
            ("checkpoint", 2e12),
            ("checkpoint=1", 1e12),
            ("checkpoint-nested", 1e12),
            ("checkpoint-segments=1", 2e12),
            ("split=2", 3e12),
        ] {
            let cost = cost(set);
            assert_eq!(cost.extra_flops, extra as u64, "{set}");
            assert!((cost.step_s / self::cost("").step_s - (1.0 + extra / 9e12)).abs() < 1e-9, "{set}");
        }
    }

    /// A trial in which a technique moved this many bytes.
    fn moving(name: &str, bytes: u64) -> Trial {
        let applied = crate::protocol::Applied {
            name: name.to_owned(),
            applied: true,
            detail: String::new(),
            lines: Vec::new(),
            blocks: 0,
            nested: 0,
            bytes,
            work: Vec::new(),
            batch: None,
            places: Vec::new(),
        };
        Trial { techniques: vec![applied], ..trial() }
    }

    #[test]
    fn copies_are_hidden_for_the_most_part() {
        let gpu = plimsoll_gpu::named("H100").unwrap();
        let set = Set::parse("offload").unwrap();
        let alone = cost("");
        let (few, many) = [1 << 20, 1 << 40]
            .map(|bytes| work().cost(gpu, 2, &set, &moving("offload", bytes), &work(), false).step_s)
            .into();
        assert!(few > alone.step_s && few < alone.step_s * 1.01, "{few} s");
        let copies = 2.0 * (1_u64 << 40) as f64 / (PINNED * gpu.bandwidth.pcie_bytes_per_s as f64);
        assert!((many - copies - EXPOSED * alone.step_s).abs() < 1e-6, "{many} s");
    }

    #[test]
    fn two_gpus_share_the_arithmetic_and_send_what_they_gather() {
        let alone = cost("");
        assert!((cost("fsdp").step_s / alone.step_s - 0.5).abs() < 0.01);
        assert_eq!(cost("fsdp").extra_flops, 0);
        let trial = moving("fsdp", 1 << 40);
        let gpu = plimsoll_gpu::named("L4").unwrap();
        let sent = work().cost(gpu, 2, &Set::parse("fsdp").unwrap(), &trial, &work(), false);
        assert_eq!(sent.wire_bytes, 1 << 40);
        assert!(sent.step_s > 40.0, "a tebibyte over PCIe: {} s", sent.step_s);
    }

    #[test]
    fn small_operators_cost_the_start_of_a_kernel_in_every_part() {
        let row = Row {
            phase: Phase::Rest,
            rate: Rate::F32,
            is_convolution: false,
            flops: 0.0,
            bytes: 4.0,
            number: 100.0,
        };
        let gpu = plimsoll_gpu::named("H100").unwrap();
        assert!((row.seconds(gpu, false, 4.0) - 400.0 * KERNEL_S).abs() < 1e-9);
    }

    #[test]
    fn where_the_host_is_slower_each_checkpointed_block_costs_its_time() {
        let row = |phase| Row {
            phase,
            rate: Rate::F32,
            is_convolution: false,
            flops: 0.0,
            bytes: 4.0,
            number: 100.0,
        };
        let rows = vec![row(Phase::of("block 0")), row(Phase::of("block 1"))];
        let work = Work { rows, blocks: 2, nested: 0 };
        let gpu = plimsoll_gpu::named("H100").unwrap();
        let step_s = |set: &str| work.cost(gpu, 1, &Set::parse(set).unwrap(), &trial(), &work, false).step_s;
        assert!((step_s("expandable") - 200.0 * HOST_S).abs() < 1e-9);
        assert!((step_s("checkpoint=1") - 300.0 * HOST_S - AGAIN_S).abs() < 1e-9);
        assert!((step_s("checkpoint") - 400.0 * HOST_S - 2.0 * AGAIN_S).abs() < 1e-9);
    }

    #[test]
    fn bf16_is_faster_where_products_dominate() {
        assert!(cost("bf16").step_s < cost("").step_s / 3.0);
    }
}
