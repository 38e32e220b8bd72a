//! The state at the beginning of a recording: the segments before the first event, split according to the live blocks.

use plimsoll_alloc::{Addr, Adoption, Allocation, DeviceRange, Piece, PieceState, PoolKind};

use super::run::{Held, Run};
use crate::snapshot::{Action, LifeIndex, SegmentType};
use crate::timeline::{Life, Memory};

/// How far an expandable segment may still grow, if nothing else appears there. Real segments reserve 9/8 of the
/// device's memory. Here, any size that is larger than every block is sufficient.
const ROOM_BYTES: u64 = 1 << 40;
/// In the large half of a pool, a remainder of this size or less stays with the block. So no piece of a segment has
/// this size or less, and a gap of at most this size belongs to the block before it.
const MOST_REST_BYTES: u64 = 1 << 20;
const SMALL_PAGE_BYTES: u64 = 2 << 20;

/// A range of device memory that appears in the recording.
struct Seen {
    memory: DeviceRange,
    page_bytes: Option<u64>,
}

impl Seen {
    fn end(&self) -> u64 {
        self.memory.addr.0.saturating_add(self.memory.bytes)
    }

    fn reach(&mut self, end: u64) {
        self.memory.bytes = end.max(self.end()) - self.memory.addr.0;
    }

    /// Whether these pages and the next ones may be in the same reserved address space.
    fn goes_on_with(&self, next: &Self) -> bool {
        let owner = |it: &Self| (it.memory.stream, it.memory.pool, it.memory.pool_id, it.page_bytes);
        let from_bytes = next.memory.addr.0 - self.memory.addr.0;
        owner(self) == owner(next) && self.page_bytes.is_some_and(|page| from_bytes.is_multiple_of(page))
    }
}

/// A block from before the recording.
struct Block {
    addr: Addr,
    bytes: u64,
    requested_bytes: u64,
    held: Held,
    /// Whether the snapshot has the size. Otherwise, the rounded request counts as the size.
    is_exact: bool,
}

