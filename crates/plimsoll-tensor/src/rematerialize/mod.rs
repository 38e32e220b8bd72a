//! [`Device::rematerialize`]: tensors are evicted when memory runs out, and recomputed when they are read.
//!
//! As in DTR (Kirisame and others, "Dynamic Tensor Rematerialization", ICLR 2021): the evicted tensor is the one with
//! the smallest `seconds to recompute it / (bytes * seconds since it was last read)`. The seconds are estimated from
//! sizes, so a simulated device makes the same choices as a real one. Anything that a recipe (`recipe.rs`) reads may be
//! evicted or freed as well, if it can be recomputed.

mod recipe;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::capturing;
use crate::clock;
use crate::data::Data;
use crate::device::Device;
use crate::dispatch::{self, ExecutedOperator, Watch};
use crate::error::Result;
use crate::operator::Meta;
use crate::storage::{State, Storage, WeakStorage};

use recipe::{Answers, Input, Recipe};

impl Device {
    /// From now on, when a request for memory would fail, tensors that operators have made since this call are freed
    /// until the request fits; they are recomputed when they are next read. Set a limit with
    /// [`Device::set_memory_limit`], or use the device's own memory as the limit. Results are bit-identical. Returns
    /// false if this is already on, or there is another observer.
    ///
    /// Parameters that were updated, tensors that were changed in place and results of collectives are not evicted. A
    /// request that still does not fit is [`Error::OutOfMemory`](crate::Error::OutOfMemory), with the owners of what is
    /// left.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(1 << 30));
    /// device.rematerialize();
    /// device.set_memory_limit(160 << 20);
    /// let x = Tensor::ones(&[4 << 20], &device)?.requires_grad_(true)?; // 16 MiB
    /// let mut y = x.clone();
    /// for _ in 0..24 {
    ///     y = y.tanh()?; // keeps 24 * 16 MiB
    /// }
    /// y.sum()?.backward()?;
    /// assert!(device.max_memory_reserved() <= 160 << 20);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn rematerialize(&self) -> bool {
        let evictor = Arc::new(Evictor::default());
        let is_new = dispatch::set_watch(self, evictor.clone());
        is_new && self.set_make_room(Box::new(move |bytes| evictor.make_room(bytes)))
    }
}

#[derive(Default)]
struct Evictor(Mutex<Known>);

/// The storages that operators have made.
#[derive(Default)]
struct Known {
    /// In the order of their creation, so that choices do not depend on addresses.
    made: BTreeMap<u64, Made>,
    numbers: HashMap<usize, u64>,
    next: u64,
    /// How many there were when dropped ones were last removed.
    lived: usize,
    /// The storages that recipes read.
    read: HashSet<usize>,
    /// Estimated seconds of all operators so far.
    now: f64,
}

/// A storage, and how to recompute it.
struct Made {
    storage: WeakStorage,
    /// `None` if it cannot be recomputed, because something that it was made from has changed.
    recipe: Option<Arc<Recipe>>,
    last_read: f64,
}

fn metas<'a>(tensors: &[&'a Data]) -> Vec<Meta<'a>> {
    tensors.iter().map(|data| Meta { layout: &data.layout, dtype: data.dtype }).collect()
}

/// A storage that can be evicted now.
struct Candidate {
    storage: Storage,
    recipe: Arc<Recipe>,
    /// The lower, the better.
    score: f64,
}

impl Evictor {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts at least this many bytes, if possible. Returns whether it evicted anything.
    fn make_room(&self, bytes: u64) -> bool {
        let candidates = self.known().candidates();
        let mut freed = 0;
        // No lock is held here: what is freed may own tensors.
        for Candidate { storage, recipe, .. } in candidates {
            let device = storage.device().clone();
            if capturing::is_open(device.number()) {
                return false;
            }
            let roots = recipe.roots();
            let again = move || {
                let _exist = &roots;
                recipe.compute(&device)
            };
            if storage.evict_with(Arc::new(again)).is_ok() {
                freed += storage.rounded_bytes();
            }
            if freed >= bytes {
                break;
            }
        }
        freed > 0
    }
}

