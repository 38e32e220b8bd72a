//! An out-of-memory message: capacity or fragmentation, by how much, what other processes use, and the line.

use plimsoll_trace::explain::Cause;
use plimsoll_trace::message::{Ended, Failed, Frame, Log, OutOfMemory, Process, Shortage, Source};
use plimsoll_trace::render::words;
use serde_json::{Value, json};

use super::said::Said;
use super::{accounts, help, next};
use crate::shown::Shown;

/// The maximum number of ranks to list.
const MOST_RANKS: usize = 16;

pub(super) fn said(log: &Log, shown: Shown) -> Said {
    // A parsed log contains a message.
    let Some((process, last)) = log.process().and_then(|it| it.last().map(|last| (it, last))) else {
        return nothing();
    };
    let (message, shortage) = (&last.message, last.message.shortage());
    let size = |bytes| shown.size(bytes);
    let mut lines: Vec<String> = last.ended_with.as_ref().map(ended).into_iter().collect();
    lines.extend(accounts::lines(message, shown));
    lines.extend(last.traceback.place().map(place));
    lines.extend(others(log, &process, last));
    let program = next::program(last.ended_with.as_ref().map_or(&last.traceback, |it| &it.traceback));
    Said {
        kind: "message",
        verdict: verdict(message, shortage, size),
        lines,
        unknown: unknown(last),
        help: help::help(message, shortage, shown),
        next: help::commands(message, shortage, &program),
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
            let limit = match message.limit_bytes.filter(|_| shortage.limit_short_bytes.is_some()) {
                Some(limit) => format!(", and PROCESS LIMIT of {}", size(limit)),
                None => String::new(),
            };
            format!(
                "out of memory: {cause}{limit}. Tried to allocate {requested} with {free} free, short by about {}{}",
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
            "out of memory: PROCESS LIMIT of {}{}. Tried to allocate {requested} with {free} left, short by about {}",
            message.limit_bytes.map(&size).unwrap_or_default(),
            if shortage.device_short_bytes.is_some() { ", and CAPACITY" } else { "" },
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
        (Cause::Unknown, _) if message.requested_bytes.is_some() => {
            let missing = match message.free_bytes {
                Some(_) => "how much memory the allocator cached",
                None => "how much was free",
            };
            format!(
                "out of memory: tried to allocate {requested}; whether memory was short or fragmented is unknown, because \
                 the message does not say {missing}"
            )
        }
        (Cause::Unknown, _) if accounts::has_figures(message) => {
            "out of memory: the message does not say how much was requested, so the cause is unknown"
                .to_owned()
        }
        (Cause::Unknown, _) => {
            "out of memory: the message has no figures, so the cause is unknown".to_owned()
        }
    }
}

/// A sentence about a later error that ended the program, if the out-of-memory error did not end it.
fn ended(ended: &Ended) -> String {
    let error = words::plain(&ended.error);
    let at = ended
        .traceback
        .place()
        .map_or_else(String::new, |it| format!(" at {}:{}", words::plain(&it.file), it.line));
    format!("the program continued after this message; it was ended by {error}{at}, not by a lack of memory")
}

fn place(frame: &Frame) -> String {
    let [file, function, source] =
        [&frame.file, &frame.function, &frame.source].map(|text| words::plain(text));
    let function = if function.is_empty() { String::new() } else { format!(" {function}") };
    let source = if source.is_empty() { String::new() } else { format!(": {source}") };
    format!("requested at {file}:{}{function}{source}", frame.line)
}

/// A sentence about the other messages: earlier messages of the same process, and messages of other ranks that ran out
/// of memory.
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

fn unknown(last: &Failed) -> Vec<&'static str> {
    let message = &last.message;
    let mut unknown = Vec::new();
    if message.source == Source::Allocator && !accounts::has_figures(message) {
        unknown.push(
            "the GPU's memory, who uses it, and how much was free: paste the whole message, if it says more",
        );
    }
    let is_nvidias = next::is_nvidias(message);
    unknown.push(match is_nvidias {
        true => "which tensors use the memory (`plimsoll run` records it)",
        false => "which tensors use the memory (a snapshot shows it)",
    });
    if message.source == Source::Allocator {
        unknown.push(match is_nvidias {
            true => "what the program needs in total (`plimsoll plan` computes it)",
            false => "what the program needs in total",
        });
        if message.others.is_empty() && message.process_bytes.is_none() && message.outside_bytes().is_some() {
            unknown.push("whether other processes use the GPU");
        }
        if !message.perhaps_own().is_empty() {
            unknown.push("which of the processes is this program");
        }
    }
    if last.ended_with.is_some() && is_nvidias {
        unknown.push(
            "the line that ran out of memory: the program caught the error; `plimsoll run` records the line",
        );
    } else if last.ended_with.is_some() {
        unknown.push("the line that ran out of memory: the program caught the error");
    } else if last.traceback.frames.is_empty() {
        unknown.push("the line that ran out of memory: also paste the traceback");
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
            "other_processes": processes(&message.true_others()),
            "perhaps_this_process": processes(&message.perhaps_own()),
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
            "device_short_bytes": shortage.device_short_bytes,
            "limit_short_bytes": shortage.limit_short_bytes,
            "ended_with": last.ended_with.as_ref().map(|it| json!({ "error": it.error, "line": it.traceback.place().map(line) })),
        },
        "messages": of_each.collect::<Vec<_>>(),
    })
}

