//! How a storage was made: [`Recipe`]. A recipe contains the recipes of its inputs, so recipes form a graph without
//! cycles. The graph is as deep as a program's loops are long, so nothing here traverses it recursively.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::data::Data;
use crate::device::Device;
use crate::dispatch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::operator::Operator;
use crate::storage::{State, Storage, WeakStorage};

/// The maximum depth of a recipe. At that depth, an input counts as one that cannot be recomputed; otherwise, a loop
/// that computes each state from the last one would remember all of its iterations.
const DEEPEST: u32 = 4096;

/// Sets and maps of addresses, which are looked up for every tensor of a request.
pub(super) type IdSet = HashSet<usize, FixedState>;
pub(super) type IdMap<K, V> = HashMap<K, V, FixedState>;

/// An operator that ran, and its inputs.
pub(super) struct Recipe {
    op: Arc<dyn Operator>,
    ins: SmallVec<[Input; 4]>,
    outs: SmallVec<[WeakStorage; 2]>,
    /// Recipes have higher numbers than those that were made before.
    serial: u64,
    seconds: f64,
    /// The number of recipes on the longest path to a storage without a recipe.
    depth: u32,
    held: Mutex<Weak<Held>>,
    /// Whether something that it needs no longer exists, or has changed.
    is_broken: AtomicBool,
}

/// Keeps alive what a recipe needs and cannot compute.
pub(super) struct Held {
    #[allow(dead_code, reason = "held for its drop")]
    roots: SmallVec<[Storage; 2]>,
    below: SmallVec<[Arc<Held>; 2]>,
}

pub(super) struct Input {
    storage: WeakStorage,
    layout: Layout,
    dtype: DType,
    version: u32,
    recipe: Option<Output>,
}

/// An output of a recipe.
#[derive(Clone)]
pub(super) struct Output {
    pub(super) recipe: Arc<Recipe>,
    pub(super) number: usize,
}

impl Output {
    fn key(&self) -> (usize, usize) {
        (id(&self.recipe), self.number)
    }
}

/// Outputs that no longer exist, and were computed again.
type Gone = IdMap<(usize, usize), Storage>;

impl Input {
    /// An input as it is now, and how it was made, if that is known.
    pub(super) fn new(data: &Data, recipe: Option<Output>) -> Input {
        let Data { storage, layout, dtype } = data;
        let version = storage.version();
        // A recipe produces the contents before the first change.
        let recipe = recipe.filter(|made| version == 0 && made.recipe.depth < DEEPEST);
        Input { storage: storage.downgrade(), layout: layout.clone(), dtype: *dtype, version, recipe }
    }

    /// Whether the input has to be computed because it is gone or evicted.
    fn is_away(&self) -> bool {
        self.storage.upgrade().is_none_or(|storage| is_evicted(&storage))
    }

    fn data(&self, gone: &Gone) -> Result<Data> {
        let computed = || gone.get(&self.recipe.as_ref()?.key()).cloned();
        let storage = self.storage.upgrade().or_else(computed);
        let storage = storage
            .ok_or_else(|| Error::argument("rematerialize", "an input of a recipe no longer exists"))?;
        Ok(Data { storage, layout: self.layout.clone(), dtype: self.dtype })
    }
}

fn is_evicted(storage: &Storage) -> bool {
    !storage.is_here() && storage.state() == State::Evicted
}

pub(super) fn id(recipe: &Arc<Recipe>) -> usize {
    Arc::as_ptr(recipe).addr()
}

/// A recipe and the recipes that it needs, each after the recipes of its inputs that `follows` selects. Omits recipes
/// that are in `seen`, and adds the returned ones to `seen`.
fn in_order<'a>(
    recipe: &'a Arc<Recipe>,
    seen: &mut IdSet,
    mut follows: impl FnMut(&Input) -> bool,
) -> Vec<&'a Arc<Recipe>> {
    let (mut order, mut open) = (Vec::new(), Vec::new());
    if seen.insert(id(recipe)) {
        open.push((recipe, 0));
    }
    while let Some((recipe, next)) = open.pop() {
        let Some(input) = recipe.ins.get(next) else {
            order.push(recipe);
            continue;
        };
        open.push((recipe, next + 1));
        if let Some(Output { recipe: of_input, .. }) = &input.recipe
            && follows(input)
            && seen.insert(id(of_input))
        {
            open.push((of_input, 0));
        }
    }
    order
}

