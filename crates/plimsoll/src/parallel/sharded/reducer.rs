//! The work during a backward pass: from the gradients of full parameters, it computes the mean gradients of this
//! rank's rows.
//!
//! When the first gradient of a unit arrives, the unit gets a slot, into which all of its gradients are copied. When
//! the last one arrives, the slot is exchanged and summed, and the rows get their gradients. A unit that is not
//! complete is exchanged at the end of the pass. Its missing gradients count as zero, but parameters that have no
//! gradient on any rank still get none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::autograd::queue_callback;
use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::op::foreach_copy_;
use plimsoll_tensor::{Error, Event, ReduceOp, Result, Tensor, no_grad, with_stream};

use super::gather::{Gatherer, Ranks, Unit, slots_for, slots_of, want_eager};
use super::slots::Slots;
use super::{NAME, Shard, ShardedParameter};
use crate::parallel::agree::{first_other, shown};
use crate::parallel::lanes::{LaneSums, Passes, sum_of_parts};

/// Gradients of fewer bytes are copied together, when their unit is complete. On a GPU, launching a kernel for each of
/// them would take longer than the copy.
const SMALL_BYTES: usize = 1 << 20;

/// The gradients of one model on one rank.
pub(super) struct Reducer {
    gatherer: Arc<Gatherer>,
    shard: Shard,
    /// The full parameters, in the order of the model, and this rank's rows of each.
    parameters: Vec<Tensor>,
    rows: Vec<ShardedParameter>,
    /// The unit of each parameter, and its index in the unit.
    places: Vec<(usize, usize)>,
    buffers: Vec<Tensor>,
    /// The slots for gradients. If gradients are kept until the end of the pass, each unit has its own slot.
    slots: Vec<(bool, Slots)>,
    own_slots: Vec<Option<Slots>>,
    /// Whether passes exchange gradients.
    pub(super) syncs: bool,
    pass: Option<Pass>,
    /// The parameters that had a gradient in the last pass, which all ranks have agreed on.
    agreed: Option<Vec<bool>>,
    /// If a batch is divided into lanes: which pass of the batch this is, and the sums of each unit so far.
    passes: Option<Passes>,
    sums: Vec<LaneSums>,
}

/// The state of the running backward pass.
struct Pass {
    /// The units for which some gradients have arrived but have not been exchanged yet.
    open: Vec<Option<Open>>,
    /// The parameters whose gradient has arrived.
    arrived: Vec<bool>,
    is_finished: bool,
}

/// A unit whose gradients are arriving.
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

    /// Copies the waiting gradients.
    fn flush(&mut self) -> Result<()> {
        foreach_copy_(&std::mem::take(&mut self.places), &std::mem::take(&mut self.waiting))
    }
}

pub(super) type Shared = Arc<Mutex<Reducer>>;

pub(super) fn locked(reducer: &Shared) -> MutexGuard<'_, Reducer> {
    reducer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a pass when dropped, even if the pass failed.
