//! The report's section about files that the program would have written, and hosts that it contacted:
//! [`Traces`].

use plimsoll_trace::render::words::counted;
use serde_json::{Value, json};

use crate::predict::recording::traces::Traces;
use crate::predict::view::{Isolation, Kind};

/// The maximum number of files in the text.
const MOST: usize = 10;

/// The lines of the text; `size` prints bytes.
pub(super) fn lines(traces: &Traces, size: impl Fn(u64) -> String) -> Vec<String> {
    let written = &traces.written;
    let mut lines = Vec::new();
    if written.is_full {
        lines.push(
            "the program used up --scratch: its later writes failed with \"no space left on device\""
                .to_owned(),
        );
    }
    for file in written.files.iter().take(MOST) {
        let what = match file.kind {
            Kind::Removed => file.kind.name().to_owned(),
            kind => format!("{}, {}", size(file.bytes), kind.name()),
        };
        lines.push(format!("{}: {what}", file.path.display()));
    }
    let more = written.count.saturating_sub(MOST as u64);
    if more > 0 {
        lines.push(format!("{more} more; {} in all", size(written.bytes)));
    }
    if let Some((how, why)) = traces.isolation.zip(traces.instead_of.as_ref()) {
        lines.push(format!("isolation: {}, because another one cannot be used: {why}", how.name()));
    }
    if let Some(why) = &written.not_kept {
        lines.push(format!("not all new files of a cache could be kept: {why}"));
    }
    lines
}

/// The caches in which new files are kept, with the number of files in each.
pub(super) fn kept(traces: &Traces) -> Vec<String> {
    let kept = traces.written.kept.iter();
    kept.map(|(folder, count)| format!("{}: {}", folder.display(), counted(*count, "file"))).collect()
}

/// A summary of [`lines`] in one line; `None` if nothing would have been written and no host was contacted.
pub(super) fn line(traces: &Traces, size: impl Fn(u64) -> String) -> Option<String> {
    let written = &traces.written;
    let all = sentence(written.count, &size(written.bytes), &traces.hosts);
    let full = lines(traces, size).into_iter().next().filter(|_| written.is_full);
    match (full, all) {
        (Some(full), Some(all)) => Some(format!("{full}. {all}")),
        (full, all) => full.or(all),
    }
}

/// A sentence with the number and size of the files that would have been written, and the hosts; `None` if there are
/// neither files nor hosts.
pub(crate) fn sentence(count: u64, size: &str, hosts: &[String]) -> Option<String> {
    let hosts = if hosts.is_empty() { String::new() } else { format!("; contacted {}", hosts.join(", ")) };
    if count == 0 {
        return (!hosts.is_empty()).then(|| format!("No file would have been written{hosts}"));
    }
    let files = counted(count, "file");
    Some(format!("Would have been written, changed or removed: {files}, {size}{hosts}"))
}

pub(super) fn json(traces: &Traces) -> Value {
    let written = &traces.written;
    let file = |file: &crate::predict::view::File| json!({ "path": file.path, "bytes": file.bytes, "is": file.kind.name() });
    json!({
        "isolation": traces.isolation.map(Isolation::name),
        "instead_of": traces.instead_of,
        "files": written.files.iter().map(file).collect::<Vec<_>>(),
        "count": written.count,
        "bytes": written.bytes,
        "kept_in_caches": written.kept.values().sum::<u64>(),
        "not_kept": written.not_kept,
        "scratch_full": written.is_full,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_scratch_does_not_hide_what_would_have_been_written() {
        let mut traces = Traces::default();
        (traces.written.is_full, traces.written.count, traces.written.bytes) = (true, 2, 7);
        let line = line(&traces, |bytes| format!("{bytes} B")).expect("a line");
        assert!(line.starts_with("the program used up --scratch"), "{line}");
        assert!(line.ends_with("Would have been written, changed or removed: 2 files, 7 B"), "{line}");
    }

    #[test]
    fn caches_are_named_with_the_number_of_files_that_stay() {
        let mut traces = Traces::default();
        assert!(kept(&traces).is_empty());
        traces.written.kept = [("/me/.cache/torch".into(), 1), ("/data/hf".into(), 12)].into();
        assert_eq!(kept(&traces), ["/data/hf: 12 files", "/me/.cache/torch: 1 file"]);
        assert_eq!(json(&traces)["kept_in_caches"], 13);
    }
}
