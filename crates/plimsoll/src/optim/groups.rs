//! The parameters of an optimizer: [`ParamGroup`]s, each with its own options, and the state of each parameter.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::offload::OffloadQueue;
use plimsoll_tensor::op::{Rule, Slot, optimizer_step, optimizer_step_rounded};
use plimsoll_tensor::{DType, Device, Error, GraphPool, Result, Tensor};

use super::algorithm::{Algorithm, StateTensor};
use super::numbers::{Numbers, ParameterStep};
use super::rounding::Rounding;

/// Parameters that share options.
#[derive(Debug)]
pub struct ParamGroup<O> {
    /// Their options.
    pub options: O,
    pub(super) parameters: Vec<Tensor>,
    pub(super) states: Vec<State>,
    /// Whether 16-bit parameters have 32-bit master copies.
    pub(super) master_weights: bool,
    /// Set if `bfloat16` parameters are rounded stochastically.
    pub(super) rounding: Option<Rounding>,
    /// Set if state waits on the host between steps.
    pub(super) offload: Option<Arc<OffloadQueue>>,
    pub(super) initial_lr: Option<f64>,
    /// What the updates of an algorithm without a kernel read.
    pub(super) numbers: Numbers,
}

/// The state of one parameter.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) steps: u64,
    pub(super) tensors: Vec<(&'static str, Tensor)>,
}

impl State {
    /// The number of the next step. If PyTorch counts no steps for the algorithm, the step that creates the state is the first, and
    /// all others are the second, unless they need random bits of their own.
    pub(super) fn next_step<O: Algorithm>(&self, is_new: bool, is_random: bool) -> u64 {
        match (O::COUNTS_STEPS, is_new) {
            (true, _) => self.steps + 1,
            (false, true) => 1,
            (false, false) => 2 + if is_random { self.steps } else { 0 },
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|(at, _)| *at == name).map(|(_, tensor)| tensor)
    }
}

/// The 32-bit master copy of a 16-bit parameter.
pub(super) const MASTER: &str = "master_weight";

/// If state waits on the host, a step updates parameters of this many bytes at a time.
const TURN_BYTES: u64 = 64 << 20;

