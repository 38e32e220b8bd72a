//! The memory history of a device: recording, step marks, and an observer of out-of-memory errors.
//!
//! The allocator keeps the history; this file adds a clock and the names of operations. The crate
//! `plimsoll` turns it into PyTorch's snapshots.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_alloc::{Callers, Clock};
pub use plimsoll_alloc::{Config, Entry, HistoryOptions, LabelId, Recording, StackId};

use crate::caller::{self, Line};
use crate::device::Device;
use crate::label;

impl Device {
    /// Starts a new recording of this device's memory events. Like
    /// `torch.cuda.memory._record_memory_history`.
    ///
    /// Times are the host's, in microseconds since 1970. On a simulated device, where time means nothing,
    /// the clock counts its own readings, so that two equal runs have the same times.
    ///
    /// ```
    /// use plimsoll_tensor::history::HistoryOptions;
    /// use plimsoll_tensor::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(1 << 30));
    /// device.record_history(HistoryOptions::default());
    /// let x = Tensor::zeros(&[4], &device)?;
    /// let actions: Vec<_> = device.recording().entries.iter().map(|entry| entry.action.name()).collect();
    /// assert_eq!(actions, ["segment_alloc", "alloc"]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn record_history(&self, options: HistoryOptions) {
        let clock = if self.has_values() { host_clock() } else { counter() };
        self.memory().record_history(options, Callers::AsGiven, clock);
    }

    /// Stops recording and discards the history.
    pub fn stop_history(&self) {
        self.memory().stop_history();
    }

    /// Marks the beginning of a step of the program, for the history and for [`Device::memory_gauges`]. Like
    /// `torch.profiler.profile.step`.
    pub fn mark_step(&self, number: u64) {
        self.memory().mark_step(number);
    }

    /// The current memory of the device, and its history. [`StackId`]s stand for operations; [`operation`]
    /// returns their names.
    pub fn recording(&self) -> Recording {
        self.memory().recording()
    }

    /// Takes the history since the last call. Also returns the number of old entries that were dropped for
    /// new ones.
    pub fn take_history(&self) -> (Vec<Entry>, u64) {
        self.memory().take_history()
    }

    /// The allocator's options.
    pub fn allocator_config(&self) -> Config {
        self.memory().config()
    }

    /// Registers an observer of out-of-memory errors. It is called before the error is returned, while all
    /// memory is still held. Like `torch._C._cuda_attach_out_of_memory_observer`.
    pub fn on_out_of_memory(&self, observer: impl Fn(&Device) + Send + Sync + 'static) {
        // The device owns the observer, so the observer must not own the device.
        let device = Arc::downgrade(&self.0);
        self.memory().on_out_of_memory(move |_| {
            if let Some(inner) = device.upgrade() {
                observer(&Device(inner));
            }
        });
    }
}

/// An operation, and the line of the program that called it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    op: LabelId,
    at: Option<Line>,
}

/// The origins of all requests of the process, in the order in which they were first seen. Stack `n` is origin `n - 1`.
struct Origins {
    all: Vec<Origin>,
    ids: BTreeMap<Origin, StackId>,
}

static ORIGINS: Mutex<Origins> = Mutex::new(Origins { all: Vec::new(), ids: BTreeMap::new() });

fn origins() -> MutexGuard<'static, Origins> {
    // The table is consistent after every step of `stack_of`, so a panic elsewhere cannot have broken it.
    ORIGINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recent request, by its operation and places, and its stack id.
struct Recent {
    op: Cell<usize>,
    op_len: Cell<usize>,
    called: Cell<usize>,
    entered: Cell<usize>,
    id: Cell<StackId>,
}

impl Recent {
    const fn none() -> Recent {
        let [op, op_len, called, entered] = [const { Cell::new(0) }; 4];
        Recent { op, op_len, called, entered, id: Cell::new(StackId(0)) }
    }
}

/// The stack id for a memory request by an operation, called by the current line of the program. Each thread
/// caches recent ones, because every request needs one.
pub(crate) fn stack_of(op: &'static str) -> StackId {
    const PLACES: usize = 256;
    thread_local! {
        static RECENT: [Recent; PLACES] = const { [const { Recent::none() }; PLACES] };
    }
    let (at, [called, entered]) = (op.as_ptr().addr(), caller::places());
    RECENT.with(|recent| {
        let place = &recent[(at ^ (called >> 3) ^ (entered >> 2)) % PLACES];
        if place.op.get() == at
            && place.called.get() == called
            && place.entered.get() == entered
            && place.op_len.get() == op.len()
        {
            return place.id.get();
        }
        let id = intern(Origin { op: label::intern_static(op), at: caller::line() });
        place.op.set(at);
        place.op_len.set(op.len());
        place.called.set(called);
        place.entered.set(entered);
        place.id.set(id);
        id
    })
}

fn intern(origin: Origin) -> StackId {
    let mut origins = origins();
    if let Some(&id) = origins.ids.get(&origin) {
        return id;
    }
    origins.all.push(origin);
    let id = StackId(u32::try_from(origins.all.len()).unwrap_or(u32::MAX));
    origins.ids.insert(origin, id);
    id
}

fn origin(stack: StackId) -> Option<Origin> {
    let at = (stack.0 as usize).checked_sub(1)?;
    origins().all.get(at).copied()
}

/// The name of the operation that made a request.
pub fn operation(stack: StackId) -> String {
    origin(stack).map(|origin| label::text(origin.op)).unwrap_or_default()
}

/// The line of the program that made a request, if it is known: the caller of the operation, or of the layer, the backward pass or the
/// optimizer that called it. It is known without debug information.
///
/// ```
/// use plimsoll_tensor::{Device, SimConfig, Tensor, history};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let x = Tensor::zeros(&[4], &device)?;
/// let stack = device.memory_snapshot()[0].blocks[0].stack.unwrap();
/// assert_eq!(history::operation(stack), "zeros");
/// println!("{:?}", history::line(stack).map(|at| (at.file(), at.line())));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn line(stack: StackId) -> Option<Line> {
    origin(stack)?.at
}

/// The host's clock. It reads the processor's counter where possible, which costs less per event than a
/// system call.
fn host_clock() -> Clock {
    let start = quanta::Instant::now();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    Box::new(move || since_1970 + start.elapsed().as_micros() as u64)
}

fn counter() -> Clock {
    let mut count = 0;
    Box::new(move || {
        count += 1;
        count
    })
}
