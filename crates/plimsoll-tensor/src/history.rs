//! What happened to a device's memory, kept for later: recording, step marks, and one who sees a failure.
//!
//! The history itself is the allocator's; here it gets a clock, and its numbers get names. The crate
//! `plimsoll` makes PyTorch's snapshots of it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_alloc::{Callers, Clock};
pub use plimsoll_alloc::{Config, Entry, HistoryOptions, LabelId, Recording, StackId};

use crate::device::Device;
use crate::label;

impl Device {
    /// Keeps what happens to this device's memory from now on, from nothing. As
    /// `torch.cuda.memory._record_memory_history`.
    ///
    /// Time is that of the host, in microseconds since 1970. On a simulated device, where time means
    /// nothing, it counts the requests for it: two runs that do the same have the same times.
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

    /// Keeps no more, and forgets what was kept.
    pub fn stop_history(&self) {
        self.memory().stop_history();
    }

    /// Says that a step of the program begins, for the history and for who watches
    /// ([`Device::memory_gauges`]). As `torch.profiler.profile.step`.
    pub fn mark_step(&self, number: u64) {
        self.memory().mark_step(number);
    }

    /// The device's memory now, and what was kept. [`StackId`]s are operations: [`operation`].
    pub fn recording(&self) -> Recording {
        self.memory().recording()
    }

    /// What was kept since it was last taken, and how many entries made room for later ones.
    pub fn take_history(&self) -> (Vec<Entry>, u64) {
        self.memory().take_history()
    }

    /// The allocator's options.
    pub fn allocator_config(&self) -> Config {
        self.memory().config()
    }

    /// Calls `observer` from now on when a request failed for want of memory, before its error is returned:
    /// everything that was held then still is. As `torch._C._cuda_attach_out_of_memory_observer`.
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

/// The stack of a request that an operation makes.
pub(crate) fn stack_of(op: &'static str) -> StackId {
    StackId(label::intern_static(op).0)
}

/// The name of the operation that made a request.
pub fn operation(stack: StackId) -> String {
    label::text(LabelId(stack.0))
}

/// The host's time, read from the processor where it can be: an event costs less than a call of the system.
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