/// A newly allocated state tensor: the parameter's number, the tensor's name, and the tensor.
pub(super) type Fresh = (usize, &'static str, Tensor);

impl<O: Algorithm> ParamGroup<O> {
    pub(super) fn new(parameters: Vec<Tensor>, options: O) -> ParamGroup<O> {
        let states = vec![State::default(); parameters.len()];
        ParamGroup {
            options,
            parameters,
            states,
            master_weights: false,
            rounding: None,
            offload: None,
            initial_lr: None,
            numbers: Numbers::default(),
        }
    }

    /// The state tensors that a parameter needs, and the type of those that have none of their own.
    pub(super) fn wanted(&self, parameter: &Tensor) -> (Vec<StateTensor>, DType) {
        let mut wanted = self.options.state(parameter.shape());
        let short = matches!(parameter.dtype(), DType::F16 | DType::BF16);
        if !self.master_weights || !short {
            return (wanted, parameter.dtype());
        }
        wanted.push(StateTensor { start: None, ..StateTensor::zeros(MASTER, parameter.shape()) });
        (wanted, DType::F32)
    }

    /// The number of a parameter's next step in a replayed graph.
    pub(super) fn next_replayed(&self, at: usize) -> u64 {
        self.states[at].next_step::<O>(false, self.rounding.is_some())
    }

    /// The parameters of the group.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// Takes a step with state that waits on the host: some parameters at a time, so that only their state is on the device.
    ///
    /// # Errors
    /// Sharded parameters. The errors of a step: the parameters before the failing one have been stepped.
    pub(super) fn step_in_turns(&mut self, queue: &OffloadQueue) -> Result<()> {
        if let Some(parameter) = self.parameters.iter().find(|parameter| parameter.is_shard()) {
            let message = format!(
                "{} is sharded, and the state of sharded parameters cannot wait on the host: shard it instead, with `Shard::OptimizerState`",
                parameter.label()
            );
            return Err(Error::argument(O::NAME, message));
        }
        let mut begin = 0;
        while begin < self.parameters.len() {
            let mut bytes = 0;
            let end = self.parameters[begin..].iter().take_while(|parameter| {
                let is_first = bytes == 0;
                bytes += (parameter.numel() * parameter.dtype().size()) as u64;
                is_first || bytes <= TURN_BYTES
            });
            let turn = begin..begin + end.count();
            begin = turn.end;
            let fresh = self.missing(turn.clone())?;
            let with_grad = |at: &usize| self.parameters[*at].grad().is_some();
            let known = turn.clone().filter(with_grad).flat_map(|at| &self.states[at].tensors);
            let tensors: Vec<Tensor> = known
                .map(|(_, tensor)| tensor)
                .chain(fresh.iter().map(|(.., tensor)| tensor))
                .cloned()
                .collect();
            queue.during(&tensors.iter().collect::<Vec<_>>(), || self.step(turn, &fresh))?;
        }
        Ok(())
    }

    /// Allocates the missing state of the parameters of this range that have a gradient. On an error, allocates nothing.
    pub(super) fn missing(&self, of: Range<usize>) -> Result<Vec<Fresh>> {
        let (mut fresh, mut memory) = (Vec::new(), StateMemory::default());
        for i in of {
            let (parameter, state) = (&self.parameters[i], &self.states[i]);
            if parameter.grad().is_none() {
                continue;
            }
            let (wanted, dtype) = self.wanted(parameter);
            for wanted in wanted.iter().filter(|wanted| state.get(wanted.name).is_none()) {
                if parameter.device().is_capturing() {
                    let why = "each replay would create the optimizer's state again: take a step before the capture";
                    return Err(Error::Captured { op: O::NAME, why });
                }
                let tensor = memory.allocate(parameter, wanted, dtype)?;
                if wanted.name == MASTER {
                    tensor.copy_(parameter)?;
                }
                fresh.push((i, wanted.name, tensor));
            }
        }
        Ok(fresh)
    }

    /// Updates the parameters of this range that have a gradient.
    pub(super) fn step(&mut self, of: Range<usize>, fresh: &[Fresh]) -> Result<()> {
        let mut work = Vec::new();
        for at in of {
            let (parameter, state) = (&self.parameters[at], &self.states[at]);
            let Some(grad) = parameter.grad() else { continue };
            let is_new = fresh.binary_search_by_key(&at, |(i, ..)| *i).is_ok();
            let new = |name| fresh.iter().find(|(i, n, _)| (*i, *n) == (at, name)).map(|(.., tensor)| tensor);
            let (wanted, _) = self.wanted(parameter);
            let find = |name| state.get(name).or_else(|| new(name)).cloned();
            let is_master = |wanted: &&StateTensor| wanted.name == MASTER;
            let master = wanted.iter().find(is_master).and_then(|wanted| find(wanted.name));
            let kept = wanted.iter().filter(|wanted| !is_master(wanted));
            let state_tensors = kept.filter_map(|wanted| find(wanted.name)).collect();
            let step = state.next_step::<O>(is_new, self.rounding.is_some());
            work.push(ParameterStep { at, grad, state: state_tensors, master, step });
        }
        // The state of a parameter is stored after its step, because the next step must not find state that a failed one did not
        // fill.
        if let Some(rule) = self.options.rule() {
            self.step_by(&rule, &work)?;
            work.iter().for_each(|work| self.store(work.at, fresh));
            return Ok(());
        }
        self.numbers.begin(&self.options, &self.parameters, &work)?;
        for work in &work {
            self.numbers.update(&self.options, &self.parameters, work)?;
            self.store(work.at, fresh);
        }
        Ok(())
    }

    /// Counts the step of a parameter, and stores its new state.
    fn store(&mut self, at: usize, fresh: &[Fresh]) {
        self.states[at].steps += 1;
        let own = fresh.iter().filter(|(of, ..)| *of == at);
        self.states[at].tensors.extend(own.map(|(_, name, tensor)| (*name, tensor.clone())));
    }

    /// Steps by a kernel: one call for each device.
    fn step_by(&self, rule: &Rule, work: &[ParameterStep]) -> Result<()> {
        let mut devices: Vec<&Device> = Vec::new();
        for parameter in work.iter().map(|work| &self.parameters[work.at]) {
            if !devices.contains(&parameter.device()) {
                devices.push(parameter.device());
            }
        }
        for device in devices {
            let here = work.iter().filter(|work| self.parameters[work.at].device() == device);
            let (masters, direct): (Vec<&ParameterStep>, Vec<&ParameterStep>) =
                here.partition(|work| work.master.is_some());
            let rounded: Vec<&Tensor> = masters.iter().map(|work| &self.parameters[work.at]).collect();
            let slots: Vec<Slot<'_>> = masters.iter().map(|work| work.slot(&self.parameters)).collect();
            optimizer_step_rounded(rule, &slots, &rounded)?;
            if let Some(rounding) = &self.rounding {
                rounding.step(rule, &self.parameters, &direct)?;
                continue;
            }
            // Rules that work on a complete matrix compute in 32 bits: 16-bit types are converted for them, one parameter at a
            // time.
            let converted = |slot: &Slot<'_>| {
                rule.is_whole() && !matches!(slot.parameter.dtype(), DType::F32 | DType::F64)
            };
            let slots = direct.iter().map(|work| work.slot(&self.parameters));
            let (apart, together): (Vec<_>, Vec<_>) = slots.partition(converted);
            optimizer_step(rule, &together)?;
            apart.iter().try_for_each(|slot| optimizer_step(rule, std::slice::from_ref(slot)))?;
        }
        Ok(())
    }
}

