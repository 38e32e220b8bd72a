//! A corpus file as values: [`Corpus`]. `shared/conformance/README.md` describes the format.

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

/// One stream of requests and PyTorch's results.
pub(crate) struct Corpus {
    pub(crate) config: Config,
    pub(crate) device_bytes: u64,
    pub(crate) rows: Vec<Row>,
}

/// One request, the device calls that it caused, and the statistics after it.
pub(crate) struct Row {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) op: Op,
    pub(crate) calls: Vec<Call>,
    pub(crate) statistics: [i64; 15],
}

/// The request. `addr` is the address that PyTorch returned; `None` if it ran out of memory.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Alloc { id: u64, bytes: u64, stream: u64, addr: Option<u64> },
    Free { id: u64 },
    RecordStream { id: u64, stream: u64 },
    Pending { on: bool },
    EmptyCache,
    ResetPeak,
    SetFraction { percent: f64 },
}

/// A device call. The release of a reserved address range is not recorded; pages are listed one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Malloc { addr: u64, bytes: u64 },
    Free { addr: u64 },
    Reserve { addr: u64, bytes: u64 },
    Map { addr: u64, bytes: u64 },
    Unmap { addr: u64, bytes: u64 },
}

impl Corpus {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first malformed line, with the reason.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut corpus = Self { config: Config::default(), device_bytes: 0, rows: Vec::new() };
        let mut calls = Vec::new();
        for (number, text) in text.lines().enumerate() {
            corpus.line(number + 1, text, &mut calls).map_err(|why| format!("line {}: {why}", number + 1))?;
        }
        if calls.is_empty() { Ok(corpus) } else { Err(format!("device calls after the last row: {calls:?}")) }
    }

    fn line(&mut self, line: usize, text: &str, calls: &mut Vec<Call>) -> Result<(), String> {
        if let Some(settings) = text.strip_prefix("#config,") {
            self.config = Config::parse(settings).map_err(|why| why.to_string())?.config;
            return Ok(());
        }
        let fields = Fields(text.split(',').collect());
        match fields.0[0] {
            "#device_bytes" => self.device_bytes = fields.number(1)?,
            name if name.starts_with('#') => calls.push(fields.call()?),
            "op" if fields.0.get(5..) == Some(&COLUMNS) => {}
            "op" => return Err("unexpected column names".to_owned()),
            _ => {
                let mut statistics = [0; 15];
                for (column, statistic) in statistics.iter_mut().enumerate() {
                    *statistic = fields.parse(5 + column)?;
                }
                let calls = std::mem::take(calls);
                self.rows.push(Row { line, text: text.to_owned(), op: fields.op()?, calls, statistics });
            }
        }
        Ok(())
    }
}

/// The fields of one line.
struct Fields<'a>(Vec<&'a str>);

impl Fields<'_> {
    fn parse<T: std::str::FromStr>(&self, field: usize) -> Result<T, String> {
        let text = self.0.get(field).ok_or_else(|| format!("there is no field {field}"))?;
        text.parse().map_err(|_| format!("not a number: {text:?}"))
    }

    fn number(&self, field: usize) -> Result<u64, String> {
        self.parse(field)
    }

    fn addr(&self, field: usize) -> Result<u64, String> {
        let text = self.0.get(field).ok_or_else(|| format!("there is no field {field}"))?;
        u64::from_str_radix(text, 16).map_err(|_| format!("not an address: {text:?}"))
    }

    fn call(&self) -> Result<Call, String> {
        let (addr, bytes) = (self.addr(1)?, self.number(2)?);
        match self.0[0] {
            "#malloc" => Ok(Call::Malloc { addr, bytes }),
            "#free" => Ok(Call::Free { addr }),
            "#reserve" => Ok(Call::Reserve { addr, bytes }),
            "#map" => Ok(Call::Map { addr, bytes }),
            "#unmap" => Ok(Call::Unmap { addr, bytes }),
            other => Err(format!("unknown device call: {other}")),
        }
    }

    fn op(&self) -> Result<Op, String> {
        let alloc = |addr| {
            Ok(Op::Alloc { id: self.number(1)?, bytes: self.number(2)?, stream: self.number(3)?, addr })
        };
        match self.0[0] {
            "alloc" => alloc(Some(self.addr(4)?)),
            "alloc_oom" => alloc(None),
            "free" => Ok(Op::Free { id: self.number(1)? }),
            "record_stream" => Ok(Op::RecordStream { id: self.number(1)?, stream: self.number(3)? }),
            "pending" => Ok(Op::Pending { on: self.number(1)? == 1 }),
            "empty_cache" => Ok(Op::EmptyCache),
            "reset_peak" => Ok(Op::ResetPeak),
            "set_fraction" => Ok(Op::SetFraction { percent: self.parse(2)? }),
            other => Err(format!("unknown request: {other}")),
        }
    }
}
