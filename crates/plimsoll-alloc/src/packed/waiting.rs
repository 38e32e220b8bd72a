//! Freed blocks that other streams still use: [`WaitingBlocks`].

use super::block::Block;
use crate::driver::{Driver, DriverError, EventId};
use crate::request::StreamId;

/// The blocks, in the order in which they were freed.
#[derive(Debug, Default)]
pub(super) struct WaitingBlocks(Vec<WaitingBlock>);

#[derive(Debug)]
struct WaitingBlock {
    block: Block,
    /// Streams on which no event could be recorded yet.
    unrecorded: Vec<StreamId>,
    events: Vec<EventId>,
}

impl WaitingBlocks {
    /// The sum of their sizes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|waiting| waiting.block.live.bytes).sum()
    }

    /// Adds a freed block.
    pub(super) fn add(&mut self, block: Block, driver: &mut impl Driver) {
        let unrecorded = block.uses.iter().copied().collect();
        let mut waiting = WaitingBlock { block, unrecorded, events: Vec::new() };
        // If this fails for a stream, it is tried again before the next request.
        let _ = waiting.record(driver);
        self.0.push(waiting);
    }

    /// Removes and returns the blocks that no stream uses any more. If the device fails, a block counts as used.
    pub(super) fn done(&mut self, driver: &mut impl Driver) -> Vec<Block> {
        let is_done = |waiting: &mut WaitingBlock| {
            let is_recorded = waiting.record(driver).is_ok();
            waiting.events.retain(|&event| !driver.is_done(event).unwrap_or(false));
            is_recorded && waiting.events.is_empty()
        };
        self.0.extract_if(.., is_done).map(|waiting| waiting.block).collect()
    }

    /// Waits for all blocks, then removes and returns them.
    pub(super) fn wait(&mut self, driver: &mut impl Driver) -> Result<Vec<Block>, DriverError> {
        for waiting in &mut self.0 {
            waiting.record(driver)?;
            while let Some(&event) = waiting.events.last() {
                driver.wait(event)?;
                waiting.events.pop();
            }
        }
        Ok(self.0.drain(..).map(|waiting| waiting.block).collect())
    }
}

impl WaitingBlock {
    /// Records an event on each stream that has none.
    fn record(&mut self, driver: &mut impl Driver) -> Result<(), DriverError> {
        while let Some(&stream) = self.unrecorded.last() {
            self.events.push(driver.record(stream)?);
            self.unrecorded.pop();
        }
        Ok(())
    }
}
