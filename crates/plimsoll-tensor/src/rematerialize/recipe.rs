//! How a storage was made: [`Recipe`]. A recipe contains the recipes of its inputs, so recipes form a graph without
//! cycles. The graph is as deep as a program's loops are long, so nothing here traverses it recursively.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

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

/// An operator and its inputs.
pub(super) struct Recipe {
    op: Arc<dyn Operator>,
    ins: SmallVec<[Input; 4]>,
    output: usize,
    /// What it made.
    made: WeakStorage,
    seconds: f64,
    /// The number of recipes on the longest path to a storage without a recipe.
    depth: u32,
}

pub(super) struct Input {
    storage: WeakStorage,
    layout: Layout,
    dtype: DType,
    version: u32,
    recipe: Option<Arc<Recipe>>,
}

impl Input {
    /// An input as it is now, and how it was made, if that is known.
    pub(super) fn new(data: &Data, recipe: Option<Arc<Recipe>>) -> Input {
        let Data { storage, layout, dtype } = data;
        let version = storage.version();
        // A recipe produces the contents before the first change.
        let recipe = recipe.filter(|recipe| version == 0 && recipe.depth < DEEPEST);
        Input { storage: storage.downgrade(), layout: layout.clone(), dtype: *dtype, version, recipe }
    }

    /// Whether it has to be computed because it is gone or evicted.
    fn is_away(&self) -> bool {
        self.storage.upgrade().is_none_or(|storage| storage.state() == State::Evicted)
    }

    /// Its data. `gone` contains the inputs that no longer exist, by recipe.
    fn data(&self, gone: &HashMap<usize, Storage>) -> Result<Data> {
        let computed = || gone.get(&id(self.recipe.as_ref()?)).cloned();
        let storage = self.storage.upgrade().or_else(computed);
        let storage = storage
            .ok_or_else(|| Error::argument("rematerialize", "an input of a recipe no longer exists"))?;
        Ok(Data { storage, layout: self.layout.clone(), dtype: self.dtype })
    }
}

pub(super) fn id(recipe: &Arc<Recipe>) -> usize {
    Arc::as_ptr(recipe).addr()
}

/// A recipe and the recipes that it needs, each after those of its inputs that `follows` selects. Omits those in
/// `seen`, and adds all of them to `seen`.
fn in_order<'a>(
    recipe: &'a Arc<Recipe>,
    seen: &mut HashSet<usize>,
    follows: impl Fn(&Input) -> bool,
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
        if let Some(of_input) = &input.recipe
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
        (output, made): (usize, &Storage),
        seconds: f64,
    ) -> Recipe {
        let depths = ins.iter().filter_map(|input| Some(input.recipe.as_ref()?.depth));
        let depth = 1 + depths.max().unwrap_or(0);
        Recipe { op: op.clone(), ins, output, made: made.downgrade(), seconds, depth }
    }

    /// Runs the operator again. Missing inputs are brought back first, starting with the earliest.
    pub(super) fn compute(self: &Arc<Self>, device: &Device) -> Result<Storage> {
        let order = in_order(self, &mut HashSet::new(), Input::is_away);
        let mut last_use = HashMap::new();
        for (place, recipe) in order.iter().enumerate() {
            last_use.extend(recipe.ins.iter().filter_map(|input| Some((id(input.recipe.as_ref()?), place))));
        }
        let mut gone: HashMap<usize, Storage> = HashMap::new();
        for (place, recipe) in order.iter().enumerate() {
            let is_last = place + 1 == order.len();
            match recipe.made.upgrade().filter(|_| !is_last) {
                Some(evicted) => drop(evicted.guard("rematerialize")?),
                None => {
                    let ins = recipe.ins.iter().map(|input| input.data(&gone)).collect::<Result<Vec<_>>>()?;
                    let storage = dispatch::rerun(device, &recipe.op, &ins, recipe.output)?;
                    if is_last {
                        return Ok(storage);
                    }
                    gone.insert(id(recipe), storage);
                }
            }
            gone.retain(|of, _| last_use.get(of).is_some_and(|last| *last > place));
        }
        unreachable!("the recipe itself is the last one")
    }

    /// The storages that must exist while the result does not: those that it needs and cannot compute.
    pub(super) fn roots(self: &Arc<Self>) -> Vec<Storage> {
        let all = in_order(self, &mut HashSet::new(), |_| true);
        let inputs = all.iter().flat_map(|recipe| &recipe.ins).filter(|input| input.recipe.is_none());
        inputs.filter_map(|input| input.storage.upgrade()).collect()
    }

    /// The seconds to compute it now: its own, and those of missing inputs.
    pub(super) fn seconds_now(self: &Arc<Self>) -> f64 {
        in_order(self, &mut HashSet::new(), Input::is_away).iter().map(|recipe| recipe.seconds).sum()
    }
}

/// Long chains of recipes are dropped one by one.
impl Drop for Recipe {
    fn drop(&mut self) {
        let taken = |ins: &mut SmallVec<[Input; 4]>| -> Vec<_> {
            ins.iter_mut().filter_map(|input| input.recipe.take()).collect()
        };
        let mut left = taken(&mut self.ins);
        while let Some(recipe) = left.pop() {
            if let Some(mut recipe) = Arc::into_inner(recipe) {
                left.extend(taken(&mut recipe.ins));
            }
        }
    }
}

/// The answers to one question about many recipes that share inputs.
#[derive(Default)]
pub(super) struct Answers {
    seen: HashSet<usize>,
    yes: HashSet<usize>,
}

impl Answers {
    /// Whether everything that a recipe needs exists unchanged or can be computed.
    pub(super) fn is_complete(&mut self, recipe: &Arc<Recipe>) -> bool {
        self.answer(recipe, |recipe, yes| {
            recipe.ins.iter().all(|input| match (input.storage.upgrade(), &input.recipe) {
                (Some(storage), _) if storage.version() != input.version => false,
                (_, Some(recipe)) => yes.contains(&id(recipe)),
                (exists, None) => exists.is_some(),
            })
        })
    }

    /// Whether a recipe reads a storage, directly or through the recipe of an input.
    pub(super) fn reads(&mut self, recipe: &Arc<Recipe>, storage: usize) -> bool {
        self.answer(recipe, |recipe, yes| {
            recipe.ins.iter().any(|input| {
                let of_input = input.recipe.as_ref();
                input.storage.id() == storage || of_input.is_some_and(|recipe| yes.contains(&id(recipe)))
            })
        })
    }

    /// Adds the storages that a recipe reads, directly or through recipes of inputs.
    pub(super) fn add_read(&mut self, recipe: &Arc<Recipe>, to: &mut HashSet<usize>) {
        let new = in_order(recipe, &mut self.seen, |_| true);
        to.extend(new.iter().flat_map(|recipe| &recipe.ins).map(|input| input.storage.id()));
    }

    /// Answers for a recipe, after its inputs have been answered.
    fn answer(&mut self, recipe: &Arc<Recipe>, of: impl Fn(&Recipe, &HashSet<usize>) -> bool) -> bool {
        for recipe in in_order(recipe, &mut self.seen, |_| true) {
            if of(recipe, &self.yes) {
                self.yes.insert(id(recipe));
            }
        }
        self.yes.contains(&id(recipe))
    }
}