impl Watch for Evictor {
    /// Anything made from `storage` cannot be recomputed after the change, so it is brought back now and stays.
    fn will_change(&self, storage: &Storage) -> Result<()> {
        let id = storage.id();
        let readers: Vec<Storage> = {
            let mut known = self.known();
            if !known.read.contains(&id) {
                return Ok(());
            }
            let mut answers = Answers::default();
            let mut reads =
                |made: &&mut Made| made.recipe.as_ref().is_some_and(|recipe| answers.reads(recipe, id));
            let stay = |made: &mut Made| {
                made.recipe = None;
                made.storage.upgrade()
            };
            known.made.values_mut().filter(|made| reads(made)).filter_map(stay).collect()
        };
        readers.iter().try_for_each(|reader| reader.guard("rematerialize").map(drop))
    }

    fn executed(&self, executed: &ExecutedOperator<'_>) {
        self.known().note(executed);
    }
}

impl Known {
    fn note(&mut self, ExecutedOperator { op, ins, outs }: &ExecutedOperator<'_>) {
        let from: Vec<&Data> = ins.iter().map(|tensor| tensor.data()).collect();
        let to: Vec<&Data> = outs.iter().map(|tensor| tensor.data()).collect();
        let cost = op.cost(&metas(&from), &metas(&to));
        let Some(first) = to.first().or(from.first()) else { return };
        let dtype = from.first().unwrap_or(first).dtype;
        let seconds = clock::estimated(first.storage.device().properties(), op.name(), &cost, Some(dtype));
        self.now += seconds;
        for data in &from {
            if let Some(made) =
                self.numbers.get(&data.storage.id()).and_then(|number| self.made.get_mut(number))
            {
                made.last_read = self.now;
            }
        }
        // An operator that changes its inputs would change them a second time, and other ranks would not join a
        // repeated collective.
        let is_input = |data: &Data| from.iter().any(|input| input.storage.id() == data.storage.id());
        let can_run_again = cost.ranks == 0 && !to.iter().any(|data| is_input(data));
        for (output, data) in to.iter().enumerate() {
            let id = data.storage.id();
            if !can_run_again || self.numbers.contains_key(&id) {
                continue;
            }
            let ins = from.iter().map(|data| Input::new(data, self.recipe_of(&data.storage))).collect();
            let recipe = Recipe::new(op, ins, (output, &data.storage), seconds);
            let storage = data.storage.downgrade();
            self.made
                .insert(self.next, Made { storage, recipe: Some(Arc::new(recipe)), last_read: self.now });
            self.numbers.insert(id, self.next);
            self.next += 1;
        }
        if can_run_again {
            self.read.extend(from.iter().map(|data| data.storage.id()));
        }
        if self.made.len() > 2 * self.lived + 256 {
            self.forget_dead();
        }
    }

    fn recipe_of(&self, storage: &Storage) -> Option<Arc<Recipe>> {
        self.made.get(self.numbers.get(&storage.id())?)?.recipe.clone()
    }

    fn forget_dead(&mut self) {
        let numbers = &mut self.numbers;
        self.made.retain(|_, made| {
            let lives = made.storage.upgrade().is_some();
            if !lives {
                numbers.remove(&made.storage.id());
            }
            lives
        });
        self.lived = self.made.len();
        self.read.clear();
        let mut answers = Answers::default();
        let recipes = self.made.values().filter_map(|made| made.recipe.as_ref());
        recipes.for_each(|recipe| answers.add_read(recipe, &mut self.read));
    }

    /// The storages that can be evicted, the best first.
    fn candidates(&self) -> Vec<Candidate> {
        let mut answers = Answers::default();
        let of = |made: &Made| {
            let storage = made.storage.upgrade()?;
            let can_leave =
                storage.state() == State::Resident && storage.version() == 0 && storage.rounded_bytes() > 0;
            let recipe = made.recipe.clone().filter(|_| can_leave)?;
            if !answers.is_complete(&recipe) {
                return None;
            }
            let idle = (self.now - made.last_read).max(1e-9);
            let score = recipe.seconds_now() / (storage.rounded_bytes() as f64 * idle);
            Some(Candidate { storage, recipe, score })
        };
        let mut all: Vec<Candidate> = self.made.values().filter_map(of).collect();
        all.sort_by(|a, b| a.score.total_cmp(&b.score));
        all
    }
}
