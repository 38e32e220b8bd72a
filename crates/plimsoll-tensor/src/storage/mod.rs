//! One allocation, shared by every tensor that looks at it; the last owner frees it.
//!
//! A storage knows what its bytes are for (category and label, which the allocator gets) and counts
//! in-place changes, so that a change of a tensor saved for the backward pass is noticed. It also knows where the bytes
//! are (`backing.rs`): on their device, or away, to be brought back (`moves.rs`). Its address is read under its lock
//! only (`locks.rs`).

mod backing;
mod locks;
mod moves;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use plimsoll_alloc::{Allocation, Category, Error as AllocError, LabelId, Request, StreamId, Tag};

use crate::device::Device;
use crate::error::{Error, OutOfMemory, Result};
use crate::history;
use crate::inference;
use crate::label;
use crate::pinned;
use crate::stream;

use backing::Backing;
pub use backing::State;
pub(crate) use locks::Locks;
pub(crate) use moves::Guard;

/// A reference-counted piece of device memory. The second part is there on handles of what was computed into memory that the caller
/// gave ([`Storage::computed`]), and on those made from them.
#[derive(Clone)]
pub(crate) struct Storage(Arc<Inner>, Option<Computed>);

/// Counts the handles of one result.
pub(crate) type Computed = Arc<()>;

/// A handle that keeps nothing alive.
#[derive(Clone)]
pub(crate) struct WeakStorage(Weak<Inner>);

impl WeakStorage {
    pub(crate) fn upgrade(&self) -> Option<Storage> {
        self.0.upgrade().map(|inner| Storage(inner, None))
    }

