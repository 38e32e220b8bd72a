//! The peaks of the process's memory on the host: [`Samples`].
//!
//! Memory that must stay is anonymous, shared or pinned. Anonymous pages are counted if they are resident, because
//! untouched memory uses no pages, including on the training machine. For pinned memory, the requested bytes count,
//! because the stand-in releases its pages, which a GPU would fill.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::ledger::{Kind, LEDGER, Ledger, REQUESTED};
use crate::owners::{MOST, Owner};
use crate::resident::Counters;
use crate::spin::Spin;
use crate::sys;

/// The parts of a program: before its first step, the steps, and after training.
pub(crate) const PHASES: usize = 3;

/// The fraction of the process's time that periodic sampling, and looking at single pages, may take: one part in this many.
const SHARE: u64 = 40;

/// The minimum time between two periodic samples: in general, and if the process would be at a new peak once it has touched
/// all of its requests.
const PAUSE_NS: u64 = 50_000_000;
const SHORT_PAUSE_NS: u64 = 5_000_000;

/// If an estimate exceeds the peak by less than this, no sample is taken.
const STEP_BYTES: u64 = 2 << 20;

/// The process's memory at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// Anonymous bytes, excluding pinned memory and our own.
    pub(crate) anonymous: u64,
    /// Requested bytes of pinned memory.
    pub(crate) pinned: u64,
    /// Bytes of shared memory without a file, that this process requested.
    pub(crate) shared: u64,
    /// File pages, where mapped data files count with all their bytes: the maximum in the phase.
    pub(crate) file: u64,
    /// Resident bytes of our own hooks, which are left out.
    pub(crate) ours: u64,
    /// The last value of [`Samples::events`].
    pub(crate) events: u64,
    pub(crate) at_ns: u64,
    /// The bytes of each owner, not counting file pages.
    pub(crate) owners: [u64; MOST],
    /// Bytes of each data file that was mapped then.
    pub(crate) files: [u64; MOST],
}

impl Moment {
    const NONE: Moment = Moment {
        anonymous: 0,
        pinned: 0,
        shared: 0,
        file: 0,
        ours: 0,
        events: 0,
        at_ns: 0,
        owners: [0; MOST],
        files: [0; MOST],
    };

    /// The bytes that the kernel cannot drop.
    pub(crate) fn must(&self) -> u64 {
        self.anonymous + self.pinned + self.shared
    }
}

pub(crate) struct Samples {
    pub(crate) phase: usize,
    pub(crate) peaks: [Moment; PHASES],
    /// The maximum number of bytes in use in `/dev/shm` in each phase, not counting those at the first look.
    pub(crate) shm: [u64; PHASES],
    first_shm: Option<u64>,
    /// The most resident bytes of all kinds, according to the kernel and to our samples.
    pub(crate) most: u64,
    pub(crate) most_seen: u64,
    /// File pages when no data file was mapped.
    libraries: u64,
    /// Bytes of our hooks' small requests.
    pub(crate) ours: u64,
    /// Events in the recording of PyTorch's allocator so far.
    pub(crate) events: u64,
    /// Bytes of such an event, if they were measured.
    pub(crate) event_bytes: u64,
    pub(crate) is_forked: bool,
    /// Whether nothing is counted any more, because our hooks are writing their reports.
    pub(crate) is_over: bool,
    /// Depth of calls of our hooks, during which nothing is sampled.
    pub(crate) depth: u32,
    pub(crate) began_ns: u64,
    spent_ns: u64,
}

pub(crate) static SAMPLES: Spin<Samples> = Spin::new(Samples {
    phase: 0,
    peaks: [Moment::NONE; PHASES],
    shm: [0; PHASES],
    first_shm: None,
    most: 0,
    most_seen: 0,
    libraries: 0,
    ours: 0,
    events: 0,
    event_bytes: 0,
    is_forked: false,
    is_over: false,
    depth: 0,
    began_ns: 0,
    spent_ns: 0,
});

/// Values that can be read without the lock: the peak of this phase; the resident memory of the last sample minus the requests,
/// which is negative if many requests were not touched yet, and the maximum of this difference; the time of the last sample.
static PEAK: AtomicU64 = AtomicU64::new(0);
static ABOVE: AtomicI64 = AtomicI64::new(0);
static MOST_ABOVE: AtomicI64 = AtomicI64::new(0);
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Whether a new peak is likely, judged by the requests and by the untouched memory at the last sample.
pub(crate) fn is_likely() -> bool {
    would_be_peak(&ABOVE)
}

fn would_be_peak(above: &AtomicI64) -> bool {
    let requested = REQUESTED.load(Ordering::Relaxed) as i64;
    let estimate = requested + above.load(Ordering::Relaxed);
    let peak = PEAK.load(Ordering::Relaxed);
    u64::try_from(estimate).unwrap_or(0) > peak + peak / 256 + STEP_BYTES
}

