//! Fixed memory that units share: [`Slots`].
//!
//! A slot is as large as the largest unit that uses it, and is never freed. So the peak does not depend on when units are
//! gathered and released.

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{DType, Device, Result, Tensor};

/// Slots of one size and type.
pub(super) struct Slots {
    device: Device,
    dtype: DType,
    /// Elements of a slot.
    len: usize,
    category: Category,
    /// The owner of the bytes.
    label: String,
    slots: Vec<Slot>,
    /// Counts how often a slot was taken.
    taken: u64,
}

struct Slot {
    memory: Tensor,
    /// The unit that occupies the slot.
    unit: Option<usize>,
    /// When that unit took it.
    since: u64,
}

impl Slots {
    pub(super) fn new(device: &Device, dtype: DType, len: usize, category: Category, label: &str) -> Slots {
        let (device, label) = (device.clone(), label.to_owned());
        Slots { device, dtype, len, category, label, slots: Vec::new(), taken: 0 }
    }

    /// The type of the units that share these slots.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Adds a free slot.
    pub(super) fn grow(&mut self) -> Result<()> {
        let memory = {
            let _owner = Span::of(self.category, intern(&self.label));
            Tensor::empty(&[self.len], self.dtype, &self.device)?
        };
        self.slots.push(Slot { memory, unit: None, since: 0 });
        Ok(())
    }

    /// A slot for a unit: its own, if it still has one; a free one; or, of the slots whose unit can be evicted, the one that was
    /// taken first. If no unit can be evicted, because operations are using all of them, one more slot is added.
    pub(super) fn take(&mut self, unit: usize, leave: impl Fn(usize) -> bool) -> Result<Tensor> {
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_by_key(|at| (self.slots[*at].unit.is_some(), self.slots[*at].since));
        let own = order.iter().copied().find(|at| self.slots[*at].unit == Some(unit));
        let free = || order.iter().copied().find(|at| self.slots[*at].unit.is_none_or(&leave));
        let at = match own.or_else(free) {
            Some(at) => at,
            None => {
                self.grow()?;
                self.slots.len() - 1
            }
        };
        self.taken += 1;
        let slot = &mut self.slots[at];
        (slot.unit, slot.since) = (Some(unit), self.taken);
        Ok(slot.memory.clone())
    }

    /// Frees the slot of a unit.
    pub(super) fn give_back(&mut self, unit: usize) {
        self.slots.iter_mut().filter(|slot| slot.unit == Some(unit)).for_each(|slot| slot.unit = None);
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
        let mut slots = Slots::new(&Device::cpu(), DType::F32, 4, Category::Parameter, "gathered");
        slots.grow().unwrap();
        slots.grow().unwrap();
        let address = |slot: Tensor| slot.data_ptr();
        let [a, b] = [0, 1].map(|unit| address(slots.take(unit, |_| true).unwrap()));
        assert!(a != b);
        assert_eq!(address(slots.take(1, |_| true).unwrap()), b);
        assert_eq!(address(slots.take(2, |_| true).unwrap()), a);
        assert_eq!(address(slots.take(3, |unit| unit == 2).unwrap()), a);
        assert_eq!((address(slots.take(4, |_| false).unwrap()) == a, slots.count()), (false, 3));
        slots.give_back(1);
        assert_eq!(address(slots.take(5, |_| false).unwrap()), b);
    }
}
