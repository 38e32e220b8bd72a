//! Injected faults: `PLIMSOLL_STANDIN_FAULT="cudaMalloc:3=2,cuMemMap:1=2"` fails the process's third `cudaMalloc` and
//! first `cuMemMap` with error 2.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings;

/// One injected fault.
#[derive(Debug)]
struct Fault {
    name: String,
    /// The number of the call with that name, counted from 1.
    nth: u64,
    code: c_int,
    seen: AtomicU64,
}

/// The injected error for this call of `name`, if there is one.
pub(crate) fn injected(name: &str) -> Option<c_int> {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    let faults = FAULTS.get_or_init(|| parse(&settings::text(settings::FAULT).unwrap_or_default()));
    let mut hits = faults.iter().filter(|fault| fault.name == name).filter(|fault| fault.hit());
    hits.next().map(|fault| fault.code)
}

impl Fault {
    /// Counts a call, and returns whether this is the one to fail.
    fn hit(&self) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
    }
}

/// Parses `NAME:N=ERROR`, separated by commas. Entries that do not parse are reported and skipped.
fn parse(text: &str) -> Vec<Fault> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let read = |entry: &str| {
        let fault = one(entry);
        if fault.is_none() {
            settings::complain(settings::FAULT, entry, "cudaMalloc:3=2 (the third call fails with error 2)");
        }
        fault
    };
    entries.filter_map(read).collect()
}

fn one(entry: &str) -> Option<Fault> {
    let (name, rest) = entry.split_once(':')?;
    let (nth, code) = rest.split_once('=')?;
    let nth = nth.parse().ok().filter(|nth| *nth > 0)?;
    Some(Fault { name: name.to_owned(), nth, code: code.parse().ok()?, seen: AtomicU64::new(0) })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_nth_call_is_hit_once() {
        let faults = parse("cudaMalloc:2=2, cuMemMap:1=7");
        let hits: Vec<bool> = (0..4).map(|_| faults[0].hit()).collect();
        assert_eq!(hits, [false, true, false, false]);
        assert_eq!((faults[1].name.as_str(), faults[1].code, faults[1].hit()), ("cuMemMap", 7, true));
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        assert!(parse("cudaMalloc, cudaMalloc:0=2, :1=, cudaMalloc:x=2").is_empty());
    }
}