/// Whether it is time for a sample.
pub(crate) fn is_due() -> bool {
    let pause_ns = if would_be_peak(&MOST_ABOVE) { SHORT_PAUSE_NS } else { PAUSE_NS };
    sys::now_ns() > LAST_NS.load(Ordering::Relaxed) + pause_ns
}

impl Samples {
    /// Reads the counters, and keeps them if this is a peak of the phase. Returns whether it is.
    pub(crate) fn take(&mut self, is_forced: bool) -> bool {
        if self.is_over || self.depth > 0 {
            return false;
        }
        let begin = sys::now_ns();
        if self.began_ns == 0 {
            self.began_ns = begin;
        }
        let is_idle = self.spent_ns < (begin - self.began_ns) / SHARE;
        if !is_forced && !is_idle {
            return false;
        }
        let is_peak = self.look(begin, is_forced || is_idle);
        let end = sys::now_ns();
        if !is_forced {
            self.spent_ns += end - begin;
        }
        LAST_NS.store(end, Ordering::Relaxed);
        is_peak
    }

    fn look(&mut self, at_ns: u64, has_time: bool) -> bool {
        let counters = Counters::now(self.is_forked);
        self.look_at_shm();
        self.most = self.most.max(counters.most);
        self.most_seen = self.most_seen.max(counters.anonymous + counters.file + counters.shared);
        let ledger = LEDGER.lock();
        let ours = self.ours + ledger.owned()[usize::from(Owner::OURS.0)];
        let pinned = ledger.bytes(Kind::Pinned);
        // Looks through the table only if there is any.
        let pieces = ledger.pieces().take(if pinned > 0 { usize::MAX } else { 0 });
        let pieces = pieces.filter(|piece| piece.kind == Kind::Pinned);
        let pinned_here: u64 = pieces.map(|piece| sys::resident_bytes(piece.begin, piece.bytes)).sum();
        let file = ledger.bytes(Kind::File);
        if file == 0 {
            self.libraries = counters.file;
        }
        let moment = Moment {
            anonymous: counters.anonymous.saturating_sub(pinned_here).saturating_sub(ours),
            pinned,
            shared: ledger.bytes(Kind::Shared),
            file: counters.file.max(self.libraries + file),
            ours,
            events: self.events,
            at_ns: at_ns - self.began_ns,
            owners: *ledger.owned(),
            files: *ledger.files(),
        };
        let must = moment.must();
        let above = must as i64 - REQUESTED.load(Ordering::Relaxed) as i64;
        ABOVE.store(above, Ordering::Relaxed);
        MOST_ABOVE.fetch_max(above, Ordering::Relaxed);
        let peak = &mut self.peaks[self.phase];
        // The kernel may keep file pages from one moment to the next.
        if moment.file > peak.file {
            (peak.file, peak.files) = (moment.file, moment.files);
        }
        if must <= peak.must() {
            return false;
        }
        *peak = Moment { file: peak.file, files: peak.files, ..moment };
        let pageable = ledger.bytes(Kind::Private);
        if has_time && pageable > moment.anonymous / 16 {
            peak.owners = touched(&ledger);
        }
        PEAK.store(must, Ordering::Relaxed);
        true
    }

    /// Records how much is in use in `/dev/shm`.
    pub(crate) fn look_at_shm(&mut self) {
        let now = sys::used_bytes(c"/dev/shm");
        let first = *self.first_shm.get_or_insert(now);
        self.shm[self.phase] = self.shm[self.phase].max(now.saturating_sub(first));
    }

    /// Begins a new phase, whose peak starts low.
    pub(crate) fn enter(&mut self, phase: usize) {
        if phase < PHASES && phase != self.phase {
            self.phase = phase;
            PEAK.store(self.peaks[phase].must(), Ordering::Relaxed);
        }
    }

    /// Starts over in a forked child, in its parent's phase.
    pub(crate) fn inherit(&mut self) {
        (self.peaks, self.shm) = ([Moment::NONE; PHASES], [0; PHASES]);
        (self.most, self.most_seen, self.ours, self.spent_ns) = (0, 0, 0, 0);
        (self.is_forked, self.depth, self.began_ns) = (true, 0, sys::now_ns());
        PEAK.store(0, Ordering::Relaxed);
        ABOVE.store(0, Ordering::Relaxed);
        MOST_ABOVE.store(0, Ordering::Relaxed);
    }
}

/// The resident bytes of each owner's private memory, and the requested bytes of pinned and shared memory.
fn touched(ledger: &Ledger) -> [u64; MOST] {
    let mut owners = [0; MOST];
    for piece in ledger.pieces() {
        owners[usize::from(piece.owner.0)] += match piece.kind {
            Kind::Private => sys::resident_bytes(piece.begin, piece.bytes).min(piece.bytes),
            Kind::Pinned | Kind::Shared => piece.bytes,
            Kind::File => 0,
        };
    }
    owners
}
