//! The device's memory at many moments, as cells of equally many bytes: [`json`].
//!
//! A segment is a run of cells. A cell tells what most of what is held in it is for, and how much is held: a
//! small block in a large hole still shows, for that is what pins it.

use hashbrown::HashMap;
use serde_json::{Value, json};

use super::Report;
use super::buckets::{KINDS, kind};
use super::moments::{Keys, Names};
use super::numbers::{GRAIN_BYTES, count, grains, octets, words};
use crate::explain::{DeviceExplanation, SegmentState, State, States, Use};
use crate::snapshot::{EventIndex, LifeIndex, SegmentType};
use crate::timeline::Memory;

/// Segments that are shown at one moment, the largest.
const SEGMENTS: usize = 500;
/// The kind of blocks that wait for a stream, behind the categories.
const WAITING: usize = KINDS;
/// Shares of a cell that can be told.
const SIXTEENTHS: u64 = 15;

/// What is held in one cell.
#[derive(Clone, Copy, Default)]
struct Cell {
    bytes: [u64; KINDS + 1],
    /// The block that holds the most of it.
    largest: Option<(u64, LifeIndex)>,
}

/// The memory at each moment. `cells` has a byte for each cell of each segment of each moment in order: the
/// kind in the low half, in the high one the share that is held. At the explained moment, `lines` names each
/// cell's largest block: 0 for none, else one more than its place in `names`.
pub(super) fn json(
    report: &Report<'_>,
    device: &DeviceExplanation,
    keys: &Keys,
    moments: &[Option<EventIndex>],
    most_cells: u64,
) -> Value {
    let timeline = &device.timeline;
    let cell_bytes = timeline.peak_reserved.level.reserved_bytes.div_ceil(most_cells.max(1));
    let cell_bytes = cell_bytes.checked_next_power_of_two().unwrap_or(1 << 63).max(GRAIN_BYTES);
    let mut states = States::new(timeline, report.snapshot.trace(timeline.device));
    let (mut names, mut lines) = (Names::default(), Vec::new());
    let (mut known, mut memories): (HashMap<_, u32>, Vec<Memory>) = (HashMap::new(), Vec::new());
    let (mut segments, mut segment_ends, mut cells, mut hidden) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for &moment in moments {
        let state = states.at(moment);
        let shown = largest(&state, cell_bytes, 4 * most_cells);
        for segment in &shown {
            let memory = segment.memory;
            segments.push(
                *known.entry((memory.addr, memory.bytes, memory.stream, memory.pool)).or_insert_with(|| {
                    memories.push(memory);
                    memories.len() as u32 - 1
                }),
            );
            for (nth, cell) in cut(device, &state, segment, cell_bytes).iter().enumerate() {
                let begins = cell_bytes * nth as u64;
                cells.push(cell.code((memory.bytes - begins).min(cell_bytes)));
                if moment == device.moment() {
                    let line = cell.largest.map(|(_, life)| names.id(report, keys.line_of(life)));
                    lines.push(line.map_or(0, |line| line + 1));
                }
            }
        }
        hidden.push(count(state.segments.len() - shown.len()));
        segment_ends.push(count(segments.len()));
    }
    json!({
        "cellBytes": cell_bytes,
        "memories": {
            "addr": memories.iter().map(|memory| format!("{:#x}", memory.addr.0)).collect::<Vec<_>>(),
            "bytes": words(memories.iter().map(|memory| grains(memory.bytes))),
            "what": octets(memories.iter().map(|memory| {
                u8::from(memory.segment_type == SegmentType::Large) + 2 * u8::from(memory.is_expandable)
            })),
        },
        "segments": words(segments),
        "ends": words(segment_ends),
        "hidden": words(hidden),
        "cells": octets(cells),
        "lines": words(lines),
        "names": names.json(),
    })
}

/// The largest segments, by address, of at most so many cells: a file may claim segments of any size.
fn largest(state: &State, cell_bytes: u64, mut cells: u64) -> Vec<&SegmentState> {
    let mut segments: Vec<&SegmentState> = state.segments.iter().collect();
    segments.sort_by_key(|segment| (std::cmp::Reverse(segment.memory.bytes), segment.memory.addr));
    segments.retain(|segment| {
        let left = cells.checked_sub(segment.memory.bytes.div_ceil(cell_bytes));
        cells = left.unwrap_or(cells);
        left.is_some()
    });
    segments.truncate(SEGMENTS);
    segments.sort_by_key(|segment| segment.memory.addr);
    segments
}

/// Lays the pieces of a segment into its cells.
fn cut(device: &DeviceExplanation, state: &State, segment: &SegmentState, cell_bytes: u64) -> Vec<Cell> {
    let memory = segment.memory;
    let mut cells = vec![Cell::default(); memory.bytes.div_ceil(cell_bytes) as usize];
    for piece in state.pieces_of(segment) {
        let (kind, life) = match piece.usage {
            Use::Live(life) => (kind(device.purposes.get(life).category), Some(life)),
            Use::Waiting(life) => (WAITING, life),
            Use::Uncut | Use::Cached => continue,
        };
        let from = piece.addr.0.saturating_sub(memory.addr.0);
        let to = from.saturating_add(piece.bytes).min(memory.bytes);
        let first = (from / cell_bytes) as usize;
        for (nth, cell) in (first as u64..).zip(cells.iter_mut().skip(first)) {
            let begins = nth * cell_bytes;
            if begins >= to {
                break;
            }
            let bytes = to.min(begins.saturating_add(cell_bytes)) - from.max(begins);
            cell.bytes[kind] += bytes;
            cell.largest = cell.largest.max(life.map(|life| (bytes, life)));
        }
    }
    cells
}

impl Cell {
    /// The byte that tells it, `of` being its own bytes.
    fn code(&self, of: u64) -> u8 {
        let held: u64 = self.bytes.iter().sum();
        let share = (u128::from(held) * u128::from(SIXTEENTHS)).div_ceil(u128::from(of.max(1)));
        let most = (0..=KINDS).rev().max_by_key(|&kind| self.bytes[kind]).unwrap_or(0);
        (share.min(u128::from(SIXTEENTHS)) as u8) << 4 | most as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_tells_its_largest_kind_and_that_anything_is_held_at_all() {
        let mut cell = Cell::default();
        assert_eq!(cell.code(4096) >> 4, 0);
        (cell.bytes[2], cell.bytes[4]) = (1, 2);
        assert_eq!(cell.code(1 << 40), 1 << 4 | 4);
        cell.bytes[2] = 4094;
        assert_eq!(cell.code(4096), 15 << 4 | 2);
    }
}
