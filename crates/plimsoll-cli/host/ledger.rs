//! The large pieces of memory that the process has: [`Ledger`], a table by address.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::owners::{MOST, Owner};
use crate::spin::Spin;

/// Smaller requests are not recorded.
pub(crate) const LARGE: usize = 1 << 20;

/// The number of places in the table.
const PLACES: usize = 1 << 16;

/// The kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Anonymous memory.
    Private,
    /// Pinned memory, which the GPU can copy from and to. On the training machine, all of it is resident.
    Pinned,
    /// Memory shared by several processes, without a file.
    Shared,
    /// Pages of a file, which the kernel can drop.
    File,
}

const KINDS: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) begin: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
}

const NONE: Piece = Piece { begin: 0, bytes: 0, kind: Kind::Private, owner: Owner::OTHER };

pub(crate) struct Ledger {
    pieces: [Piece; PLACES],
    count: usize,
    by_kind: [u64; KINDS],
    /// The most bytes of pinned memory so far.
    most_pinned: u64,
    /// Pages of files are counted separately.
    by_owner: [u64; MOST],
    by_file: [u64; MOST],
}

pub(crate) static LEDGER: Spin<Ledger> = Spin::new(Ledger {
    pieces: [NONE; PLACES],
    count: 0,
    by_kind: [0; KINDS],
    most_pinned: 0,
    by_owner: [0; MOST],
    by_file: [0; MOST],
});

/// Requested bytes that must be resident; can be read without the lock.
pub(crate) static REQUESTED: AtomicU64 = AtomicU64::new(0);

fn home(begin: u64) -> usize {
    ((begin >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % PLACES
}

impl Ledger {
    fn find(&self, begin: u64) -> Option<usize> {
        let mut at = home(begin);
        while self.pieces[at].begin != 0 {
            if self.pieces[at].begin == begin {
                return Some(at);
            }
            at = (at + 1) % PLACES;
        }
        None
    }

    fn owned_by(&mut self, piece: Piece) -> &mut u64 {
        let table = if piece.kind == Kind::File { &mut self.by_file } else { &mut self.by_owner };
        &mut table[usize::from(piece.owner.0)]
    }

    fn count_in(&mut self, piece: Piece) {
        self.by_kind[piece.kind as usize] += piece.bytes;
        self.most_pinned = self.most_pinned.max(self.bytes(Kind::Pinned));
        *self.owned_by(piece) += piece.bytes;
        if piece.kind != Kind::File {
            REQUESTED.fetch_add(piece.bytes, Ordering::Relaxed);
        }
    }

    fn count_out(&mut self, piece: Piece) {
        self.by_kind[piece.kind as usize] -= piece.bytes;
        *self.owned_by(piece) -= piece.bytes;
        if piece.kind != Kind::File {
            REQUESTED.fetch_sub(piece.bytes, Ordering::Relaxed);
        }
    }

    /// Adds a piece. If the table is full, the piece is not recorded, and counts as one of the small requests.
    pub(crate) fn add(&mut self, piece: Piece) {
        self.remove(piece.begin);
        if piece.begin == 0 || self.count >= PLACES * 3 / 4 {
            return;
        }
        let mut at = home(piece.begin);
        while self.pieces[at].begin != 0 {
            at = (at + 1) % PLACES;
        }
        self.pieces[at] = piece;
        self.count += 1;
        self.count_in(piece);
    }

    /// Removes the piece that begins there, if there is one.
    pub(crate) fn remove(&mut self, begin: u64) -> Option<Piece> {
        let mut gap = self.find(begin)?;
        let piece = self.pieces[gap];
        self.pieces[gap] = NONE;
        self.count -= 1;
        self.count_out(piece);
        // Moves entries that were placed after it because their own place was taken.
        let mut at = (gap + 1) % PLACES;
        while self.pieces[at].begin != 0 {
            let wanted = home(self.pieces[at].begin);
            if (at + PLACES - wanted) % PLACES >= (at + PLACES - gap) % PLACES {
                self.pieces[gap] = std::mem::replace(&mut self.pieces[at], NONE);
                gap = at;
            }
            at = (at + 1) % PLACES;
        }
        Some(piece)
    }

    /// Changes the owner, and the kind if one is given, of the piece that begins there.
    pub(crate) fn own(&mut self, begin: u64, owner: Owner, kind: Option<Kind>) {
        let Some(at) = self.find(begin) else { return };
        let before = self.pieces[at];
        let after = Piece { owner, kind: kind.unwrap_or(before.kind), ..before };
        self.count_out(before);
        self.pieces[at] = after;
        self.count_in(after);
    }

    pub(crate) fn at(&self, begin: u64) -> Option<Piece> {
        self.find(begin).map(|at| self.pieces[at])
    }

    pub(crate) fn bytes(&self, kind: Kind) -> u64 {
        self.by_kind[kind as usize]
    }

    pub(crate) fn most_pinned(&self) -> u64 {
        self.most_pinned
    }

    pub(crate) fn owned(&self) -> &[u64; MOST] {
        &self.by_owner
    }

    pub(crate) fn files(&self) -> &[u64; MOST] {
        &self.by_file
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.begin != 0)
    }

    /// In a forked child, forgets the pieces of the parent: the pages belong to the parent until one of the two processes
    /// writes to them.
    pub(crate) fn inherit(&mut self) {
        if self.count > 0 {
            // Only these entries are written, so that few pages are copied for the child.
            self.pieces.iter_mut().filter(|piece| piece.begin != 0).for_each(|piece| *piece = NONE);
        }
        (self.count, self.by_kind, self.most_pinned) = (0, [0; KINDS], 0);
        (self.by_owner, self.by_file) = ([0; MOST], [0; MOST]);
        REQUESTED.store(0, Ordering::Relaxed);
    }
}