fn processes(all: &[(u32, u64)]) -> Value {
    all.iter().map(|(pid, bytes)| json!({ "pid": pid, "bytes": bytes })).collect()
}

fn line(frame: &Frame) -> Value {
    json!({ "file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source })
}

#[cfg(test)]
mod tests {
    use plimsoll_trace::message::{Pasted, read};

    use super::*;

    fn answer(text: &str) -> Said {
        let Some(Pasted::Log(log)) = read(text.as_bytes()).expect("read") else { panic!("{text}") };
        said(&log, Shown { rows: 10, bytes: false })
    }

    #[test]
    fn a_caught_error_and_a_later_one_are_told_apart() {
        let said = answer(
            "oom, retrying: CUDA out of memory. Tried to allocate 8.00 GiB.\nepoch 1 ok\nTraceback (most recent call last):\n  \
             File \"t.py\", line 3, in <module>\n    y = d['loss']\nKeyError: 'loss'\n",
        );
        assert_eq!(
            said.lines,
            [
                "the program continued after this message; it was ended by KeyError at t.py:3, not by a lack of memory"
            ]
        );
        assert_eq!(said.figures["failure"]["line"], Value::Null);
        assert_eq!(said.figures["failure"]["ended_with"]["error"], "KeyError");
        assert!(
            said.unknown.iter().any(|it| it.contains("the program caught the error")),
            "{:?}",
            said.unknown
        );
    }

    #[test]
    fn a_message_without_a_request_has_figures() {
        let said = answer(
            "CUDA out of memory. Tried to allocate NaN GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free.",
        );
        assert!(said.verdict.contains("does not say how much was requested"), "{}", said.verdict);
    }

    #[test]
    fn a_limit_and_a_full_gpu_are_both_named() {
        let said = answer(
            "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 3 has a total capacity of 79.10 GiB of which 512.00 MiB is free. 70.00 GiB \
             allowed; Including non-PyTorch memory, this process has 70.50 GiB memory in use. Of the allocated memory 69.50 GiB is allocated by \
             PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated.",
        );
        assert!(
            said.verdict.starts_with("out of memory: PROCESS LIMIT of 70.00 GiB, and CAPACITY."),
            "{}",
            said.verdict
        );
        let [raise, outside] = said.help.as_slice() else { panic!("{:?}", said.help) };
        assert!(raise.contains("alone cannot help: the GPU is also short by about 392.00 MiB"), "{raise}");
        assert!(outside.starts_with("8.10 GiB is held outside this process"), "{outside}");
    }
}
