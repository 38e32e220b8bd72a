//! The machine's host memory: the sentence for the verdict, a line for the short text, the table for the full text, and
//! the values for the JSON.

use plimsoll_trace::report::{Brief, Cell, Column, Rank, Row, Section, Table};
use serde_json::{Value, json};

use crate::predict::analysis::host::{CONTAINERS_SHM_BYTES, DRIVER, Group, Node, Part};
use crate::predict::node::Machine;
use crate::predict::recording::host::Phase;

/// The maximum number of owners in the full text.
const OWNERS: usize = 12;

/// The phrase for the memory that the machine lacks, for the verdict: `needs 214 GiB of host memory, 86 GiB more than
/// --host-memory`.
pub(crate) fn shortage(node: &Node, size: impl Fn(u64) -> String) -> Option<String> {
    let memory = node.short_bytes().map(|short| {
        let than = match node.machine {
            Machine { is_left: true, .. } => "the GPU leaves of the memory that they share",
            Machine { is_this: true, .. } => "this machine has",
            _ => "--host-memory",
        };
        format!("needs {} of host memory, {} more than {than}", size(node.must_bytes()), size(short))
    });
    let shm = node.shm_short_bytes().map(|short| {
        format!("needs {} in /dev/shm, {} more than --shm", size(node.shm_bytes()), size(short))
    });
    let all: Vec<String> = memory.into_iter().chain(shm).collect();
    (!all.is_empty()).then(|| all.join(", and "))
}

