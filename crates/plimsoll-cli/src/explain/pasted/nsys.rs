//! The SQLite export of an Nsight Systems profile (`nsys export --type sqlite`) that was recorded with
//! `--cuda-memory-usage=true`: the peak of each process on each GPU, and the largest allocations at that peak, with the
//! NVTX range in which they were made. NVIDIA's documentation of nsys-exporter describes the tables.
//!
//! The file may come from anywhere: only plain tables are read, and SQLite runs no code from the schema.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use plimsoll_trace::render::words::counted;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde_json::{Value, json};

use super::next;
use super::said::Said;
use crate::exit::{Exit, Failure};
use crate::shown::Shown;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The number of allocations to list.
const ROWS: usize = 5;

/// Kinds of memory, from `ENUM_CUDA_MEM_KIND`: device, array, static device memory. 1 is pinned host memory, 4 and 6 are
/// managed.
const ON_DEVICE: [i64; 3] = [2, 3, 5];

const EVENTS: &str = "SELECT start, globalPid, deviceId, contextId, address, bytes, memKind, memoryOperationType \
                      FROM CUDA_GPU_MEMORY_USAGE_EVENTS ORDER BY start, rowid";

/// The query for the innermost NVTX range of a process at a time. The upper bits of a global thread ID identify its
/// process.
const RANGE: &str = "SELECT COALESCE(text, (SELECT value FROM StringIds WHERE id = textId)) FROM NVTX_EVENTS \
                     WHERE start <= ?1 AND \"end\" >= ?1 AND globalTid >> 24 = ?2 >> 24 ORDER BY start DESC LIMIT 1";

/// An allocation of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Allocation {
    start_ns: i64,
    bytes: u64,
}

/// The memory of a process on a GPU.
#[derive(Debug, Default)]
struct Usage {
    live: HashMap<(i64, i64), Allocation>,
    level_bytes: u64,
    peak_bytes: u64,
    peak_ns: i64,
    allocations: u64,
    /// The largest allocations at the peak.
    largest: Vec<Allocation>,
}

/// Whether a file is an SQLite database.
pub(in crate::explain) fn is_database(path: &Path) -> bool {
    let mut first = [0; 16];
    let is_file = path.metadata().is_ok_and(|it| it.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && &first == MAGIC
}

/// # Errors
/// If the database cannot be read, or has no memory events.
pub(super) fn said(path: &Path, shown: Shown) -> Result<Said, Failure> {
    let name = path.display();
    let unreadable = |why: String| Failure::new(Exit::Unreadable, why);
    let broken = |why: rusqlite::Error| unreadable(format!("{name}: not a usable SQLite database: {why}"));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags).map_err(broken)?;
    database.pragma_update(None, "trusted_schema", false).map_err(broken)?;
    if !has_table(&database, "CUDA_GPU_MEMORY_USAGE_EVENTS").map_err(broken)? {
        return Err(unreadable(format!(
            "{name} has no memory events of Nsight Systems: profile again with nsys profile --cuda-memory-usage=true, \
             then nsys export --type sqlite"
        )));
    }
    let usages = usages(&database).map_err(broken)?;
    let Some((&(worst, device), _)) = usages.iter().max_by_key(|(_, usage)| usage.peak_bytes) else {
        return Err(unreadable(format!("{name} has memory events of the host only")));
    };
    let ranges = has_table(&database, "NVTX_EVENTS").map_err(broken)?
        && has_table(&database, "StringIds").map_err(broken)?;
    let mut lines = Vec::new();
    let mut figures: Vec<Value> = Vec::new();
    for (&(process, device), usage) in &usages {
        let number = pid(process);
        lines.push(format!(
            "  GPU {device}, process {number}: peak {} at {}; {} at the end of the profile; {}",
            shown.size(usage.peak_bytes),
            seconds(usage.peak_ns),
            shown.size(usage.level_bytes),
            counted(usage.allocations, "allocation")
        ));
        let mut rows = Vec::new();
        for it in &usage.largest {
            let range = if ranges { range(&database, it.start_ns, process).map_err(broken)? } else { None };
            let within = range.as_ref().map_or_else(String::new, |name| format!(" in `{name}`"));
            lines.push(format!("    {} at {}{within}", shown.size(it.bytes), seconds(it.start_ns)));
            rows.push(json!({ "bytes": it.bytes, "time_ns": it.start_ns, "range": range }));
        }
        figures.push(json!({
            "device": device,
            "process": number,
            "peak_bytes": usage.peak_bytes,
            "peak_ns": usage.peak_ns,
            "last_bytes": usage.level_bytes,
            "allocations": usage.allocations,
            "largest": rows,
        }));
    }
    let peak = &usages[&(worst, device)];
    let mut unknown = vec![
        "which tensors use the memory: CUDA's events show only the segments that PyTorch allocates",
        "memory outside CUDA's allocations, such as the context",
    ];
    if !ranges {
        unknown
            .push("which layers allocate the memory: plimsoll run --nvtx adds the layers' names for Nsight");
    }
    Ok(Said {
        kind: "nsys",
        verdict: format!(
            "GPU {device}: process {} had at most {} of device memory, at {} of the profile",
            pid(worst),
            shown.size(peak.peak_bytes),
            seconds(peak.peak_ns)
        ),
        lines,
        unknown,
        help: Vec::new(),
        next: vec![next::run("python FILE")],
        figures: json!({ "devices": figures }),
    })
}

