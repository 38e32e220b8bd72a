//! Units, and how they are gathered: [`Gatherer`].
//!
//! The parameters of a unit are views of one flat *lent* tensor ([`Tensor::lent`]). It has no memory until an operation
//! reads a parameter. Then the unit is gathered from the rows of all ranks into a slot, which another unit uses later.
//! If whole parameters are kept, each unit has its own buffer. This rank's part of the buffer holds its rows; the other
//! parts are gathered again after the rows have changed.
//!
//! Units are gathered on the group's stream. When a unit is used, the next one is queued there, so that it arrives in
//! the meantime. It goes into the slot of the previous unit, whose operations have all been queued.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{Device, Error, Event, ProcessGroup, Result, Tensor, no_grad, with_stream};

use super::NAME;
use super::ahead::Order;
use super::layout::Layout;
use super::plan::UnitPlan;
use super::slots::Slots;
use crate::parallel::DeviceMesh;

/// A unit on this rank.
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) is_root: bool,
    /// Its parameters, by their numbers in the model.
    pub(super) members: Vec<usize>,
    pub(super) layout: Layout,
    /// The lent tensor of all parameters.
    pub(super) whole: Tensor,
    /// This rank's part.
    pub(super) rows: Tensor,
    /// The buffer of the unsharded parameters, if they are kept.
    buffer: Option<Tensor>,
}

/// The ranks that share a model.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    /// The ranks that train on parts of a batch.
    pub(super) all: ProcessGroup,
    /// These ranks, and the ranks with which each of them shares layers. They save together.
    pub(super) root: ProcessGroup,
    /// The ranks among which the model is divided.
    pub(super) shard: ProcessGroup,
    /// The ranks with the same part as this one, if there are several.
    pub(super) replicate: Option<ProcessGroup>,
}

impl Ranks {
    /// # Errors
    /// If the mesh has more than two dimensions.
    pub(super) fn of(mesh: &DeviceMesh) -> Result<Ranks> {
        let (all, root) = (mesh.world().clone(), mesh.root().clone());
        match mesh.groups()[..] {
            [shard] => Ok(Ranks { all, root, shard: shard.clone(), replicate: None }),
            [replicate, shard] => {
                let replicate = Some(replicate).filter(|group| group.size() > 1).cloned();
                Ok(Ranks { all, root, shard: shard.clone(), replicate })
            }
            _ => {
                let message = format!(
                    "{mesh:?}: a model is sharded over a mesh of one dimension, or of two: first the replicas, then the shards"
                );
                Err(Error::argument(NAME, message))
            }
        }
    }
}

/// The units of a model on one rank.
pub(super) struct Gatherer {
    pub(super) ranks: Ranks,
    pub(super) units: OnceLock<Vec<Unit>>,
    /// The slots for each kind of unit: by type, and separately for root units and blocks.
    slots: Mutex<Vec<(bool, Slots)>>,
    gathered: AtomicU64,
    ahead: Mutex<Ahead>,
}

/// The unit that is gathered before it is used.
#[derive(Default)]
struct Ahead {
    order: Order,
    queued: Option<Gathered>,
}

/// A unit that was queued to be gathered.
struct Gathered {
    unit: usize,
    /// The version of its rows.
    version: u32,
    memory: Tensor,
    /// The event that marks the arrival of the unit.
    ready: Event,
}

impl Gatherer {
    pub(super) fn new(ranks: &Ranks) -> Gatherer {
        let (units, slots, gathered, ahead) = Default::default();
        Gatherer { ranks: ranks.clone(), units, slots, gathered, ahead }
    }

    pub(super) fn units(&self) -> &[Unit] {
        self.units.get().map_or(&[], Vec::as_slice)
    }

