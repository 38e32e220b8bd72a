//! One allocation, shared by all tensors on it; the last owner frees it.
//!
//! A storage has a category and a label, which it passes to the allocator, and counts in-place changes, so that a
//! change to a tensor saved for the backward pass is detected. It also knows where its bytes are (`backing.rs`): on
//! their device or elsewhere, from where they are brought back (`moves.rs`, and `beside.rs` while operations run), or in the memory
//! of another storage (`lent.rs`). Its address is read only under its lock (`locks.rs`), and `streams.rs` has the streams that use it.

mod backing;
mod beside;
mod leaving;
mod lent;
mod locks;
mod moves;
mod reserve;
mod streams;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use plimsoll_alloc::{
    Allocation, CallbackResult, Category, Error as AllocError, LabelId, Request, StreamId, Tag,
};

use crate::capturing;
use crate::device::{Device, Wanted};
use crate::error::{Error, OutOfMemory, Result};
use crate::history;
use crate::inference;
use crate::label;
use crate::pinned;
use crate::planned::{self, ArenaMemory, Asked, Source as MemorySource};
use crate::stream::{self, Event};

use backing::Backing;
pub use backing::State;
pub(crate) use leaving::Departure;
use leaving::Leaving;
pub(crate) use locks::Locks;
pub(crate) use moves::is_restoring;

/// A reference-counted piece of device memory. The second field is set on handles of a result that was computed into memory
/// supplied by the caller ([`Storage::computed`]), and on their clones.
#[derive(Clone)]
pub(crate) struct Storage(Arc<Inner>, Option<Computed>);

/// Counts the handles of one result.
pub(crate) type Computed = Arc<()>;

/// A weak handle.
#[derive(Clone)]
pub(crate) struct WeakStorage(Weak<Inner>);

impl WeakStorage {
    pub(crate) fn upgrade(&self) -> Option<Storage> {
        self.0.upgrade().map(|inner| Storage(inner, None))
    }

    /// Whether the storage still exists. Another thread may drop it at any time.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Like [`Storage::id`]. No other storage has this id while this handle exists.
    pub(crate) fn id(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The address of bytes that must be brought back or waited for before they can be used.
const AWAY: u64 = u64::MAX;

struct Inner {
    device: Device,
    bytes: u64,
    /// The address of the bytes on their device, or `AWAY`; changes under the write lock.
    address: AtomicU64,
    /// The stream for which the bytes were requested.
    stream: AtomicU64,
    /// The most recent other stream that was recorded as a user.
    used_by: AtomicU64,
    /// Number of in-place changes so far.
    version: AtomicU32,
    /// Whether the memory was requested in inference mode.
    inference: bool,
    account: Mutex<Account>,
    /// Set if the storage owns no memory.
    lent: OnceLock<Lent>,
    /// The storage whose bytes are gathered from this one's. A change of this storage makes it out of date.
    gathered: OnceLock<WeakStorage>,
    /// Protects the bytes, for many readers or one writer. The bytes themselves are in device memory.
    lock: RwLock<()>,
}

/// Computes evicted bytes again. Returns a storage of the same size, to which the caller has the only handle.
pub(crate) type Recipe = Arc<dyn Fn() -> Result<Storage> + Send + Sync>;

/// Keeps a storage's bytes on their device.
pub(crate) struct Guard(Storage);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.account().guards -= 1;
    }
}

/// The owner of a storage's bytes.
type Held = Backing<Recipe, Guard>;

/// Gathers the bytes of a lent storage. Returns the storage that contains them.
pub(crate) type Source = Arc<dyn Fn() -> Result<Storage> + Send + Sync>;

/// The source of a lent storage.
struct Lent {
    source: Source,
    /// This rank's part.
    rows: Storage,
}

/// Computes the bytes of a saved tensor again, so that they need not be kept.
pub(crate) trait Recompute: Send + Sync {
    /// Another saved tensor will read the bytes.
    fn save(&self);

    /// Returns the bytes; computes them first if necessary.
    ///
    /// # Errors
    /// The errors of the computation.
    fn values(&self) -> Result<Storage>;

    /// A saved tensor is dropped. The last one frees the bytes.
    fn unsave(&self);
}

/// The category and owner of the bytes, and their state.
struct Account {
    tag: Tag,
    /// The number of saved tensors that keep them for the backward pass.
    saved: u32,
    /// The number of guards that keep them on their device.
    guards: u32,
    /// The operation that changed the bytes last.
    changed_by: &'static str,
    backing: Held,
    /// The copy after which the bytes may leave their device.
    leaving: Option<Box<Leaving>>,
    /// The copy that brought the bytes back to their device, if they came back by one.
    arrived: Option<Arc<Event>>,
    /// The way to recompute the bytes instead of saving them, and the version for which this is valid.
    recompute: Option<Box<(Weak<dyn Recompute>, u32)>>,
    /// Called when the bytes are freed.
    on_free: Vec<FreeHook>,
}

