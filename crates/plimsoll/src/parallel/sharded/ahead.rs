//! The order in which units are gathered: [`Order`].
//!
//! Training steps gather units in the same order. So the unit that followed the last two units in an earlier step will
//! follow them again, and can be gathered while they are used.

use std::collections::BTreeMap;

/// Which unit follows which. A pair of units is enough to tell a forward pass from a backward pass.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last two units, and the version of the last one's rows.
    last: Option<((Option<usize>, usize), u32)>,
    /// The unit that followed each pair of units; `None` if it was not always the same one.
    next: BTreeMap<(Option<usize>, usize), Option<usize>>,
}

impl Order {
    /// The unit that was used last, and the version of its rows when they were gathered.
    pub(super) fn last(&self) -> Option<(usize, u32)> {
        self.last.map(|((_, unit), version)| (unit, version))
    }

    /// Forgets the last units, because the optimizer has changed their rows: the units of the next step must not be gathered
    /// before that.
    pub(super) fn cut(&mut self) {
        self.last = None;
    }

    /// Records that a unit is used now. Returns the unit that will follow, if known.
    pub(super) fn used(&mut self, unit: usize, version: u32) -> Option<usize> {
        let before = self.last.map(|(pair, _)| pair);
        if let Some(pair) = before {
            let next = self.next.entry(pair).or_insert(Some(unit));
            *next = next.filter(|next| *next == unit);
        }
        let pair = (before.map(|(_, unit)| unit), unit);
        self.last = Some((pair, version));
        self.next.get(&pair).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_a_step_is_known_after_the_first() {
        let mut order = Order::default();
        let mut step = |units: &[usize]| -> Vec<Option<usize>> {
            order.cut();
            units.iter().map(|unit| order.used(*unit, 0)).collect()
        };
        let units = [9, 0, 1, 2, 3, 1, 0];
        assert_eq!(step(&units)[..5], [None; 5]);
        assert_eq!(step(&units), [Some(0), Some(1), Some(2), Some(3), Some(1), Some(0), None]);
        // An evaluation ends where a backward pass would begin, so nothing is known about what follows.
        step(&[9, 0, 1, 2, 3, 9]);
        assert_eq!(step(&units), [Some(0), Some(1), Some(2), Some(3), None, Some(0), None]);
    }
}
