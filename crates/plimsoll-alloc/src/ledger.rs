//! Allocated bytes by owner, now and at the peak: [`Ledger`].
//!
//! It counts block sizes, not requested sizes, so that the categories sum to `allocated_bytes.all` exactly.
//!
//! Note [Peak capture]: the state at the peak is copied late. While the total is at its maximum, the current state *is*
//! the state at the peak, retags included. The copy is made just before the first event that lowers the total. A run of
//! a thousand allocations costs one copy, and the copy reuses its memory.

use std::collections::BTreeMap;

use crate::category::{Category, CategoryBytes};
use crate::event::{Event, Observer};
use crate::request::{LabelId, Tag};

/// The allocations of one label in one category.
///
/// ```
/// # use plimsoll_alloc::{Category, LabelId, Owner};
/// let owner = Owner { label: LabelId(1), category: Category::Activation, bytes: 1024, blocks: 2 };
/// assert_eq!(owner.bytes / owner.blocks, 512);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The label.
    pub label: LabelId,
    /// The category.
    pub category: Category,
    /// Allocated bytes, in whole blocks.
    pub bytes: u64,
    /// The number of blocks.
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
    index: Index,
    now: Book,
    /// The state at the peak; out of date while `at_peak`.
    peak: Book,
    /// Whether `now` is the state at the peak.
    at_peak: bool,
}

impl Ledger {
    /// Allocated bytes by category. The cost grows with the number of tags ever seen.
    pub fn by_category(&self) -> CategoryBytes {
        self.by_category_in(&self.now)
    }

    /// Allocated bytes by category at the peak of the total.
    pub fn by_category_at_peak(&self) -> CategoryBytes {
        self.by_category_in(self.book_at_peak())
    }

    /// The peak of the total, bytes: `allocated_bytes.all.peak`, when both were reset together.
    pub fn peak_bytes(&self) -> u64 {
        self.book_at_peak().total_bytes
    }

    /// Allocated bytes by owner: largest first, then in the order of labels and categories.
    pub fn owners(&self) -> Vec<Owner> {
        self.owners_in(&self.now)
    }

    /// Allocated bytes by owner at the peak: largest first, then in the order of labels and categories.
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

    /// The allocations of each tag. An older copy lacks the rows of newer tags.
    fn rows<'a>(&'a self, book: &'a Book) -> impl Iterator<Item = (Tag, Held)> + 'a {
        self.index.tags.iter().copied().zip(book.rows.iter().copied())
    }

    fn by_category_in(&self, book: &Book) -> CategoryBytes {
        let mut by_category = CategoryBytes::default();
        for (tag, held) in self.rows(book) {
            by_category[tag.category] += held.bytes;
        }
        by_category
    }

    fn owners_in(&self, book: &Book) -> Vec<Owner> {
        let held = self.rows(book).filter(|(_, held)| held.blocks > 0);
        let mut owners: Vec<Owner> = held
            .map(|(Tag { category, label }, Held { bytes, blocks })| Owner { label, category, bytes, blocks })
            .collect();
        owners.sort_by_key(|owner| (std::cmp::Reverse(owner.bytes), owner.label, owner.category));
        owners
    }

    #[inline(always)] // as `on`
    fn row(&mut self, tag: Tag) -> &mut Held {
        let row = self.index.row(tag).unwrap_or_else(|| self.add_row(tag));
        &mut self.now.rows[row as usize]
    }

    #[cold]
    fn add_row(&mut self, tag: Tag) -> u32 {
        self.now.rows.push(Held::default());
        self.index.add(tag)
    }

    #[inline]
    fn add(&mut self, tag: Tag, bytes: u64) {
        let held = self.row(tag);
        held.bytes += bytes;
        held.blocks += 1;
    }

    #[inline]
    fn take(&mut self, tag: Tag, bytes: u64) {
        let held = self.row(tag);
        held.bytes -= bytes;
        held.blocks -= 1;
    }

    /// Copies the state at the peak: Note [Peak capture].
    #[cold]
    fn leave_peak(&mut self) {
        self.peak.clone_from(&self.now);
        self.at_peak = false;
    }
}

impl Observer for Ledger {
    #[inline(always)] // the match then reduces to the arm of the caller's event
    fn on(&mut self, event: &Event) {
        match *event {
            Event::Alloc { block, .. } => {
                self.add(block.tag, block.bytes);
                self.now.total_bytes += block.bytes;
                self.at_peak |= self.now.total_bytes > self.peak.total_bytes;
            }
            Event::Free { block, .. } => {
                if self.at_peak {
                    self.leave_peak();
                }
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

/// The row number of each tag ever seen. Rows are never removed, so a steady state does not allocate from the heap.
#[derive(Debug, Clone, Default)]
struct Index {
    /// The tag of each row.
    tags: Vec<Tag>,
    /// The row number plus 1 for each label and category; 0 for a tag never seen.
    near: Vec<[u32; Category::ALL.len()]>,
    /// The row number for labels too large for the table.
    far: BTreeMap<Tag, u32>,
}

impl Index {
    /// Labels below this are in the table. Callers number labels from 0, so the table stays small; larger labels go to
    /// the map.
    const NEAR_LABELS: u32 = 1 << 16;

    #[inline]
    fn row(&self, tag: Tag) -> Option<u32> {
        match self.near.get(tag.label.0 as usize) {
            Some(rows) => rows[tag.category as usize].checked_sub(1),
            None => self.far_row(tag),
        }
    }

    #[cold]
    fn far_row(&self, tag: Tag) -> Option<u32> {
        self.far.get(&tag).copied()
    }

    fn add(&mut self, tag: Tag) -> u32 {
        let row = self.tags.len() as u32;
        self.tags.push(tag);
        if tag.label.0 < Self::NEAR_LABELS {
            let label = tag.label.0 as usize;
            if label >= self.near.len() {
                self.near.resize(label + 1, Default::default());
            }
            self.near[label][tag.category as usize] = row + 1;
        } else {
            self.far.insert(tag, row);
        }
        row
    }
}

/// The ledger's figures at one time.
#[derive(Debug, Default)]
struct Book {
    total_bytes: u64,
    /// Indexed by the row numbers of [`Index`].
    rows: Vec<Held>,
}

impl Clone for Book {
    fn clone(&self) -> Self {
        Self { total_bytes: self.total_bytes, rows: self.rows.clone() }
    }

    /// Reuses the rows' memory.
    fn clone_from(&mut self, other: &Self) {
        self.total_bytes = other.total_bytes;
        self.rows.clone_from(&other.rows);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
}
