//! The row that `calibrate` makes: [`Row`], as text, and as the JSON that `--gpu FILE.json` reads (`../row.rs`).

use std::fmt::Write;
use std::path::Path;

use plimsoll_cuda::ProbedFacts;
use plimsoll_gpu::nccl::{Communicator, Topology, Variables, Version};
use plimsoll_gpu::outside::{Basis, Figure as Bytes, PAGE_BYTES};
use plimsoll_gpu::{GPUS, Gpu};
use serde_json::{Map, Value, json};

use super::figure::{Figure, Match, of_library, ring_stack_bytes};
use super::programs::Measured;
use crate::bytes::thousands;
use crate::page::quoted;
use crate::row::SCHEMA;

/// A GPU, and what was measured on it.
pub(super) struct Row {
    pub(super) facts: ProbedFacts,
    /// The listed GPU of this name, or else the nearest one.
    like: &'static Gpu,
    /// Whether `like` is this very GPU.
    is_listed: bool,
    /// The properties that the GPU reports; the others come from `like`.
    pub(super) gpu: Gpu,
    properties: Map<String, Value>,
    pub(super) figures: Vec<Figure>,
    pub(super) torch: Option<String>,
    pub(super) nccl: Option<String>,
    /// Sentences about parts that were not measured.
    pub(super) missing: Vec<String>,
}

impl Row {
    /// Creates a row without figures.
    pub(super) fn of(facts: ProbedFacts) -> Row {
        let named = plimsoll_gpu::named(&facts.name).ok();
        let nearest = || plimsoll_gpu::nearest_of(facts.total_bytes, facts.capability);
        let like = named.or_else(nearest).unwrap_or(&GPUS[0]);
        let properties = properties(&facts, like, named.is_some());
        let parts = properties.iter().map(|(key, value)| match value {
            Value::String(text) => format!("{key}={text}"),
            value => format!("{key}={value}"),
        });
        let text = format!("custom:{}", parts.collect::<Vec<_>>().join(","));
        // Every property comes from the driver, so it has the form that a description needs, unless it is 0.
        let gpu = plimsoll_gpu::described(&text).map_or(*like, |it| it.gpu);
        let is_listed = named.is_some();
        Row {
            facts,
            like,
            is_listed,
            gpu,
            properties,
            figures: Vec::new(),
            torch: None,
            nccl: None,
            missing: Vec::new(),
        }
    }