/// The section with the table. The short text contains only a line instead of the table.
pub(super) fn section(node: Option<&Node>, size: impl Fn(u64) -> String) -> Section {
    let Some(node) = node else {
        return Section::data("host", Value::Null);
    };
    let row = |name, must: Cell, may: Cell, what: String| Row::named(name, [must, may, Cell::Text(what)]);
    let none = || Cell::text("");
    let mut rows: Vec<Row> = node.groups.iter().filter_map(|it| group(node, it, &size)).collect();
    if node.helpers.count > 0 {
        let what = format!("{} at one time, such as launchers and compilers", other(node.helpers.count));
        rows.push(row("others", Cell::Bytes(node.helpers.bytes), none(), what));
    }
    if node.shm_bytes() > 0 {
        let what = format!("/dev/shm at its peak{}", shm_limit(node, &size));
        rows.push(row("shm", Cell::Bytes(node.shm_bytes()), none(), what));
    }
    let total = format!("the machine at its peak, {}", when(node.phase));
    rows.push(row("node", Cell::Bytes(node.must_bytes()), Cell::Bytes(node.may_bytes()), total));
    if let Some(bytes) = node.machine.memory_bytes {
        let what = match node.machine.is_left {
            true => "what the GPU, at its peak, leaves of the memory that it shares with the host",
            false => "--host-memory (given)",
        };
        rows.push(row("limit", Cell::Bytes(bytes), none(), what.to_owned()));
    }
    let owners = node.owners();
    let more: u64 = owners.iter().skip(OWNERS).map(|(_, bytes)| bytes).sum();
    let owner = |(name, bytes): &(String, u64)| {
        row("owner", Cell::Bytes(*bytes), none(), format!("  {name} ({})", basis(name)))
    };
    rows.extend(owners.iter().take(OWNERS).map(owner));
    if more > 0 {
        rows.push(row("owner", Cell::Bytes(more), none(), "  other owners (measured)".to_owned()));
    }
    let file = |(name, bytes): &(String, u64)| {
        row(
            "file",
            none(),
            Cell::Bytes(*bytes),
            format!("  file pages of {name}, shared by all processes (measured)"),
        )
    };
    rows.extend(node.files().iter().take(OWNERS).map(file));
    let bytes = |title| Column { key: title, title, width: 12, unit: "" };
    let columns =
        vec![bytes("must"), bytes("may"), Column { key: "what", title: "what", width: 0, unit: "" }];
    let mut table = Table::of(columns, rows);
    let shared = node.machine.is_left.then(|| {
        "the GPU uses the host's memory: if the program needs too much in total, the kernel kills a process, and CUDA reports no \
         error. CUDA's free memory there does not include file pages that the kernel can drop"
            .to_owned()
    });
    table.notes = [
        "must: anonymous, pinned and shared memory. may: also file pages, which the kernel can drop",
        "not counted: host memory for kernels that the CUDA driver loads later, up to some hundred MB",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(shared)
    .collect();
    Section::table("host", Rank::Screen, format!("Host memory{}", processes(node)), table)
        .valued(value(node))
        .briefly(Some(Brief::Line(brief(node, &size))))
}

/// The line for the short text: `Host: 12.30 GiB while loading, 13.10 GiB with pages of files; most of it is torch.load
/// at train.py:7, 8.00 GiB`.
fn brief(node: &Node, size: impl Fn(u64) -> String) -> String {
    let (must, may) = (size(node.must_bytes()), size(node.may_bytes()));
    let owners = node.owners();
    let largest =
        owners.first().map_or_else(String::new, |(name, bytes)| format!("; {} for {name}", size(*bytes)));
    let shm = match node.shm_bytes() {
        bytes if bytes > node.machine.shm_bytes.unwrap_or(CONTAINERS_SHM_BYTES) => {
            format!("; {} in /dev/shm{}", size(bytes), shm_limit(node, &size))
        }
        _ => String::new(),
    };
    format!("Host{}: {must} {}, {may} with file pages{largest}{shm}", processes(node), when(node.phase))
}

/// A row for a rank, or for the program, with its phases.
fn group(node: &Node, group: &Group, size: impl Fn(u64) -> String) -> Option<Row> {
    let most = group.phases.iter().max_by_key(|part| part.must_bytes())?;
    let name = match (group.rank, node.machine.alike) {
        (Some(rank), Some(alike)) if alike > 1 => {
            format!("rank {rank}, which represents {alike} equal ranks, each")
        }
        (Some(rank), _) => format!("rank {rank}"),
        (None, _) => format!("process {}", group.pid),
    };
    let phase = |part: &Part| format!("{} {}", part.peak.phase.name(), size(part.must_bytes()));
    let phases: Vec<String> = group.phases.iter().map(phase).collect();
    let workers = match most.workers.count {
        0 => String::new(),
        count => format!("; {count} workers with {} of their own", size(most.workers.bytes)),
    };
    Some(Row::named(
        "group",
        [
            Cell::Bytes(most.must_bytes()),
            Cell::Bytes(most.must_bytes() + most.peak.file_bytes),
            Cell::Text(format!("{name}: {}{workers}", phases.join(", "))),
        ],
    ))
}

/// Whether `/dev/shm` is large enough, as far as it is known.
fn shm_limit(node: &Node, size: impl Fn(u64) -> String) -> String {
    let bytes = node.shm_bytes();
    match node.machine.shm_bytes {
        Some(limit) if bytes > limit => {
            format!(", more than --shm {}: start the container with a larger --shm-size", size(limit))
        }
        None if bytes > CONTAINERS_SHM_BYTES => {
            format!(
                ", more than Docker's default of {}: start the container with --shm-size",
                size(CONTAINERS_SHM_BYTES)
            )
        }
        _ => String::new(),
    }
}

/// ` (2 ranks, 8 workers)`; empty for a single process.
fn processes(node: &Node) -> String {
    let counted = |count: u64, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let parts = [counted(node.ranks(), "rank"), counted(node.workers(), "worker")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn other(count: u64) -> String {
    if count == 1 { "1 other process".to_owned() } else { format!("{count} other processes") }
}

fn when(phase: Phase) -> &'static str {
    match phase {
        Phase::Load => "before the first step",
        Phase::Step => "in the steps",
        Phase::After => "after the steps",
    }
}

/// Says how an owner's bytes are known: `assumed` or `measured`.
fn basis(name: &str) -> &'static str {
    // NCCL and the driver do not run here, so their figures come from another machine.
    if name == "NCCL" || name == DRIVER { "assumed" } else { "measured" }
}

fn value(node: &Node) -> Value {
    let phase = |part: &Part| {
        json!({
            "phase": part.peak.phase.name(),
            "must_bytes": part.must_bytes(),
            "file_bytes": part.peak.file_bytes,
            "anonymous_bytes": part.peak.anonymous_bytes,
            "pinned_bytes": part.peak.pinned_bytes,
            "shared_bytes": part.peak.shared_bytes,
            "nccl_bytes": part.nccl_bytes,
            "driver_bytes": part.driver_bytes,
            "workers": part.workers.count,
            "workers_bytes": part.workers.bytes,
        })
    };
    let groups = node.groups.iter().map(|group| {
        let phases: Vec<Value> = group.phases.iter().map(phase).collect();
        json!({ "pid": group.pid, "rank": group.rank, "phases": phases })
    });
    let owner =
        |(name, bytes): &(String, u64)| json!({ "owner": name, "bytes": bytes, "basis": basis(name) });
    let file = |(name, bytes): &(String, u64)| json!({ "file": name, "bytes": bytes });
    json!({
        "phase": node.phase.name(),
        "must_bytes": node.must_bytes(),
        "may_bytes": node.may_bytes(),
        "ranks": node.ranks(),
        "alike": node.machine.alike,
        "groups": groups.collect::<Vec<Value>>(),
        "others": { "count": node.helpers.count, "bytes": node.helpers.bytes },
        "shm_bytes": node.shm_bytes(),
        "owners": node.owners().iter().map(owner).collect::<Vec<Value>>(),
        "files": node.files().iter().map(file).collect::<Vec<Value>>(),
        "limit_bytes": node.machine.memory_bytes,
        "short_bytes": node.short_bytes().unwrap_or(0),
        "shm_limit_bytes": node.machine.shm_bytes,
        "shm_short_bytes": node.shm_short_bytes().unwrap_or(0),
    })
}
