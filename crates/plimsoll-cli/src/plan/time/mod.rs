//! An estimate of a step's time, from its operators ([`Work`]), the GPU's bandwidth and FLOP/s, and the time that the
//! host works during the step.
//!
//! The host and the GPU have separate clocks (`clock.rs`): the host launches operators, and the GPU runs them in order.
//! How long an operator takes depends on its kind (`rates.rs`). The host's time is measured: it is the processor time
//! of a step here, without our hooks, scaled by the host factors of both machines (note 0032).

mod clock;
mod rates;

use plimsoll_gpu::Gpu;

use self::clock::Event;
use self::rates::{Operators, Rate, Seconds};
use crate::predict::trial::{End, Trial};
use crate::predict::trials::Hosts;
use crate::techniques::{Set, Time, Value};

/// The fraction of the datasheet's PCIe bandwidth that copies from and to pinned memory reach: 55.3 of 64
/// GB/s on an H200 (note 0019).
const PINNED: f64 = 0.86;
/// Bytes per second, in each direction, of the disk to which saved tensors move: an assumption for an NVMe SSD. The
/// note of the row in the report says so.
const DISK_BYTES_PER_S: f64 = 2e9;
/// The share of the datasheet's NVLink or PCIe bandwidth that a collective reaches.
const WIRE: f64 = 0.7;
/// Copies and computation overlap, except for this fraction of the shorter of the two. Fitted to programs on an H200
/// (note 0019).
const EXPOSED: f64 = 0.1;
/// The fraction of a step that the forward pass takes, because it has a third of the matrix products.
const FORWARD: f64 = 1.0 / 3.0;
/// Seconds that a host with factor 1 works for an operator, if the host's time was not measured.
const HOST_S: f64 = 13e-6;
/// Seconds that a launch spends in the driver, on a host with factor 1. On the simulated GPU (plimsoll-standin),
/// launches take no time.
const LAUNCH_S: f64 = 3.5e-6;
/// Seconds that a host with factor 1 works for each checkpointed block, in addition to its operators, with PyTorch's
/// checkpointing or ours. The host of an H200, with a factor of about 2, took twice as long (note 0019).
const AGAIN_S: f64 = 0.3e-3;

/// The operators of one step.
#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    rows: Vec<(Phase, Operators)>,
    /// Seconds in which neither the host nor the GPU works, because the host waits for results.
    idle_s: f64,
    /// Processor seconds of a step on the training machine, without the driver's; `None` if nothing was measured
    /// here.
    host_s: Option<f64>,
    /// The host factor of the training machine.
    factor: f64,
    /// The number of repeated blocks in the model.
    blocks: u64,
    /// The number of repeated blocks inside those blocks.
    pub(super) nested: u64,
}

/// The part of a step in which an operator ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The forward pass of a repeated block (its number), and of a block inside that block, if there are any.
    Block(u64, Option<u64>),
    /// The remaining part of the model's forward pass.
    Root,
    /// The backward pass, the optimizer, and everything else.
    Rest,
}

/// Matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// Products in f32, not rounded to TF32.
    F32,
    /// Products in 16 bits.
    Narrow,
}

/// The cost of a set, compared with the unchanged program.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    /// Estimated seconds of a step.
    pub(super) step_s: f64,
    /// FLOPs of a step beyond those of the unchanged program.
    pub(super) extra_flops: u64,
    /// Bytes that a step moves over PCIe, in both directions together.
    pub(super) pcie_bytes: u64,
    /// Bytes that a GPU sends to the other GPUs in a step.
    pub(super) wire_bytes: u64,
    /// The seconds that the host works in a step.
    pub(super) host_s: f64,
    /// Whether the host's seconds were measured. If not, the host is assumed to work equally long for each operator.
    pub(super) is_measured: bool,
    /// What a step waits for most of the time.
    pub(super) bound: Bound,
}

