//! `--timeline FILE`: the estimated kernels and collectives of a step, as trace events in JSON, a track for each stream.

use std::io::{self, Write};

use plimsoll::TimelineSpan;
use serde_json::json;

/// Writes the spans for ui.perfetto.dev and chrome://tracing. The first one begins at 0.
pub(super) fn write(spans: &[TimelineSpan], out: &mut dyn Write) -> io::Result<()> {
    let begin = spans.iter().map(|span| span.start).min().unwrap_or_default();
    let mut streams: Vec<u64> = spans.iter().map(|span| span.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let names = streams.iter().map(|stream| {
        let name = if *stream == 0 { "computation".to_owned() } else { format!("stream {stream}") };
        json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": stream, "args": {"name": name}})
    });
    let events = spans.iter().map(|span| {
        json!({
            "name": span.op,
            "ph": "X",
            "pid": 0,
            "tid": span.stream,
            "ts": (span.start - begin).as_secs_f64() * 1e6,
            "dur": span.duration.as_secs_f64() * 1e6,
            "args": {
                "flops": span.cost.flops,
                "bytes_read": span.cost.bytes_read,
                "bytes_written": span.cost.bytes_written,
                "bytes_received": span.cost.bytes_received,
            },
        })
    });
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    for (i, event) in names.chain(events).enumerate() {
        write!(out, "{}\n{event}", if i == 0 { "" } else { "," })?;
    }
    writeln!(out, "\n]}}")
}
