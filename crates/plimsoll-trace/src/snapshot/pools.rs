//! A snapshot's memory pools: [`Pools`].

use std::collections::BTreeMap;

use plimsoll_alloc::PoolId;

use super::PoolIndex;

/// A table of pools without duplicates.
///
/// ```
/// # use plimsoll_trace::snapshot::Pools;
/// # use plimsoll_alloc::PoolId;
/// let mut pools = Pools::default();
/// let pool = pools.intern(PoolId(0, 7)).expect("room");
/// assert_eq!((pools.intern(PoolId(0, 7)), pools.get(pool)), (Some(pool), PoolId(0, 7)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pools {
    pools: Vec<PoolId>,
    known: BTreeMap<PoolId, PoolIndex>,
    last: Option<(PoolId, PoolIndex)>,
}

impl Pools {
    /// The pool with this id. The id must belong to this table.
    ///
    /// # Panics
    /// If the id belongs to another table.
    pub fn get(&self, index: PoolIndex) -> PoolId {
        self.pools[index.index()]
    }

    /// The id of a pool, which is added if it is new; `None` if ids run out.
    pub fn intern(&mut self, pool: PoolId) -> Option<PoolIndex> {
        if let Some((_, index)) = self.last.filter(|(last, _)| *last == pool) {
            return Some(index);
        }
        let index = match self.known.get(&pool) {
            Some(&index) => index,
            None => {
                let index = PoolIndex::new(self.pools.len())?;
                self.pools.push(pool);
                self.known.insert(pool, index);
                index
            }
        };
        self.last = Some((pool, index));
        Some(index)
    }

    /// Every pool, in id order.
    pub fn iter(&self) -> impl Iterator<Item = PoolId> + '_ {
        self.pools.iter().copied()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.pools.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }
}
