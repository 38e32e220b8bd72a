//! The functions of [`Device::on_event`](crate::Device::on_event), and their arguments.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use plimsoll_alloc::Category;

use crate::caller::{self, Line};

/// Whether memory was allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAction {
    /// A request was served.
    Alloc,
    /// The last handle was dropped, or the bytes left the device.
    Free,
}

/// One allocation or free: what [`Device::on_event`](crate::Device::on_event) reports.
///
/// ```
/// use std::sync::mpsc;
/// use plimsoll_tensor::{Device, MemoryAction, MemoryEvent, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let (sender, events) = mpsc::channel();
/// let handle = device.on_event(move |event: &MemoryEvent| drop(sender.send(event.clone())));
/// drop(Tensor::zeros(&[1000], &device)?);
/// handle.remove();
/// drop(Tensor::zeros(&[1000], &device)?);
/// let seen: Vec<_> = events.iter().map(|event| (event.action, event.bytes, event.label)).collect();
/// let zeros = || "zeros".to_owned();
/// assert_eq!(seen, [(MemoryAction::Alloc, 4096, zeros()), (MemoryAction::Free, 4096, zeros())]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEvent {
    /// Whether the block was allocated or freed.
    pub action: MemoryAction,
    /// The size of the block: the requested bytes, rounded up. The sizes of live blocks add up to
    /// [`Device::memory_allocated`](crate::Device::memory_allocated).
    pub bytes: u64,
    /// The requested bytes.
    pub requested_bytes: u64,
    /// The address of the block: the same when it is allocated and when it is freed.
    pub address: u64,
    /// The purpose of the bytes at the time of the event: temporary memory that is saved for a backward pass becomes an activation.
    pub category: Category,
    /// Their owner: a layer, a parameter or an operation.
    pub label: String,
    /// The operation that requested the bytes; empty for a free.
    pub op: &'static str,
    /// The line of the program that requested them; `None` for a free, or if it is not known.
    pub at: Option<Line>,
}

pub(super) type Callback = Arc<dyn Fn(&MemoryEvent) + Send + Sync>;

/// The callbacks of a device, each with its number.
#[derive(Default)]
pub(super) struct Callbacks {
    any: AtomicBool,
    list: Mutex<Vec<(u64, Callback)>>,
}

impl Callbacks {
    fn list(&self) -> MutexGuard<'_, Vec<(u64, Callback)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is one. Every request and free reads it.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn add(self: &Arc<Self>, callback: Callback) -> EventHandle {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut list = self.list();
        list.push((number, callback));
        self.any.store(true, Ordering::Relaxed);
        EventHandle { callbacks: Arc::downgrade(self), number }
    }

    /// Calls each with the event, with no lock held. What a callback allocates or frees is not reported.
    pub(super) fn call(&self, event: impl FnOnce() -> MemoryEvent) {
        thread_local! {
            static INSIDE: Cell<bool> = const { Cell::new(false) };
        }
        // A tensor may be freed while its thread ends, after its variables are gone.
        if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
            return;
        }
        let callbacks: Vec<Callback> = self.list().iter().map(|(_, callback)| callback.clone()).collect();
        let event = event();
        let _called = caller::Kept::new(); // the operation that requests memory goes on afterwards
        for callback in &callbacks {
            // A free may happen while a panic unwinds: a second panic would end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(&event)));
        }
        drop(callbacks); // the last owner of one that was just removed, which may own tensors
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Removes a function that [`Device::on_event`](crate::Device::on_event) registered. Dropping the handle does not remove it.
#[derive(Clone)]
pub struct EventHandle {
    callbacks: Weak<Callbacks>,
    number: u64,
}

impl EventHandle {
    /// Removes the function; does nothing if it is already removed. A call on another thread may still be running.
    pub fn remove(&self) {
        let Some(callbacks) = self.callbacks.upgrade() else { return };
        let mut list = callbacks.list();
        let at = list.iter().position(|(number, _)| *number == self.number);
        let removed = at.map(|at| list.remove(at));
        callbacks.any.store(!list.is_empty(), Ordering::Relaxed);
        drop(list);
        drop(removed); // after the lock: it may own tensors
    }
}

impl fmt::Debug for EventHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventHandle({})", self.number)
    }
}
