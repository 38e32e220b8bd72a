//! Derives segments and blocks from the entries, starting with none: [`LogState`].
//!
//! A history records requests. A block is larger than its request if the remainder was too small to split off
//! ([`Config::cut_bytes`]). Free neighbours are merged, so a free range ends at the next live block or at the end of
//! its segment.

use std::collections::BTreeMap;

use plimsoll_alloc::{
    Action, Addr, BlockState, Config, Entry, PoolId, PoolKind, Segment, SegmentBlock, StreamId, Tag,
};

/// Memory from the device.
#[derive(Clone, Copy)]
struct Range {
    bytes: u64,
    stream: StreamId,
    pool: PoolId,
    is_expandable: bool,
}

/// The memory at one moment.
pub(super) struct LogState {
    config: Config,
    ranges: BTreeMap<u64, Range>,
    /// Blocks that are not free.
    blocks: BTreeMap<u64, SegmentBlock>,
}

impl LogState {
    pub(super) fn new(config: Config) -> Self {
        Self { config, ranges: BTreeMap::new(), blocks: BTreeMap::new() }
    }

    /// Applies an entry. If the entry contradicts the state, which can happen after lost entries, nothing changes.
    pub(super) fn apply(&mut self, entry: &Entry) {
        let addr = entry.addr.0;
        match entry.action {
            Action::Alloc => self.alloc(entry),
            Action::FreeRequested => {
                if let Some(block) = self.blocks.get_mut(&addr) {
                    block.state = BlockState::Pending;
                }
            }
            Action::FreeCompleted => drop(self.blocks.remove(&addr)),
            Action::Retag { .. } => self.retag(addr, entry.tag),
            Action::SegmentAlloc | Action::SegmentMap => self.gain(entry),
            Action::SegmentFree | Action::SegmentUnmap => self.lose(addr, entry.bytes),
            Action::Snapshot | Action::Oom { .. } | Action::StepMark { .. } => {}
        }
    }

    fn retag(&mut self, addr: u64, tag: Tag) {
        if let Some(block) = self.blocks.get_mut(&addr) {
            block.tag = tag;
        }
    }

    fn alloc(&mut self, entry: &Entry) {
        let Entry { addr, bytes: requested_bytes, tag, stack, .. } = *entry;
        let Some((start, range)) = self.range_of(addr.0) else { return };
        let next = self.blocks.range(addr.0 + 1..).next().map_or(u64::MAX, |(&next, _)| next);
        let free_bytes = (start + range.bytes).min(next) - addr.0;
        if requested_bytes > free_bytes.min(1 << 60) {
            return;
        }
        // As in PyTorch, `expandable` comes from the options, not from the segment.
        let bytes = self.config.cut_bytes(requested_bytes, free_bytes, self.config.expandable_segments());
        let state = BlockState::Active;
        self.blocks.insert(addr.0, SegmentBlock { addr, bytes, requested_bytes, state, tag, stack });
    }

    fn range_of(&self, addr: u64) -> Option<(u64, Range)> {
        let (&start, &range) = self.ranges.range(..=addr).next_back()?;
        (addr - start < range.bytes).then_some((start, range))
    }

    /// Adds device memory. Pages of an expandable segment are merged with their neighbours.
    fn gain(&mut self, entry: &Entry) {
        let (mut start, mut bytes) = (entry.addr.0, entry.bytes);
        if start.checked_add(bytes).is_none() {
            return;
        }
        let is_expandable = entry.action == Action::SegmentMap;
        let (stream, pool) = (entry.stream, entry.pool);
        let joins = |range: &Range| range.is_expandable && (range.stream, range.pool) == (stream, pool);
        if is_expandable {
            if let Some((before, range)) =
                self.ranges.range(..start).next_back().map(|(&at, &range)| (at, range))
                && before + range.bytes == start
                && joins(&range)
            {
                (start, bytes) = (before, bytes + range.bytes);
            }
            if let Some(range) = self.ranges.get(&(start + bytes)).copied().filter(joins) {
                self.ranges.remove(&(start + bytes));
                bytes += range.bytes;
            }
        }
        self.ranges.insert(start, Range { bytes, stream, pool, is_expandable });
    }

    fn lose(&mut self, addr: u64, bytes: u64) {
        let Some((start, range)) = self.range_of(addr) else { return };
        let (end, from) = (start + range.bytes, addr.saturating_add(bytes));
        self.ranges.remove(&start);
        if start < addr {
            self.ranges.insert(start, Range { bytes: addr - start, ..range });
        }
        if from < end {
            self.ranges.insert(from, Range { bytes: end - from, ..range });
        }
    }

    /// All segments and their blocks, in address order. The last request of a free block is unknown.
    pub(super) fn segments(&self) -> Vec<Segment> {
        self.ranges.iter().map(|(&start, range)| self.segment(start, range)).collect()
    }

    fn segment(&self, start: u64, range: &Range) -> Segment {
        let end = start + range.bytes;
        let mut blocks = Vec::new();
        let mut at = start;
        let free = |at: u64, end: u64| SegmentBlock {
            addr: Addr(at),
            bytes: end - at,
            requested_bytes: 0,
            state: BlockState::Cached,
            tag: Tag::default(),
            stack: None,
        };
        for (&addr, &block) in self.blocks.range(start..end) {
            if at < addr {
                blocks.push(free(at, addr));
            }
            at = addr + block.bytes;
            blocks.push(block);
        }
        if at < end {
            blocks.push(free(at, end));
        }
        // A segment of 2 MiB belongs to the small half of a pool; segments of the large half are larger.
        let small = if range.is_expandable {
            blocks.iter().all(|block| block.state == BlockState::Cached || block.bytes <= 1 << 20)
        } else {
            range.bytes <= 2 << 20
        };
        let pool = if small { PoolKind::Small } else { PoolKind::Large };
        let (bytes, stream, pool_id, is_expandable) =
            (range.bytes, range.stream, range.pool, range.is_expandable);
        Segment { addr: Addr(start), bytes, stream, pool, pool_id, is_expandable, blocks }
    }
}
