//! The work during a backward pass: gradients of whole parameters become means of this rank's rows.
//!
//! The first gradient of a unit takes a slot, into which all of the unit's gradients are copied, small ones together. With the last
//! one, the slot is exchanged and added, and the rows get their gradients. A unit that is not complete at the end of the pass is exchanged then; its
//! missing gradients count as zero, but parameters that have no gradient on any rank keep none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::autograd::queue_callback;
use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::op::foreach_copy_;
use plimsoll_tensor::{Error, ReduceOp, Result, Tensor, no_grad};

use super::gather::{Gatherer, Unit, slots_for, slots_of, want_eager};
use super::slots::Slots;
use super::{NAME, Shard, ShardedParameter};
use crate::parallel::agree::{first_other, shown};

/// Gradients of fewer bytes are copied together, when their unit is complete. On a GPU, the launch of a kernel for each would take
/// longer than the copy.
const SMALL_BYTES: usize = 1 << 20;

/// The gradients of one model on one rank.
pub(super) struct Reducer {
    gatherer: Arc<Gatherer>,
    shard: Shard,
    /// The whole parameters, in the order of the model, and the rows of each.
    parameters: Vec<Tensor>,
    rows: Vec<ShardedParameter>,
    /// The unit of each parameter, and its place there.
    places: Vec<(usize, usize)>,
    buffers: Vec<Tensor>,
    /// The slots of gradients. A unit has its own if gradients are kept until the end of the pass.
    slots: Vec<(bool, Slots)>,
    own_slots: Vec<Option<Slots>>,
    /// Whether passes exchange gradients.
    pub(super) syncs: bool,
    pass: Option<Pass>,
    /// The parameters that had a gradient in the last pass, which all ranks have agreed on.
    agreed: Option<Vec<bool>>,
}

/// The state of the running backward pass.
struct Pass {
    /// The units some of whose gradients have arrived and are not exchanged yet.
    open: Vec<Option<Open>>,
    /// The parameters whose gradient has arrived.
    arrived: Vec<bool>,
}

/// A unit whose gradients arrive.
struct Open {
    /// The flat gradients.
    slot: Tensor,
    arrived: Vec<bool>,
    /// Small gradients that are not in the slot yet, and their places there.
    places: Vec<Tensor>,
    waiting: Vec<Tensor>,
}

impl Open {
    /// Moves a gradient into its place.
    fn put(&mut self, at: usize, place: Tensor, flat: Tensor) -> Result<()> {
        if self.arrived[at] {
            self.flush()?;
            return no_grad(|| place.add_(&flat));
        }
        self.arrived[at] = true;
        let is_small = flat.numel() * flat.dtype().size() < SMALL_BYTES;
        if !is_small || flat.numel() == 0 || flat.dtype() != place.dtype() {
            return no_grad(|| place.copy_(&flat));
        }
        self.places.push(place);
        self.waiting.push(flat);
        Ok(())
    }

    /// Copies the gradients that wait.
    fn flush(&mut self) -> Result<()> {
        foreach_copy_(&std::mem::take(&mut self.places), &std::mem::take(&mut self.waiting))
    }
}

pub(super) type Shared = Arc<Mutex<Reducer>>;

pub(super) fn locked(reducer: &Shared) -> MutexGuard<'_, Reducer> {
    reducer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a pass when dropped, also one that failed.
struct Ends(Shared);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut reducer = locked(&self.0);
        let Some(pass) = reducer.pass.take() else { return };
        for (unit, _) in pass.open.iter().enumerate().filter(|(_, open)| open.is_some()) {
            reducer.give_back(unit);
        }
    }
}

/// The hook of a parameter. It runs when the parameter's gradient is complete.
pub(super) fn arrived(shared: &Shared, parameter: usize) -> Result<()> {
    let mut reducer = locked(shared);
    if !reducer.syncs {
        return Ok(());
    }
    want_eager(&reducer.parameters[parameter])?;
    let is_first = reducer.pass.is_none();
    if is_first {
        let open = reducer.gatherer.units().iter().map(|_| None).collect();
        reducer.pass = Some(Pass { open, arrived: vec![false; reducer.parameters.len()] });
    }
    drop(reducer);
    if is_first {
        let ends = Ends(Arc::clone(shared));
        queue_callback(move || {
            let outcome = locked(&ends.0).finish();
            drop(ends);
            outcome
        })?;
    }
    locked(shared).arrived(parameter)
}

impl Reducer {
    pub(super) fn new(
        gatherer: &Arc<Gatherer>,
        shard: Shard,
        (parameters, rows): (Vec<Tensor>, Vec<ShardedParameter>),
        buffers: Vec<Tensor>,
    ) -> Result<Reducer> {
        let units = gatherer.units();
        let mut places = vec![(0, 0); parameters.len()];
        for (number, unit) in units.iter().enumerate() {
            unit.members.iter().enumerate().for_each(|(at, member)| places[*member] = (number, at));
        }
        let device = parameters[0].device().clone();
        let takes_turns = |_: &Unit| shard != Shard::OptimizerState;
        let slots = slots_for(units, &device, takes_turns, Category::Gradient, "gradients")?;
        let own = |unit: &Unit| {
            let label = format!("{} gradients", unit.name);
            (shard == Shard::OptimizerState).then(|| {
                Slots::new(&device, unit.rows.dtype(), unit.layout.len(), Category::Gradient, &label)
            })
        };
        Ok(Reducer {
            own_slots: units.iter().map(own).collect(),
            gatherer: Arc::clone(gatherer),
            shard,
            parameters,
            rows,
            places,
            buffers,
            slots,
            syncs: true,
            pass: None,
            agreed: None,
        })
    }

