//! [`OffloadQueue`]: tensors that are used in turns wait on the host between their uses.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::options::{IN_FLIGHT, copy_seconds};
use super::shared::Streams;
use crate::capturing;
use crate::error::Result;
use crate::storage::{Storage, WeakStorage};
use crate::tensor::Tensor;

/// Keeps tensors in pinned host memory between their uses, such as the state of an optimizer, which a step uses part by
/// part. Copies run on their own streams: while some tensors are used, the tensors that followed them in the last round
/// are copied back, and the tensors used before them are copied to the host.
///
/// The device keeps the tensors of one use, and up to twice the bytes of the largest tensor for copies in progress, in each
/// direction. Tensors of synchronous devices stay where they are.
///
/// ```
/// use plimsoll_tensor::offload::OffloadQueue;
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::like("H200")?);
/// let queue = OffloadQueue::default();
/// let mut states = Vec::new();
/// for _ in 0..16 {
///     let state = Tensor::zeros(&[4 << 20], &device)?; // 16 MiB
///     queue.during(&[&state], || state.add_scalar_(1.0))?;
///     states.push(state);
/// }
/// assert!(device.max_memory_allocated() <= 5 * 16 << 20); // not 16 of them
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct OffloadQueue {
    streams: Streams,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The uses of the last round. The first `next` of them have happened again in this round, or their tensors are on their way back.
    last: Vec<Use>,
    next: usize,
    /// The uses of this round.
    now: Vec<Use>,
    /// Tensors whose copies to the host have begun, and their bytes.
    leaving: VecDeque<(WeakStorage, u64)>,
    leaving_bytes: u64,
    /// Bytes that are copied back for the uses of the last round before `next`, and were not used yet.
    returning_bytes: u64,
    largest: u64,
}

/// The tensors that are used together.
struct Use {
    storages: Vec<WeakStorage>,
    bytes: u64,
    is_returning: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({} uses)", self.now.len())
    }
}

impl OffloadQueue {
    /// Runs `f`, which uses these tensors. Before that, they are copied back, and so are some of the tensors that
    /// followed them in the last round. Afterwards they leave the device: an operation that reads them elsewhere brings
    /// them back.
    ///
    /// # Errors
    /// The errors of `f`. If the device or pinned memory is exhausted. A captured step.
    pub fn during<T>(&self, tensors: &[&Tensor], f: impl FnOnce() -> Result<T>) -> Result<T> {
        let storages: Vec<&Storage> = tensors
            .iter()
            .map(|tensor| &tensor.data().storage)
            .filter(|storage| copy_seconds(storage.device(), 0).is_some() && storage.bytes() > 0)
            .collect();
        let Some(first) = storages.first() else { return f() };
        let why = "a replay does not move tensors between the device and the host: use an optimizer without offloaded state";
        capturing::refuse(first.device().number(), "offload", why)?;
        self.begin(&storages)?;
        let result = f()?;
        self.end(&storages)?;
        Ok(result)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, storages: &[&Storage]) -> Result<()> {
        let (_, back) = self.streams.of(storages[0].device());
        let mut state = self.state();
        let state = &mut *state;
        let id = storages[0].id();
        if state.now.iter().any(|used| used.is_of(id)) {
            state.last = std::mem::take(&mut state.now);
            (state.next, state.returning_bytes) = (0, 0);
        }
        state.largest = storages.iter().map(|storage| storage.bytes()).fold(state.largest, u64::max);
        if let Some(at) = state.last.iter().position(|used| used.is_of(id)) {
            let used = &mut state.last[at];
            if std::mem::take(&mut used.is_returning) {
                state.returning_bytes -= used.bytes;
            }
            state.next = state.next.max(at + 1);
        }
        for storage in storages {
            storage.start_returning(&back)?;
        }
        let bytes = storages.iter().map(|storage| storage.bytes()).sum();
        let storages = storages.iter().map(|storage| storage.downgrade()).collect();
        state.now.push(Use { storages, bytes, is_returning: false });
        // Copy back the tensors that are used next.
        while let Some(used) = state.last.get_mut(state.next) {
            let is_full = state.returning_bytes + used.bytes > IN_FLIGHT * state.largest;
            if is_full && state.returning_bytes > 0 {
                break;
            }
            for storage in used.storages.iter().filter_map(WeakStorage::upgrade) {
                storage.start_returning_early(&back)?;
            }
            used.is_returning = true;
            state.returning_bytes += used.bytes;
            state.next += 1;
        }
        Ok(())
    }

    fn end(&self, storages: &[&Storage]) -> Result<()> {
        let (out, _) = self.streams.of(storages[0].device());
        let mut state = self.state();
        for storage in storages {
            if storage.start_leaving(&out)? {
                state.leaving_bytes += storage.bytes();
                state.leaving.push_back((storage.downgrade(), storage.bytes()));
            }
        }
        while state.leaving_bytes > IN_FLIGHT * state.largest
            && let Some((storage, bytes)) = state.leaving.pop_front()
        {
            state.leaving_bytes -= bytes;
            if let Some(storage) = storage.upgrade() {
                storage.leave(true)?;
            }
        }
        Ok(())
    }
}

impl Use {
    /// Whether the first storage has this id.
    fn is_of(&self, id: usize) -> bool {
        self.storages.first().is_some_and(|storage| storage.id() == id)
    }
}
