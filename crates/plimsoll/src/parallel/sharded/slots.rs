//! Fixed memory that units share: [`Slots`].
//!
//! A slot is as large as the largest unit that uses it, and is never freed. So the peak does not depend on when units
//! are gathered or released.

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{DType, Device, Event, ProcessGroup, Result, Tensor};

/// Slots of one size and type.
pub(super) struct Slots {
    /// The ranks that can read them.
    group: ProcessGroup,
    device: Device,
    dtype: DType,
    /// Elements of a slot.
    len: usize,
    category: Category,
    /// The owner of the bytes.
    label: String,
    slots: Vec<Slot>,
    /// How many slots to create before a unit has to wait for one.
    enough: usize,
    /// Counts the times that a slot was taken.
    taken: u64,
}

struct Slot {
    memory: Tensor,
    /// The unit that occupies the slot.
    unit: Option<usize>,
    /// The count of takes at which that unit took the slot.
    since: u64,
    /// When the previous unit's bytes have been sent, if they are still being sent.
    free: Option<Event>,
}

impl Slots {
    pub(super) fn new(
        (group, device): (&ProcessGroup, &Device),
        dtype: DType,
        len: usize,
        category: Category,
        label: &str,
        enough: usize,
    ) -> Slots {
        let (group, device, label) = (group.clone(), device.clone(), label.to_owned());
        Slots { group, device, dtype, len, category, label, slots: Vec::new(), enough, taken: 0 }
    }

    /// The type of the units that share these slots.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Adds a free slot.
    pub(super) fn grow(&mut self) -> Result<()> {
        let memory = {
            let _owner = Span::of(self.category, intern(&self.label));
            self.group.empty_shared(&[self.len], self.dtype, &self.device)?
        };
        self.slots.push(Slot { memory, unit: None, since: 0, free: None });
        Ok(())
    }

    /// A slot for a unit: its own, if it still has one; a free one; or, among the slots whose unit can be evicted, the
    /// one that was taken first. If no unit can be evicted because operations are using all of them, a slot is added.
    pub(super) fn take(&mut self, unit: usize, leave: impl Fn(usize) -> bool) -> Result<Tensor> {
        // The caller would have to wait for a slot whose bytes are still being sent.
        let is_free = |slot: &Slot| slot.unit.is_none() && slot.free.is_none();
        let waits = !self.slots.iter().any(|slot| is_free(slot) || slot.unit == Some(unit));
        if waits && self.slots.iter().any(|slot| slot.free.is_some()) && self.slots.len() < self.enough {
            self.grow()?;
        }
        if let Some(memory) = self.take_free(unit, leave)? {
            return Ok(memory);
        }
        self.grow()?;
        match self.take_free(unit, |_| false)? {
            Some(memory) => Ok(memory),
            None => unreachable!("the new slot is free"),
        }
    }

    /// Like [`Slots::take`], but returns `None` instead of adding a slot.
    pub(super) fn take_free(&mut self, unit: usize, leave: impl Fn(usize) -> bool) -> Result<Option<Tensor>> {
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_by_key(|at| (self.slots[*at].unit.is_some(), self.slots[*at].since));
        let own = order.iter().copied().find(|at| self.slots[*at].unit == Some(unit));
        let free = || order.iter().copied().find(|at| self.slots[*at].unit.is_none_or(&leave));
        let Some(at) = own.or_else(free) else { return Ok(None) };
        self.taken += 1;
        let slot = &mut self.slots[at];
        (slot.unit, slot.since) = (Some(unit), self.taken);
        if let Some(free) = slot.free.take() {
            self.device.current_stream().wait_event(&free)?;
        }
        Ok(Some(slot.memory.clone()))
    }

    /// Gives the slot of a unit back. If its bytes are still being sent, `free` is when they have been sent.
    pub(super) fn give_back(&mut self, unit: usize, free: Option<Event>) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.unit == Some(unit)) {
            (slot.unit, slot.free) = (None, free);
        }
    }

    /// The number of slots.
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// The size of a slot in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.len * self.dtype.size()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_take_turns_and_a_held_one_stays() {
        let alone = ProcessGroup::threads(1).remove(0);
        let mut slots =
            Slots::new((&alone, &Device::cpu()), DType::F32, 4, Category::Parameter, "gathered", 2);
        slots.grow().unwrap();
        slots.grow().unwrap();
        let address = |slot: Tensor| slot.data_ptr();
        let [a, b] = [0, 1].map(|unit| address(slots.take(unit, |_| true).unwrap()));
        assert!(a != b);
        assert_eq!(address(slots.take(1, |_| true).unwrap()), b);
        assert_eq!(address(slots.take(2, |_| true).unwrap()), a);
        assert_eq!(address(slots.take(3, |unit| unit == 2).unwrap()), a);
        assert_eq!((address(slots.take(4, |_| false).unwrap()) == a, slots.count()), (false, 3));
        slots.give_back(1, None);
        assert_eq!(address(slots.take(5, |_| false).unwrap()), b);
        assert!(slots.take_free(6, |_| false).unwrap().is_none());
    }
    #[test]
    fn a_slot_that_is_still_being_sent_is_taken_only_if_there_are_enough() {
        let device = Device::cpu();
        let alone = ProcessGroup::threads(1).remove(0);
        let mut slots = Slots::new((&alone, &device), DType::F32, 4, Category::Gradient, "gradients", 2);
        let sent = || device.current_stream().record_event().unwrap();
        let mut addresses = Vec::new();
        for unit in 0..6 {
            addresses.push(slots.take(unit, |_| false).unwrap().data_ptr());
            slots.give_back(unit, Some(sent()));
        }
        assert_eq!(slots.count(), 2);
        assert!(addresses[0] != addresses[1] && addresses[2..4] == addresses[..2]);
    }
}