    fn slots(&mut self, unit: usize) -> &mut Slots {
        match &mut self.own_slots[unit] {
            Some(own) => own,
            None => slots_of(&mut self.slots, &self.gatherer.units()[unit]),
        }
    }

    fn give_back(&mut self, unit: usize) {
        self.slots(unit).give_back(unit);
    }

    /// Moves a gradient into its unit's slot.
    fn arrived(&mut self, parameter: usize) -> Result<()> {
        let (number, at) = self.places[parameter];
        let Some(pass) = &self.pass else { return Ok(()) };
        if pass.open[number].is_none() {
            let slot = self.slots(number).take(number, |_| false)?;
            let members = self.gatherer.units()[number].members.len();
            let open = Open { slot, arrived: vec![false; members], places: Vec::new(), waiting: Vec::new() };
            if let Some(pass) = &mut self.pass {
                pass.open[number] = Some(open);
            }
        }
        let leaf = &self.parameters[parameter];
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let (Some(open), Some(grad)) = (&mut pass.open[number], leaf.grad()) else { return Ok(()) };
        let unit = &self.gatherer.units()[number];
        let (place, flat) = no_grad(|| {
            let flat = grad.reshape(&[-1])?.detach();
            Ok::<_, Error>((open.slot.narrow(0, unit.layout.starts[at], flat.numel())?, flat))
        })?;
        drop(grad);
        leaf.clear_grad();
        open.put(at, place, flat)?;
        pass.arrived[parameter] = true;
        if !open.arrived.iter().all(|came| *came) {
            return Ok(());
        }
        open.flush()?;
        if self.shard == Shard::OptimizerState { Ok(()) } else { self.exchange(number) }
    }

    /// Exchanges the gradients of a unit, and adds their means to the gradients of the rows.
    fn exchange(&mut self, number: usize) -> Result<()> {
        let open = self.pass.as_mut().and_then(|pass| pass.open[number].take());
        let Some(mut open) = open else { return Ok(()) };
        open.flush()?;
        let gatherer = Arc::clone(&self.gatherer);
        let (unit, rank) = (&gatherer.units()[number], gatherer.group.rank());
        let sum = no_grad(|| {
            let whole = open.slot.narrow(0, 0, unit.layout.len())?;
            for (at, _) in open.arrived.iter().enumerate().filter(|(_, came)| !**came) {
                let len = self.parameters[unit.members[at]].numel();
                whole.narrow(0, unit.layout.starts[at], len)?.zero_()?;
            }
            let sum = {
                let _owner = Span::of(Category::Gradient, intern(&unit.name));
                Tensor::empty(&[unit.layout.part_len], whole.dtype(), whole.device())?
            };
            gatherer.group.reduce_scatter_tensor(&sum, &whole, ReduceOp::Avg)?;
            Ok::<_, Error>(sum)
        })?;
        drop(open.slot);
        self.give_back(number);
        for (at, member) in unit.members.iter().enumerate().filter(|(at, _)| open.arrived[*at]) {
            let rows = &self.rows[*member].rows;
            let place = unit.layout.place_in_part(at, rank);
            no_grad(|| {
                let grad = sum.narrow(0, place.start, place.len())?.view(rows.shape())?;
                match rows.grad() {
                    Some(before) => before.add_(&grad),
                    None => rows.set_grad(Some(grad)),
                }
            })?;
        }
        Ok(())
    }

    /// Ends a backward pass: exchanges the units that are left, in their order.
    fn finish(&mut self) -> Result<()> {
        self.agree()?;
        for number in 0..self.gatherer.units().len() {
            self.exchange(number)?;
        }
        self.buffers.iter().try_for_each(|buffer| self.gatherer.group.broadcast(buffer, 0))
    }

    /// Returns an error unless the same parameters have a gradient on all ranks. Asks the others only if these are not those of
    /// the last pass.
    fn agree(&mut self) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        if self.agreed.as_ref() == Some(&pass.arrived) {
            return Ok(());
        }
        let came: String = pass.arrived.iter().map(|came| if *came { '1' } else { '0' }).collect();
        if let Some(rank) = first_other(&self.gatherer.group, &came, "parameters with a gradient")? {
            let without = self.rows.iter().zip(&pass.arrived).filter(|(_, came)| !**came);
            let names: Vec<&str> = without.map(|(rows, _)| rows.name.as_str()).collect();
            let message = format!(
                "rank {rank} has gradients of other parameters than this rank (without a gradient here: {}): all ranks must use \
                 the same parameters in a step",
                shown(&names)
            );
            return Err(Error::autograd(NAME, message));
        }
        self.agreed = Some(pass.arrived.clone());
        Ok(())
    }
}
