//! One allocation, shared by every tensor that looks at it; the last owner frees it.
//!
//! A storage knows what its bytes are for (category and label, told to the allocator) and counts
//! in-place changes, so that a change of a tensor saved for the backward pass is noticed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use plimsoll_alloc::{Addr, Allocation, Category, Error as AllocError, LabelId, Request, StreamId, Tag};

use crate::device::Device;
use crate::error::{Error, OutOfMemory, Result};
use crate::history;
use crate::label;
use crate::stream;

/// A reference-counted piece of device memory.
#[derive(Clone)]
pub(crate) struct Storage(Arc<Inner>);

struct Inner {
    device: Device,
    /// Taken once, by `drop`.
    allocation: Option<Allocation>,
    bytes: u64,
    /// The stream that it was requested for.
    stream: StreamId,
    /// The last other stream that was recorded as a user.
    used_by: AtomicU64,
    /// Number of in-place changes so far.
    version: AtomicU32,
    use_of: Mutex<Use>,
    /// Readers and the one writer of the bytes; the bytes themselves belong to the device.
    lock: RwLock<()>,
}

/// What the bytes are for, and how many saved tensors keep them for the backward pass.
struct Use {
    tag: Tag,
    saved: u32,
}

impl Storage {
    /// Allocates `bytes` for the innermost owner of this thread; `op` names the request in errors.
    pub(crate) fn alloc(device: &Device, bytes: u64, op: &'static str) -> Result<Storage> {
        Storage::alloc_as(device, bytes, op, label::current(op))
    }

    /// Allocates `bytes` under a category and label.
    pub(crate) fn alloc_as(device: &Device, bytes: u64, op: &'static str, tag: Tag) -> Result<Storage> {
        let Tag { category, label } = tag;
        let stream = stream::current(device);
        let stack = Some(history::stack_of(op));
        let request = Request { stream, category, label, stack, ..Request::of(bytes) };
        let allocation = device.memory().alloc(request).map_err(|error| refused(device, op, tag, error))?;
        Ok(Storage(Arc::new(Inner {
            device: device.clone(),
            allocation: Some(allocation),
            bytes,
            stream,
            used_by: AtomicU64::new(stream.0),
            version: AtomicU32::new(0),
            use_of: Mutex::new(Use { tag, saved: 0 }),
            lock: RwLock::new(()),
        })))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Where the bytes are on their device.
    pub(crate) fn address(&self) -> Addr {
        self.0.allocation.as_ref().map_or(Addr(0), Allocation::addr)
    }

    /// Bytes asked for; the allocator rounds up.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The stream that it was requested for.
    pub(crate) fn stream(&self) -> StreamId {
        self.0.stream
    }

    /// Notes that work on a stream uses these bytes: freed, they serve no request before that work is done.
    pub(crate) fn record_stream(&self, on: StreamId) {
        // The allocator keeps a list; this only saves asking it again for the stream that asked last.
        if on != self.0.stream
            && self.0.used_by.swap(on.0, Ordering::Relaxed) != on.0
            && let Some(allocation) = &self.0.allocation
        {
            self.0.device.memory().record_stream(allocation, on);
        }
    }

    pub(crate) fn lock(&self) -> &RwLock<()> {
        &self.0.lock
    }

    /// Tells storages apart, and orders them for taking locks.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether no other tensor, saved or not, looks at these bytes.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// How many tensors, saved or not, look at these bytes.
    pub(crate) fn ref_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Notes an in-place change.
    pub(crate) fn changed(&self) {
        self.0.version.fetch_add(1, Ordering::AcqRel);
    }

    fn use_of(&self) -> MutexGuard<'_, Use> {
        self.0.use_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tag(&self) -> Tag {
        self.use_of().tag
    }

    /// Gives the bytes another purpose or owner, and tells the allocator's listeners.
    pub(crate) fn retag(&self, tag: Tag) {
        self.retag_locked(&mut self.use_of(), tag);
    }

    fn retag_locked(&self, use_of: &mut Use, tag: Tag) {
        if use_of.tag != tag {
            use_of.tag = tag;
            if let Some(allocation) = &self.0.allocation {
                self.0.device.memory().retag(allocation, tag.category, tag.label);
            }
        }
    }

    /// One more saved tensor keeps these bytes: a temporary becomes an activation.
    pub(crate) fn save(&self) {
        let mut use_of = self.use_of();
        use_of.saved += 1;
        if use_of.tag.category == Category::Temporary {
            let label: LabelId = use_of.tag.label;
            self.retag_locked(&mut use_of, Tag { category: Category::Activation, label });
        }
    }

    /// A saved tensor lets go: what still has a handle is a temporary again.
    pub(crate) fn unsave(&self) {
        let mut use_of = self.use_of();
        use_of.saved -= 1;
        // With one handle left, the caller's, the bytes are freed next: telling anyone would be noise.
        if use_of.saved == 0 && use_of.tag.category == Category::Activation && !self.is_unique() {
            let label = use_of.tag.label;
            self.retag_locked(&mut use_of, Tag { category: Category::Temporary, label });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            self.device.memory().free(allocation);
        }
    }
}

/// The allocator's refusal, with the names that it does not know.
fn refused(device: &Device, op: &'static str, tag: Tag, error: AllocError) -> Error {
    match error {
        AllocError::OutOfMemory(numbers) => Error::OutOfMemory(Box::new(OutOfMemory {
            device: device.name().to_owned(),
            label: label::text(tag.label),
            op,
            numbers: *numbers,
        })),
        source => Error::Allocator { device: device.name().to_owned(), source },
    }
}
