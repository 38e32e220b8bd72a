//! One forward pass whose saved tensors are offloaded, and the backward pass that reads them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::Category;

use super::options::{IN_FLIGHT, OffloadOptions, copy_seconds};
use super::shared::Shared;
use crate::capturing;
use crate::clock;
use crate::device::Device;
use crate::error::Result;
use crate::planned;
use crate::storage::{Departure, Storage, WeakStorage};
use crate::stream::Stream;

/// How often a tensor that is still in use is checked again before it is assumed that the program keeps it.
const TRIES: u8 = 32;

/// A forward pass, until its backward pass has read all that it saved.
pub(crate) struct Pass {
    options: OffloadOptions,
    /// Whether tensors may come back into the memory of those that were read and freed.
    reuses: bool,
    shared: Arc<Shared>,
    /// The estimated time of this thread's operations when it began.
    began: f64,
    state: Mutex<State>,
}

/// The saved tensors of a pass, in the order in which they were saved.
#[derive(Default)]
struct State {
    tensors: Vec<Saved>,
    /// The numbers of the storages of living tensors.
    numbers: HashMap<usize, usize>,
    /// Tensors that may leave once only saved tensors use them, in order, and how often each has been in use.
    waiting: VecDeque<(usize, u8)>,
    /// Tensors whose copies to the host have begun, in order, with the estimated time at which they are done; and their bytes.
    leaving: Vec<(usize, f64)>,
    leaving_bytes: u64,
    /// Bytes of tensors whose copies back have begun, and of those that no derivative has read yet.
    returned_bytes: u64,
    unread_bytes: u64,
    /// Tensors that derivatives have read, and the bytes of those that are free since then.
    leftovers: Vec<(WeakStorage, u64)>,
    freed_bytes: u64,
    /// The largest tensor whose copy to the host has begun.
    largest: u64,
    /// All bytes whose copies to the host have begun.
    offloaded_bytes: u64,
    /// The estimated time at which all copies to the host are done, in seconds since the pass began.
    copied_at: f64,
    /// The order in which the backward pass is expected to read them, once it has begun, and how much of this order it
    /// has followed.
    expected: Option<Vec<usize>>,
    next: usize,
    /// The order in which the backward pass reads them.
    read: Vec<usize>,
}

struct Saved {
    storage: WeakStorage,
    bytes: u64,
    place: Place,
    /// Whether a derivative has read it.
    is_read: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The tensor is on the device.
    Here,
    /// The tensor is on the device, and is being copied to the host.
    Leaving,
    /// The tensor is on the host.
    Away,
    /// The tensor is on the host, and is being copied back.
    Returning,
    /// A derivative has read the tensor, or the tensor was dropped.
    Done,
}

/// A saved tensor of a pass.
pub(crate) struct Ticket {
    pass: Arc<Pass>,
    number: usize,
}

impl Ticket {
    /// Called when a derivative is about to read the tensor: copies back this tensor and those that are expected next.
    ///
    /// # Errors
    /// Out of memory for this tensor, or the device's errors.
    pub(crate) fn announce(&self) -> Result<()> {
        self.pass.read(self.number)
    }
}

