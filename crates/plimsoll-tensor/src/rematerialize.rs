//! [`Device::rematerialize`]: tensors are evicted when memory runs out, and computed again when they are read.
//!
//! As in DTR (Kirisame and others, "Dynamic Tensor Rematerialization", ICLR 2021): the evicted tensor is the one with the least
//! `seconds to compute it again / (bytes * seconds since it was last read)`. The seconds are estimated from sizes, so a simulated
//! device makes the choices of a real one. What a recipe reads stays alive with it, and can be evicted in turn.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::capturing;
use crate::clock;
use crate::data::Data;
use crate::device::Device;
use crate::dispatch::{self, ExecutedOperator, Watch};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::operator::{Meta, Operator};
use crate::storage::{State, Storage, WeakStorage};

impl Device {
    /// From now on, when a request for memory would fail, tensors that operators have made since this call are freed and computed again
    /// when they are next read, until the request fits. Set a limit with [`Device::set_memory_limit`], or let the device's own memory
    /// be the limit. Results are the same bits. Returns false if it is on already, or another observer is.
    ///
    /// Parameters that were updated, tensors that were changed in place and results of collectives are not evicted. A request that
    /// does not fit even so is [`Error::OutOfMemory`](crate::Error::OutOfMemory), with the owners of what is left.
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
    /// By the order in which they were made, so that choices do not depend on addresses.
    made: BTreeMap<u64, Made>,
    numbers: HashMap<usize, u64>,
    next: u64,
    /// The storages that recipes read.
    read: HashSet<usize>,
    /// Estimated seconds of all operators so far.
    now: f64,
}

/// A storage, and how to compute it again.
struct Made {
    storage: WeakStorage,
    /// `None` if it cannot be computed again, because something that it was made from has changed.
    recipe: Option<Arc<Recipe>>,
    last_read: f64,
}

/// An operator and its inputs. Inputs that are freed meanwhile are computed from their own recipes.
struct Recipe {
    op: Arc<dyn Operator>,
    ins: SmallVec<[Input; 4]>,
    output: usize,
    seconds: f64,
}

struct Input {
    storage: WeakStorage,
    layout: Layout,
    dtype: DType,
    version: u32,
    recipe: Option<Arc<Recipe>>,
}

impl Input {
    /// The storage, if it still exists.
    fn alive(&self) -> Option<Storage> {
        self.storage.upgrade()
    }

    fn data(&self, device: &Device) -> Result<Data> {
        let storage = match (self.alive(), &self.recipe) {
            (Some(storage), _) => storage,
            (None, Some(recipe)) => recipe.compute(device)?,
            (None, None) => return Err(Error::argument("rematerialize", "an input of a recipe is gone")),
        };
        Ok(Data { storage, layout: self.layout.clone(), dtype: self.dtype })
    }
}

impl Recipe {
    /// Runs the operator again.
    fn compute(&self, device: &Device) -> Result<Storage> {
        let ins = self.ins.iter().map(|input| input.data(device)).collect::<Result<Vec<_>>>()?;
        dispatch::rerun(device, &self.op, &ins, self.output)
    }

    fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Whether all that it needs exists, unchanged, or can be computed. If so, adds what only exists as it is to `roots`.
    fn is_complete(self: &Arc<Self>, seen: &mut HashSet<usize>, roots: &mut Vec<Storage>) -> bool {
        !seen.insert(self.id())
            || self.ins.iter().all(|input| match (input.alive(), &input.recipe) {
                (Some(storage), _) if storage.version() != input.version => false,
                (Some(storage), None) => {
                    roots.push(storage);
                    true
                }
                (_, Some(recipe)) => recipe.is_complete(seen, roots),
                (None, None) => false,
            })
    }

    /// Whether it reads a storage, itself or through a recipe of an input. `known` has the answers so far.
    fn reads(self: &Arc<Self>, id: usize, known: &mut HashMap<usize, bool>) -> bool {
        if let Some(answer) = known.get(&self.id()) {
            return *answer;
        }
        let through = |input: &Input, known: &mut HashMap<usize, bool>| {
            input.storage.id() == id || input.recipe.as_ref().is_some_and(|recipe| recipe.reads(id, known))
        };
        let answer = self.ins.iter().any(|input| through(input, known));
        known.insert(self.id(), answer);
        answer
    }

