//! A device whose streams are captured into graphs: [`Graphs`].

use std::collections::BTreeMap;

use plimsoll_alloc::{Addr, Captured, Driver, DriverError, MemoryInfo, NodeId, SimDriver, StreamId};

/// Segments of a simulated device, and captures as lists of nodes.
pub(crate) struct Graphs {
    driver: SimDriver,
    /// The caller's current stream.
    pub(crate) current: StreamId,
    captured: BTreeMap<StreamId, Captured>,
    captures: u64,
    /// The dependencies of each node. A node's id is its index.
    nodes: Vec<Vec<NodeId>>,
    /// Whether queries about captures fail.
    pub(crate) refuses: bool,
}

impl Graphs {
    pub(crate) fn with_capacity(bytes: u64) -> Self {
        let driver = SimDriver::with_capacity(bytes);
        Self {
            driver,
            current: StreamId(0),
            captured: BTreeMap::new(),
            captures: 0,
            nodes: Vec::new(),
            refuses: false,
        }
    }

    pub(crate) fn capture_of(&self, stream: StreamId) -> Option<u64> {
        self.captured.get(&stream).map(|captured| captured.capture)
    }

    /// Runs one piece of work: `capture` or `endcapture` of a stream and all streams that joined it, a `kernel` on the
    /// stream, or a `wait` for the work now on another stream, which makes the stream join the other's capture.
    pub(crate) fn work(&mut self, work: &str, stream: StreamId, other: StreamId) {
        match work {
            "capture" => {
                self.captures += 1;
                let capture = self.captures;
                self.captured.insert(stream, Captured { capture, tail: Vec::new() });
            }
            "endcapture" => {
                let capture = self.captured[&stream].capture;
                self.captured.retain(|_, captured| captured.capture != capture);
            }
            "kernel" => {
                if let Some(captured) = self.captured.get_mut(&stream) {
                    let node = NodeId(self.nodes.len() as u64);
                    self.nodes.push(std::mem::replace(&mut captured.tail, vec![node]));
                }
            }
            "wait" => {
                if let Some(theirs) = self.captured.get(&other).cloned() {
                    let ours = self.captured.entry(stream).or_insert(theirs.clone());
                    assert_eq!(ours.capture, theirs.capture, "one capture cannot wait for another");
                    ours.tail.extend(theirs.tail);
                    ours.tail.sort_unstable();
                    ours.tail.dedup();
                }
            }
            _ => panic!("what is {work}?"),
        }
    }
}

impl Driver for Graphs {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.driver.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.driver.segment_free(addr)
    }

    fn is_capturing(&self) -> bool {
        self.captured.contains_key(&self.current)
    }

    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, DriverError> {
        if self.refuses {
            return Err(DriverError::Failed("no".into()));
        }
        Ok(self.captured.get(&stream).cloned())
    }

    fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DriverError> {
        Ok(self.nodes[node.0 as usize].clone())
    }

    fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }
}
