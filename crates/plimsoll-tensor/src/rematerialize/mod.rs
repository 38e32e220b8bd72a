//! [`Device::rematerialize`]: tensors are evicted when memory runs out, and recomputed when they are read.
//!
//! As in DTR (Kirisame and others, "Dynamic Tensor Rematerialization", ICLR 2021), a tensor is the better to evict the fewer
//! `seconds to recompute it / seconds since it was last read` it costs. A request at the limit evicts neighbours in memory whose sum
//! of costs is the least (`window.rs`). If there are none, the allocator releases what it has cached, and then the tensors with the
//! least cost for each byte are evicted, wherever they are. The seconds are estimated from sizes, so a simulated device makes the same
//! choices as a real one. Anything that a recipe (`recipe.rs`) reads may be evicted or freed as well, if it can be recomputed.

mod recipe;
mod window;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::{BlockState, Category, PoolId, Segment, SegmentBlock};

use crate::capturing;
use crate::clock;
use crate::data::Data;
use crate::device::{Device, Wanted};
use crate::dispatch::{self, ExecutedOperator, Watch};
use crate::error::Result;
use crate::operator::Meta;
use crate::storage::{Storage, WeakStorage};

use recipe::{Answers, Held, IdMap, Input, Output, Recipe};
use window::{Piece, Score, cheapest};

impl Device {
    /// From now on, when a request for memory would fail, tensors that operators have made since this call are freed
    /// until the request fits; they are recomputed when they are next read. Set a limit with
    /// [`Device::set_memory_limit`], or use the device's own memory as the limit. Results are bit-identical. Returns
    /// false if this is already on, or there is another observer.
    ///
    /// Gradients of parameters, parameters that were updated, tensors that were changed in place and results of collectives are not evicted. Steps
    /// of this device cannot be captured ([`Graph`](crate::Graph)): a replay needs tensors at their addresses. A
    /// request that still does not fit is [`Error::OutOfMemory`](crate::Error::OutOfMemory), with the owners of what
    /// cannot be evicted ([`OutOfMemory::irreducible`](crate::OutOfMemory::irreducible)).
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
        is_new && self.set_make_room(Box::new(move |wanted| evictor.make_room(wanted)))
    }
}

/// Note [Locks of the evictor]. Its lock is taken while the locks of a storage are held ([`Storage::evict_if`]), never the other way
/// round. Nor is a storage dropped under it, which calls functions of the program.
#[derive(Default)]
struct Evictor(Mutex<Known>);

/// The storages that operators have made.
#[derive(Default)]
struct Known {
    /// In the order of their creation, so that choices do not depend on addresses.
    made: BTreeMap<u64, Made>,
    numbers: IdMap<usize, u64>,
    next: u64,
    /// How many there were when dropped ones were last removed.
    lived: usize,
    /// The storages that recipes read, with the number of the first of these recipes.
    read: IdMap<usize, u64>,
    /// Estimated seconds of all operators so far.
    now: f64,
}

/// Before more storages than this are searched, those that were dropped are removed.
const MANY: u64 = 256;

/// A storage, and how to recompute it.
struct Made {
    storage: WeakStorage,
    /// `None` if the storage cannot be recomputed, because something that it was made from has changed.
    recipe: Option<Output>,
    last_read: f64,
}

/// A storage whose recipe reads another one that is about to change.
struct Reader {
    /// Its number in `made`.
    number: u64,
    storage: Storage,
    recipe: Output,
}

fn metas<'a>(tensors: &[&'a Data]) -> Vec<Meta<'a>> {
    tensors.iter().map(|data| Meta { layout: &data.layout, dtype: data.dtype }).collect()
}

/// A storage that can be evicted now.
struct Candidate {
    /// Its number in `made`.
    number: u64,
    storage: Storage,
    recipe: Output,
    /// The seconds since it was last read.
    idle: f64,
    /// The seconds to recompute it; without those of missing inputs until `is_exact`.
    seconds: f64,
    is_exact: bool,
    /// Keeps what the recipe needs, once it is chosen.
    held: Option<Arc<Held>>,
}

impl Candidate {
    /// The lower, the better to evict.
    fn cost(&self) -> f64 {
        self.seconds / self.idle
    }

    /// The cost with the time to recompute missing inputs.
    fn exact_cost(&mut self) -> f64 {
        (self.seconds, self.is_exact) = (self.recipe.recipe.seconds_now(), true);
        self.cost()
    }

    /// Keeps what the recipe needs. Returns false if something is gone or has changed.
    fn hold(&mut self) -> bool {
        self.held = self.recipe.recipe.hold();
        self.held.is_some()
    }

    /// Whether it may be evicted. What a parameter's gradient was made from is freed while the backward pass goes on, so it would be computed
    /// again from the beginning of the step.
    fn is_evictable(&self) -> bool {
        let Candidate { storage, .. } = self;
        let stays = storage.version() > 0 || storage.tag().category == Category::Gradient;
        !stays && storage.rounded_bytes() > 0 && storage.can_be_evicted()
    }