/// Called with the number of freed bytes, their tag, and the layer that freed them.
pub(crate) type FreeHook = Box<dyn FnOnce(u64, Tag, LabelId) + Send>;

impl Storage {
    /// A handle of a result in this memory, and the counter of such handles.
    pub(crate) fn computed(&self) -> (Storage, Computed) {
        let computed = Computed::default();
        (Storage(self.0.clone(), Some(computed.clone())), computed)
    }

    /// Whether this is a handle of that result or a clone of one.
    pub(crate) fn is_computed(&self, result: &Computed) -> bool {
        self.1.as_ref().is_some_and(|own| Arc::ptr_eq(own, result))
    }

    /// Allocates `bytes` for the innermost owner of this thread; errors name the operation `op`.
    pub(crate) fn alloc(device: &Device, bytes: u64, op: &'static str) -> Result<Storage> {
        Storage::alloc_as(device, bytes, op, label::current(op))
    }

    /// Allocates `bytes` under a category and label.
    pub(crate) fn alloc_as(device: &Device, bytes: u64, op: &'static str, tag: Tag) -> Result<Storage> {
        let mut lease = None;
        if planned::is_active() {
            let asked = Asked { op, bytes, stream: stream::current(device) };
            match planned::source(device.number(), capturing::is_any(), asked, tag) {
                MemorySource::Allocator => {}
                MemorySource::Recorded(own) => lease = Some(own),
                MemorySource::Planned(own, address) => {
                    return Ok(Storage::new(
                        device,
                        bytes,
                        address,
                        asked.stream,
                        tag,
                        Backing::Planned(own),
                    ));
                }
            }
        }
        let (allocation, stream) = request(device, bytes, op, tag)?;
        let address = allocation.addr().0;
        Ok(Storage::new(device, bytes, address, stream, tag, Backing::Device(allocation, lease)))
    }

    /// Allocates `bytes` of pinned memory for a tensor of the host.
    pub(crate) fn alloc_pinned(host: &Device, bytes: u64, op: &'static str) -> Result<Storage> {
        let tag = label::current(op);
        let block = pinned::Block::alloc(bytes, op, tag.label)?;
        let (address, backing) = (block.address().0, Backing::pinned(block));
        Ok(Storage::new(host, bytes, address, StreamId::default(), tag, backing))
    }

    fn new(device: &Device, bytes: u64, address: u64, stream: StreamId, tag: Tag, backing: Held) -> Storage {
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
                    leaving: None,
                    arrived: None,
                    recompute: None,
                    on_free: Vec::new(),
                }),
                lent: OnceLock::new(),
                gathered: OnceLock::new(),
                lock: RwLock::new(()),
            }),
            None,
        )
    }

    /// Calls `hook` when the bytes are freed.
    pub(crate) fn on_free(&self, hook: FreeHook) {
        self.account().on_free.push(hook);
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Requested bytes; the allocator rounds up.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// [`Storage::bytes`], as the allocator rounds them.
    pub(crate) fn rounded_bytes(&self) -> u64 {
        rounded(self.bytes())
    }

    /// Makes a weak handle.
    pub(crate) fn downgrade(&self) -> WeakStorage {
        WeakStorage(Arc::downgrade(&self.0))
    }

    /// Identifies the storage; locks are taken in the order of ids.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether no other tensor, saved or not, shares these bytes.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// The number of tensors, saved or not, that share these bytes.
    pub(crate) fn ref_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// The numbers of tensors, saved tensors and guards that keep these bytes alive.
    pub(crate) fn uses(&self) -> (usize, usize, usize) {
        let account = self.account();
        let (saved, guards) = (account.saved as usize, account.guards as usize);
        (self.ref_count().saturating_sub(saved + guards), saved, guards)
    }

    /// The number of in-place changes. A lent storage changes with the rows that it is gathered from.
    pub(crate) fn version(&self) -> u32 {
        let own = self.0.version.load(Ordering::Acquire);
        self.rows().map_or(own, |rows| own.wrapping_add(rows.version()))
    }

    /// Records an in-place change by the operation `op`.
    pub(crate) fn changed(&self, op: &'static str) {
        self.account().changed_by = op;
        self.0.version.fetch_add(1, Ordering::AcqRel);
        if let Some(gathered) = self.0.gathered.get().and_then(WeakStorage::upgrade) {
            gathered.take_back();
        }
    }

    /// The operation that last changed the bytes, for an error message.
    pub(crate) fn changed_by(&self) -> &'static str {
        self.rows().unwrap_or(self).account().changed_by
    }

    /// Whether the memory was requested in inference mode.
    pub(crate) fn is_inference(&self) -> bool {
        self.0.inference
    }

    /// The rows of this rank that a lent storage is gathered from.
    fn rows(&self) -> Option<&Storage> {
        self.0.lent.get().map(|lent| &lent.rows)
    }

    /// Takes the memory from a lent storage, whose next reader gathers the bytes again. Returns false, and does nothing, if an
    /// operation is about to read it.
    pub(crate) fn take_back(&self) -> bool {
        let writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let mut account = self.account();
        let taken = match account.backing {
            Backing::Borrowed(_) if account.guards == 0 => {
                self.0.address.store(AWAY, Ordering::Release);
                std::mem::replace(&mut account.backing, Backing::Lent)
            }
            Backing::Lent => Backing::Lent,
            _ => return false,
        };
        let tag = account.tag;
        drop((account, writing));
        taken.free(&self.0.device, tag);
        true
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tag(&self) -> Tag {
        self.account().tag
    }

    /// Changes the category or owner of the bytes, and notifies the allocator's observers.
    pub(crate) fn retag(&self, tag: Tag) {
        self.retag_locked(&mut self.account(), tag);
    }

    fn retag_locked(&self, account: &mut Account, tag: Tag) {
        if account.tag != tag {
            account.tag = tag;
            if let Backing::Device(allocation, _) | Backing::Returning { allocation, .. } = &account.backing {
                self.0.device.memory().retag(allocation, tag.category, tag.label);
            }
            if let Backing::Device(_, Some(lease)) = &account.backing {
                lease.retag(tag);
            }
        }
    }

    /// From now on, saving these bytes for the backward pass saves `recompute` instead, as long as `recompute` exists and the
    /// bytes do not change.
    pub(crate) fn recompute_with(&self, recompute: Weak<dyn Recompute>) {
        let old = self.account().recompute.replace(Box::new((recompute, self.version())));
        drop(old);
    }

    /// Another saved tensor keeps these bytes, so a temporary becomes an activation. If they are to be recomputed instead,
    /// returns the means to do so and keeps nothing.
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

    /// A saved tensor is dropped. If the storage still has handles, it becomes a temporary again.
    pub(crate) fn unsave(&self) {
        let mut account = self.account();
        account.saved -= 1;
        // If only the caller's handle is left, the bytes are freed next, and an event for the change would be noise.
        if account.saved == 0 && account.tag.category == Category::Activation && !self.is_unique() {
            let label = account.tag.label;
            self.retag_locked(&mut account, Tag { category: Category::Temporary, label });
        }
    }
}

