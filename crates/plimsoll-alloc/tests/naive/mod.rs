//! The allocator's rules, implemented as simply as possible: [`Naive`]. No links, no ids, no sorted sets: every query
//! scans all blocks.

use crate::programs::{MIB, Op};

const BASE: u64 = 0x5000_0000_0000;

/// An allocator and its device in one.
pub(crate) struct Naive {
    capacity_bytes: u64,
    limit_bytes: Option<u64>,
    handed_out_bytes: u64,
    segments: Vec<Segment>,
    live: Vec<u64>,
}

struct Segment {
    stream: u64,
    small: bool,
    pieces: Vec<Piece>,
}

struct Piece {
    addr: u64,
    bytes: u64,
    free: bool,
}

impl Naive {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            limit_bytes: None,
            handed_out_bytes: 0,
            segments: Vec::new(),
            live: Vec::new(),
        }
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.segments.iter().flat_map(|segment| &segment.pieces).map(|piece| piece.bytes).sum()
    }

    /// Runs one step. A request returns its address, or None.
    pub(crate) fn step(&mut self, op: Op) -> Option<u64> {
        match op {
            Op::Alloc { bytes: 0, .. } => return Some(0),
            Op::Alloc { bytes, stream } => {
                let addr = self.alloc(bytes, stream);
                self.live.extend(addr);
                return addr;
            }
            Op::Free { nth } if !self.live.is_empty() => {
                let nth = nth % self.live.len();
                let addr = self.live.remove(nth);
                self.free(addr);
            }
            Op::EmptyCache => self.empty_cache(),
            Op::Limit { bytes } => self.limit_bytes = bytes,
            Op::Free { .. } | Op::Retag { .. } | Op::Use { .. } => {}
        }
        None
    }

    fn alloc(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        let bytes = bytes.div_ceil(512) * 512;
        let small = bytes <= MIB;
        let (segment, at) = match self.best_fit(bytes, stream, small) {
            Some(place) => place,
            None => self.add_segment(bytes, stream, small)?,
        };
        let pieces = &mut self.segments[segment].pieces;
        let left = pieces[at].bytes - bytes;
        if left > if small { 0 } else { MIB } {
            pieces.insert(at + 1, Piece { addr: pieces[at].addr + bytes, bytes: left, free: true });
            pieces[at].bytes = bytes;
        }
        pieces[at].free = false;
        Some(pieces[at].addr)
    }

    /// The smallest free piece that holds `bytes`; among equals, the first one in the oldest segment. Segments are in
    /// order of creation.
    fn best_fit(&self, bytes: u64, stream: u64, small: bool) -> Option<(usize, usize)> {
        let mut best: Option<(u64, (usize, usize))> = None;
        for (s, segment) in self.segments.iter().enumerate() {
            for (p, piece) in segment.pieces.iter().enumerate() {
                let serves = segment.stream == stream && segment.small == small && piece.free;
                if serves && piece.bytes >= bytes && best.is_none_or(|(least, _)| piece.bytes < least) {
                    best = Some((piece.bytes, (s, p)));
                }
            }
        }
        best.map(|(_, place)| place)
    }

    fn add_segment(&mut self, bytes: u64, stream: u64, small: bool) -> Option<(usize, usize)> {
        let bytes = match bytes {
            _ if small => 2 * MIB,
            _ if bytes < 10 * MIB => 20 * MIB,
            _ => bytes.div_ceil(2 * MIB) * 2 * MIB,
        };
        let most = self.limit_bytes.unwrap_or(u64::MAX).min(self.capacity_bytes);
        if self.reserved() + bytes > most {
            self.empty_cache();
        }
        if self.reserved() + bytes > most {
            return None;
        }
        let addr = BASE + self.handed_out_bytes;
        self.handed_out_bytes += bytes;
        self.segments.push(Segment { stream, small, pieces: vec![Piece { addr, bytes, free: true }] });
        Some((self.segments.len() - 1, 0))
    }

    fn free(&mut self, addr: u64) {
        for segment in &mut self.segments {
            for piece in segment.pieces.iter_mut().filter(|piece| piece.addr == addr) {
                piece.free = true;
            }
            segment.pieces.dedup_by(|right, left| {
                let merge = left.free && right.free;
                left.bytes += if merge { right.bytes } else { 0 };
                merge
            });
        }
    }

    fn empty_cache(&mut self) {
        self.segments.retain(|segment| segment.pieces.iter().any(|piece| !piece.free));
    }
}
