//! Who held the memory at many moments: [`Moments`], the largest lines of each, in one walk.

use hashbrown::HashMap;
use plimsoll_alloc::Category;
use serde_json::{Value, json};

use super::Report;
use super::buckets::{Buckets, kind, number};
use super::flow::{Change, Ends, Flow};
use super::numbers::{grains, words};
use super::text::clipped;
use crate::explain::DeviceExplanation;
use crate::render::words as say;
use crate::snapshot::{EventIndex, FrameId};

/// Lines that are named at one moment.
const LINES: usize = 10;

/// The moments that are explained, ascending: the highest of each stretch, and those that the page speaks of.
pub(super) fn moments(device: &DeviceExplanation, buckets: &Buckets, most: usize) -> Vec<Option<EventIndex>> {
    let mut moments: Vec<_> = buckets.highest(most).collect();
    moments.extend([device.moment(), device.timeline.peak_allocated.after]);
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// Each life's line and category, as a number that many lives share.
pub(super) struct Keys {
    of_life: Vec<u32>,
    keys: Vec<(Option<FrameId>, Option<Category>)>,
}

impl Keys {
    pub(super) fn of(report: &Report<'_>, device: &DeviceExplanation) -> Self {
        let (mut known, mut keys) = (HashMap::new(), Vec::new());
        let key_of = |(place, life): (usize, &crate::timeline::Life)| {
            let index = crate::snapshot::LifeIndex::new(place);
            let category = index.and_then(|index| device.purposes.get(index).category);
            let key = (report.origins.get(life.stack).line, category);
            *known.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len() as u32 - 1
            })
        };
        let of_life = device.timeline.lives.iter().enumerate().map(key_of).collect();
        Self { of_life, keys }
    }

    pub(super) fn line_of(&self, life: crate::snapshot::LifeIndex) -> Option<FrameId> {
        self.keys[self.of_life[life.index()] as usize].0
    }
}

/// The texts of one part of the page, each told once.
#[derive(Default)]
pub(super) struct Names {
    known: HashMap<Option<FrameId>, u32>,
    names: Vec<String>,
}

impl Names {
    pub(super) fn id(&mut self, report: &Report<'_>, line: Option<FrameId>) -> u32 {
        let names = &mut self.names;
        *self.known.entry(line).or_insert_with(|| {
            let name = line.map_or_else(
                || "no line of Python".to_owned(),
                |frame| clipped(&say::line(report.snapshot, frame)),
            );
            names.push(name);
            names.len() as u32 - 1
        })
    }

    pub(super) fn json(self) -> Value {
        self.names.into()
    }
}

/// The largest lines at each moment: four numbers each, name, kind, bytes, blocks; `rows` tells where the rows
/// of each moment end.
pub(super) fn json(
    report: &Report<'_>,
    device: &DeviceExplanation,
    ends: &Ends,
    keys: &Keys,
    moments: &[Option<EventIndex>],
) -> Value {
    let mut sums = vec![(0_u64, 0_u32); keys.keys.len()];
    let mut flow = Flow::new(&device.timeline, ends);
    let (mut names, mut rows, mut row_ends) = (Names::default(), Vec::new(), Vec::new());
    for &moment in moments {
        flow.until(moment, |change| {
            let (Change::Comes(life) | Change::Goes(life)) = change;
            let bytes = device.timeline.lives[life.index()].bytes;
            let (sum, blocks) = &mut sums[keys.of_life[life.index()] as usize];
            (*sum, *blocks) = match change {
                Change::Comes(_) => (sum.saturating_add(bytes), *blocks + 1),
                Change::Goes(_) => (sum.saturating_sub(bytes), blocks.saturating_sub(1)),
            };
        });
        let held = sums.iter().enumerate().filter(|(_, (_, blocks))| *blocks > 0);
        let mut held: Vec<_> = held.map(|(key, &(bytes, blocks))| (bytes, key, blocks)).collect();
        held.sort_unstable_by_key(|&(bytes, key, _)| (std::cmp::Reverse(bytes), key));
        for (bytes, key, blocks) in held.into_iter().take(LINES) {
            let (line, category) = keys.keys[key];
            rows.extend([names.id(report, line), kind(category) as u32, grains(bytes), blocks]);
        }
        row_ends.push(rows.len() as u32 / 4);
    }
    json!({
        "at": words(moments.iter().map(|&moment| number(moment))),
        "ends": words(row_ends),
        "rows": words(rows),
        "names": names.json(),
    })
}