impl ArenaMemory for Storage {
    fn address(&self) -> u64 {
        self.address_now().map_or(0, |address| address.0)
    }

    fn record_stream(&self, on: StreamId) {
        Storage::record_stream(self, on);
    }
}

/// The block that the allocator gives for a request of these bytes, with its default settings.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(512)
}

/// Requests memory for the current stream. Also returns that stream.
fn request(device: &Device, bytes: u64, op: &'static str, tag: Tag) -> Result<(Allocation, StreamId)> {
    let Tag { category, label } = tag;
    let stream = stream::current(device);
    let stack = Some(history::stack_of(op));
    let request = || Request { stream, category, label, stack, ..Request::of(bytes) };
    let memory = device.memory();
    let alloc = || {
        if !device.evicts() {
            return memory.alloc(request());
        }
        memory.alloc_within(request(), |bytes, kind| {
            match device.make_room(Wanted::Block { memory, bytes, kind, stream }) {
                true => CallbackResult::Freed,
                false => CallbackResult::NothingFreed,
            }
        })
    };
    let mut result = alloc();
    while let Err(AllocError::OutOfMemory(_)) = &result
        && device.make_room(Wanted::Bytes(rounded(bytes)))
    {
        result = alloc();
    }
    let allocation = result.map_err(|error| {
        let mut error = refused(device, op, tag, error);
        if let (true, Error::OutOfMemory(report)) = (device.evicts(), &mut error) {
            report.irreducible = device.owners();
        }
        error
    })?;
    device.allocated(&allocation, tag, op);
    Ok((allocation, stream))
}

impl Drop for Inner {
    fn drop(&mut self) {
        let account = self.account.get_mut().unwrap_or_else(PoisonError::into_inner);
        let backing = std::mem::replace(&mut account.backing, Backing::Gone);
        let (hooks, tag, leaving) =
            (std::mem::take(&mut account.on_free), account.tag, account.leaving.take());
        if let Some(leaving) = leaving {
            leaving.abandon(&self.own_stream());
        }
        backing.free(&self.device, tag);
        for hook in hooks {
            let (bytes, by) = (self.bytes, label::current_layer());
            // A panic here could be a second one, which would end the process.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hook(bytes, tag, by)));
        }
    }
}

/// Converts an allocator error, adding the names that the allocator does not know.
fn refused(device: &Device, op: &'static str, tag: Tag, error: AllocError) -> Error {
    match error {
        AllocError::OutOfMemory(numbers) => Error::OutOfMemory(Box::new(OutOfMemory {
            device: device.name().to_owned(),
            label: label::text(tag.label),
            op,
            numbers: *numbers,
            irreducible: Vec::new(),
        })),
        source => Error::Allocator { device: device.name().to_owned(), source },
    }
}
