//! Who uses the bytes of arenas. The allocator sees an arena as one allocation; in the account of a device, its bytes belong to
//! the tensors that are in it when most of it is in use.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::{LabelId, Owner, Tag};

use crate::label;

/// The bytes of each owner in each arena, by the arena's label.
#[derive(Default)]
pub(super) struct Arenas(Mutex<BTreeMap<LabelId, Vec<(Tag, u64)>>>);

impl Arenas {
    fn all(&self) -> MutexGuard<'_, BTreeMap<LabelId, Vec<(Tag, u64)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A label for a new arena whose bytes belong to these owners.
    pub(super) fn add(&self, owners: &[(Tag, u64)]) -> LabelId {
        let mut arenas = self.all();
        let label = label::intern(&format!("arena {} of planned memory", arenas.len() + 1));
        arenas.insert(label, owners.to_vec());
        label
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Replaces each arena by its owners, and by an owner for the bytes that none of them uses.
    pub(super) fn expand(&self, owners: Vec<Owner>) -> Vec<Owner> {
        let arenas = self.all();
        if !owners.iter().any(|owner| arenas.contains_key(&owner.label)) {
            return owners;
        }
        let mut sums: BTreeMap<Tag, Owner> = BTreeMap::new();
        let mut add = |Owner { label, category, bytes, blocks }: Owner| {
            let none = Owner { label, category, bytes: 0, blocks: 0 };
            let sum = sums.entry(Tag { category, label }).or_insert(none);
            (sum.bytes, sum.blocks) = (sum.bytes + bytes, sum.blocks + blocks);
        };
        for mut owner in owners {
            for &(Tag { category, label }, bytes) in arenas.get(&owner.label).into_iter().flatten() {
                add(Owner { label, category, bytes, blocks: 1 });
                owner.bytes = owner.bytes.saturating_sub(bytes);
            }
            add(owner);
        }
        let mut owners: Vec<Owner> = sums.into_values().filter(|owner| owner.bytes > 0).collect();
        owners.sort_by_key(|owner| (Reverse(owner.bytes), owner.label, owner.category));
        owners
    }
}
