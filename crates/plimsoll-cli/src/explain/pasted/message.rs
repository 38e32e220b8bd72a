//! An out-of-memory message: capacity or fragmentation, by how much, what other processes use, and the line.

use plimsoll_trace::explain::Cause;
use plimsoll_trace::message::{Failed, Frame, Log, OutOfMemory, Process, Shortage, Source};
use plimsoll_trace::render::words;
use serde_json::{Value, json};

use super::next;
use super::said::Said;
use crate::shown::Shown;

/// The maximum number of ranks to list.
const MOST_RANKS: usize = 16;

pub(super) fn said(log: &Log, shown: Shown) -> Said {
    // A log that was parsed contains a message.
    let Some((process, last)) = log.process().and_then(|it| it.last().map(|last| (it, last))) else {
        return nothing();
    };
    let (message, shortage) = (&last.message, last.message.shortage());
    let size = |bytes| shown.size(bytes);
    let mut lines = accounts(message, shown);
    lines.extend(last.traceback.place().map(place));
    lines.extend(others(log, &process, last));
    let program = next::program(&last.traceback);
    Said {
        kind: "message",
        verdict: verdict(message, shortage, size),
        lines,
        unknown: unknown(last),
        help: help(message, shortage, size),
        next: commands(message, shortage, &program),
        figures: figures(log, last, shortage),
    }
}

fn nothing() -> Said {
    Said {
        kind: "message",
        verdict: "no out-of-memory message".to_owned(),
        lines: Vec::new(),
        unknown: Vec::new(),
        help: Vec::new(),
        next: Vec::new(),
        figures: Value::Null,
    }
}

fn verdict(message: &OutOfMemory, shortage: Shortage, size: impl Fn(u64) -> String) -> String {
    let requested = message.requested_bytes.map(&size).unwrap_or_default();
    let free = shortage.free_bytes.map(&size).unwrap_or_default();
    let unsure = |bytes: u64| {
        if bytes <= shortage.rounding_bytes { " (a guess: the message's figures are rounded)" } else { "" }
    };
    match (shortage.cause, message.source) {
        (Cause::Capacity { short_bytes }, _) => {
            let cause = if shortage.held_by_others { "USED BY OTHERS" } else { "CAPACITY" };
            format!(
                "out of memory: {cause}. Tried to allocate {requested} with {free} free, short by about {}{}",
                size(short_bytes),
                unsure(short_bytes)
            )
        }
        (Cause::Fragmentation { spare_bytes }, _) => format!(
            "out of memory: FRAGMENTATION. Tried to allocate {requested}; {free} is free, but in pieces: {} more than it \
             needs{}",
            size(spare_bytes),
            unsure(spare_bytes)
        ),
        (Cause::Limit { short_bytes }, _) => format!(
            "out of memory: PROCESS LIMIT of {}. Tried to allocate {requested} with {free} left, short by about {}",
            message.limit_bytes.map(&size).unwrap_or_default(),
            size(short_bytes)
        ),
        (Cause::Unknown, Source::Cpu) => {
            format!(
                "out of memory on the CPU, not on a GPU: tried to allocate {requested}; what was free is unknown"
            )
        }
        (Cause::Unknown, Source::Driver) => format!(
            "out of memory outside PyTorch's allocator, in {}: how much was missing is unknown",
            message.name
        ),
        (Cause::Unknown, _) if message.requested_bytes.is_some() => format!(
            "out of memory: tried to allocate {requested}; whether memory was short or fragmented is unknown, as the \
             message does not say what was free"
        ),
        (Cause::Unknown, _) => {
            "out of memory: the message has no figures, so the cause is unknown".to_owned()
        }
    }
}