    /// The seconds to compute it now: its own, and those of the inputs that are evicted or gone.
    fn seconds_now(self: &Arc<Self>, seen: &mut HashSet<usize>) -> f64 {
        if !seen.insert(self.id()) {
            return 0.0;
        }
        let away = |input: &&Input| input.alive().is_none_or(|storage| storage.state() == State::Evicted);
        let inputs = self.ins.iter().filter(away).filter_map(|input| input.recipe.as_ref());
        self.seconds + inputs.map(|recipe| recipe.seconds_now(seen)).sum::<f64>()
    }
}

fn metas<'a>(tensors: &[&'a Data]) -> Vec<Meta<'a>> {
    tensors.iter().map(|data| Meta { layout: &data.layout, dtype: data.dtype }).collect()
}

/// A storage that can be evicted now.
struct Candidate {
    storage: Storage,
    recipe: Arc<Recipe>,
    /// What must not be freed while it is evicted.
    roots: Vec<Storage>,
    /// The less, the better.
    score: f64,
}

impl Evictor {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts at least this many bytes, if there are so many. Returns whether it evicted anything.
    fn make_room(&self, bytes: u64) -> bool {
        let candidates = self.known().candidates();
        let mut freed = 0;
        // No lock is held here: what is freed may own tensors.
        for Candidate { storage, recipe, roots, .. } in candidates {
            let device = storage.device().clone();
            if capturing::is_open(device.number()) {
                return false;
            }
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
    /// What was made from `storage` cannot be computed again after the change, so it comes back now and stays.
    fn will_change(&self, storage: &Storage) -> Result<()> {
        let id = storage.id();
        let readers: Vec<Storage> = {
            let mut known = self.known();
            if !known.read.contains(&id) {
                return Ok(());
            }
            let mut answers = HashMap::new();
            let mut reads =
                |made: &&mut Made| made.recipe.as_ref().is_some_and(|recipe| recipe.reads(id, &mut answers));
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
        // An operator that changes its inputs would change them again, and other ranks do not run a collective twice.
        let is_input = |data: &Data| from.iter().any(|input| input.storage.id() == data.storage.id());
        let can_run_again = cost.ranks == 0 && !to.iter().any(|data| is_input(data));
        for (output, data) in to.iter().enumerate() {
            let id = data.storage.id();
            if !can_run_again || self.numbers.contains_key(&id) {
                continue;
            }
            let ins = from.iter().map(|data| self.input(data)).collect();
            let recipe = Recipe { op: (*op).clone(), ins, output, seconds };
            let storage = data.storage.downgrade();
            self.made
                .insert(self.next, Made { storage, recipe: Some(Arc::new(recipe)), last_read: self.now });
            self.numbers.insert(id, self.next);
            self.next += 1;
        }
        if can_run_again {
            self.read.extend(from.iter().map(|data| data.storage.id()));
        }
        if self.next.is_multiple_of(256) {
            self.forget_dead();
        }
    }

    fn input(&self, data: &Data) -> Input {
        let Data { storage, layout, dtype } = data;
        let version = storage.version();
        // A recipe makes what was there before the first change.
        let made =
            self.numbers.get(&storage.id()).and_then(|number| self.made.get(number)).filter(|_| version == 0);
        let recipe = made.and_then(|made| made.recipe.clone());
        Input { storage: storage.downgrade(), layout: layout.clone(), dtype: *dtype, version, recipe }
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
    }

    /// What can be evicted, the best first.
    fn candidates(&mut self) -> Vec<Candidate> {
        self.forget_dead();
        let of = |made: &Made| {
            let storage = made.storage.upgrade()?;
            let can_leave =
                storage.state() == State::Resident && storage.version() == 0 && storage.rounded_bytes() > 0;
            let recipe = made.recipe.clone().filter(|_| can_leave)?;
            let mut roots = Vec::new();
            if !recipe.is_complete(&mut HashSet::new(), &mut roots) {
                return None;
            }
            let seconds = recipe.seconds_now(&mut HashSet::new());
            let idle = (self.now - made.last_read).max(1e-9);
            let score = seconds / (storage.rounded_bytes() as f64 * idle);
            Some(Candidate { storage, recipe, roots, score })
        };
        let mut all: Vec<Candidate> = self.made.values().filter_map(of).collect();
        all.sort_by(|a, b| a.score.total_cmp(&b.score));
        all
    }
}