/// Whether the database has a table with this name. A view does not count, because it may compute anything.
fn has_table(database: &Connection, name: &str) -> rusqlite::Result<bool> {
    let query =
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND sql LIKE 'CREATE TABLE%'";
    database.query_row(query, [name], |row| row.get::<_, i64>(0)).map(|count| count == 1)
}

/// The memory of each process on each GPU, by `globalPid` and device.
fn usages(database: &Connection) -> rusqlite::Result<BTreeMap<(i64, i64), Usage>> {
    let mut found: BTreeMap<(i64, i64), Usage> = BTreeMap::new();
    let mut query = database.prepare(EVENTS)?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        if !ON_DEVICE.contains(&row.get(6)?) {
            continue;
        }
        let usage = found.entry((row.get::<_, Option<i64>>(1)?.unwrap_or(0), row.get(2)?)).or_default();
        let start_ns = row.get(0)?;
        let bytes = u64::try_from(row.get::<_, i64>(5)?).unwrap_or(0);
        usage.note((row.get(3)?, row.get(4)?), Allocation { start_ns, bytes }, row.get::<_, i64>(7)? == 0);
    }
    for usage in found.values_mut() {
        usage.finish();
    }
    Ok(found)
}

impl Usage {
    /// Records an event at an address in a context. If an allocation was made before the profile began, its end is
    /// ignored.
    fn note(&mut self, address: (i64, i64), event: Allocation, is_start: bool) {
        if !is_start {
            // If memory is at a peak, its largest allocations are stored before it falls.
            self.finish();
            let freed = self.live.remove(&address).map_or(0, |it| it.bytes);
            self.level_bytes = self.level_bytes.saturating_sub(freed);
            return;
        }
        self.allocations += 1;
        self.level_bytes = self.level_bytes.saturating_add(event.bytes);
        if let Some(before) = self.live.insert(address, event) {
            self.level_bytes = self.level_bytes.saturating_sub(before.bytes);
        }
        if self.level_bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_ns) = (self.level_bytes, event.start_ns);
            self.largest.clear();
        }
    }

    /// Saves the largest allocations if memory is at its peak and they are not known yet.
    fn finish(&mut self) {
        if self.level_bytes == self.peak_bytes && self.largest.is_empty() {
            self.largest = self.live.values().copied().collect();
            self.largest.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.start_ns));
            self.largest.truncate(ROWS);
        }
    }
}

/// The innermost NVTX range of a process at a time; `None` if there is none.
fn range(database: &Connection, start_ns: i64, process: i64) -> rusqlite::Result<Option<String>> {
    let found = database.query_row(RANGE, params![start_ns, process], |row| row.get::<_, Option<String>>(0));
    Ok(found.optional()?.flatten())
}

/// The process ID in a `globalPid`.
fn pid(global: i64) -> i64 {
    (global >> 24) & 0xff_ffff
}

/// A time since the start of the profile: `4.213 s`.
fn seconds(ns: i64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}
