//! Limits the number of gradients of each size to the number of tensors of that size. [`settle`] finds temporaries of the
//! backward pass among the supposed gradients, and [`missing`] counts gradients without a known parameter.

use std::collections::BTreeMap;

use plimsoll_alloc::Category;

use super::passes::{Pass, PassKind, Passes};
use super::purpose::{Purpose, Why};
use super::sizes::size;
use crate::snapshot::EventIndex;
use crate::timeline::Life;

/// The blocks of one size that one pass allocated and that may be gradients, by their indices in the list of blocks.
struct Group {
    pass: Pass,
    places: Vec<usize>,
}

/// The blocks that may be gradients, by size, in the order of their passes.
fn groups(passes: &Passes, lives: &[Life], purposes: &[Purpose]) -> BTreeMap<u64, Vec<Group>> {
    let mut found: BTreeMap<u64, Vec<Group>> = BTreeMap::new();
    for (place, (life, purpose)) in lives.iter().zip(purposes).enumerate() {
        let Some(pass) = life.born.and_then(|born| passes.pass_at(born)) else { continue };
        if purpose.category != Some(Category::Gradient) {
            continue;
        }
        let of_size = found.entry(size(life)).or_default();
        match of_size.last_mut().filter(|group| group.pass.first == pass.first) {
            Some(group) => group.places.push(place),
            None => of_size.push(Group { pass, places: vec![place] }),
        }
    }
    found
}

/// When a pass ends, the temporaries of its last operators are freed first. So if several blocks of one size are freed
/// at the end of a pass, the last of them are gradients: as many as there are tensors of this size without a gradient.
pub(super) fn settle(passes: &Passes, lives: &[Life], purposes: &mut [Purpose]) {
    let tensors = Tensors::of(lives, purposes);
    for (bytes, of_size) in groups(passes, lives, purposes) {
        // The events that free older gradients; `None` if a gradient is never freed.
        let mut older: Vec<Option<EventIndex>> = Vec::new();
        for Group { pass, mut places } in of_size {
            let count = tensors.live(bytes, pass.first);
            older.retain(|freed| freed.is_none_or(|freed| freed > pass.last));
            places
                .sort_by_key(|&place| lives[place].freed.map_or((true, None), |freed| (false, Some(freed))));
            let most = count.saturating_sub(older.len());
            let surplus = if count == 0 { 0 } else { places.len().saturating_sub(most) };
            for &place in &places[..surplus] {
                let is_at_the_end = lives[place].freed.is_some_and(|freed| freed <= pass.last);
                if is_at_the_end && purposes[place].why == Why::OutlivesPass {
                    purposes[place] =
                        Purpose { category: Some(Category::Temporary), why: Why::BeyondGradients };
                }
            }
            let kept = places.iter().filter(|place| purposes[**place].category == Some(Category::Gradient));
            older.extend(kept.map(|&place| lives[place].freed));
        }
    }
}

/// For each size, how many more gradients a pass has than there are known parameters of that size. Empty without an
/// optimizer, because then no tensor is known to be a parameter.
pub(super) fn missing(passes: &Passes, lives: &[Life], purposes: &[Purpose]) -> BTreeMap<u64, usize> {
    if !passes.iter().any(|pass| pass.kind == PassKind::Optimizer) {
        return BTreeMap::new();
    }
    let mut known: BTreeMap<u64, usize> = BTreeMap::new();
    for (life, purpose) in lives.iter().zip(purposes) {
        *known.entry(size(life)).or_default() += usize::from(purpose.category == Some(Category::Parameter));
    }
    let most = |of_size: &[Group]| of_size.iter().map(|group| group.places.len()).max().unwrap_or(0);
    let all = groups(passes, lives, purposes);
    all.iter()
        .map(|(bytes, of_size)| {
            (*bytes, most(of_size).saturating_sub(known.get(bytes).copied().unwrap_or(0)))
        })
        .collect()
}

/// For each size, the events that allocate and the events that free blocks that may have a gradient, each list in
/// order. If a block is older than the recording, the event that allocated it is `None`.
struct Tensors(BTreeMap<u64, (Vec<Option<EventIndex>>, Vec<EventIndex>)>);

impl Tensors {
    fn of(lives: &[Life], purposes: &[Purpose]) -> Tensors {
        let may_have = |purpose: &Purpose| {
            matches!(purpose.category, None | Some(Category::Parameter | Category::Input | Category::Buffer))
        };
        let mut found: BTreeMap<u64, (Vec<_>, Vec<_>)> = BTreeMap::new();
        for (life, _) in lives.iter().zip(purposes).filter(|(_, purpose)| may_have(purpose)) {
            let (births, ends) = found.entry(size(life)).or_default();
            births.push(life.born);
            ends.extend(life.freed);
        }
        for (births, ends) in found.values_mut() {
            births.sort();
            ends.sort();
        }
        Tensors(found)
    }

    /// How many tensors of this size are live at an event.
    fn live(&self, bytes: u64, at: EventIndex) -> usize {
        let Some((births, ends)) = self.0.get(&bytes) else { return 0 };
        let (born, ended) =
            (births.partition_point(|born| *born < Some(at)), ends.partition_point(|end| *end < at));
        born - ended
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::{Addr, StreamId};

    use super::*;
    use crate::explain::Origins;
    use crate::snapshot::{Action, Event, Snapshot};
    use crate::timeline::Timeline;

    /// One pass: a tensor exists before it; two blocks of its size are freed as the pass ends, in this order.
    #[test]
    fn a_tensor_has_one_gradient_the_last_that_is_freed() {
        let event = |action, addr| Event::new(action, Addr(addr), 1024, StreamId(0));
        let trace = vec![
            event(Action::Alloc, 0x1000),
            event(Action::Alloc, 0x2000),
            event(Action::Alloc, 0x3000),
            event(Action::FreeCompleted, 0x3000),
            event(Action::FreeCompleted, 0x2000),
        ];
        let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
        let (timeline, origins) = (Timeline::of(&snapshot, 0), Origins::of(&snapshot));
        let passes = Passes::of(&snapshot, snapshot.trace(0), &origins);
        let of = |category, why| Purpose { category, why };
        let gradient = of(Some(Category::Gradient), Why::OutlivesPass);
        let mut purposes = vec![of(None, Why::Unknown), gradient, gradient];
        // Here the tensor is allocated in the same pass. It is treated as if it were older than the recording.
        let mut lives = timeline.lives.clone();
        lives[0].born = None;
        settle(&passes, &lives, &mut purposes);
        assert_eq!(purposes[1], gradient);
        assert_eq!(purposes[2], of(Some(Category::Temporary), Why::BeyondGradients));
        assert!(missing(&passes, &lives, &purposes).is_empty());
    }
}
