//! A device whose tensors are moved off it at random between operators: offloaded, or evicted with the operator as the
//! recipe.
//!
//! Code that relies on bytes staying in place fails on it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::data::Data;
use crate::device::Device;
use crate::dispatch::{self, ExecutedOperator, Watch};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::operator::Operator;
use crate::storage::{State, Storage, WeakStorage};

/// From now on, tensors are moved off this device at random after each operator: some are offloaded to pinned memory,
/// others evicted with the operator that made them as the recipe. Operations bring them back. Works on any device; a
/// second call changes nothing.
///
/// ```
/// use plimsoll_tensor::testing::evict_at_random;
/// use plimsoll_tensor::{Device, Tensor};
/// let device = Device::cpu_with(Default::default());
/// let evictions = evict_at_random(&device, 7);
/// let x = Tensor::ones(&[4], &device)?;
/// for _ in 0..20 {
///     assert_eq!(x.mul_scalar(2)?.add_scalar(1)?.sum()?.item::<f32>()?, 12.0);
/// }
/// assert!(evictions.offloaded() > 0 && evictions.evicted() > 0);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn evict_at_random(device: &Device, seed: u64) -> Evictions {
    let tensors = Tensors { random: ChaCha8Rng::seed_from_u64(seed), live: Vec::new() };
    let evictor = Arc::new(Evictor {
        tensors: Mutex::new(tensors),
        offloaded: AtomicU64::new(0),
        evicted: AtomicU64::new(0),
    });
    dispatch::set_watch(device, evictor.clone());
    Evictions(evictor)
}

/// Counts how often tensors have been moved off a device by [`evict_at_random`].
#[derive(Clone)]
pub struct Evictions(Arc<Evictor>);

impl Evictions {
    /// The number of moves to pinned memory.
    pub fn offloaded(&self) -> u64 {
        self.0.offloaded.load(Ordering::Relaxed)
    }

    /// The number of evictions with a recipe.
    pub fn evicted(&self) -> u64 {
        self.0.evicted.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Evictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Evictions({} offloaded, {} evicted)", self.offloaded(), self.evicted())
    }
}

struct Evictor {
    tensors: Mutex<Tensors>,
    offloaded: AtomicU64,
    evicted: AtomicU64,
}

/// The storages that are known to be live.
struct Tensors {
    random: ChaCha8Rng,
    live: Vec<LiveStorage>,
}

struct LiveStorage {
    storage: WeakStorage,
    /// The operator that made the storage, if any.
    made: Option<Made>,
    /// The storages that its recipe reads, while it is evicted.
    reads: Vec<usize>,
}

/// The operator that made a storage.
#[derive(Clone)]
struct Made {
    op: Arc<dyn Operator>,
    ins: Vec<Input>,
    output: usize,
}

#[derive(Clone)]
struct Input {
    storage: WeakStorage,
    layout: Layout,
    dtype: DType,
    version: u32,
}

impl Input {
    fn of(data: &Data) -> Input {
        let Data { storage, layout, dtype } = data;
        let version = storage.version();
        Input { storage: storage.downgrade(), layout: layout.clone(), dtype: *dtype, version }
    }

    /// The input, if it still exists and is unchanged.
    fn data(&self) -> Option<Data> {
        let storage = self.storage.upgrade().filter(|storage| storage.version() == self.version)?;
        Some(Data { storage, layout: self.layout.clone(), dtype: self.dtype })
    }
}

impl Evictor {
    fn lock(&self) -> MutexGuard<'_, Tensors> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Evictor {
    /// Called before a storage changes: runs the recipes that read it.
    fn will_change(&self, storage: &Storage) -> Result<()> {
        let id = storage.id();
        let dependent: Vec<Storage> = {
            let tensors = self.lock();
            let reads = tensors.live.iter().filter(|live| live.reads.contains(&id));
            reads.filter_map(|live| live.storage.upgrade()).collect()
        };
        for dependent in dependent {
            drop(dependent.guard("evict_at_random")?);
        }
        Ok(())
    }

    fn executed(&self, executed: &ExecutedOperator<'_>) {
        let leaving = {
            let mut tensors = self.lock();
            tensors.note(executed);
            let leave = tensors.random.next_u32().is_multiple_of(2);
            if leave { tensors.choose() } else { None }
        };
        // No lock is held here, since the tensors that are moved are freed and may own others. A tensor that must stay is
        // left alone.
        if let Some((storage, recipe)) = leaving {
            let Some((made, ins)) = recipe else {
                self.offloaded.fetch_add(storage.offload().is_ok().into(), Ordering::Relaxed);
                return;
            };
            let reads = ins.iter().map(|data| data.storage.id()).collect();
            self.lock().set_reads(&storage, reads);
            let device = storage.device().clone();
            let recipe = move || {
                let mut outs = dispatch::rerun(&device, &made.op, &ins)?;
                Ok(outs.swap_remove(made.output))
            };
            let left = storage.evict_with(Arc::new(recipe));
            self.evicted.fetch_add(left.is_ok().into(), Ordering::Relaxed);
        }
    }
}

/// A storage that can be evicted, and its recipe, if it has one.
type Candidate = (Storage, Option<(Made, Vec<Data>)>);

impl Tensors {
    /// Adds the inputs and outputs of an operator.
    fn note(&mut self, executed: &ExecutedOperator<'_>) {
        self.live.retain(|live| live.storage.is_alive());
        let known = |live: &[LiveStorage], id: usize| live.iter().any(|live| live.storage.id() == id);
        for data in executed.ins.iter().map(|tensor| tensor.data()) {
            if !known(&self.live, data.storage.id()) {
                let storage = data.storage.downgrade();
                self.live.push(LiveStorage { storage, made: None, reads: Vec::new() });
            }
        }
        // An operator that changes its inputs cannot be a recipe: it would change them again.
        let is_input = |id: usize| executed.ins.iter().any(|tensor| tensor.data().storage.id() == id);
        let can_run_again = !executed.outs.iter().any(|out| is_input(out.data().storage.id()));
        for (output, tensor) in executed.outs.iter().enumerate() {
            let storage = &tensor.data().storage;
            // Neither a view nor an input that was changed.
            if !known(&self.live, storage.id()) {
                let ins = executed.ins.iter().map(|tensor| Input::of(tensor.data())).collect();
                let made = can_run_again.then(|| Made { op: executed.op.clone(), ins, output });
                self.live.push(LiveStorage { storage: storage.downgrade(), made, reads: Vec::new() });
            }
        }
    }

    /// Chooses a storage to move, with its recipe if it can be computed again.
    fn choose(&mut self) -> Option<Candidate> {
        let chosen = self.random.next_u32() as usize % self.live.len().max(1);
        let live = self.live.get(chosen)?;
        let storage = live.storage.upgrade().filter(|storage| storage.state() == State::Resident)?;
        // A storage that was changed after it was made cannot be recomputed.
        let made = live.made.as_ref().filter(|_| storage.version() == 0);
        let recipe = made.and_then(|made| {
            let ins: Option<Vec<Data>> = made.ins.iter().map(Input::data).collect();
            Some((made.clone(), ins?))
        });
        Some((storage, recipe.filter(|_| self.random.next_u32().is_multiple_of(2))))
    }

    fn set_reads(&mut self, storage: &Storage, reads: Vec<usize>) {
        let id = storage.id();
        if let Some(live) = self.live.iter_mut().find(|live| live.storage.id() == id) {
            live.reads = reads;
        }
    }
}
