//! Moves bytes off their device and back.
//!
//! Memory is requested, and recipes run, with no lock held; the bytes are moved under the storage's write lock. A
//! [`Guard`] keeps them on their device until it is dropped.

use std::cell::RefCell;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, RwLockWriteGuard};

use plimsoll_alloc::{Addr, StreamId};

use super::backing::{Backing, State};
use super::{AWAY, Account, Guard, Held, Recipe, Storage, request};
use crate::capturing;
use crate::cpu;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::label;
use crate::layout::Layout;
use crate::pinned::{self, Block};
use crate::stream::{Event, Stream};
use crate::view::View;

/// The direction of a copy: onto the device, or off it.
#[derive(Clone, Copy)]
pub(super) enum Way {
    In,
    Out,
}

impl Storage {
    /// The place of the bytes.
    pub(crate) fn state(&self) -> State {
        self.account().backing.state()
    }

    /// Whether they are on their device, and nothing keeps them there.
    pub(crate) fn can_be_evicted(&self) -> bool {
        let account = self.account();
        account.guards == 0 && account.backing.state() == State::Resident
    }

    /// Whether they are in pinned memory as a host tensor.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.account().backing, Backing::Pinned { .. })
    }

    /// The current address, for reports only: the bytes may be evicted at any time. To access them, use `Locks::address`.
    pub(crate) fn address_now(&self) -> Option<Addr> {
        Some(self.0.address.load(Ordering::Relaxed)).filter(|&address| address != AWAY).map(Addr)
    }

    /// Whether the bytes are on their device now.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.address.load(Ordering::Acquire) != AWAY
    }

    /// Brings the bytes back to their device, for the operation `op`, and keeps them there.
    ///
    /// # Errors
    /// The errors of [`Storage::make_resident`].
    pub(crate) fn guard(&self, op: &'static str) -> Result<Guard> {
        let guard = self.stay();
        self.make_resident(op)?;
        Ok(guard)
    }

    /// Keeps the bytes on their device once they are there.
    pub(super) fn stay(&self) -> Guard {
        self.account().guards += 1;
        Guard(self.clone())
    }

    /// Moves the bytes to pinned host memory and frees them on their device; does nothing if they are not on the device.
    ///
    /// # Errors
    /// A guard keeps the bytes on the device; pinned memory cannot be allocated; the device's errors.
    pub(crate) fn offload(&self) -> Result<()> {
        const OP: &str = "offload";
        let owner = {
            let account = self.account();
            self.may_leave(account.guards, &account.backing, OP)?;
            if !matches!(account.backing, Backing::Device(..) | Backing::Planned(_)) {
                return Ok(());
            }
            account.tag.label
        };
        let block = Block::alloc(self.bytes(), OP, owner)?;
        let writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let from = match self.account().backing {
            Backing::Device(..) | Backing::Planned(_) => self.0.address.load(Ordering::Relaxed),
            _ => return Ok(()), // another thread did it first
        };
        let on = self.0.device.current_stream();
        self.record_stream(on.id());
        let copied = self.copy(Addr(from), Way::Out, &block, &on)?;
        let account = self.account();
        self.may_leave(account.guards, &account.backing, OP)?;
        self.go_away(Backing::Offloaded { block: Arc::new(block), copied }, account, writing);
        Ok(())
    }

    /// Frees the bytes on their device; `recipe` computes them again. If the bytes are already offloaded or evicted, the
    /// recipe replaces the copy or the previous recipe.
    ///
    /// # Errors
    /// A guard keeps the bytes on the device.
    pub(crate) fn evict_with(&self, recipe: Recipe) -> Result<()> {
        self.evict_if(|| true, recipe).map(drop)
    }

    /// Like [`Storage::evict_with`], if `is_valid` holds for the recipe. It is called when no operation uses the bytes, or can begin
    /// to. It may take a lock, if no thread that has this lock uses storages. Returns whether the bytes were evicted.
    ///
    /// # Errors
    /// The same errors as [`Storage::evict_with`].
    pub(crate) fn evict_if(&self, is_valid: impl FnOnce() -> bool, recipe: Recipe) -> Result<bool> {
        let writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let account = self.account();
        self.may_leave(account.guards, &account.backing, "evict_with")?;
        if !is_valid() {
            return Ok(false);
        }
        self.go_away(Backing::Evicted(recipe), account, writing);
        Ok(true)
    }

    /// Switches to a backing that is not on the device, and frees the memory once no lock is held. A copy to the host that has begun
    /// is abandoned.
    pub(super) fn go_away(
        &self,
        away: Held,
        mut account: MutexGuard<'_, Account>,
        writing: RwLockWriteGuard<'_, ()>,
    ) {
        let backing = mem::replace(&mut account.backing, away);
        self.0.address.store(AWAY, Ordering::Release);
        account.arrived = None;
        if let Some(leaving) = account.leaving.take() {
            leaving.abandon(&self.0.own_stream());
        }
        let tag = account.tag;
        drop((account, writing));
        backing.free(&self.0.device, tag);
    }

    fn may_leave(&self, guards: u32, backing: &Held, op: &'static str) -> Result<()> {
        let why = match backing {
            Backing::Pinned { .. } => "a tensor in pinned memory is on the host already",
            Backing::Lent | Backing::Borrowed(_) => {
                "a parameter of a sharded model has no memory of its own: its rows can be moved neither to the host nor into a \
                 recipe"
            }
            _ if guards > 0 => "a guard or an operation keeps the tensor on its device: drop the guard first",
            _ => return Ok(()),
        };
        Err(Error::argument(op, why))
    }

    /// Makes the bytes usable on their device: copies them back, computes them again, or waits for a copy in progress.
    /// Does nothing if they are already there.
    ///
    /// # Errors
    /// [`Error::NotResident`] with the cause: out of memory, a failed recipe, or the late error of other work. The bytes
    /// then stay where they are, and the call can be repeated.
    pub(super) fn make_resident(&self, op: &'static str) -> Result<()> {
        while !self.is_here() {
            self.step_back(op).map_err(|cause| match cause {
                // An error of other work already names its operation.
                late @ Error::Late { .. } => late,
                cause => Error::NotResident {
                    op,
                    owner: label::text(self.tag().label),
                    device: self.0.device.name().to_owned(),
                    cause: Box::new(cause),
                },
            })?;
        }
        Ok(())
    }

    fn step_back(&self, op: &'static str) -> Result<()> {
        enum From {
            Copies(Vec<Arc<Event>>),
            Block(Arc<Block>, Arc<Event>),
            Copy(StreamId, Arc<Event>),
            Recipe(Recipe),
            Ranks,
        }
        let from = match &self.account().backing {
            Backing::Pinned { copies, .. } => From::Copies(copies.clone()),
            Backing::Offloaded { block, copied } => From::Block(block.clone(), copied.clone()),
            Backing::Returning { stream, arrived, .. } => From::Copy(*stream, arrived.clone()),
            Backing::Evicted(recipe) => From::Recipe(recipe.clone()),
            Backing::Lent => From::Ranks,
            Backing::Device(..) | Backing::Planned(_) | Backing::Borrowed(_) | Backing::Gone => return Ok(()),
        };
        match from {
            From::Copies(copies) => self.wait_for(&copies),
            From::Block(block, copied) => self.copy_back(&block, &copied, op),
            From::Copy(own, arrived) => self.arrive(own, &arrived),
            From::Recipe(recipe) => self.recompute(&recipe),
            From::Ranks => self.gather(),
        }
    }

    /// Waits until the copies to and from this pinned memory are done.
    fn wait_for(&self, copies: &[Arc<Event>]) -> Result<()> {
        copies.iter().try_for_each(|copy| copy.synchronize())?;
        let mut account = self.account();
        if let Backing::Pinned { block, copies: left } = &mut account.backing {
            left.retain(|copy| !copies.iter().any(|done| Arc::ptr_eq(done, copy)));
            if left.is_empty() {
                self.0.address.store(block.address().0, Ordering::Release);
            }
        }
        Ok(())
    }

    fn copy_back(&self, block: &Arc<Block>, copied: &Event, op: &'static str) -> Result<()> {
        let device = &self.0.device;
        let (allocation, stream) = request(device, self.bytes(), op, self.tag())?;
        let on = device.current_stream();
        let to = allocation.addr();
        let copy = on.wait_event(copied).and_then(|()| self.copy(to, Way::In, block, &on));
        // Other streams do not wait for this one, so the copy must be complete when this returns.
        let done = copy.and_then(|copied| copied.synchronize());
        let backing = Backing::Device(allocation, None);
        if let Err(error) = done {
            backing.free(device, self.tag());
            return Err(error);
        }
        self.settle(
            backing,
            to,
            stream,
            |backing| matches!(backing, Backing::Offloaded { block: there, .. } if Arc::ptr_eq(there, block)),
        );
        Ok(())
    }

    fn recompute(&self, recipe: &Recipe) -> Result<()> {
        let _once = Restoring::begin(self)?;
        let fresh = recipe()?;
        self.take(&fresh, |backing| matches!(backing, Backing::Evicted(now) if Arc::ptr_eq(now, recipe)))
    }

    /// Brings evicted bytes back: `fresh` has those from before the first change. Does nothing if they are not evicted, or have
    /// changed.
    ///
    /// # Errors
    /// The device's errors.
    pub(crate) fn restore(&self, fresh: &Storage) -> Result<()> {
        match self.state() {
            State::Evicted if self.version() == 0 => {
                self.take(fresh, |backing| matches!(backing, Backing::Evicted(_)))
            }
            _ => Ok(()),
        }
    }

    /// Takes the memory of a storage that nobody else holds, if `expected` holds for the backing.
    fn take(&self, fresh: &Storage, expected: impl FnOnce(&Held) -> bool) -> Result<()> {
        let (bytes, needed) = (fresh.bytes(), self.bytes());
        if bytes != needed || fresh.device() != &self.0.device || !fresh.is_unique() {
            let message =
                format!("its recipe returned {bytes} bytes, not {needed} of its own on the same device");
            return Err(Error::argument("evict_with", message));
        }
        let _stays = fresh.guard("evict_with")?;
        if self.0.device.has_side_streams() {
            // Other streams do not wait for this one.
            self.0.device.current_stream().synchronize()?;
        }
        let (stream, to) = (fresh.stream(), Addr(fresh.0.address.load(Ordering::Relaxed)));
        fresh.retag(self.tag());
        let backing = mem::replace(&mut fresh.account().backing, Backing::Gone);
        self.settle(backing, to, stream, expected);
        Ok(())
    }

    /// Gathers the bytes of a lent storage.
    fn gather(&self) -> Result<()> {
        let Some(lent) = self.0.lent.get() else { unreachable!("only a lent storage has this backing") };
        let _once = Restoring::begin(self)?;
        let slot = (lent.source)()?;
        if slot.bytes() < self.bytes() || slot.device() != self.device() {
            let (bytes, needed) = (slot.bytes(), self.bytes());
            let message = format!("its source gave {bytes} bytes, not {needed} on the same device");
            return Err(Error::argument("lent", message));
        }
        let guard = slot.guard("lent")?;
        let at = Addr(slot.0.address.load(Ordering::Acquire));
        self.settle(Backing::Borrowed(guard), at, slot.stream(), |backing| matches!(backing, Backing::Lent));
        Ok(())
    }

    /// Switches to another backing if `expected` still holds for the current one; another thread may have changed it
    /// first.
    fn settle(&self, backing: Held, at: Addr, stream: StreamId, expected: impl FnOnce(&Held) -> bool) {
        let writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let mut account = self.account();
        let old = if expected(&account.backing) {
            self.0.stream.store(stream.0, Ordering::Relaxed);
            self.0.used_by.store(stream.0, Ordering::Relaxed);
            self.0.address.store(at.0, Ordering::Release);
            mem::replace(&mut account.backing, backing)
        } else {
            backing
        };
        let tag = account.tag;
        drop((account, writing));
        old.free(&self.0.device, tag);
    }

    /// Copies all bytes between the device and a block of pinned memory, on the stream `on`. Returns an event after the
    /// copy.
    pub(super) fn copy(&self, here: Addr, way: Way, block: &Block, on: &Stream) -> Result<Arc<Event>> {
        let (device, bytes) = (&self.0.device, self.bytes());
        let why = "a replay does not move tensors between the device and the host: move it before the step";
        capturing::refuse(device.number(), "offload", why)?;
        pinned::is_used_by(device);
        if device.has_values() && bytes > 0 {
            let layout = Layout::contiguous(&[usize::try_from(bytes).unwrap_or(usize::MAX)]);
            let view = |at: Addr| View::new(at, bytes, DType::U8, &layout);
            let there = view(block.address());
            match way {
                Way::In => device.backend().copy_in(cpu::readable(&there), view(here), on.id())?,
                Way::Out => device.backend().copy_out(view(here), cpu::writable(&there), on.id())?,
            }
        }
        if let Some(clocks) = device.clocks() {
            clocks.copy(matches!(way, Way::In), bytes, on.id());
        }
        block.record_use(on);
        Ok(Arc::new(on.record_event()?))
    }

    /// Records that a stream of a device copies to or from this pinned memory. The host waits for `event` before it uses
    /// the memory.
    pub(crate) fn is_copied_until(&self, event: Event, on: &Stream) {
        let mut account = self.account();
        if let Backing::Pinned { block, copies } = &mut account.backing {
            block.record_use(on);
            copies.push(Arc::new(event));
            self.0.address.store(AWAY, Ordering::Release);
        }
    }
}

thread_local! {
    /// The storages that recipes on this thread are computing.
    static RESTORING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread runs a recipe or the source of a lent storage, in the middle of another operation.
pub(crate) fn is_restoring() -> bool {
    RESTORING.with_borrow(|running| !running.is_empty())
}

/// A running recipe, or source of a lent storage.
struct Restoring(());

impl Restoring {
    fn begin(storage: &Storage) -> Result<Restoring> {
        RESTORING.with_borrow_mut(|running| {
            if running.contains(&storage.id()) {
                let message = "its recipe needs the tensor itself: let it use other tensors only";
                return Err(Error::argument("evict_with", message));
            }
            running.push(storage.id());
            Ok(Restoring(()))
        })
    }
}

impl Drop for Restoring {
    fn drop(&mut self) {
        RESTORING.with_borrow_mut(Vec::pop);
    }
}