thread_local! {
    /// The pool for the state that this thread allocates.
    static POOL: RefCell<Option<GraphPool>> = const { RefCell::new(None) };
}

/// Runs `f`. If this thread allocates optimizer state on the device of this pool, it allocates from the pool.
pub(crate) fn with_state_pool<T>(pool: &GraphPool, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<GraphPool>);
    impl Drop for Restore {
        fn drop(&mut self) {
            POOL.set(self.0.take());
        }
    }
    let _restore = Restore(POOL.replace(Some(pool.clone())));
    f()
}

/// Allocates state. The rows of a sharded unit share one allocation for each kind of state, with the same layout as the
/// rows themselves, so all ranks request the same memory.
#[derive(Default)]
pub(super) struct StateMemory {
    /// The state of a unit: one of its parameters, the name and type of the state, the memory.
    units: Vec<(Tensor, &'static str, DType, Tensor)>,
}

impl StateMemory {
    /// Allocates one tensor of a parameter's state, named after both: `conv2.weight exp_avg`.
    pub(super) fn allocate(
        &mut self,
        parameter: &Tensor,
        wanted: &StateTensor,
        dtype: DType,
    ) -> Result<Tensor> {
        let pool = POOL.with_borrow(Option::clone);
        match pool {
            Some(pool) => pool.serve(|| self.allocate_here(parameter, wanted, dtype)),
            None => self.allocate_here(parameter, wanted, dtype),
        }
    }

    fn allocate_here(&mut self, parameter: &Tensor, wanted: &StateTensor, dtype: DType) -> Result<Tensor> {
        let label = label::intern(&format!("{} {}", parameter.label(), wanted.name));
        let _owner = Span::of(Category::OptimizerState, label);
        let tensor = match wanted.shape == parameter.shape() {
            _ if wanted.dtype.is_some() => {
                Tensor::empty(&wanted.shape, wanted.dtype.unwrap_or(dtype), parameter.device())?
            }
            true if parameter.is_shard() => self.in_unit(parameter, wanted, dtype)?,
            true => parameter.empty_like_of(dtype)?,
            false => Tensor::empty(&wanted.shape, dtype, parameter.device())?,
        };
        wanted.start.map_or(Ok(()), |start| tensor.fill_(start))?;
        Ok(tensor)
    }

    fn in_unit(&mut self, parameter: &Tensor, wanted: &StateTensor, dtype: DType) -> Result<Tensor> {
        let known = self.units.iter().find(|(other, name, of, _)| {
            (*name, *of) == (wanted.name, dtype) && other.shares_storage(parameter)
        });
        let memory = match known {
            Some((.., memory)) => memory.clone(),
            None => {
                let len = parameter.storage_bytes() as usize / parameter.dtype().size();
                let memory = Tensor::empty(&[len], dtype, parameter.device())?;
                self.units.push((parameter.clone(), wanted.name, dtype, memory.clone()));
                memory
            }
        };
        let flat = memory.narrow(0, parameter.storage_offset(), parameter.numel())?;
        Ok(flat.view(parameter.shape())?.detach())
    }
}