impl Pass {
    pub(super) fn new(options: OffloadOptions, reuses: bool, shared: Arc<Shared>) -> Pass {
        let began = clock::metered_until_now().map_or(0.0, |meter| meter.seconds);
        Pass { options, reuses, shared, began, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation has saved these bytes, which may leave or must stay.
    ///
    /// # Errors
    /// Pinned memory cannot be allocated, the step is captured, or the device's errors.
    pub(super) fn saved(self: &Arc<Self>, storage: &Storage, may_leave: bool) -> Result<Option<Arc<Ticket>>> {
        let device = storage.device();
        if copy_seconds(device, 0).is_none()
            || storage.tag().category != Category::Activation
            || storage.bytes() < self.options.min_tensor_bytes
        {
            return Ok(None);
        }
        let why = "a replay does not move tensors between the device and the host: use `recompute_output` or a checkpoint";
        capturing::refuse(device.number(), "offload", why)?;
        if planned::is_active() || !storage.can_leave() {
            return Ok(None);
        }
        // Earlier tensors first, because the operation that saves this one may still use it.
        self.advance(device)?;
        let mut state = self.state();
        let number = state.number_of(storage).unwrap_or_else(|| state.add(storage));
        if may_leave {
            state.wait(number);
        }
        drop(state);
        Ok(Some(Arc::new(Ticket { pass: self.clone(), number })))
    }

    /// Starts copies of tensors that may leave now, and frees those that have been copied.
    ///
    /// # Errors
    /// Pinned memory cannot be allocated; the device's errors.
    pub(super) fn advance(&self, device: &Device) -> Result<()> {
        let mut state = self.state();
        if !state.waiting.is_empty() {
            let (out, _) = self.shared.streams.of(device);
            self.start(&mut state, &out)?;
        }
        self.drain(&mut state)
    }

    /// Sets whether a tensor that has been saved may leave.
    pub(super) fn set_leaves(&self, storage: &Storage, leaves: bool) {
        let mut state = self.state();
        let Some(number) = state.number_of(storage) else { return };
        if leaves {
            state.wait(number);
        } else {
            state.waiting.retain(|(known, _)| *known != number);
        }
    }

    /// Starts to copy tensors to the host that only saved tensors use, the first ones first.
    fn start(&self, state: &mut State, out: &Stream) -> Result<()> {
        let mut at = 0;
        while let Some(&mut (number, ref mut tries)) = state.waiting.get_mut(at) {
            let Some(storage) = state.tensors[number].storage.upgrade() else {
                state.waiting.remove(at);
                continue;
            };
            // One handle is this function's.
            if storage.uses().0 > 1 {
                *tries += 1;
                if *tries < TRIES {
                    at += 1;
                } else {
                    state.waiting.remove(at);
                }
                continue;
            }
            let bytes = storage.bytes();
            if state.offloaded_bytes.saturating_add(bytes) > self.options.max_bytes {
                state.waiting.remove(at);
                continue;
            }
            let Some(copied_at) = self.copied_at(state, &storage) else { return Ok(()) };
            state.waiting.remove(at);
            if storage.start_leaving(out)? {
                state.copied_at = copied_at;
                state.largest = state.largest.max(bytes);
                state.tensors[number].place = Place::Leaving;
                state.leaving.push((number, copied_at));
                state.leaving_bytes += bytes;
                state.offloaded_bytes += bytes;
            }
        }
        Ok(())
    }

    /// The estimated time at which another copy to the host is done, in seconds since the pass began. `None` if the device would
    /// have to wait for it.
    fn copied_at(&self, state: &State, storage: &Storage) -> Option<f64> {
        let seconds = |bytes: u64| copy_seconds(storage.device(), bytes).unwrap_or(0.0);
        let now = self.now();
        let done = state.copied_at.max(now) + seconds(storage.bytes());
        // Waits for copies that are not done by then, because only few bytes may be in progress.
        let soon = now + seconds(IN_FLIGHT * state.largest.max(storage.bytes()));
        (self.options.wait || done <= soon).then_some(done)
    }

    /// The estimated time of the operations since the pass began, in seconds.
    fn now(&self) -> f64 {
        clock::metered_until_now().map_or(0.0, |meter| (meter.seconds - self.began).max(0.0))
    }

    /// Frees tensors whose copies are done according to the estimate, and then others, the oldest first, until few
    /// bytes are in progress.
    fn drain(&self, state: &mut State) -> Result<()> {
        let (mut at, now) = (0, self.now());
        while let Some(&(number, copied_at)) = state.leaving.get(at) {
            // One of them may be half done.
            if copied_at > now && state.leaving_bytes <= (IN_FLIGHT + 1) * state.largest {
                break;
            }
            let departure = match state.tensors[number].storage.upgrade() {
                Some(storage) => storage.leave(false)?,
                None => Departure::Stays,
            };
            let place = match departure {
                Departure::InUse => {
                    at += 1;
                    continue;
                }
                Departure::Left => Place::Away,
                Departure::Stays => Place::Here,
            };
            state.tensors[number].place = place;
            state.leaving_bytes -= state.tensors[number].bytes;
            state.leaving.remove(at);
        }
        Ok(())
    }

    /// The forward pass has ended.
    pub(super) fn end(&self) {
        let mut state = self.state();
        // Tensors that cannot leave stay; an error of other work is returned by its next call.
        let _ = self.drain(&mut state);
        self.shared.learned().offloaded_bytes = state.offloaded_bytes;
    }

    /// A derivative is about to read a tensor.
    fn read(&self, number: usize) -> Result<()> {
        let mut state = self.state();
        let saved = &mut state.tensors[number];
        if std::mem::replace(&mut saved.is_read, true) {
            return Ok(());
        }
        let (bytes, place) = (saved.bytes, std::mem::replace(&mut saved.place, Place::Done));
        let Some(storage) = saved.storage.upgrade() else { return Ok(()) };
        state.read.push(number);
        state.unread_bytes =
            state.unread_bytes.saturating_sub(if place == Place::Returning { bytes } else { 0 });
        let (_, back) = self.shared.streams.of(storage.device());
        if place == Place::Away && storage.start_returning(&back)? {
            state.returned_bytes += bytes;
        }
        state.leftovers.push((storage.downgrade(), bytes));
        drop(storage);
        self.bring_next(&mut state, &back)
    }

    /// Starts to copy back the tensors that are expected next, into the memory of those that were read and freed, and a little more. So
    /// hardly more is kept than at the end of the forward pass.
    fn bring_next(&self, state: &mut State, back: &Stream) -> Result<()> {
        if state.expected.is_none() {
            let bytes: Vec<u64> = state.tensors.iter().map(|saved| saved.bytes).collect();
            let learned = self.shared.learned().last.clone();
            let same = learned.filter(|(known, _)| *known == bytes).map(|(_, order)| order);
            state.expected = Some(same.unwrap_or_else(|| (0..bytes.len()).rev().collect()));
        }
        let State { leftovers, freed_bytes, .. } = &mut *state;
        leftovers.retain(|(storage, bytes)| {
            let is_alive = storage.is_alive();
            *freed_bytes += if is_alive { 0 } else { *bytes };
            is_alive
        });
        let few = IN_FLIGHT * state.largest;
        let room = state.freed_bytes + few;
        while let Some(&number) = state.expected.as_ref().and_then(|order| order.get(state.next)) {
            let Saved { storage, bytes, place, .. } = &mut state.tensors[number];
            if *place == Place::Away {
                let is_full = match self.reuses {
                    true => state.returned_bytes + *bytes > room,
                    false => state.unread_bytes + *bytes > few,
                };
                if is_full {
                    return Ok(());
                }
                let storage = storage.upgrade();
                let Some(has_begun) = storage.map_or(Ok(Some(false)), |it| it.start_returning_early(back))?
                else {
                    return Ok(());
                };
                *place = if has_begun { Place::Returning } else { Place::Done };
                if has_begun {
                    state.returned_bytes += *bytes;
                    state.unread_bytes += *bytes;
                }
            }
            state.next += 1;
        }
        Ok(())
    }
}

impl State {
    fn number_of(&self, storage: &Storage) -> Option<usize> {
        let known = self.numbers.get(&storage.id()).copied();
        // While a tensor has a handle, no other storage has its id.
        known.filter(|&number| self.tensors[number].storage.is_alive())
    }

    /// Adds a tensor. Returns its number.
    fn add(&mut self, storage: &Storage) -> usize {
        let (number, bytes) = (self.tensors.len(), storage.bytes());
        self.numbers.insert(storage.id(), number);
        self.tensors.push(Saved { storage: storage.downgrade(), bytes, place: Place::Here, is_read: false });
        number
    }

    /// A tensor may leave once only saved tensors use it.
    fn wait(&mut self, number: usize) {
        if self.tensors[number].place == Place::Here && self.waiting.iter().all(|(known, _)| *known != number)
        {
            self.waiting.push_back((number, 0));
        }
    }
}

impl Drop for Pass {
    /// The next pass expects the order of this one.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.read.is_empty() {
            let bytes = state.tensors.iter().map(|saved| saved.bytes).collect();
            self.shared.learned().last = Some((bytes, std::mem::take(&mut state.read)));
        }
    }
}