    /// The row of the table for this GPU.
    pub(super) fn listed(&self) -> Option<&'static Gpu> {
        self.is_listed.then_some(self.like)
    }

    /// Adds NCCL's figures. They are tested against the model of two ranks on one machine.
    pub(super) fn communicators(&mut self, ranks: &Measured) {
        let version = self.nccl.as_deref().and_then(version).unwrap_or(Version::MEASURED);
        let variables = Variables::read(|name| std::env::var(name).ok());
        let comm = Communicator::new(Topology::node(&self.gpu, 2), variables, version);
        let model = comm.at_init().device + if comm.is_connected_at_init() { 0 } else { comm.ring().device };
        let basis = comm.channels.basis;
        let (first, second) = (ranks.bytes("first all_reduce"), ranks.bytes("second group"));
        if let Some(second) = second {
            let how = "a second group of two ranks, and its first all-reduce";
            let expected = Some(Bytes { bytes: model, basis });
            self.figures.push(Figure { owner: "NCCL communicator", key: None, bytes: second, expected, how });
        }
        if let Some((first, second)) = first.zip(second) {
            let bytes = first.saturating_sub(second + ring_stack_bytes(&self.gpu));
            self.figures.push(of_library("nccl", bytes, &self.gpu));
        }
        if let Some(bytes) = ranks.bytes("all_to_all") {
            let how = "the first all-to-all of the first group, with its kernels' stacks";
            self.figures.push(Figure { owner: "NCCL all-to-all", key: None, bytes, expected: None, how });
        }
    }

    /// The one-line result.
    fn summary(&self) -> String {
        let of = |wanted| self.figures.iter().filter(|it| it.matches() == wanted).count();
        let (same, different) = (of(Match::Same), of(Match::Different));
        let than = match self.is_listed {
            true => format!("the table's row of the {}", self.like.name),
            false => format!("the estimates from the {}, the nearest listed GPU", self.like.name),
        };
        let count = format!("{}: {} figures measured", self.facts.name, self.figures.len());
        let all = same + different;
        match different {
            0 => format!("{count}; {same} are equal to {than} (within a page of 2 MiB)"),
            1 => format!("{count}; of {all} that can be compared, 1 differs from {than}"),
            _ => format!("{count}; of {all} that can be compared, {different} differ from {than}"),
        }
    }

    /// The row for `--gpu FILE.json`.
    pub(super) fn json(&self) -> Value {
        let known: Map<String, Value> =
            self.figures.iter().filter_map(|it| Some((it.key?.to_owned(), it.bytes.into()))).collect();
        let figure = |it: &Figure| {
            json!({ "owner": it.owner, "bytes": it.bytes, "basis": Basis::Measured.name(), "how": it.how,
                "expected_bytes": it.expected.map(|it| it.bytes), "expected_basis": it.expected.map(|it| it.basis.name()),
                "equal": match it.matches() { Match::Same => Some(true), Match::Different => Some(false), Match::Unknown => None } })
        };
        let (major, minor) = self.facts.cuda;
        json!({
            "schema": SCHEMA,
            "summary": self.summary(),
            "card": self.facts.name,
            "listed": self.listed().map(|listed| listed.name),
            "driver": self.facts.driver,
            "cuda": format!("{major}.{minor}"),
            "torch": self.torch,
            "nccl": self.nccl,
            "properties": self.properties,
            "known": known,
            "figures": self.figures.iter().map(figure).collect::<Vec<Value>>(),
            "others_bytes": self.facts.others_bytes,
            "missing": self.missing,
        })
    }

    /// The report for a person. `output` is the file with the row.
    pub(super) fn text(&self, output: Option<&Path>) -> String {
        let mut out = format!("{}\n", self.summary());
        // Writing to a `String` cannot fail.
        let (major, minor) = self.facts.cuda;
        let torch = self.torch.as_ref().map_or_else(String::new, |it| format!(", PyTorch {it}"));
        let nccl = self.nccl.as_ref().map_or_else(String::new, |it| format!(", NCCL {it}"));
        let _ = writeln!(out, "Driver {}, CUDA {major}.{minor}{torch}{nccl}", self.facts.driver);
        let _ = writeln!(
            out,
            "\n{:>16}  {:>16}  bytes (2 MiB is {})",
            "measured",
            "expected",
            thousands(PAGE_BYTES)
        );
        let total = self.listed().map_or_else(String::new, |listed| thousands(listed.memory_bytes));
        let _ = writeln!(out, "{:>16}  {total:>16}  CUDA's total", thousands(self.facts.total_bytes));
        for it in &self.figures {
            let expected = it.expected.map_or_else(String::new, |it| thousands(it.bytes));
            let basis = it.expected.map_or_else(String::new, |it| format!("; expected: {}", it.basis));
            let differs = if it.matches() == Match::Different { "  DIFFERS" } else { "" };
            let _ = writeln!(
                out,
                "{:>16}  {expected:>16}  {} ({}{basis}){differs}",
                thousands(it.bytes),
                it.owner,
                it.how
            );
        }
        if let Some(bytes) = self.facts.others_bytes.filter(|bytes| *bytes > 0) {
            let _ = writeln!(
                out,
                "\nother programs used {} before: the figures are differences",
                thousands(bytes)
            );
        }
        for missing in &self.missing {
            let _ = writeln!(out, "\n{missing}");
        }
        let _ = match output {
            Some(path) => writeln!(out, "\nnext: plimsoll predict --gpu {} -- python train.py", quoted(path)),
            None => writeln!(out, "\nnext: plimsoll calibrate -o ROW.json writes the row for --gpu ROW.json"),
        };
        out
    }
}

/// What the GPU reports, under the names of a description. `like` provides the values that the driver does not report.
fn properties(facts: &ProbedFacts, like: &Gpu, is_listed: bool) -> Map<String, Value> {
    let plain = facts.name.replace([',', '='], " ");
    let name = if is_listed { like.name.to_owned() } else { plain.clone() };
    let pool = match (facts.is_integrated, facts.reaches_host) {
        (true, _) => "host",
        (false, true) => "coherent",
        (false, false) => "own",
    };
    let (major, minor) = facts.capability;
    let all = json!({
        "like": like.name,
        "name": name,
        "card": plain,
        "source": "plimsoll calibrate",
        "memory": facts.total_bytes,
        "cc": format!("{major}.{minor}"),
        "sms": facts.multiprocessors,
        "threads": facts.threads_per_multiprocessor,
        "blocks": facts.blocks_per_multiprocessor,
        "l2": facts.l2_bytes,
        "shared": facts.shared_bytes_per_multiprocessor,
        "shared_block": facts.shared_bytes_per_block,
        "bus": facts.bus_bits,
        "clock": facts.clock_khz,
        "memory_clock": facts.memory_clock_khz,
        "pool": pool,
        "bandwidth": bandwidth(facts, like, is_listed),
        "tflops": is_listed.then(|| like.flops.f16 as f64 / 1e12),
    });
    let is_given = |value: &Value| !value.is_null() && value.as_i64() != Some(0);
    let all = all.as_object().cloned().unwrap_or_default();
    all.into_iter().filter(|(_, value)| is_given(value)).collect()
}