/// The use of the GPU's bytes, as far as the message says.
fn accounts(message: &OutOfMemory, shown: Shown) -> Vec<String> {
    let others = message.true_others();
    let other_bytes: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let own = message
        .process_bytes
        .zip(message.reserved_bytes)
        .map(|(process, reserved)| process.saturating_sub(reserved));
    let outside = message.outside_bytes().map(|bytes| bytes.saturating_sub(other_bytes));
    let (context, context_name) = match own {
        Some(own) => (Some(own), "this process outside PyTorch's allocator: the CUDA context and libraries"),
        None => (
            outside,
            "outside PyTorch's allocator: the CUDA context, libraries, and other processes if there are any",
        ),
    };
    let device = message.device.map_or_else(|| "the GPU".to_owned(), |device| format!("GPU {device}"));
    let mut rows = vec![
        (message.capacity_bytes, format!("{device} in total")),
        (message.limit_bytes, "the limit of this process".to_owned()),
        (message.allocated_bytes, "allocated by this process".to_owned()),
        (message.private_bytes, "  of it in private pools (CUDA graphs)".to_owned()),
        (message.cached_bytes(), "reserved by this process, without a tensor in it".to_owned()),
        (context, context_name.to_owned()),
    ];
    rows.extend(others.iter().map(|(process, bytes)| (Some(*bytes), format!("process {process}"))));
    rows.push((message.free_bytes, "free".to_owned()));
    let is_gpu = message.source == Source::Allocator && has_accounts(message);
    let needed = |name: &str| is_gpu && !name.contains("private") && !name.contains("limit");
    let row = |(bytes, name): (Option<u64>, String)| {
        let size = match bytes {
            Some(bytes) => shown.size(bytes),
            None if needed(&name) => "unknown".to_owned(),
            None => return None,
        };
        Some(format!("  {size:>14}  {name}"))
    };
    rows.into_iter().filter_map(row).collect()
}

/// Whether a message about a GPU says who uses its memory, or how much is free.
fn has_accounts(message: &OutOfMemory) -> bool {
    let figures = [
        message.capacity_bytes,
        message.free_bytes,
        message.allocated_bytes,
        message.reserved_bytes,
        message.process_bytes,
    ];
    figures.iter().any(Option::is_some)
}

fn place(frame: &Frame) -> String {
    let [file, function, source] =
        [&frame.file, &frame.function, &frame.source].map(|text| words::plain(text));
    let function = if function.is_empty() { String::new() } else { format!(" {function}") };
    let source = if source.is_empty() { String::new() } else { format!(": {source}") };
    format!("requested at {file}:{}{function}{source}", frame.line)
}

/// The other messages: earlier ones from the same process, and those of other ranks that ran out.
fn others(log: &Log, process: &Process<'_>, last: &Failed) -> Option<String> {
    let mut others: Vec<String> = Vec::new();
    for other in log.processes().iter().filter(|it| it.failed.first() != process.failed.first()) {
        let name = other.last().map(name).unwrap_or_default();
        if !others.contains(&name) {
            others.push(name);
        }
    }
    let more = others.len().saturating_sub(MOST_RANKS);
    others.truncate(MOST_RANKS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let count = log.failed.len() + log.left_out;
    let which = match process.failed.last() {
        Some(end) if std::ptr::eq(*end, last) => "the last",
        _ => "the last with figures or a traceback",
    };
    let is_one_of_several = process.failed.len() > 1;
    if count < 2 {
        None
    } else if others.is_empty() {
        Some(format!("{count} messages in all; this one is {which}"))
    } else {
        let which = if is_one_of_several { format!("{which} of") } else { "of".to_owned() };
        Some(format!(
            "{count} messages in all; this one is {which} {}; also {}{more}",
            name(last),
            others.join(", ")
        ))
    }
}

fn name(failed: &Failed) -> String {
    match (failed.rank, failed.message.device) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, Some(device)) => format!("GPU {device}"),
        (None, None) => failed.message.name.clone(),
    }
}

fn help(message: &OutOfMemory, shortage: Shortage, size: impl Fn(u64) -> String) -> Vec<String> {
    let mut help = Vec::new();
    let is_cuda = message.source == Source::Allocator;
    match shortage.cause {
        Cause::Capacity { .. } if shortage.held_by_others => {
            let others = message.true_others();
            let rows: Vec<String> = others.iter().map(|(pid, bytes)| format!("{pid} ({})", size(*bytes))).collect();
            help.push(format!("end the other processes on this GPU, or use another GPU: {}", rows.join(", ")));
        }
        Cause::Capacity { .. } => {
            help.push(
                "the program needs more than the GPU has; allocator settings and empty_cache() cannot help. This is the shortage of one request; the program needs more in total"
                    .to_owned(),
            );
            let outside = message.outside_bytes().filter(|bytes| *bytes > USUAL_CONTEXT_BYTES && message.others.is_empty());
            help.extend(outside.map(|bytes| {
                format!(
                    "{} is used outside PyTorch's allocator, more than a CUDA context takes: other processes (nvidia-smi lists them), or a display",
                    size(bytes)
                )
            }));
        }
        Cause::Fragmentation { .. } if is_cuda => help.push(
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: it needs no contiguous memory (PyTorch 2.1 or newer, not \
             on Windows)"
                .to_owned(),
        ),
        Cause::Limit { .. } if message.source == Source::Metal => help.push(
            "use a smaller batch; PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit".to_owned(),
        ),
        Cause::Limit { .. } => {
            help.push("torch.cuda.set_per_process_memory_fraction set the limit: raise it, or use less memory".to_owned());
        }
        _ if message.source == Source::Driver => help.push(
            "the message does not say who uses the memory. It may be another process, especially if the program failed at its start: end it, or use another GPU. Or PyTorch's allocator had taken the rest: use a smaller batch, or leave \
             room with torch.cuda.set_per_process_memory_fraction(0.9)"
                .to_owned(),
        ),
        _ if message.source == Source::Cpu => {
            help.push("load data in smaller pieces, use fewer workers, or map files instead of reading them".to_owned());
        }
        _ => {}
    }
    help
}

