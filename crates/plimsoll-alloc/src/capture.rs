//! Graph captures: [`Captures`], which knows whether work is captured into a graph rather than run, and what precedes
//! a stream's next work there.
//!
//! Events are not queried then, so a block that other streams use stays pending until the captures are over. With
//! `graph_capture_record_stream_reuse` it can be reused earlier. When the block is freed, the last graph nodes of every
//! stream that used it are recorded. Once all of these nodes precede the next work of the block's own stream (the
//! streams have joined), any new use of the memory is ordered after them, and no event is needed.
//!
//! In PyTorch: `record_free_markers`, `free_safe_blocks_in_capture`. The driver reports which streams are captured,
//! and into which graph: [`Driver::is_capturing`], [`Driver::captured`].

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{CaptureTest, Config};
use crate::driver::{Captured, Driver, NodeId};
use crate::error::Error;
use crate::private::PrivatePools;
use crate::request::StreamId;

/// The captures under way.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    under_way: u32,
    /// By capture and stream, the nodes that are known to precede the stream's next work. A graph only grows,
    /// so no node is visited twice.
    nodes_before: BTreeMap<(u64, StreamId), BTreeSet<NodeId>>,
}

impl Captures {
    /// Begins a capture.
    pub(crate) fn begin(&mut self) {
        self.under_way += 1;
    }

    /// Ends a capture. After the last, all graphs are forgotten: later ones may reuse node ids.
    ///
    /// # Panics
    /// If no capture is under way.
    pub(crate) fn end(&mut self) {
        assert!(self.under_way > 0, "end_capture without begin_capture");
        self.under_way -= 1;
        if self.under_way == 0 {
            self.nodes_before.clear();
        }
    }

    /// Whether work that is submitted now is captured rather than run.
    pub(crate) fn is_capturing(&self, config: &Config, driver: &impl Driver, pools: &PrivatePools) -> bool {
        let redirected = match config.capture_test() {
            CaptureTest::Capture => false,
            CaptureTest::AnyRedirection => pools.is_recording(),
        };
        (self.under_way > 0 && driver.is_capturing()) || redirected
    }

    /// The nodes that precede the next work of a stream; `None` if the stream is not captured.
    pub(crate) fn before(
        &mut self,
        driver: &impl Driver,
        stream: StreamId,
    ) -> Result<Option<NodesBefore<'_>>, Error> {
        let Some(Captured { capture, tail }) = driver.captured(stream)? else { return Ok(None) };
        let mut nodes = self.nodes_before.remove(&(capture, stream)).unwrap_or_default();
        walk_back(driver, tail, &mut nodes)?; // after a failure, the walk starts over
        let nodes = self.nodes_before.entry((capture, stream)).or_insert(nodes);
        Ok(Some(NodesBefore { capture, nodes }))
    }
}

/// The nodes that precede a stream's next work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodesBefore<'a> {
    capture: u64,
    nodes: &'a BTreeSet<NodeId>,
}

/// Adds `from` and all its predecessors to the known nodes.
fn walk_back(driver: &impl Driver, mut from: Vec<NodeId>, known: &mut BTreeSet<NodeId>) -> Result<(), Error> {
    while let Some(node) = from.pop() {
        if !known.contains(&node) {
            from.extend(driver.dependencies(node)?);
            known.insert(node);
        }
    }
    Ok(())
}

/// The graph nodes after which a freed block is no longer used.
#[derive(Debug)]
pub(crate) struct LastUses {
    capture: u64,
    nodes: Vec<NodeId>,
}

impl LastUses {
    /// The last nodes of a block's own stream and of those that use it; `None` if not all of them are captured into one
    /// graph. Freeing does not fail: if the driver returns an error, the block waits for the end of the capture.
    pub(crate) fn of(
        driver: &impl Driver,
        own: StreamId,
        mut others: impl Iterator<Item = StreamId>,
    ) -> Option<Self> {
        let captured = |stream| driver.captured(stream).ok().flatten();
        let Captured { capture, tail: nodes } = captured(own)?;
        let add = |mut nodes: Vec<NodeId>, stream| {
            let other = captured(stream).filter(|other| other.capture == capture)?;
            nodes.extend(other.tail);
            Some(nodes)
        };
        Some(Self { capture, nodes: others.try_fold(nodes, add)? })
    }

    /// Whether all of these nodes precede the stream's next work.
    pub(crate) fn are_past(&self, before: NodesBefore<'_>) -> bool {
        self.capture == before.capture
            && !self.nodes.is_empty()
            && self.nodes.iter().all(|node| before.nodes.contains(node))
    }
}