impl Recipe {
    pub(super) fn new(
        op: &Arc<dyn Operator>,
        ins: SmallVec<[Input; 4]>,
        outs: SmallVec<[WeakStorage; 2]>,
        (serial, seconds): (u64, f64),
    ) -> Recipe {
        let depths = ins.iter().filter_map(|input| Some(input.recipe.as_ref()?.recipe.depth));
        let depth = 1 + depths.max().unwrap_or(0);
        Recipe {
            op: op.clone(),
            ins,
            outs,
            serial,
            seconds,
            depth,
            held: Mutex::default(),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Runs the operator again, and returns one output; other outputs that are evicted come back with it. Missing inputs are brought back
    /// first, starting with the earliest.
    pub(super) fn compute(self: &Arc<Self>, output: usize, device: &Device) -> Result<Storage> {
        // Another thread may drop the last handle of an input that exists now.
        let mut exist = Vec::new();
        let order = in_order(self, &mut IdSet::default(), |input| {
            let storage = input.storage.upgrade();
            let is_away = storage.as_ref().is_none_or(is_evicted);
            exist.extend(storage);
            is_away
        });
        let mut last_use = IdMap::default();
        for (place, recipe) in order.iter().enumerate() {
            last_use
                .extend(recipe.ins.iter().filter_map(|input| Some((input.recipe.as_ref()?.key(), place))));
        }
        let mut gone = Gone::default();
        for (place, recipe) in order.iter().enumerate() {
            let ins = recipe.ins.iter().map(|input| input.data(&gone)).collect::<Result<Vec<_>>>()?;
            let fresh = dispatch::rerun(device, &recipe.op, &ins)?;
            let is_last = place + 1 == order.len();
            let mut result = None;
            for (number, storage) in fresh.into_iter().enumerate() {
                if is_last && number == output {
                    result = Some(storage);
                    continue;
                }
                match recipe.outs[number].upgrade() {
                    Some(evicted) => evicted.restore(&storage)?,
                    None => drop(gone.insert((id(recipe), number), storage)),
                }
            }
            if let Some(result) = result {
                return Ok(result);
            }
            gone.retain(|of, _| last_use.get(of).is_some_and(|last| *last > place));
        }
        unreachable!("the recipe itself is the last one")
    }

    /// Keeps everything that the recipe needs and cannot compute, until the result is dropped. `None` if something no longer exists, or has
    /// changed.
    pub(super) fn hold(self: &Arc<Self>) -> Option<Arc<Held>> {
        let follows = |input: &Input| {
            let from = input.recipe.as_ref().map(|from| &from.recipe);
            from.is_some_and(|from| !from.is_broken.load(Ordering::Relaxed) && from.held().is_none())
        };
        // What was made here has to live until those that need it are made.
        let mut made = Vec::new();
        for recipe in in_order(self, &mut IdSet::default(), follows) {
            let held = recipe.hold_inputs().map(Arc::new);
            match &held {
                Some(held) => {
                    *recipe.held.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(held);
                }
                None => recipe.is_broken.store(true, Ordering::Relaxed),
            }
            made.push(held);
        }
        made.pop().flatten()
    }

    /// An input that exists, but cannot be computed again, is kept itself: the images of a batch whose first copy was dropped.
    fn hold_inputs(&self) -> Option<Held> {
        let (mut roots, mut below) = (SmallVec::new(), SmallVec::new());
        for input in &self.ins {
            let storage = input.storage.upgrade();
            if storage.as_ref().is_some_and(|storage| storage.version() != input.version) {
                return None;
            }
            match (input.recipe.as_ref().and_then(|from| from.recipe.held()), storage) {
                (Some(held), _) => below.push(held),
                (None, Some(storage)) => roots.push(storage),
                (None, None) => return None,
            }
        }
        Some(Held { roots, below })
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The seconds of its operator.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The seconds to compute the result now, including its missing inputs.
    pub(super) fn seconds_now(self: &Arc<Self>) -> f64 {
        if !self.ins.iter().any(Input::is_away) {
            return self.seconds;
        }
        in_order(self, &mut IdSet::default(), Input::is_away).iter().map(|recipe| recipe.seconds).sum()
    }
}

/// Long chains of recipes are dropped one by one.
impl Drop for Recipe {
    fn drop(&mut self) {
        let taken = |ins: &mut SmallVec<[Input; 4]>| -> Vec<_> {
            ins.iter_mut().filter_map(|input| Some(input.recipe.take()?.recipe)).collect()
        };
        let mut left = taken(&mut self.ins);
        while let Some(recipe) = left.pop() {
            if let Some(mut recipe) = Arc::into_inner(recipe) {
                left.extend(taken(&mut recipe.ins));
            }
        }
    }
}

/// Also dropped one by one.
impl Drop for Held {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.below);
        while let Some(held) = left.pop() {
            if let Some(mut held) = Arc::into_inner(held) {
                left.append(&mut held.below);
            }
        }
    }
}

/// The answers to one question about many recipes that share inputs.
#[derive(Default)]
pub(super) struct Answers {
    seen: IdSet,
    yes: IdSet,
}

impl Answers {
    /// Whether a recipe reads a storage, directly or through the recipe of an input. Recipes before the number `first` do not.
    pub(super) fn reads(&mut self, recipe: &Arc<Recipe>, storage: usize, first: u64) -> bool {
        let may_read = |recipe: &Recipe| recipe.serial >= first;
        if !may_read(recipe) {
            return false;
        }
        let follows = |input: &Input| input.recipe.as_ref().is_some_and(|from| may_read(&from.recipe));
        // Inputs are answered before the recipes that read them.
        for recipe in in_order(recipe, &mut self.seen, follows) {
            let reads = recipe.ins.iter().any(|input| {
                let from = input.recipe.as_ref();
                input.storage.id() == storage || from.is_some_and(|from| self.yes.contains(&id(&from.recipe)))
            });
            if reads {
                self.yes.insert(id(recipe));
            }
        }
        self.yes.contains(&id(recipe))
    }

    /// Adds the storages that a recipe reads, directly or through recipes of inputs, with the number of the first recipe that reads each.
    pub(super) fn add_read(&mut self, recipe: &Arc<Recipe>, to: &mut IdMap<usize, u64>) {
        for recipe in in_order(recipe, &mut self.seen, |_| true) {
            for input in &recipe.ins {
                let first = to.entry(input.storage.id()).or_insert(recipe.serial);
                *first = recipe.serial.min(*first);
            }
        }
    }
}