    /// Computes it again.
    fn recipe(&self) -> impl Fn() -> Result<Storage> + use<> {
        let Output { recipe, number } = self.recipe.clone();
        let (held, device) = (self.held.clone(), self.storage.device().clone());
        move || {
            let _exist = &held;
            recipe.compute(number, &device)
        }
    }
}

impl Evictor {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts what a request needs, if possible. Returns whether it evicted anything.
    fn make_room(&self, wanted: Wanted<'_>) -> bool {
        // No lock is held after this: what is freed may own tensors.
        let mut candidates = self.known().candidates();
        // What has changed never becomes a candidate again.
        for changed in candidates.iter().filter(|it| it.storage.version() > 0) {
            self.known().give_up(changed.number);
        }
        candidates.retain(Candidate::is_evictable);
        if candidates.first().is_none_or(|it| capturing::is_open(it.storage.device().number())) {
            return false;
        }
        let evicted = match wanted {
            Wanted::Bytes(bytes) => self.evict_best(&mut candidates, bytes),
            Wanted::Block { memory, bytes, kind, stream } => {
                self.evict_neighbours(&mut candidates, &memory.segments(), bytes, |segment| {
                    segment.pool == kind && segment.stream == stream && segment.pool_id == PoolId::DEFAULT
                })
            }
        };
        evicted > 0
    }

    /// Evicts the storages with the least cost for each byte, until so many bytes are free. Returns the freed bytes.
    fn evict_best(&self, candidates: &mut [Candidate], bytes: u64) -> u64 {
        let score = |it: &Candidate| it.cost() / it.storage.rounded_bytes() as f64;
        let mut order: BinaryHeap<Reverse<(Score, usize)>> =
            candidates.iter().enumerate().map(|(at, it)| Reverse((Score(score(it)), at))).collect();
        let mut freed = 0;
        while freed < bytes
            && let Some(Reverse((_, at))) = order.pop()
        {
            let candidate = &mut candidates[at];
            if !candidate.is_exact {
                candidate.exact_cost();
                order.push(Reverse((Score(score(candidate)), at)));
            } else if candidate.hold() {
                freed += self.evict(candidate);
            } else {
                self.known().give_up(candidate.number);
            }
        }
        freed
    }

    /// Evicts the neighbours in some of the segments that cost the least and leave a block of so many bytes. Returns the freed bytes.
    fn evict_neighbours(
        &self,
        candidates: &mut [Candidate],
        segments: &[Segment],
        bytes: u64,
        may_use: impl Fn(&Segment) -> bool,
    ) -> u64 {
        let addresses = candidates.iter().enumerate();
        let by_address: IdMap<u64, usize> =
            addresses.filter_map(|(at, it)| Some((it.storage.address_now()?.0, at))).collect();
        let at = |block: &SegmentBlock| by_address.get(&block.addr.0).copied();
        let piece = |block: &SegmentBlock| {
            let (cost, is_exact) = match block.state {
                BlockState::Cached => (Some(0.0), true),
                BlockState::Active => (at(block).map(|at| candidates[at].cost()), false),
                BlockState::Pending => (None, true),
            };
            Piece { bytes: block.bytes, cost, is_exact }
        };
        let usable: Vec<&Segment> = segments.iter().filter(|segment| may_use(segment)).collect();
        let mut memory: Vec<Vec<Piece>> =
            usable.iter().map(|segment| segment.blocks.iter().map(piece).collect()).collect();
        loop {
            let found = cheapest(&mut memory, bytes, |row, place| {
                at(&usable[row].blocks[place]).map(|at| candidates[at].exact_cost())
            });
            let Some((row, range)) = found else { return 0 };
            let place_of = |place: usize| Some((place, at(&usable[row].blocks[place])?));
            let chosen: Vec<(usize, usize)> = range.filter_map(place_of).collect();
            match chosen.iter().find(|(_, at)| !candidates[*at].hold()) {
                None => return chosen.iter().map(|(_, at)| self.evict(&candidates[*at])).sum(),
                Some(&(place, at)) => {
                    self.known().give_up(candidates[at].number);
                    memory[row][place].cost = None;
                }
            }
        }
    }

    /// Frees the memory of a candidate. Returns the bytes: 0 if it is in use, or if another thread has changed it, or what it was made
    /// from, since it was chosen.
    fn evict(&self, candidate: &Candidate) -> u64 {
        let Candidate { number, storage, .. } = candidate;
        // A change of what it was made from takes the recipe away first, and then brings back what was evicted before
        // (`will_change`).
        let is_valid = || storage.version() == 0 && self.known().has_recipe(*number);
        match storage.evict_if(is_valid, Arc::new(candidate.recipe())) {
            Ok(true) => storage.rounded_bytes(),
            Ok(false) | Err(_) => 0,
        }
    }