    /// As [`Storage::id`]: of no other storage while this handle lives.
    pub(crate) fn id(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The address of bytes that cannot be used before they are brought back, or waited for.
const AWAY: u64 = u64::MAX;

struct Inner {
    device: Device,
    bytes: u64,
    /// Where the bytes are on their device, or `AWAY`; changes under the write lock.
    address: AtomicU64,
    /// The stream that they were requested for.
    stream: AtomicU64,
    /// The last other stream that was recorded as a user.
    used_by: AtomicU64,
    /// Number of in-place changes so far.
    version: AtomicU32,
    /// Whether it was requested in inference mode.
    inference: bool,
    account: Mutex<Account>,
    /// Guards the bytes for many readers or one writer. The bytes themselves belong to the device.
    lock: RwLock<()>,
}

/// How evicted bytes are computed again: a storage of as many bytes, for which the caller has the only handle.
pub(crate) type Recipe = Arc<dyn Fn() -> Result<Storage> + Send + Sync>;

/// How the bytes of a saved tensor are computed again, in place of keeping them.
pub(crate) trait Recompute: Send + Sync {
    /// One more saved tensor will read them.
    fn save(&self);

    /// The bytes, computed where they are not there.
    ///
    /// # Errors
    /// Those of the computation.
    fn values(&self) -> Result<Storage>;

    /// A saved tensor lets go: the last one frees the bytes.
    fn unsave(&self);
}

/// What the bytes are for and what owns them.
struct Account {
    tag: Tag,
    /// How many saved tensors keep them for the backward pass.
    saved: u32,
    /// How many guards keep them on their device.
    guards: u32,
    /// The operation that changed them last.
    changed_by: &'static str,
    backing: Backing<Recipe>,
    /// How they are computed again where they are saved, and the number of changes that this holds for.
    recompute: Option<Box<(Weak<dyn Recompute>, u32)>>,
}

impl Storage {
    /// A handle of a result in this memory, and what counts such handles.
    pub(crate) fn computed(&self) -> (Storage, Computed) {
        let computed = Computed::default();
        (Storage(self.0.clone(), Some(computed.clone())), computed)
    }

    /// Whether this is a handle of that result, or made from one.
    pub(crate) fn is_computed(&self, result: &Computed) -> bool {
        self.1.as_ref().is_some_and(|own| Arc::ptr_eq(own, result))
    }

    /// Allocates `bytes` for the innermost owner of this thread; `op` names the request in errors.
    pub(crate) fn alloc(device: &Device, bytes: u64, op: &'static str) -> Result<Storage> {
        Storage::alloc_as(device, bytes, op, label::current(op))
    }

    /// Allocates `bytes` under a category and label.
    pub(crate) fn alloc_as(device: &Device, bytes: u64, op: &'static str, tag: Tag) -> Result<Storage> {
        let (allocation, stream) = request(device, bytes, op, tag)?;
        let address = allocation.addr().0;
        Ok(Storage::new(device, bytes, address, stream, tag, Backing::Device(allocation)))
    }

    /// Allocates `bytes` of pinned memory for a tensor of the host.
    pub(crate) fn alloc_pinned(host: &Device, bytes: u64, op: &'static str) -> Result<Storage> {
        let tag = label::current(op);
        let block = pinned::Block::alloc(bytes, op, tag.label)?;
        let (address, backing) = (block.address().0, Backing::pinned(block));
        Ok(Storage::new(host, bytes, address, StreamId::default(), tag, backing))
    }

    fn new(
        device: &Device,
        bytes: u64,
        address: u64,
        stream: StreamId,
        tag: Tag,
        backing: Backing<Recipe>,
    ) -> Storage {
        Storage(
            Arc::new(Inner {
                device: device.clone(),
                bytes,
                address: AtomicU64::new(address),
                stream: AtomicU64::new(stream.0),
                used_by: AtomicU64::new(stream.0),
                version: AtomicU32::new(0),
                inference: inference::is_enabled(),
                account: Mutex::new(Account {
                    tag,
                    saved: 0,
                    guards: 0,
                    changed_by: "",
                    backing,
                    recompute: None,
                }),
                lock: RwLock::new(()),
            }),
            None,
        )
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Bytes asked for; the allocator rounds up.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The stream that it was requested for.
    pub(crate) fn stream(&self) -> StreamId {
        StreamId(self.0.stream.load(Ordering::Relaxed))
    }

    /// Notes that work on a stream uses these bytes: freed, they serve no request before that work is done.
    pub(crate) fn record_stream(&self, on: StreamId) {
        // The allocator keeps a list; this only saves asking it again for the stream that asked last.
        if on == self.stream() || self.0.used_by.swap(on.0, Ordering::Relaxed) == on.0 {
            return;
        }
        if let Backing::Device(allocation) = &self.account().backing {
            self.0.device.memory().record_stream(allocation, on);
        }
    }

    /// A handle that keeps nothing alive.
    pub(crate) fn downgrade(&self) -> WeakStorage {
        WeakStorage(Arc::downgrade(&self.0))
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

    /// Notes a change in place by the operation `op`.
    pub(crate) fn changed(&self, op: &'static str) {
        self.account().changed_by = op;
        self.0.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The operation that changed the bytes last, for an error.
    pub(crate) fn changed_by(&self) -> &'static str {
        self.account().changed_by
    }

    /// Whether it was requested in inference mode.
    pub(crate) fn is_inference(&self) -> bool {
        self.0.inference
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tag(&self) -> Tag {
        self.account().tag
    }

    /// Gives the bytes another purpose or owner, and tells the allocator's listeners.
    pub(crate) fn retag(&self, tag: Tag) {
        self.retag_locked(&mut self.account(), tag);
    }

    fn retag_locked(&self, account: &mut Account, tag: Tag) {
        if account.tag != tag {
            account.tag = tag;
            if let Backing::Device(allocation) = &account.backing {
                self.0.device.memory().retag(allocation, tag.category, tag.label);
            }
        }
    }

    /// Where these bytes are saved for the backward pass, `recompute` is saved instead, for as long as it lives and they do not
    /// change.
    pub(crate) fn recompute_with(&self, recompute: Weak<dyn Recompute>) {
        let old = self.account().recompute.replace(Box::new((recompute, self.version())));
        drop(old);
    }

    /// One more saved tensor keeps these bytes: a temporary becomes an activation. Where they are to be computed again,
    /// gives back how, and keeps nothing.
    pub(crate) fn save(&self) -> Option<Arc<dyn Recompute>> {
        let mut account = self.account();
        if let Some((recompute, version)) = account.recompute.as_deref()
            && *version == self.version()
            && let Some(recompute) = recompute.upgrade()
        {
            drop(account);
            recompute.save();
            return Some(recompute);
        }
        account.saved += 1;
        if account.tag.category == Category::Temporary {
            let label: LabelId = account.tag.label;
            self.retag_locked(&mut account, Tag { category: Category::Activation, label });
        }
        None
    }

    /// A saved tensor lets go: what still has a handle is a temporary again.
    pub(crate) fn unsave(&self) {
        let mut account = self.account();
        account.saved -= 1;
        // With one handle left, the caller's, the bytes are freed next: telling anyone would be noise.
        if account.saved == 0 && account.tag.category == Category::Activation && !self.is_unique() {
            let label = account.tag.label;
            self.retag_locked(&mut account, Tag { category: Category::Temporary, label });
        }
    }
}

/// Requests memory for the current stream; gives that stream too.
fn request(device: &Device, bytes: u64, op: &'static str, tag: Tag) -> Result<(Allocation, StreamId)> {
    let Tag { category, label } = tag;
    let stream = stream::current(device);
    let stack = Some(history::stack_of(op));
    let request = Request { stream, category, label, stack, ..Request::of(bytes) };
    let allocation = device.memory().alloc(request).map_err(|error| refused(device, op, tag, error))?;
    Ok((allocation, stream))
}

impl Drop for Inner {
    fn drop(&mut self) {
        let account = self.account.get_mut().unwrap_or_else(PoisonError::into_inner);
        let backing = std::mem::replace(&mut account.backing, Backing::Gone);
        backing.free(&self.device);
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