impl Run<'_> {
    /// Imports the state before the first event.
    pub(super) fn begin(&mut self) {
        let blocks = self.blocks_before();
        let before = &self.timeline.memory_before;
        for segment in before.iter().filter(|memory| !memory.is_expandable) {
            let Seen { memory, page_bytes } = self.seen_of(segment);
            self.take_over(memory, page_bytes, std::slice::from_ref(segment), &blocks);
        }
        let pages: Vec<Memory> = before.iter().filter(|memory| memory.is_expandable).copied().collect();
        for Seen { memory, page_bytes } in self.ranges() {
            let end = memory.addr.0.saturating_add(memory.bytes);
            let from = pages.partition_point(|pages| pages.addr < memory.addr);
            let to = pages.partition_point(|pages| pages.addr.0 < end);
            self.take_over(memory, page_bytes, &pages[from..to], &blocks);
        }
        self.replay.unplaced += blocks.len() - self.placed_before;
    }

    /// The blocks before the first event, in address order.
    fn blocks_before(&self) -> Vec<Block> {
        let end = self.timeline.quality.events;
        let block = |life: &Life, held| Block {
            addr: life.addr,
            bytes: life.bytes,
            requested_bytes: life.requested_bytes.get().unwrap_or(life.bytes).min(life.bytes),
            held,
            is_exact: life.completed.is_none_or(|completed| completed.index() == end),
        };
        let held = self.timeline.lives.iter().take_while(|life| life.born.is_none()).enumerate();
        let held = held.filter_map(|(nth, life)| Some(block(life, Held::Life(LifeIndex::new(nth)?))));
        let waiting = self.timeline.waiting_before.iter().enumerate();
        let waiting = waiting.map(|(nth, life)| block(life, Held::Waiting(nth)));
        let mut blocks: Vec<Block> = held.chain(waiting).collect();
        blocks.sort_by_key(|block| block.addr);
        blocks
    }

    /// The address space of every expandable segment in the recording, in address order. Pages of the same stream and
    /// pool are in one segment if no other memory is between them.
    fn ranges(&self) -> Vec<Seen> {
        let of = |action| {
            let places = (0..self.trace.len()).filter(move |&nth| self.trace[nth].action == action);
            places.filter_map(|nth| self.range_of(nth))
        };
        let maps = of(Action::SegmentMap)
            .map(|memory| Seen { memory, page_bytes: Some(self.page_bytes(memory.pool)) });
        let mut seen: Vec<Seen> =
            self.timeline.memory_before.iter().map(|memory| self.seen_of(memory)).chain(maps).collect();
        if seen.iter().all(|seen| seen.page_bytes.is_none()) {
            return Vec::new();
        }
        seen.extend(of(Action::SegmentAlloc).map(|memory| Seen { memory, page_bytes: None }));
        seen.sort_by_key(|seen| seen.memory.addr);
        let starts: Vec<u64> = seen.iter().map(|seen| seen.memory.addr.0).collect();
        let (mut ranges, mut is_apart): (Vec<Seen>, _) = (Vec::new(), true);
        for next in seen {
            let is_paged = next.page_bytes.is_some();
            match ranges.last_mut().filter(|_| is_paged) {
                Some(last) if !is_apart && last.goes_on_with(&next) => last.reach(next.end()),
                Some(last) if next.memory.addr.0 < last.end() => {} // an inconsistent file
                _ if is_paged => ranges.push(next),
                _ => {}
            }
            is_apart = !is_paged;
        }
        for range in &mut ranges {
            let next = starts.get(starts.partition_point(|&start| start < range.end()));
            let room_bytes = next.map_or(ROOM_BYTES, |next| next - range.end()).min(ROOM_BYTES);
            let page_bytes = range.page_bytes.unwrap_or(1);
            range.reach(range.end().saturating_add(room_bytes / page_bytes * page_bytes));
        }
        ranges
    }

    fn seen_of(&self, memory: &Memory) -> Seen {
        let pool = match memory.segment_type {
            SegmentType::Small => PoolKind::Small,
            SegmentType::Large => PoolKind::Large,
        };
        let pool_id = self.pool(memory.pool);
        let Memory { addr, bytes, stream, .. } = *memory;
        let page_bytes = memory.is_expandable.then(|| self.page_bytes(pool));
        Seen { memory: DeviceRange { addr, bytes, stream, pool, pool_id }, page_bytes }
    }

    /// The memory that an event adds, with its half of the pool. Small segments and pages have 2 MiB, large segments
    /// and pages have more.
    pub(super) fn range_of(&self, nth: usize) -> Option<DeviceRange> {
        let event = &self.trace[nth];
        let addr = event.addr()?;
        let pool = if event.size == SMALL_PAGE_BYTES { PoolKind::Small } else { PoolKind::Large };
        let pool_id = self.pool_at(nth, addr);
        Some(DeviceRange { addr, bytes: event.size, stream: event.stream, pool, pool_id })
    }

    fn page_bytes(&self, pool: PoolKind) -> u64 {
        match pool {
            PoolKind::Small => SMALL_PAGE_BYTES,
            PoolKind::Large => self.config.large_segment_bytes(),
        }
    }

    /// Imports one segment, or the address space of an expandable segment, with its blocks.
    fn take_over(
        &mut self,
        memory: DeviceRange,
        page_bytes: Option<u64>,
        mapped: &[Memory],
        blocks: &[Block],
    ) {
        let Some(memory_end) = memory.addr.0.checked_add(memory.bytes) else {
            self.state.stray_segments += 1;
            return;
        };
        let mut pieces = Pieces::default();
        let mut at = memory.addr.0;
        let mut blocks = &blocks[blocks.partition_point(|block| block.addr < memory.addr)..];
        let mut here: Vec<&Block> = Vec::new();
        for run in mapped {
            let (from, end) = (run.addr.0, run.end().0);
            if from < at || end > memory_end {
                continue; // an inconsistent file
            }
            pieces.push(from - at, PieceState::Unmapped);
            at = from;
            while let Some((block, rest)) = blocks.split_first().filter(|(block, _)| block.addr.0 < end) {
                blocks = rest;
                let next = rest.first().map_or(end, |next| next.addr.0.min(end));
                let block_end = block.addr.0.checked_add(block.bytes);
                let fits = at <= block.addr.0 && block_end.is_some_and(|block_end| block_end <= next);
                if !fits {
                    continue;
                }
                pieces.push(block.addr.0 - at, PieceState::Cached);
                let gap_bytes = next - block.addr.0 - block.bytes;
                let may_be_larger = memory.pool == PoolKind::Large && page_bytes.is_none() && !block.is_exact;
                let more_bytes = if may_be_larger { self.rest_of(block, gap_bytes) } else { 0 };
                let bytes = block.bytes + more_bytes;
                here.push(block);
                pieces.list.push(Piece {
                    bytes,
                    state: PieceState::Held { requested_bytes: block.requested_bytes },
                });
                at = block.addr.0 + bytes;
            }
            pieces.push(end - at, PieceState::Cached);
            at = end;
        }
        pieces.push(memory_end - at, PieceState::Unmapped);
        if !self.state.claim(memory) {
            self.state.stray_segments += 1;
            return;
        }
        let adoption = Adoption { memory, page_bytes, pieces: &pieces.list };
        match self.state.allocator.adopt(&adoption) {
            Ok(held) => {
                for (block, allocation) in here.into_iter().zip(held) {
                    self.hold_before(block.held, allocation);
                    self.placed_before += 1;
                }
            }
            Err(_) => {
                self.state.memory.remove(&memory.addr);
                self.state.stray_segments += 1;
            }
        }
    }

    fn hold_before(&mut self, held: Held, allocation: Allocation) {
        match held {
            Held::Life(life) => {
                self.bytes[life.index()] = allocation.bytes();
                self.held[life.index()] = Some(allocation);
            }
            Held::Waiting(nth) => {
                self.waiting_bytes[nth] = allocation.bytes();
                self.waiting_before[nth] = self.state.allocator.free_later(allocation);
            }
        }
    }

    /// The bytes of a block beyond its rounded request, as far as known. A remainder that is too small for a separate
    /// block belongs to the block, and so does any remainder of a block above `max_split_size`. If the gap after the
    /// block is larger, the first block that is placed in the gap shows where it begins.
    fn rest_of(&mut self, block: &Block, gap_bytes: u64) -> u64 {
        let is_whole = self.config.max_split_bytes().is_some_and(|most| block.bytes >= most);
        if gap_bytes <= MOST_REST_BYTES || is_whole {
            return gap_bytes;
        }
        let from = block.addr.0 + block.bytes;
        if let Some(&begins) = self.first_in_gap.get(&Addr(from)) {
            return begins.0 - from;
        }
        self.replay.inexact += 1;
        self.replay.inexact_bytes += MOST_REST_BYTES;
        0
    }
}

/// Pieces in address order. No two neighbours have the same state.
#[derive(Default)]
struct Pieces {
    list: Vec<Piece>,
}

impl Pieces {
    /// Adds bytes that belong to no block.
    fn push(&mut self, bytes: u64, state: PieceState) {
        match self.list.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.state == state => last.bytes += bytes,
            _ => self.list.push(Piece { bytes, state }),
        }
    }
}
