//! Consistency checks of pending blocks. They visit every block, so they are for tests and debugging.

use std::collections::BTreeMap;

use super::PendingFrees;
use crate::block::{BlockId, SlotState};
use crate::pools::Pools;
use crate::violation::{Violation, count, equal};

impl PendingFrees {
    /// Checks that a block is pending exactly while events or uses on other streams are outstanding.
    pub(crate) fn check(&self, pools: &Pools) -> Result<(), Violation> {
        let mut waiting: BTreeMap<BlockId, u32> = BTreeMap::new();
        for id in self.events.blocks() {
            *waiting.entry(id).or_default() += 1;
        }
        for id in self.deferred.iter().map(|deferred| deferred.block) {
            waiting.entry(id).or_default();
            let block = pools.block(id);
            let uses = block.waits.has_uses();
            equal("a deferred block has uses to record", Some(block.addr), true, uses)?;
        }
        for &id in &self.elsewhere {
            waiting.entry(id).or_default();
        }
        for (&id, &events) in &waiting {
            let block = pools.block(id);
            let (at, is_pending) = (Some(block.addr), block.state == SlotState::Pending);
            equal("an event belongs to a pending block", at, true, is_pending)?;
            equal("a pending block counts its events", at, events, block.waits.events())?;
        }
        let pending = pools.blocks().filter(|block| block.state == SlotState::Pending).count();
        equal("every pending block waits for something", None, count(waiting.len()), count(pending))
    }
}