/// What a step waits for most of the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Bound {
    /// The GPU's arithmetic.
    #[default]
    Arithmetic,
    /// The GPU's memory.
    Memory,
    /// The host, which launches operators.
    Host,
    /// Copies between the host and the GPU, or a disk.
    Copies,
    /// The other GPUs.
    Network,
}

impl Bound {
    /// `the host`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Bound::Arithmetic => "arithmetic",
            Bound::Memory => "the GPU's memory",
            Bound::Host => "the host",
            Bound::Copies => "copies",
            Bound::Network => "the network",
        }
    }
}

impl Work {
    /// Reads the report of a counting trial; empty if the trial did not finish. `gpu` is the GPU for which the step is
    /// timed. The host factors are for this machine and the training machine.
    pub(super) fn of(trial: &Trial, gpu: &Gpu, hosts: Hosts) -> Work {
        // A run that failed may have counted only a part of a step.
        let counted = trial.technique("count").filter(|_| trial.end == End::Ran);
        let Some(counted) = counted else { return Work::default() };
        let rows = counted.work.iter().map(|row| (Phase::of(&row.place), Operators::of(row))).collect();
        let place = |&place: &i64| usize::try_from(place).ok().filter(|&it| it < counted.work.len());
        let order: Vec<Option<usize>> = counted.order.iter().map(place).collect();
        let work = Work {
            rows,
            idle_s: 0.0,
            host_s: counted.host_s.map(|seconds| seconds * hosts.training / hosts.own),
            factor: hosts.training,
            blocks: counted.blocks,
            nested: counted.nested,
        };
        Work { idle_s: work.idle_s(gpu, &order), ..work }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Seconds that a step takes if products of this kind have this rate. With `None`, all products have their usual
    /// rate.
    pub(super) fn products_at(&self, gpu: &Gpu, rate: Option<(Products, u64)>) -> f64 {
        let seconds = |(_, row): &(Phase, Operators)| {
            let own_s = row.seconds(gpu, false, 1.0).all();
            let products = row.product().and_then(|it| match it {
                Rate::F32 => Some(Products::F32),
                Rate::F16 | Rate::Bf16 => Some(Products::Narrow),
                Rate::F64 | Rate::Tf32 => None,
            });
            let each_s = match rate {
                Some((of, rate)) if products == Some(of) => own_s.min(row.seconds_at(rate, gpu)),
                _ => own_s,
            };
            row.number * each_s
        };
        self.rows.iter().map(seconds).sum::<f64>().max(self.host_s())
    }

    /// Seconds that the host works in a step.
    fn host_s(&self) -> f64 {
        let operators: f64 = self.rows.iter().map(|(_, row)| row.number).sum();
        let kernels: f64 = self.rows.iter().map(|(_, row)| row.number * row.kernels()).sum();
        self.host_s.unwrap_or(operators * HOST_S * self.factor) + kernels * LAUNCH_S * self.factor
    }

    /// Seconds in which neither the host nor the GPU works. `order` lists the rows in the order in which they run, with
    /// `None` where the host waits for the GPU.
    fn idle_s(&self, gpu: &Gpu, order: &[Option<usize>]) -> f64 {
        let each: Vec<f64> = self.rows.iter().map(|(_, row)| row.seconds(gpu, false, 1.0).all()).collect();
        let event = |place: &Option<usize>| place.map_or(Event::Wait, |place| Event::Launch(each[place]));
        let events: Vec<Event> = order.iter().map(event).collect();
        let busy_s: f64 = self.rows.iter().zip(&each).map(|((_, row), each)| row.number * each).sum();
        (clock::step_s(&events, self.host_s()) - busy_s.max(self.host_s())).max(0.0)
    }

    fn flops(&self) -> f64 {
        self.rows.iter().map(|(_, row)| row.flops * row.number).sum()
    }

    /// The cost of a set whose trial is known, compared with the unchanged program. `has_types` says that the operators
    /// were counted under the set's own autocast. `devices` is the number of GPUs that fsdp uses.
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
                    // At most the forward pass is recomputed. The speedup of compiled kernels is unknown.
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
        let (mut cost, mut flops, mut launches) = (Cost::default(), 0.0, 0.0);
        let mut busy = Seconds::default();
        for (phase, row) in &self.rows {
            let is_forward = *phase != Phase::Rest;
            let is_again = matches!(*phase, Phase::Block(nth, inner)
                if nth < again || inner.is_some_and(|inner| inner < nested_again));
            // With a split batch, the complete forward pass runs twice, and checkpointed blocks run three times.
            let times = 1.0 + f64::from(u8::from(is_again)) + f64::from(u8::from(is_split && is_forward));
            let row = row.share(share);
            busy.add(times * row.number, row.seconds(gpu, is_narrow, parts));
            launches += times * row.number * parts;
            flops += times * row.flops * row.number;
        }
        let blocks = again.min(self.blocks) + nested_again.min(self.nested);
        let own: f64 = self.rows.iter().map(|(_, row)| row.number).sum();
        let host_s = self.host_s() * launches / own.max(1.0) + blocks as f64 * parts * AGAIN_S * self.factor;
        (cost.host_s, cost.is_measured) = (host_s, self.host_s.is_some());
        cost.step_s = busy.all().max(host_s) + self.idle_s;
        cost.bound = match (host_s > busy.all(), busy.traffic > busy.arithmetic) {
            (true, _) => Bound::Host,
            (false, true) => Bound::Memory,
            (false, false) => Bound::Arithmetic,
        };
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
        // Copies overlap with the computation: a pass takes as long as the longer of the two, plus a part (`EXPOSED`)
        // of the shorter.
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
        let to_disk = 2.0 * reported(Time::DiskCopies) as f64 * parts / DISK_BYTES_PER_S;
        let in_step = 2.0 * in_step as f64 / pinned_bytes_per_s;
        cost.step_s += in_step + to_disk;
        if cost.step_s > 2.0 * step_s {
            let moved = 2.0 * copies + fetched as f64 / pinned_bytes_per_s + in_step + to_disk;
            cost.bound = if sent > moved { Bound::Network } else { Bound::Copies };
        }
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::protocol::Counted;

    fn row(place: &str, kind: &str, rate: &str, flops: u64, bytes: u64, number: u64) -> (Phase, Operators) {
        let (kind, rate) = (kind.to_owned(), rate.to_owned());
        let counted = Counted { kind, rate, flops, bytes, number, ..Counted::default() };
        (Phase::of(place), Operators::of(&counted))
    }

    /// A step with a single product.
    pub(in crate::plan) fn products(rate: &str, flops: f64) -> Work {
        Work { rows: vec![row("root", "product", rate, flops as u64, 1_000_000, 1)], ..Work::default() }
    }

    fn work() -> Work {
        let rows = [("block 0", 1, 1), ("block 1.0", 1, 1), ("root", 1, 1), ("rest", 6, 3)];
        let row = |(place, tera, giga): (&str, u64, u64)| {
            row(place, "product", "f32", tera * 1_000_000_000_000, giga * 1_000_000_000, 1)
        };
        Work { rows: rows.map(row).into(), blocks: 2, nested: 1, ..Work::default() }
    }

    fn trial() -> Trial {
        Trial { steps: 3, ..Trial::without_answer(End::Ran) }
    }

    fn gpu() -> &'static Gpu {
        plimsoll_gpu::named("H100").unwrap()
    }