    /// Makes unit `number` from these parameters, which may be dropped afterwards. If `keep` is set, unsharded
    /// parameters are kept.
    pub(super) fn make(
        self: &Arc<Gatherer>,
        number: usize,
        plan: UnitPlan,
        parameters: &[(String, Tensor)],
        keep: bool,
    ) -> Result<Unit> {
        let UnitPlan { name, is_root, members, layout } = plan;
        let (rank, part_len) = (self.ranks.shard.rank(), layout.part_len);
        let (dtype, device) = (parameters[0].1.dtype(), parameters[0].1.device());
        let label = intern(&name);
        let (rows, buffer) = no_grad(|| {
            let _owner = Span::of(Category::Parameter, label);
            let len = if keep { layout.len() } else { part_len };
            let memory = if keep {
                let memory = self.ranks.shard.empty_shared(&[len], dtype, device)?;
                memory.zero_()?;
                memory
            } else {
                Tensor::full(&[len], 0.0, dtype, device)?
            };
            for (i, (_, parameter)) in parameters.iter().enumerate().filter(|(_, (_, it))| it.numel() > 0) {
                let flat = parameter.reshape(&[-1])?;
                let (from, place) = if keep {
                    (0, layout.starts[i]..layout.starts[i] + flat.numel())
                } else {
                    let place = layout.place_in_part(i, rank);
                    ((rank * part_len + place.start).saturating_sub(layout.starts[i]), place)
                };
                if !place.is_empty() {
                    let own = flat.narrow(0, from, place.len())?;
                    memory.narrow(0, place.start, place.len())?.copy_(&own)?;
                }
            }
            match keep {
                true => Ok::<_, Error>((memory.window(rank * part_len, part_len)?, Some(memory))),
                false => Ok((memory, None)),
            }
        })?;
        let source = {
            let (gatherer, name) = (Arc::downgrade(self), name.clone());
            move || match gatherer.upgrade() {
                Some(gatherer) => gatherer.gather(number),
                None => {
                    let message = format!(
                        "{name} was sharded by a `FullyShardedDataParallel` that was dropped: keep it as long as the model"
                    );
                    Err(Error::argument(NAME, message))
                }
            }
        };
        let whole = Tensor::lent(&rows, layout.len(), label, source)?;
        Ok(Unit { name, is_root, members, layout, whole, rows, buffer })
    }

    /// Sets the units, and makes the slots into which units without a buffer are gathered: two for the blocks of each type, so
    /// that the previous block stays gathered, and one for root units.
    pub(super) fn set_units(&self, units: Vec<Unit>, device: &Device) -> Result<()> {
        let place = (&self.ranks.shard, device);
        let slots = slots_for(&units, place, |unit| unit.buffer.is_none(), Category::Parameter, "gathered")?;
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
        let _ = self.units.set(units); // only set once, by the constructor
        Ok(())
    }

    /// Gathers a unit because an operation reads one of its parameters, and starts gathering the next one. Returns the
    /// memory that holds the unit.
    fn gather(&self, number: usize) -> Result<Tensor> {
        let Some(unit) = self.units().get(number) else {
            return Err(Error::argument(NAME, "parameters are read while the model is being sharded"));
        };
        want_eager(&unit.rows)?;
        let version = unit.rows.version();
        let (queued, next) = {
            let mut ahead = self.ahead();
            let queued = ahead.queued.take().filter(|it| it.unit == number && it.version == version);
            let changed = |(last, version): (usize, u32)| self.units()[last].rows.version() != version;
            if ahead.order.last().is_some_and(changed) {
                ahead.order.cut();
            }
            (queued, ahead.order.used(number, version))
        };
        let gathered = match queued {
            Some(queued) => queued,
            None => {
                let memory = self.memory(number, |slots, leave| slots.take(number, leave).map(Some))?;
                self.queue(number, memory.unwrap_or_else(|| unreachable!("a slot is made if none is free")))?
            }
        };
        unit.rows.device().current_stream().wait_event(&gathered.ready)?;
        if let Some(next) = next {
            let leaves = |slots: &mut Slots, leave: &dyn Fn(usize) -> bool| {
                slots.take_free(next, |other| other != number && leave(other))
            };
            if let Some(memory) = self.memory(next, leaves)? {
                let queued = self.queue(next, memory)?;
                self.ahead().queued = Some(queued);
            }
        }
        Ok(gathered.memory)
    }

