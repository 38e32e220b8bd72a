//! Samples in the text format of Prometheus (version 0.0.4): one family of metrics after the other, with a line for each
//! process.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use plimsoll::memory::live::Sample;

/// The default address of --prometheus.
pub(crate) const ADDRESS: &str = "127.0.0.1:9466";

/// A value of a sample, if it is known.
type Value = fn(&Sample) -> Option<f64>;

/// Name, kind, help, value.
const FAMILIES: [(&str, &str, &str, Value); 15] = [
    ("allocated_bytes", "gauge", "Allocated bytes.", |it| Some(it.allocated_bytes as f64)),
    ("active_bytes", "gauge", "Allocated bytes and freed ones that other streams still use.", |it| {
        Some(it.active_bytes as f64)
    }),
    ("reserved_bytes", "gauge", "Reserved bytes: allocated and cached.", |it| Some(it.reserved_bytes as f64)),
    ("peak_allocated_bytes", "gauge", "The peak of allocated bytes.", |it| {
        Some(it.peak_allocated_bytes as f64)
    }),
    ("peak_reserved_bytes", "gauge", "The peak of reserved bytes.", |it| Some(it.peak_reserved_bytes as f64)),
    ("device_bytes", "gauge", "The memory of the device.", |it| Some(it.capacity_bytes as f64)),
    ("device_free_bytes", "gauge", "The free memory of the device.", |it| Some(it.device_free_bytes as f64)),
    ("limit_bytes", "gauge", "The limit on reserved bytes, if one is set.", |it| {
        it.limit_bytes.map(|bytes| bytes as f64)
    }),
    ("largest_cached_bytes", "gauge", "The largest cached block, if known.", |it| {
        it.largest_cached_bytes.map(|bytes| bytes as f64)
    }),
    ("growth_bytes_per_step", "gauge", "The growth of allocated bytes from step to step, if known.", |it| {
        it.growth_bytes_per_step
    }),
    ("process_resident_bytes", "gauge", "The resident memory of the process, if known.", |it| {
        it.resident_bytes.map(|bytes| bytes as f64)
    }),
    ("steps_total", "counter", "Training steps.", |it| Some(it.steps as f64)),
    ("alloc_retries_total", "counter", "Retries after releasing the cache.", |it| {
        Some(it.num_alloc_retries as f64)
    }),
    ("out_of_memory_total", "counter", "Requests that ran out of memory.", |it| Some(it.num_ooms as f64)),
    ("skipped_steps_total", "counter", "Steps that GradScaler skipped, if it is used.", |it| {
        it.skipped_steps.map(|steps| steps as f64)
    }),
];

/// Parses `HOST:PORT`, `PORT` or `HOST`; without a host, localhost.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: &str| format!("{why}; use HOST:PORT or PORT, such as {ADDRESS}");
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong("a port must be from 0 to 65535"));
    }
    let mut found = text.to_socket_addrs().map_err(|why| wrong(&why.to_string()))?;
    found.next().ok_or_else(|| wrong("the host has no address"))
}

/// The text of all samples.
pub(super) fn render(samples: &[Sample]) -> String {
    let mut out = String::new();
    for (name, kind, help, value) in FAMILIES {
        let rows: Vec<(String, f64)> =
            samples.iter().filter_map(|it| Some((labels(it, None), value(it)?))).collect();
        family(&mut out, name, kind, help, &rows);
    }
    let categories = samples.iter().flat_map(|sample| {
        let row = move |(name, bytes): (&String, &u64)| (labels(sample, Some(name)), *bytes as f64);
        sample.by_category.iter().map(row)
    });
    let rows: Vec<_> = categories.collect();
    family(&mut out, "category_bytes", "gauge", "Allocated bytes by category.", &rows);
    out
}

fn family(out: &mut String, name: &str, kind: &str, help: &str, rows: &[(String, f64)]) {
    if rows.is_empty() {
        return;
    }
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "# HELP plimsoll_{name} {help}\n# TYPE plimsoll_{name} {kind}");
    for (labels, value) in rows {
        let _ = writeln!(out, "plimsoll_{name}{{{labels}}} {value}");
    }
}

fn labels(sample: &Sample, category: Option<&str>) -> String {
    let mut labels = format!("pid=\"{}\",device=\"{}\"", sample.pid, escaped(&sample.device));
    if let Some(rank) = sample.rank {
        let _ = write!(labels, ",rank=\"{rank}\"");
    }
    if let Some(job) = &sample.job {
        let _ = write!(labels, ",job_id=\"{}\"", escaped(job));
    }
    if let Some(category) = category {
        let _ = write!(labels, ",category=\"{}\"", escaped(category));
    }
    labels
}

/// A label's value, with backslashes, quotes and line feeds escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::text::tests::sample;

    #[test]
    fn addresses_are_local_unless_they_name_a_host() {
        for (text, expected) in
            [("9000", "127.0.0.1:9000"), ("0.0.0.0:1", "0.0.0.0:1"), ("[::1]:80", "[::1]:80")]
        {
            assert_eq!(address(text).map(|it| it.to_string()), Ok(expected.to_owned()));
        }
        for text in ["", "70000", "here", "127.0.0.1", "127.0.0.1:", "1.2.3:x"] {
            assert!(address(text).is_err_and(|why| why.contains("HOST:PORT")), "{text}");
        }
    }

    #[test]
    fn a_family_is_declared_once_and_has_a_line_for_each_process() {
        let other = Sample { pid: 5, device: "a \"b\"\\".to_owned(), rank: Some(3), ..sample() };
        let text = render(&[sample(), other]);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("plimsoll_reserved_bytes")).collect();
        assert_eq!(
            lines,
            [
                "# HELP plimsoll_reserved_bytes Reserved bytes: allocated and cached.",
                "# TYPE plimsoll_reserved_bytes gauge",
                "plimsoll_reserved_bytes{pid=\"4711\",device=\"cpu\"} 41943040",
                "plimsoll_reserved_bytes{pid=\"5\",device=\"a \\\"b\\\"\\\\\",rank=\"3\"} 41943040",
            ]
        );
        assert!(text.contains("category=\"optimizer state\"} 8388608\n"), "{text}");
        assert_eq!(render(&[]), "");
    }
}
