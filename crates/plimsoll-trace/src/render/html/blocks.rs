//! The blocks, from which the page computes the live memory after any event: [`json`]. For a long recording, these are
//! only the largest blocks, but always include those that are live at the moments that the page mentions.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde_json::{Value, json};

use super::boxes::{Boxes, Label, Names};
use super::buckets::number;
use super::kinds::kind;
use super::numbers::{count, floats, grains, octets, words};
use crate::explain::{DeviceExplanation, ShownCategory};
use crate::render::Report;
use crate::snapshot::{LifeIndex, StackId};
use crate::timeline::Life;

/// The maximum number of listed blocks that wait for a stream; the largest are listed.
const WAITING: usize = 4000;
/// The end of a block that still exists when the recording ends.
const NEVER: u32 = u32::MAX;

/// The blocks as JSON, at most `most` of them, with at most `most_boxes` boxes of stacks. For each block, the JSON has
/// the moments at which it is allocated and freed, its address, its bytes and a key; the key has a box, a kind and the
/// name of a line.
pub(super) fn json(report: &Report<'_>, device: &DeviceExplanation, most: usize, most_boxes: usize) -> Value {
    let timeline = &device.timeline;
    let (chosen, left_out) = chosen(device, most);
    let (mut boxes, mut keys, mut names) = (Boxes::default(), Keys::default(), Names::default());
    let key_of = chosen.iter().map(|&index| {
        let life = &timeline.lives[index.index()];
        let key = {
            let category = device.purposes.shown(index, life, report.origins).0;
            keys.key(report, &mut boxes, (life.stack, category))
        };
        boxes.add(keys.keys[key as usize].leaf, life.bytes);
        key
    });
    let key_of: Vec<u32> = key_of.collect();
    let cut = boxes.cut(most_boxes);
    let lives = || chosen.iter().map(|index| &timeline.lives[index.index()]);
    let keys = keys.keys;
    json!({
        "blocks": {
            "from": words(lives().map(|life| number(life.born))),
            "to": words(lives().map(|life| life.freed.map_or(NEVER, |freed| number(Some(freed))))),
            "addr": floats(lives().map(|life| life.addr.0 as f64)),
            "bytes": words(lives().map(|life| grains(life.bytes))),
            "key": words(key_of),
            "leftOut": left_out,
        },
        "waiting": waiting(device),
        "keys": {
            "box": words(keys.iter().map(|key| cut.places[key.leaf])),
            "kind": octets(keys.iter().map(|key| kind(report.origins, key.category) as u8)),
            "line": words(keys.iter().map(|key| names.id(report, key.line))),
        },
        "boxes": cut.json(report, &mut names),
        "names": names.json(),
    })
}

/// The blocks to list, and how many are left out. Blocks that are live at the explained moment and at the peak are
/// preferred, then the largest.
fn chosen(device: &DeviceExplanation, most: usize) -> (Vec<LifeIndex>, usize) {
    let timeline = &device.timeline;
    let moments = [device.moment(), timeline.peak_allocated.after];
    let rank = |&index: &LifeIndex| {
        let life = &timeline.lives[index.index()];
        (Reverse((moments.map(|moment| life.is_held_after(moment)), life.bytes)), index)
    };
    let lives = (0..).map_while(LifeIndex::new).zip(&timeline.lives);
    // A block is never live if the event that allocated it also ended it, because another block is at its address.
    let held = lives.filter(|(_, life)| life.freed.is_none_or(|freed| life.born < Some(freed)));
    let mut chosen: Vec<LifeIndex> = held.map(|(index, _)| index).collect();
    let left_out = chosen.len().saturating_sub(most);
    if left_out > 0 {
        chosen.select_nth_unstable_by_key(most, rank);
        chosen.truncate(most);
        chosen.sort_unstable();
    }
    (chosen, left_out)
}

/// The freed blocks that wait until a stream no longer uses them, as JSON.
fn waiting(device: &DeviceExplanation) -> Value {
    let timeline = &device.timeline;
    let after = timeline.lives.iter().filter_map(|life| {
        let (from, to) = (number(Some(life.freed?)), life.completed.map_or(NEVER, |end| number(Some(end))));
        (to > from.saturating_add(1)).then_some((from, to, life))
    });
    let before = timeline.waiting_before.iter().map(|life| {
        let to = life.completed.map_or(NEVER, |end| number(Some(end)));
        (0, to, life)
    });
    let mut rows: Vec<(u32, u32, &Life)> = before.chain(after).collect();
    rows.sort_by_key(|(from, _, life)| (Reverse(life.bytes), *from));
    rows.truncate(WAITING);
    json!({
        "from": words(rows.iter().map(|row| row.0)),
        "to": words(rows.iter().map(|row| row.1)),
        "addr": floats(rows.iter().map(|row| row.2.addr.0 as f64)),
        "bytes": words(rows.iter().map(|row| grains(row.2.bytes))),
    })
}

/// The properties that many blocks share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    leaf: usize,
    line: Label,
    category: ShownCategory,
}

#[derive(Default)]
struct Keys {
    keys: Vec<Key>,
    places: HashMap<Key, u32>,
    known: HashMap<(Option<StackId>, ShownCategory), u32>,
}

impl Keys {
    fn key(&mut self, report: &Report<'_>, boxes: &mut Boxes, of: (Option<StackId>, ShownCategory)) -> u32 {
        if let Some(&key) = self.known.get(&of) {
            return key;
        }
        let (stack, category) = of;
        let line = report.origins.get(stack).line.map_or(Label::NoPython, Label::User);
        let key = Key { leaf: boxes.leaf(report, stack), line, category };
        let keys = &mut self.keys;
        let place = *self.places.entry(key).or_insert_with(|| {
            keys.push(key);
            count(keys.len() - 1)
        });
        self.known.insert(of, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{explained, recording};
    use super::*;

    #[test]
    fn blocks_of_the_explained_moment_are_listed_however_few_may_be() {
        let snapshot = recording(5000);
        let (_, device) = explained(&snapshot);
        let held = device.held().count();
        let all = chosen(&device, usize::MAX);
        assert_eq!(all.1, 0);
        for most in [held, held + 1, 2 * held] {
            let (chosen, left_out) = chosen(&device, most);
            assert_eq!((chosen.len(), left_out), (most, all.0.len() - most));
            let is_held =
                |index: &&LifeIndex| device.timeline.lives[index.index()].is_held_after(device.moment());
            assert_eq!(chosen.iter().filter(is_held).count(), held);
            assert!(chosen.is_sorted());
        }
    }
}