/// The CUDA context alone takes at most this.
const USUAL_CONTEXT_BYTES: u64 = 1 << 30;

fn commands(message: &OutOfMemory, shortage: Shortage, program: &str) -> Vec<String> {
    let (plan, run) = (next::plan(message.capacity_bytes, program), next::run(program));
    match (message.source, shortage.cause) {
        (Source::Cpu | Source::Metal, _) => Vec::new(),
        (_, Cause::Fragmentation { .. }) => {
            vec![format!("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {program}"), run, plan]
        }
        (_, Cause::Capacity { .. }) if shortage.held_by_others => vec![processes(message), plan],
        (Source::Driver, _) => vec![processes(message), run, plan],
        _ => vec![plan, run],
    }
}

/// The command that lists the processes on a GPU.
fn processes(message: &OutOfMemory) -> String {
    let is_amd = ["HIP", "roc"].iter().any(|part| message.name.contains(part));
    if is_amd { "rocm-smi --showpids" } else { "nvidia-smi" }.to_owned()
}

fn unknown(last: &Failed) -> Vec<&'static str> {
    let message = &last.message;
    let mut unknown = Vec::new();
    if message.source == Source::Allocator && !has_accounts(message) {
        unknown.push(
            "the GPU's memory, who uses it, and how much was free: paste the whole message, if it says more",
        );
    }
    unknown.push("which tensors use the memory (`plimsoll run` records it)");
    if message.source == Source::Allocator {
        unknown.push("what the program needs in total (`plimsoll plan` computes it)");
        if message.others.is_empty() && message.process_bytes.is_none() && message.outside_bytes().is_some() {
            unknown.push("whether other processes use the GPU");
        }
    }
    if last.traceback.frames.is_empty() {
        unknown.push("the line that ran out: paste the traceback, too");
    }
    unknown
}

fn figures(log: &Log, last: &Failed, shortage: Shortage) -> Value {
    let of_each = log.failed.iter().map(|failed| {
        let message = &failed.message;
        json!({
            "rank": failed.rank,
            "source": message.name,
            "device": message.device,
            "requested_bytes": message.requested_bytes,
            "device_bytes": message.capacity_bytes,
            "device_free_bytes": message.free_bytes,
            "allocated_bytes": message.allocated_bytes,
            "private_pool_bytes": message.private_bytes,
            "reserved_bytes": message.reserved_bytes,
            "limit_bytes": message.limit_bytes,
            "process_bytes": message.process_bytes,
            "outside_bytes": message.outside_bytes(),
            "other_processes": message.true_others().iter().map(|(pid, bytes)| json!({ "pid": pid, "bytes": bytes })).collect::<Vec<_>>(),
            "line": failed.traceback.place().map(line),
            "frames": failed.traceback.frames.iter().map(line).collect::<Vec<_>>(),
        })
    });
    let cause = if shortage.held_by_others { "held by others" } else { shortage.cause.name() };
    json!({
        "failure": {
            "cause": cause,
            "asked_bytes": last.message.requested_bytes,
            "short_bytes": shortage.cause.short_bytes(),
            "spare_bytes": shortage.cause.spare_bytes(),
            "free_bytes": shortage.free_bytes,
            "rounding_bytes": shortage.rounding_bytes,
            "line": last.traceback.place().map(line),
        },
        "messages": of_each.collect::<Vec<_>>(),
    })
}

fn line(frame: &Frame) -> Value {
    json!({ "file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source })
}
