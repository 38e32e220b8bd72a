//! When to sample: before memory is freed, at intervals, at a fork, and when our hooks request it.
//!
//! Resident memory falls only when some of it is freed, so each peak is just before a free. A sample is taken at a free
//! if the requests suggest a new peak. Samples are also taken from time to time, because requests alone do not show
//! small allocations and pages that are touched late.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::ledger::LEDGER;
use crate::owners::NAMES;
use crate::sample::{self, SAMPLES, Samples};
use crate::{file, sys};

/// The minimum time between two writes of the file.
const PAUSE_NS: u64 = 200_000_000;

static WRITTEN_NS: AtomicU64 = AtomicU64::new(0);

/// Whether there was a peak since then.
static IS_NEW: AtomicBool = AtomicBool::new(false);

/// The process whose figures these are. A child of `vfork` temporarily shares this memory, and must not touch it.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether the launcher wants the figures.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Called by the loader, at the start and at the end of the process.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    if let Some(folder) = sys::variable(c"PLIMSOLL_HOST_FOLDER") {
        file::set_folder(folder);
        own();
        IS_ON.store(true, Ordering::Relaxed);
        sys::at_fork(hold, release, inherit);
    }
}

extern "C" fn end() {
    settle(|_| ());
}

pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Called before a large piece is freed.
pub(crate) fn before_free() {
    let is_likely = sample::is_likely();
    if is_on() && (is_likely || sample::is_due()) {
        now(is_likely);
    }
}

/// Called at requests of a medium size, so that programs that only make small requests are sampled too.
pub(crate) fn now_and_then() {
    if is_on() && sample::is_due() {
        now(false);
    }
}

/// Samples, and writes the file if that is a new peak. Does nothing if another thread is sampling at this moment.
fn now(is_forced: bool) {
    let Some(mut samples) = SAMPLES.try_lock() else { return };
    let code = sys::errno();
    if samples.take(is_forced) {
        IS_NEW.store(true, Ordering::Relaxed);
    }
    let time = sys::now_ns();
    if time > WRITTEN_NS.load(Ordering::Relaxed) + PAUSE_NS && IS_NEW.swap(false, Ordering::Relaxed) {
        WRITTEN_NS.store(time, Ordering::Relaxed);
        file::write(&samples);
    }
    sys::set_errno(code);
}

/// Records how much of `/dev/shm` is in use.
pub(crate) fn look_at_shm() {
    if let Some(mut samples) = SAMPLES.try_lock() {
        samples.look_at_shm();
    }
}

/// Samples, changes the samples, and writes the file.
pub(crate) fn settle(change: impl FnOnce(&mut Samples)) {
    if is_on() && PROCESS.load(Ordering::Relaxed) == sys::process() {
        let mut samples = SAMPLES.lock();
        samples.take(true);
        change(&mut samples);
        file::write(&samples);
    }
}

/// From now on, the figures are those of this process.
pub(crate) fn own() {
    PROCESS.store(sys::process(), Ordering::Relaxed);
}

extern "C" fn hold() {
    SAMPLES.hold();
    LEDGER.hold();
    NAMES.hold();
}

pub(crate) extern "C" fn release() {
    NAMES.release();
    LEDGER.release();
    SAMPLES.release();
}

extern "C" fn inherit() {
    release();
    own();
    SAMPLES.lock().inherit();
    LEDGER.lock().inherit();
}