/// The memory bandwidth: the datasheet's for a listed GPU, otherwise computed from the bus width and the clock, at two
/// transfers per cycle.
fn bandwidth(facts: &ProbedFacts, like: &Gpu, is_listed: bool) -> Option<String> {
    let bus = u64::from(facts.bus_bits.unsigned_abs()) / 8
        * 2
        * u64::from(facts.memory_clock_khz.unsigned_abs())
        * 1000;
    let per_s = if is_listed { like.bandwidth.memory_bytes_per_s } else { bus };
    (per_s > 0).then(|| format!("{per_s}B/s"))
}

/// An NCCL version, such as `2.28.9`.
fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some(Version::new(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h100() -> ProbedFacts {
        let gpu = plimsoll_gpu::named("H100").expect("listed");
        ProbedFacts {
            name: gpu.card.to_owned(),
            capability: gpu.capability,
            multiprocessors: gpu.multiprocessors,
            threads_per_multiprocessor: gpu.threads_per_multiprocessor,
            blocks_per_multiprocessor: gpu.blocks_per_multiprocessor,
            l2_bytes: gpu.l2_bytes,
            shared_bytes_per_multiprocessor: gpu.shared_bytes_per_multiprocessor,
            shared_bytes_per_block: gpu.shared_bytes_per_block,
            bus_bits: gpu.bus_bits,
            clock_khz: gpu.clock_khz,
            memory_clock_khz: gpu.memory_clock_khz,
            is_integrated: false,
            reaches_host: false,
            total_bytes: gpu.memory_bytes,
            reserve_bytes: Some(503_316_480),
            others_bytes: Some(0),
            driver: "580.159.04".to_owned(),
            cuda: (13, 0),
            devices: 1,
        }
    }

    #[test]
    fn the_row_of_a_listed_gpu_is_that_of_the_table() {
        let row = Row::of(h100());
        let listed = row.listed().expect("it is listed");
        let expected = Gpu { memory_source: "plimsoll calibrate", datasheet: "given", ..*listed };
        assert_eq!(row.gpu, expected);
    }

    #[test]
    fn a_gpu_that_is_not_listed_has_what_it_reports() {
        let facts = ProbedFacts { name: "NVIDIA H900, new".to_owned(), multiprocessors: 100, ..h100() };
        let row = Row::of(facts);
        assert_eq!((row.listed(), row.gpu.name, row.gpu.multiprocessors), (None, "NVIDIA H900  new", 100));
        assert_eq!(row.gpu.bandwidth.memory_bytes_per_s, 5120 / 8 * 2 * 2_619_000_000);
    }

    #[test]
    fn the_row_is_read_back_with_its_figures() {
        let mut row = Row::of(h100());
        let gpu = row.gpu;
        row.figures.push(of_library("cublas", 71_303_168, &gpu));
        row.figures.push(of_library("cudnn", 4_194_304, &gpu));
        let file = tempfile::Builder::new().suffix(".json").tempfile().expect("a file");
        std::fs::write(file.path(), row.json().to_string()).expect("written");
        let text = crate::row::read(&file.path().to_string_lossy()).expect("a row");
        let back = plimsoll_gpu::described(&text).expect("a GPU").gpu;
        assert_eq!(back.known.cudnn, Some(Bytes { bytes: 4_194_304, basis: Basis::Measured }));
        assert_eq!((back.name, back.multiprocessors), ("H100", 132));
        assert!(row.summary().contains("1 differs from the table's row of the H100"), "{}", row.summary());
        assert!(row.text(None).contains("4,194,304        16,777,216  cuDNN"), "{}", row.text(None));
    }

    #[test]
    fn nccls_own_bytes_are_what_a_first_group_takes_beyond_a_second() {
        let mut row = Row::of(h100());
        let stages =
            [("streams", 73_400_320), ("first all_reduce", 815_792_128), ("second group", 509_607_936)];
        let stages = stages.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec();
        row.communicators(&Measured { stages, ..Measured::default() });
        let of = |owner: &str| row.figures.iter().find(|it| it.owner == owner).expect("a figure");
        assert_eq!((of("NCCL").bytes, of("NCCL").matches()), (111_149_056, Match::Same));
        assert_eq!(of("NCCL communicator").matches(), Match::Same);
    }
}