    /// Brings back what was made from the storage with this id. It stays from now on.
    fn bring_readers_back(&self, id: usize) -> Result<()> {
        let (first, readers) = {
            let mut known = self.known();
            let Some(first) = known.read.remove(&id) else { return Ok(()) };
            if known.next - first > MANY {
                known.drop_dead();
            }
            // What is found has no recipe from now on, so no recipe reads this storage.
            (first, known.take_readers(id, first))
        };
        let are_back = readers.iter().try_for_each(|reader| reader.storage.guard("rematerialize").map(drop));
        if are_back.is_err() {
            // The change does not happen. The next one has to bring back what is still away.
            self.known().give_back(id, first, &readers);
        }
        are_back
    }
}

impl Watch for Evictor {
    /// Anything made from `storage`, or from what is gathered from it, cannot be recomputed after the change, so it is brought back now
    /// and stays.
    fn will_change(&self, storage: &Storage) -> Result<()> {
        [Some(storage.id()), storage.gathered_id()]
            .into_iter()
            .flatten()
            .try_for_each(|id| self.bring_readers_back(id))
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
        if can_run_again {
            let ins = from.iter().map(|data| Input::new(data, self.recipe_of(&data.storage))).collect();
            let outs = to.iter().map(|data| data.storage.downgrade()).collect();
            let recipe = Arc::new(Recipe::new(op, ins, outs, (self.next, seconds)));
            for data in &from {
                self.read.entry(data.storage.id()).or_insert(self.next);
            }
            for (number, data) in to.iter().enumerate() {
                let id = data.storage.id();
                if self.numbers.contains_key(&id) {
                    continue;
                }
                let recipe = Some(Output { recipe: recipe.clone(), number });
                let made = Made { storage: data.storage.downgrade(), recipe, last_read: self.now };
                self.made.insert(self.next, made);
                self.numbers.insert(id, self.next);
                self.next += 1;
            }
        }
        if self.made.len() > 2 * self.lived + 256 {
            self.forget_dead();
        }
    }

    fn recipe_of(&self, storage: &Storage) -> Option<Output> {
        self.made.get(self.numbers.get(&storage.id())?)?.recipe.clone()
    }

    /// Takes the recipes that read a storage, directly or through recipes of inputs, from the storages that they make. `first` is the
    /// number of the first one.
    fn take_readers(&mut self, id: usize, first: u64) -> Vec<Reader> {
        let mut answers = Answers::default();
        let take = |(&number, made): (&u64, &mut Made)| {
            if !made.storage.is_alive() {
                return None;
            }
            let recipe = made.recipe.take_if(|made| answers.reads(&made.recipe, id, first))?;
            Some(Reader { number, storage: made.storage.upgrade()?, recipe })
        };
        self.made.range_mut(first..).filter_map(take).collect()
    }

    /// Undoes [`Known::take_readers`].
    fn give_back(&mut self, id: usize, first: u64, readers: &[Reader]) {
        let known = self.read.entry(id).or_insert(first);
        *known = first.min(*known);
        for Reader { number, recipe, .. } in readers {
            if let Some(made) = self.made.get_mut(number) {
                made.recipe = Some(recipe.clone());
            }
        }
    }

    fn drop_dead(&mut self) {
        let numbers = &mut self.numbers;
        self.made.retain(|_, made| {
            let is_alive = made.storage.is_alive();
            if !is_alive {
                numbers.remove(&made.storage.id());
            }
            is_alive
        });
        self.lived = self.made.len();
    }

    fn forget_dead(&mut self) {
        self.drop_dead();
        self.read.clear();
        let mut answers = Answers::default();
        let recipes = self.made.values().filter_map(|made| made.recipe.as_ref());
        recipes.for_each(|made| answers.add_read(&made.recipe, &mut self.read));
    }

    /// The storages that can be recomputed, in the order of their creation.
    fn candidates(&self) -> Vec<Candidate> {
        let of = |(&number, made): (&u64, &Made)| {
            let recipe = made.recipe.as_ref()?;
            let storage = made.storage.upgrade()?;
            let recipe = recipe.clone();
            let idle = (self.now - made.last_read).max(1e-9);
            let seconds = recipe.recipe.seconds();
            Some(Candidate { number, storage, recipe, idle, seconds, is_exact: false, held: None })
        };
        self.made.iter().filter_map(of).collect()
    }

    fn has_recipe(&self, number: u64) -> bool {
        self.made.get(&number).is_some_and(|made| made.recipe.is_some())
    }

    /// This storage cannot be recomputed any more.
    fn give_up(&mut self, number: u64) {
        if let Some(made) = self.made.get_mut(&number) {
            made.recipe = None;
        }
    }
}
