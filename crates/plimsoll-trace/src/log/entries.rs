//! The entries of one frame, as columns of varints: [`encode`], [`decode`].

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::{Action, Addr, Category, Entry, LabelId, PoolId, StackId, StreamId, Tag};

use super::MOST_ENTRIES;
use crate::own::{Names, Place};

/// An entry as numbers, in the order of the columns.
type Row = [u64; COLUMNS];
const COLUMNS: usize = 12;
/// The columns that are written as differences from the previous entry.
const DIFFERENCES: [usize; 2] = [1, 2];

/// The content of a frame of entries.
pub(super) struct Frame {
    pub(super) lost: u64,
    pub(super) labels: BTreeMap<LabelId, String>,
    pub(super) stacks: BTreeMap<StackId, Vec<Place>>,
    pub(super) entries: Vec<Entry>,
}

/// The payload of a frame with these entries, at most [`MOST_ENTRIES`].
pub(super) fn encode(entries: &[Entry], lost: u64, names: &dyn Names) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, lost);
    let retagged = entries.iter().filter_map(|entry| match entry.action {
        Action::Retag { from } => Some(from.label),
        _ => None,
    });
    let labels = entries.iter().map(|entry| entry.tag.label).chain(retagged);
    let labels: BTreeSet<LabelId> = labels.collect();
    varint(&mut out, labels.len() as u64);
    for &label in &labels {
        varint(&mut out, u64::from(label.0));
        text(&mut out, &names.label(label));
    }
    let stacks: BTreeSet<StackId> = entries.iter().filter_map(|entry| entry.stack).collect();
    varint(&mut out, stacks.len() as u64);
    for &stack in &stacks {
        varint(&mut out, u64::from(stack.0));
        let places = names.places(stack);
        varint(&mut out, places.len() as u64);
        for Place { filename, name, line } in places {
            text(&mut out, &filename);
            text(&mut out, &name);
            varint(&mut out, zigzag(line));
        }
    }
    let rows: Vec<Row> = entries.iter().map(row).collect();
    varint(&mut out, rows.len() as u64);
    for column in 0..COLUMNS {
        let mut before = 0;
        for row in &rows {
            let number = row[column];
            if DIFFERENCES.contains(&column) {
                varint(&mut out, zigzag(number.wrapping_sub(before).cast_signed()));
                before = number;
            } else {
                varint(&mut out, number);
            }
        }
    }
    out
}

/// Decodes a payload; `None` if it is malformed.
pub(super) fn decode(payload: &[u8]) -> Option<Frame> {
    let mut input = Input(payload);
    let lost = input.varint()?;
    let mut labels = BTreeMap::new();
    for _ in 0..input.varint()? {
        labels.insert(LabelId(input.small()?), input.text()?);
    }
    let mut stacks = BTreeMap::new();
    for _ in 0..input.varint()? {
        let id = StackId(input.small()?);
        let mut places = Vec::new();
        for _ in 0..input.varint()? {
            let (filename, name) = (input.text()?, input.text()?);
            places.push(Place { filename, name, line: unzigzag(input.varint()?) });
        }
        stacks.insert(id, places);
    }
    let count = usize::try_from(input.varint()?).ok().filter(|&count| count <= MOST_ENTRIES)?;
    let mut rows: Vec<Row> = vec![[0; COLUMNS]; count];
    for column in 0..COLUMNS {
        let mut before = 0_u64;
        for row in &mut rows {
            let number = input.varint()?;
            row[column] = if DIFFERENCES.contains(&column) {
                before = before.wrapping_add(unzigzag(number).cast_unsigned());
                before
            } else {
                number
            };
        }
    }
    let entries = rows.iter().map(entry).collect::<Option<Vec<_>>>()?;
    input.0.is_empty().then_some(Frame { lost, labels, stacks, entries })
}

fn row(entry: &Entry) -> Row {
    let [action, first, second] = match entry.action {
        Action::Alloc => [0, 0, 0],
        Action::FreeRequested => [1, 0, 0],
        Action::FreeCompleted => [2, 0, 0],
        Action::SegmentAlloc => [3, 0, 0],
        Action::SegmentFree => [4, 0, 0],
        Action::SegmentMap => [5, 0, 0],
        Action::SegmentUnmap => [6, 0, 0],
        Action::Snapshot => [7, 0, 0],
        Action::Oom { device_free_bytes } => [8, device_free_bytes, 0],
        Action::Retag { from } => [9, from.category as u64, u64::from(from.label.0)],
        Action::StepMark { number } => [10, number, 0],
    };
    let Entry { time_us, addr, bytes, stream, pool, tag, stack, .. } = *entry;
    let stack = stack.map_or(0, |stack| u64::from(stack.0) + 1);
    let (category, label) = (tag.category as u64, u64::from(tag.label.0));
    [action, time_us, addr.0, bytes, stream.0, pool.0, pool.1, category, label, stack, first, second]
}

fn entry(row: &Row) -> Option<Entry> {
    let &[action, time_us, addr, bytes, stream, pool, pool_second, category, label, stack, first, second] =
        row;
    let action = match action {
        0 => Action::Alloc,
        1 => Action::FreeRequested,
        2 => Action::FreeCompleted,
        3 => Action::SegmentAlloc,
        4 => Action::SegmentFree,
        5 => Action::SegmentMap,
        6 => Action::SegmentUnmap,
        7 => Action::Snapshot,
        8 => Action::Oom { device_free_bytes: first },
        9 => Action::Retag { from: tag(first, second)? },
        10 => Action::StepMark { number: first },
        _ => return None,
    };
    let stack = stack.checked_sub(1).map(u32::try_from).transpose().ok()?.map(StackId);
    let (addr, stream, pool) = (Addr(addr), StreamId(stream), PoolId(pool, pool_second));
    Some(Entry { time_us, action, addr, bytes, stream, pool, tag: tag(category, label)?, stack })
}

fn tag(category: u64, label: u64) -> Option<Tag> {
    let category = *Category::ALL.get(usize::try_from(category).ok()?)?;
    Some(Tag { category, label: LabelId(u32::try_from(label).ok()?) })
}

pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    varint(out, text.len() as u64);
    out.extend(text.as_bytes());
}

pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Zigzag encoding: small numbers of either sign become small numbers.
fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// The part of a payload that has not been read yet.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}