struct Ends(Shared);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut reducer = locked(&self.0);
        let Some(pass) = reducer.pass.take() else { return };
        for (unit, _) in pass.open.iter().enumerate().filter(|(_, open)| open.is_some()) {
            reducer.give_back(unit, None);
        }
        if let Some(passes) = &mut reducer.passes {
            passes.end(pass.is_finished);
        }
        if !pass.is_finished {
            // Queued work may still write to memory that is dropped after this failure; the failure itself is already
            // reported.
            let _ = reducer.wait();
            reducer.sums.iter_mut().for_each(LaneSums::clear);
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
        let arrived = vec![false; reducer.parameters.len()];
        reducer.pass = Some(Pass { open, arrived, is_finished: false });
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
        passes: Option<Passes>,
    ) -> Result<Reducer> {
        let units = gatherer.units();
        let mut places = vec![(0, 0); parameters.len()];
        for (number, unit) in units.iter().enumerate() {
            unit.members.iter().enumerate().for_each(|(at, member)| places[*member] = (number, at));
        }
        let device = parameters[0].device().clone();
        let takes_turns = |_: &Unit| shard != Shard::OptimizerState;
        let place = (&gatherer.ranks.shard, &device);
        let slots = slots_for(units, place, takes_turns, Category::Gradient, "gradients")?;
        let own = |unit: &Unit| {
            let label = format!("{} gradients", unit.name);
            (shard == Shard::OptimizerState).then(|| {
                Slots::new(place, unit.rows.dtype(), unit.layout.len(), Category::Gradient, &label, 1)
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
            passes,
            sums: units.iter().map(|_| LaneSums::default()).collect(),
        })
    }

    fn slots(&mut self, unit: usize) -> &mut Slots {
        match &mut self.own_slots[unit] {
            Some(own) => own,
            None => slots_of(&mut self.slots, &self.gatherer.units()[unit]),
        }
    }

    fn give_back(&mut self, unit: usize, free: Option<Event>) {
        self.slots(unit).give_back(unit, free);
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

    /// Exchanges the gradients of a unit, and adds the means to the gradients of the rows.
    fn exchange(&mut self, number: usize) -> Result<()> {
        let open = self.pass.as_mut().and_then(|pass| pass.open[number].take());
        let Some(mut open) = open else { return Ok(()) };
        open.flush()?;
        let gatherer = Arc::clone(&self.gatherer);
        let (unit, Ranks { all, shard, replicate, .. }) = (&gatherer.units()[number], &gatherer.ranks);
        let (mean, ready) = no_grad(|| {
            let whole = open.slot.narrow(0, 0, unit.layout.len())?;
            for (at, _) in open.arrived.iter().enumerate().filter(|(_, came)| !**came) {
                let len = self.parameters[unit.members[at]].numel();
                whole.narrow(0, unit.layout.starts[at], len)?.zero_()?;
            }
            let (sums, passes) = (&mut self.sums[number], self.passes.as_ref());
            let has_mean = passes.is_none_or(Passes::is_last);
            let mean = has_mean.then(|| {
                let _owner = Span::of(Category::Gradient, intern(&unit.name));
                Tensor::empty(&[unit.layout.part_len], whole.dtype(), whole.device())
            });
            let mean = mean.transpose()?;
            let side = all.stream(whole.device());
            side.wait_stream(&whole.device().current_stream())?;
            with_stream(&side, || match (passes, &mean) {
                (None, Some(mean)) if replicate.is_none() => {
                    shard.reduce_scatter_tensor(mean, &whole, ReduceOp::Avg)
                }
                (None, Some(mean)) => {
                    // The replicas' sums are not rounded before they are added.
                    let _owner = Span::of(Category::Workspace, intern(&format!("{} sum", unit.name)));
                    let sum = sum_of_parts(&whole, shard, replicate.as_ref())?;
                    sum.mul_scalar_(1.0 / all.size() as f64)?;
                    mean.copy_(&sum)
                }
                (passes, mean) => {
                    sums.add(&whole, shard, replicate.as_ref(), &unit.name)?;
                    passes.zip(mean.as_ref()).map_or(Ok(()), |(passes, mean)| sums.mean_into(mean, passes))
                }
            })?;
            Ok::<_, Error>((mean, side.record_event()?))
        })?;
        if unit.members.iter().any(|member| self.rows[*member].rows.grad().is_some()) {
            open.slot.device().current_stream().wait_event(&ready)?; // to add to it
        }
        drop(open.slot);
        self.give_back(number, Some(ready));
        let Some(mean) = mean else { return Ok(()) };
        for (at, member) in unit.members.iter().enumerate().filter(|(at, _)| open.arrived[*at]) {
            let rows = &self.rows[*member].rows;
            let place = unit.layout.place_in_part(at, shard.rank());
            no_grad(|| {
                let grad = mean.narrow(0, place.start, place.len())?.view(rows.shape())?;
                match rows.grad() {
                    Some(before) => before.add_(&grad),
                    None => rows.set_grad(Some(grad)),
                }
            })?;
        }
        Ok(())
    }

    /// Ends a backward pass: exchanges the remaining units, in their order.
    fn finish(&mut self) -> Result<()> {
        self.agree()?;
        for number in 0..self.gatherer.units().len() {
            self.exchange(number)?;
        }
        self.wait()?;
        self.buffers.iter().try_for_each(|buffer| self.gatherer.ranks.all.broadcast(buffer, 0))?;
        if let Some(pass) = &mut self.pass {
            pass.is_finished = true;
        }
        Ok(())
    }

    /// Makes later work on the current stream wait for all exchanges so far.
    fn wait(&self) -> Result<()> {
        let device = self.parameters[0].device();
        device.current_stream().wait_stream(&self.gatherer.ranks.all.stream(device))
    }

    /// Returns an error unless the same parameters have a gradient on all ranks. Asks the others only if the set of parameters
    /// has changed since the last pass.
    fn agree(&mut self) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        if self.agreed.as_ref() == Some(&pass.arrived) {
            return Ok(());
        }
        let came: String = pass.arrived.iter().map(|came| if *came { '1' } else { '0' }).collect();
        if let Some(rank) = first_other(&self.gatherer.ranks.all, &came, "parameters with a gradient")? {
            let without = self.rows.iter().zip(&pass.arrived).filter(|(_, came)| !**came);
            let names: Vec<&str> = without.map(|(rows, _)| rows.name.as_str()).collect();
            let message = format!(
                "rank {rank} has gradients for different parameters than this rank (without a gradient here: {}): all ranks must use \
                 the same parameters in a step",
                shown(&names)
            );
            return Err(Error::autograd(NAME, message));
        }
        self.agreed = Some(pass.arrived.clone());
        Ok(())
    }
}
