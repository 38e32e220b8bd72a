//! Who holds the bytes, now and at the peak: [`Ledger`].
//!
//! It counts whole blocks, so that the categories sum to `allocated_bytes.all` exactly.
//!
//! Note [Peak capture]: the state at the peak is copied late. While the total is at its maximum the current
//! state *is* the state at the peak, retags included; the copy is made right before the first event that
//! lowers the total. A climb of a thousand allocations costs one copy, and the copy reuses its memory.

use std::collections::BTreeMap;

use crate::category::{Category, CategoryBytes};
use crate::event::{Event, Observer};
use crate::request::{LabelId, Tag};

/// What one label holds in one category.
///
/// ```
/// # use plimsoll_alloc::{Category, LabelId, Owner};
/// let owner = Owner { label: LabelId(1), category: Category::Activation, bytes: 1024, blocks: 2 };
/// assert_eq!(owner.bytes / owner.blocks, 512);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Whose blocks.
    pub label: LabelId,
    /// What they are for.
    pub category: Category,
    /// Bytes in them, in whole blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
}

/// Allocated bytes by category and by label, now and at the peak of the total.
///
/// ```
/// use plimsoll_alloc::{Allocator, Category, Config, Ledger, Request, SimDriver};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Ledger::default());
/// let weight = allocator.malloc(Request { category: Category::Parameter, ..Request::of(4 << 20) })?;
/// let scratch = allocator.malloc(Request { category: Category::Workspace, ..Request::of(8 << 20) })?;
/// allocator.free(scratch);
/// let ledger = allocator.observer();
/// assert_eq!(ledger.by_category().total(), 4 << 20);
/// assert_eq!(ledger.by_category_at_peak()[Category::Workspace], 8 << 20);
/// # allocator.free(weight);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// The row of each tag ever seen. Rows are never given up, so that a steady state needs no heap.
    index: BTreeMap<Tag, usize>,
    now: Book,
    /// The state at the peak, unless `at_peak`.
    peak: Book,
    /// Whether `now` is the state at the peak.
    at_peak: bool,
}

impl Ledger {
    /// Allocated bytes by category.
    pub fn by_category(&self) -> CategoryBytes {
        self.now.by_category
    }

    /// Allocated bytes by category when the total was at its peak.
    pub fn by_category_at_peak(&self) -> CategoryBytes {
        self.book_at_peak().by_category
    }

    /// The peak of the total, bytes: `allocated_bytes.all.peak`, when both were reset together.
    pub fn peak_bytes(&self) -> u64 {
        self.book_at_peak().total_bytes
    }

    /// Who holds how much: the largest first, then by label and category.
    pub fn owners(&self) -> Vec<Owner> {
        self.owners_in(&self.now)
    }

    /// Who held how much when the total was at its peak: the largest first, then by label and category.
    pub fn owners_at_peak(&self) -> Vec<Owner> {
        self.owners_in(self.book_at_peak())
    }

    /// Makes the current state the state at the peak.
    pub fn reset_peak(&mut self) {
        self.at_peak = true;
    }

    fn book_at_peak(&self) -> &Book {
        if self.at_peak { &self.now } else { &self.peak }
    }

    fn owners_in(&self, book: &Book) -> Vec<Owner> {
        let mut owners: Vec<Owner> = self
            .index
            .iter()
            .filter_map(|(&Tag { category, label }, &row)| {
                let Held { bytes, blocks } = *book.rows.get(row)?;
                (blocks > 0).then_some(Owner { label, category, bytes, blocks })
            })
            .collect();
        owners.sort_by_key(|owner| (std::cmp::Reverse(owner.bytes), owner.label, owner.category));
        owners
    }

    fn row(&mut self, tag: Tag) -> &mut Held {
        let next = self.now.rows.len();
        let row = *self.index.entry(tag).or_insert(next);
        if row == next {
            self.now.rows.push(Held::default());
        }
        &mut self.now.rows[row]
    }

    fn add(&mut self, tag: Tag, bytes: u64) {
        let held = self.row(tag);
        held.bytes += bytes;
        held.blocks += 1;
        self.now.by_category[tag.category] += bytes;
    }

    fn take(&mut self, tag: Tag, bytes: u64) {
        let held = self.row(tag);
        held.bytes -= bytes;
        held.blocks -= 1;
        self.now.by_category[tag.category] -= bytes;
    }

    /// Note [Peak capture].
    fn leave_peak(&mut self) {
        if self.at_peak {
            self.peak.clone_from(&self.now);
            self.at_peak = false;
        }
    }
}

impl Observer for Ledger {
    fn on(&mut self, event: &Event) {
        match *event {
            Event::Alloc { block, .. } => {
                self.add(block.tag, block.bytes);
                self.now.total_bytes += block.bytes;
                self.at_peak |= self.now.total_bytes > self.peak.total_bytes;
            }
            Event::Free { block, .. } => {
                self.leave_peak();
                self.take(block.tag, block.bytes);
                self.now.total_bytes -= block.bytes;
            }
            Event::Retag { block, from } => {
                self.take(from, block.bytes);
                self.add(block.tag, block.bytes);
            }
            _ => {}
        }
    }
}

/// The ledger's numbers at one time.
#[derive(Debug, Default)]
struct Book {
    total_bytes: u64,
    by_category: CategoryBytes,
    /// By the index of the ledger. A book copied earlier lacks the rows of tags seen later.
    rows: Vec<Held>,
}

impl Clone for Book {
    fn clone(&self) -> Self {
        Self { total_bytes: self.total_bytes, by_category: self.by_category, rows: self.rows.clone() }
    }

    /// Reuses the rows' memory.
    fn clone_from(&mut self, other: &Self) {
        self.total_bytes = other.total_bytes;
        self.by_category = other.by_category;
        self.rows.clone_from(&other.rows);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
}
