//! Functions that are called when memory of a device is requested or freed: [`Device::on_event`].
//!
//! They run after the allocator's call, with no lock held, on the thread that made the request or dropped the last handle.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use plimsoll_alloc::{Allocation, Category, Tag};

use super::Device;
use crate::caller;
use crate::label;

/// Whether memory was allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAction {
    /// A request was served.
    Alloc,
    /// The last handle was dropped, or the bytes left the device.
    Free,
}

/// One allocation or free: what [`Device::on_event`] reports.
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
    /// Whether it was allocated or freed.
    pub action: MemoryAction,
    /// The size of the block, bytes: the requested bytes, rounded up. The sizes of live blocks add up to
    /// [`Device::memory_allocated`].
    pub bytes: u64,
    /// The requested bytes.
    pub requested_bytes: u64,
    /// The address of the block: the same when it is allocated and when it is freed.
    pub address: u64,
    /// The purpose of the bytes at the time of the event: temporary memory that is saved for a backward pass becomes an activation.
    pub category: Category,
    /// Their owner: a layer, a parameter or an operation.
    pub label: String,
    /// The operation that requested them; empty for a free.
    pub op: &'static str,
    /// The line of the program that requested them; `None` for a free, or if it is not known.
    pub at: Option<&'static Location<'static>>,
}

type Callback = Arc<dyn Fn(&MemoryEvent) + Send + Sync>;

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
}

/// Removes a function that [`Device::on_event`] registered. Dropping the handle does not remove it.
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

thread_local! {
    /// Whether this thread is in a callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Device {
    /// Calls `callback` after each allocation and each free of this device's memory. It may use tensors and call anything: no lock
    /// is held. What it allocates and frees itself is not reported. A panic in it is ignored. A free of memory in a
    /// [`Traced`](crate::Traced) arena is none: the arena was allocated once.
    ///
    /// Like the events of PyTorch's memory history, as they happen. [`MemoryEvent`] has an example.
    pub fn on_event(&self, callback: impl Fn(&MemoryEvent) + Send + Sync + 'static) -> EventHandle {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let callbacks = &self.0.callbacks;
        let mut list = callbacks.list();
        list.push((number, Arc::new(callback)));
        callbacks.any.store(true, Ordering::Relaxed);
        EventHandle { callbacks: Arc::downgrade(callbacks), number }
    }

    /// Reports a request that was served.
    #[inline]
    pub(crate) fn allocated(&self, allocation: &Allocation, tag: Tag, op: &'static str) {
        if self.0.callbacks.any.load(Ordering::Relaxed) {
            self.report(MemoryAction::Alloc, Block::of(allocation), tag, op);
        }
    }

    /// Frees memory, and reports it.
    pub(crate) fn free(&self, allocation: Allocation, tag: Tag) {
        let block = Block::of(&allocation);
        self.memory().free(allocation);
        if self.0.callbacks.any.load(Ordering::Relaxed) {
            self.report(MemoryAction::Free, block, tag, "");
        }
    }

    #[cold]
    fn report(&self, action: MemoryAction, block: Block, tag: Tag, op: &'static str) {
        // A tensor may be freed while its thread ends, after its variables are gone. Requests of 0 bytes have no block.
        if block.bytes == 0 || INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
            return;
        }
        let callbacks: Vec<Callback> = self.0.callbacks.list().iter().map(|(_, call)| call.clone()).collect();
        let Block { address, bytes, requested_bytes } = block;
        let event = MemoryEvent {
            action,
            bytes,
            requested_bytes,
            address,
            category: tag.category,
            label: label::text(tag.label),
            op,
            at: if action == MemoryAction::Alloc { caller::line() } else { None },
        };
        for callback in &callbacks {
            // A free may happen while a panic unwinds: a second panic would end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(&event)));
        }
        drop(callbacks); // a callback that was removed meanwhile may own tensors
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// The facts of an allocation, which outlive it.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    bytes: u64,
    requested_bytes: u64,
}

impl Block {
    fn of(allocation: &Allocation) -> Block {
        let (bytes, requested_bytes) = (allocation.bytes(), allocation.requested_bytes());
        Block { address: allocation.addr().0, bytes, requested_bytes }
    }
}