    fn cost(set: &str) -> Cost {
        let set = if set.is_empty() { Set::default() } else { Set::parse(set).unwrap() };
        work().cost(gpu(), 2, &set, &trial(), &work(), false)
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
            let slower = cost.step_s / self::cost("").step_s;
            assert!((slower - (1.0 + extra / 9e12)).abs() < 0.01, "{set}: {slower}");
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
            order: Vec::new(),
            host_s: None,
            batch: None,
            places: Vec::new(),
            numbers: Vec::new(),
            unknown: String::new(),
        };
        Trial { techniques: vec![applied], ..trial() }
    }

    #[test]
    fn copies_are_hidden_for_the_most_part() {
        let set = Set::parse("offload").unwrap();
        let alone = cost("");
        let [few, many] = [1 << 20, 1 << 40]
            .map(|bytes| work().cost(gpu(), 2, &set, &moving("offload", bytes), &work(), false));
        assert!(few.step_s > alone.step_s && few.step_s < alone.step_s * 1.01, "{} s", few.step_s);
        let copies = 2.0 * (1_u64 << 40) as f64 / (PINNED * gpu().bandwidth.pcie_bytes_per_s as f64);
        assert!((many.step_s - copies - EXPOSED * alone.step_s).abs() < 1e-6, "{} s", many.step_s);
        assert_eq!((few.bound, many.bound), (Bound::Arithmetic, Bound::Copies));
    }

    #[test]
    fn two_gpus_share_the_arithmetic_and_send_what_they_gather() {
        let alone = cost("");
        assert!((cost("fsdp").step_s / alone.step_s - 0.5).abs() < 0.01);
        assert_eq!(cost("fsdp").extra_flops, 0);
        let trial = moving("fsdp", 1 << 40);
        let gpu = plimsoll_gpu::named("L4").unwrap();
        let sent = work().cost(gpu, 2, &Set::parse("fsdp").unwrap(), &trial, &work(), false);
        assert_eq!((sent.wire_bytes, sent.bound), (1 << 40, Bound::Network));
        assert!(sent.step_s > 40.0, "a tebibyte over PCIe: {} s", sent.step_s);
    }

    #[test]
    fn the_host_bounds_many_small_operators_and_each_checkpointed_block_adds_to_its_time() {
        let rows = ["block 0", "block 1"].map(|place| row(place, "pointwise", "f32", 0, 4, 100)).into();
        let work = Work { rows, host_s: Some(0.01), factor: 1.0, blocks: 2, ..Work::default() };
        let cost = |set: &str| work.cost(gpu(), 1, &Set::parse(set).unwrap(), &trial(), &work, false);
        let kernels: f64 = work.rows.iter().map(|(_, row)| 100.0 * row.kernels()).sum();
        let host_s = 0.01 + kernels * LAUNCH_S;
        assert!((cost("expandable").step_s - host_s).abs() < 1e-9);
        assert!((cost("checkpoint=1").step_s - 1.5 * host_s - AGAIN_S).abs() < 1e-9);
        assert!((cost("checkpoint").step_s - 2.0 * host_s - 2.0 * AGAIN_S).abs() < 1e-9);
        assert_eq!(cost("expandable").bound, Bound::Host);
        // With twice as much memory traffic as the GPU can do in a second, the GPU is the bottleneck.
        let rows = vec![row("rest", "pointwise", "f32", 0, 10_u64.pow(12), 1)];
        let cost = Work { rows, ..work }.cost(gpu(), 1, &Set::default(), &trial(), &Work::default(), false);
        assert_eq!(cost.bound, Bound::Memory);
    }

    #[test]
    fn a_step_that_reads_its_loss_takes_longer() {
        let rows = vec![row("rest", "product", "bf16", 10_u64.pow(12), 0, 10)];
        let step_s = |order: Vec<Option<usize>>| {
            let work = Work { rows: rows.clone(), host_s: Some(0.01), ..Work::default() };
            let work = Work { idle_s: work.idle_s(gpu(), &order), ..work };
            work.cost(gpu(), 1, &Set::default(), &trial(), &work, false).step_s
        };
        let (runs_ahead, waits) =
            (step_s(vec![Some(0); 10]), step_s([vec![Some(0); 10], vec![None]].concat()));
        // The host has launched the first product after 1 ms.
        assert!((waits - runs_ahead - 1e-3).abs() < 1e-4, "{waits} s, {runs_ahead} s");
    }

    #[test]
    fn bf16_is_faster_where_products_dominate() {
        assert!(cost("bf16").step_s < cost("").step_s / 3.0);
    }
}