    /// The memory for a whole unit: its buffer, or a slot that `take` chooses among those of its kind. `take` also
    /// receives a function that takes a unit's memory back; it returns false if an operation is using the memory.
    fn memory(
        &self,
        number: usize,
        take: impl FnOnce(&mut Slots, &dyn Fn(usize) -> bool) -> Result<Option<Tensor>>,
    ) -> Result<Option<Tensor>> {
        let units = self.units();
        if let Some(buffer) = &units[number].buffer {
            return Ok(Some(buffer.clone()));
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        take(slots_of(&mut slots, &units[number]), &|other| units[other].whole.take_back())
    }

    /// Queues a unit to be gathered into this memory. This happens after the work that is now on the current stream,
    /// which may use the memory.
    fn queue(&self, number: usize, memory: Tensor) -> Result<Gathered> {
        let unit = &self.units()[number];
        self.gathered.fetch_add(1, Ordering::Relaxed);
        let device = unit.rows.device();
        let side = self.ranks.shard.stream(device);
        side.wait_stream(&device.current_stream())?;
        // A buffer already contains this rank's rows; into a slot, they are copied.
        let own = match &unit.buffer {
            Some(buffer) => {
                buffer.narrow(0, self.ranks.shard.rank() * unit.layout.part_len, unit.layout.part_len)?
            }
            None => unit.rows.clone(),
        };
        with_stream(&side, || {
            self.ranks.shard.all_gather_into_tensor(&memory.narrow(0, 0, unit.layout.len())?, &own)
        })?;
        Ok(Gathered { unit: number, version: unit.rows.version(), memory, ready: side.record_event()? })
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of times that units were gathered so far.
    pub(super) fn gathered(&self) -> u64 {
        self.gathered.load(Ordering::Relaxed)
    }

    /// The size in bytes of the slots that units share.
    pub(super) fn slot_bytes(&self) -> u64 {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.iter().map(|(_, slots)| slots.count() as u64 * slots.bytes()).sum()
    }
}

/// The slots that these units share. Root units have separate slots, because their parameters are often larger and are used at
/// both ends of the model.
pub(super) fn slots_for(
    units: &[Unit],
    place: (&ProcessGroup, &Device),
    wanted: impl Fn(&Unit) -> bool,
    category: Category,
    label: &str,
) -> Result<Vec<(bool, Slots)>> {
    let mut made: Vec<(bool, Slots)> = Vec::new();
    let alike = |unit: &Unit, is_root: bool, slots: &Slots| {
        unit.is_root == is_root && unit.rows.dtype() == slots.dtype()
    };
    for unit in units.iter().filter(|unit| wanted(unit)) {
        if made.iter().any(|(is_root, slots)| alike(unit, *is_root, slots)) {
            continue;
        }
        let of_kind = || {
            units
                .iter()
                .filter(|other| wanted(other))
                .filter(|other| other.is_root == unit.is_root && other.rows.dtype() == unit.rows.dtype())
        };
        let len = of_kind().map(|unit| unit.layout.len()).max().unwrap_or(0);
        let label = format!("{label}{}", if unit.is_root { " root" } else { "" });
        // Two, so that one unit can be used while another one is moved.
        let most = if unit.is_root { 1 } else { of_kind().count().min(2) };
        let mut slots = Slots::new(place, unit.rows.dtype(), len, category, &label, most);
        if category == Category::Parameter {
            (0..most).try_for_each(|_| slots.grow())?;
        }
        made.push((unit.is_root, slots));
    }
    Ok(made)
}

/// The slots that a unit shares with others.
pub(super) fn slots_of<'a>(slots: &'a mut [(bool, Slots)], unit: &Unit) -> &'a mut Slots {
    let alike = |(is_root, slots): &&mut (bool, Slots)| {
        *is_root == unit.is_root && slots.dtype() == unit.rows.dtype()
    };
    match slots.iter_mut().find(alike) {
        Some((_, slots)) => slots,
        None => unreachable!("there are slots for each kind of unit"),
    }
}

/// # Errors
/// If this thread is capturing the device's work. The host calls collectives, so a replay would not include them.
pub(super) fn want_eager(tensor: &Tensor) -> Result<()> {
    if !tensor.device().is_capturing() {
        return Ok(());
    }
    let why = "the collectives of a sharded model cannot be replayed yet: use `DistributedDataParallel`, or do not capture";
    Err(Error::Captured { op: NAME, why })
}
