//! Device ranges that libraries other than PyTorch wrote to. At present these are NCCL's.
//!
//! Code in the process keeps copies of some tensors' values (`shadows.py` of `plimsoll predict`) and follows PyTorch's
//! operators, but not collectives. Each range that a collective writes is listed here until that code takes it. The code
//! polls the counter [`plimsoll_standin_writes`], which costs one load, so that NCCL's threads never wait for Python.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::locked;

/// The maximum number of ranges in the list. If there are more, all memory counts as written.
const MOST: usize = 4096;

/// The number of ranges written so far.
#[unsafe(no_mangle)]
static plimsoll_standin_writes: AtomicU64 = AtomicU64::new(0);

static WRITTEN: Mutex<Vec<[u64; 2]>> = Mutex::new(Vec::new());

/// Records that these bytes were written.
pub(crate) fn written(to: u64, bytes: usize) {
    note(&mut locked(&WRITTEN), [to, to.saturating_add(bytes as u64)]);
    plimsoll_standin_writes.fetch_add(1, Ordering::Release);
}

fn note(written: &mut Vec<[u64; 2]>, range: [u64; 2]) {
    if written.len() >= MOST {
        *written = vec![[0, u64::MAX]];
    }
    if written.last() != Some(&range) {
        written.push(range);
    }
}

/// Takes up to `room` ranges, each as its start and its end. Returns their number; the rest stays for the next call.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_take_writes(ranges: *mut [u64; 2], room: usize) -> usize {
    let mut written = locked(&WRITTEN);
    let taken = written.len().min(room);
    for (place, range) in written.drain(..taken).enumerate() {
        // SAFETY: the caller guarantees room for that many ranges.
        unsafe { ranges.add(place).write(range) };
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranges_than_are_kept_count_as_all_memory() {
        let mut written = Vec::new();
        (0..MOST as u64).for_each(|at| note(&mut written, [at, at + 1]));
        note(&mut written, [7, 8]);
        assert_eq!(written, [[0, u64::MAX], [7, 8]]);
        note(&mut written, [7, 8]);
        assert_eq!(written.len(), 2, "the same again");
    }
}
