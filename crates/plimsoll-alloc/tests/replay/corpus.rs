//! A corpus file as values: [`Corpus`]. The format is told in `shared/conformance/README.md`.

use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use plimsoll_alloc::Config;

/// The statistics of a row, in the order of the file's columns.
pub(crate) const COLUMNS: [&str; 15] = [
    "allocated",
    "reserved",
    "active",
    "inactive_split",
    "requested",
    "allocations",
    "segments",
    "active_blocks",
    "inactive_split_blocks",
    "alloc_retries",
    "ooms",
    "device_allocs",
    "device_frees",
    "peak_allocated",
    "peak_reserved",
];

/// One stream of requests and PyTorch's answers.
pub(crate) struct Corpus {
    pub(crate) config: Config,
    pub(crate) device_bytes: u64,
    pub(crate) rows: Vec<Row>,
}

/// One request, the device calls it led to, and the statistics after it.
pub(crate) struct Row {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) op: Op,
    pub(crate) calls: Vec<Call>,
    pub(crate) statistics: [i64; 15],
}

/// What was asked. `addr` is where it landed; `None` where it failed for want of memory.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Alloc { id: u64, bytes: u64, stream: u64, addr: Option<u64> },
    Free { id: u64 },
    EmptyCache,
    ResetPeak,
    SetFraction { percent: f64 },
}

/// What was asked of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Malloc { addr: u64, bytes: u64 },
    Free { addr: u64 },
}

impl Corpus {
    pub(crate) fn read(path: &Path) -> Self {
        let mut text = String::new();
        GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        let (mut config, mut device_bytes) = (Config::default(), 0);
        let (mut rows, mut calls) = (Vec::new(), Vec::new());
        for (number, text) in text.lines().enumerate() {
            let fields: Vec<&str> = text.split(',').collect();
            match fields[0] {
                "#config" => config = parse_config(fields[1]),
                "#device_bytes" => device_bytes = fields[1].parse().unwrap(),
                "#malloc" => {
                    calls.push(Call::Malloc { addr: hex(fields[1]), bytes: fields[2].parse().unwrap() });
                }
                "#free" => calls.push(Call::Free { addr: hex(fields[1]) }),
                "op" => assert_eq!(fields[5..], COLUMNS, "columns"),
                _ => rows.push(Row {
                    line: number + 1,
                    text: text.to_owned(),
                    op: parse_op(&fields),
                    calls: std::mem::take(&mut calls),
                    statistics: std::array::from_fn(|column| fields[5 + column].parse().unwrap()),
                }),
            }
        }
        assert!(calls.is_empty(), "device calls behind the last row: {calls:?}");
        Self { config, device_bytes, rows }
    }
}

fn parse_config(text: &str) -> Config {
    match text.split_once(':') {
        Some(("backend", "native")) => Config::default(),
        Some(("large_segment_size_mb", mb)) => {
            Config::default().with_large_segment_bytes(mb.parse::<u64>().unwrap() << 20).unwrap()
        }
        _ => panic!("a configuration that this allocator does not have: {text}"),
    }
}

fn parse_op(fields: &[&str]) -> Op {
    let number = |field: usize| fields[field].parse::<u64>().unwrap();
    let alloc = |addr| Op::Alloc { id: number(1), bytes: number(2), stream: number(3), addr };
    match fields[0] {
        "alloc" => alloc(Some(hex(fields[4]))),
        "alloc_oom" => alloc(None),
        "free" => Op::Free { id: number(1) },
        "empty_cache" => Op::EmptyCache,
        "reset_peak" => Op::ResetPeak,
        "set_fraction" => Op::SetFraction { percent: fields[2].parse().unwrap() },
        other => panic!("a request that this allocator does not have: {other}"),
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}
