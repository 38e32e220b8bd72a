//! Assembles the snapshot from its records after the file is read.

use std::ops::Range;

use hashbrown::HashMap;
use plimsoll_alloc::Addr;

use super::objects::{List, Objects, natural, too_many_categories};
use super::value::Value;
use crate::error::Why;
use crate::snapshot::{Block, CategoryId, Event, Key, KeySet, Kind, Segment, Setting, Snapshot, TextId};

/// The maximum nesting depth of settings; PyTorch has two levels.
const DEEPEST_SETTING: u32 = 8;
/// The maximum number of settings; PyTorch has about thirty.
const MOST_SETTINGS: u64 = 4096;

impl Objects {
    /// Assembles the snapshot from the outermost value.
    pub(crate) fn assemble(mut self, top: Value) -> Result<Snapshot, Why> {
        self.all_complete()?;
        let pairs = match top {
            Value::Dict(at, _) => std::mem::take(&mut self.dicts[at as usize]),
            Value::EmptyList(_) => return Ok(self.snapshot),
            Value::List(..) => {
                self.snapshot.segments = self.segments_of(Key::Segments, top)?;
                return Ok(self.snapshot);
            }
            other => return Err(Why::Top(other.what())),
        };
        let has = |wanted| pairs.iter().any(|(text, _)| Key::of(*text) == Some(wanted));
        if !has(Key::Segments) && !has(Key::DeviceTraces) {
            return Err(Why::Top("a dict without them"));
        }
        let mut traces = Vec::new();
        for (text, value) in pairs {
            let Some(key) = Key::of(text) else {
                self.snapshot.facts.ignore(Kind::Snapshot, text);
                continue;
            };
            self.snapshot.facts.see(Kind::Snapshot, KeySet::of(&[key]));
            match key {
                Key::Segments => self.snapshot.segments = self.segments_of(key, value)?,
                Key::HostSegments => self.snapshot.host_segments = self.segments_of(key, value)?,
                Key::DeviceTraces => {
                    for trace in self.lists_of(key, value)? {
                        traces.push((Some(self.snapshot.traces.len()), self.range_of(key, trace)?));
                        self.snapshot.traces.push(Vec::new());
                    }
                }
                Key::HostTraces => traces.push((None, self.range_of(key, value)?)),
                Key::ExternalAnnotations => match value {
                    Value::EmptyList(_) => {}
                    Value::List(at, _) => match self.lists[at as usize].clone() {
                        List::Annotations(range) => {
                            let range = range.start as usize..range.end as usize;
                            self.snapshot.annotations = self.annotations[range].to_vec();
                        }
                        _ => return Err(wrong(key, "a list of annotations", value)),
                    },
                    _ => return Err(wrong(key, "a list of annotations", value)),
                },
                Key::AllocatorSettings => {
                    let mut left = MOST_SETTINGS;
                    self.snapshot.settings = self.settings_of(value, DEEPEST_SETTING, &mut left)?;
                }
                Key::Prediction => match value {
                    Value::Text(text) => self.snapshot.prediction = Some(text),
                    _ => return Err(wrong(key, "a text", value)),
                },
                Key::Categories => match value {
                    Value::EmptyList(_) => {}
                    Value::List(at, _) => match &self.lists[at as usize] {
                        List::Texts(texts) => self.list_categories(texts.clone())?,
                        _ => return Err(wrong(key, "a list of texts", value)),
                    },
                    _ => return Err(wrong(key, "a list of texts", value)),
                },
                _ => self.snapshot.facts.ignore(Kind::Snapshot, text),
            }
        }
        self.place_traces(traces);
        Ok(self.snapshot)
    }

    /// Numbers the categories: first the file's list, in its order, then those that occur only in events.
    fn list_categories(&mut self, listed: Vec<TextId>) -> Result<(), Why> {
        let named = std::mem::replace(&mut self.snapshot.categories, listed);
        if named.is_empty() {
            return Ok(());
        }
        let all = &mut self.snapshot.categories;
        let mut places: HashMap<TextId, usize> =
            all.iter().enumerate().rev().map(|(nth, &name)| (name, nth)).collect();
        let mut ids = Vec::with_capacity(named.len());
        for name in named {
            let place = *places.entry(name).or_insert_with(|| {
                all.push(name);
                all.len() - 1
            });
            ids.push(CategoryId::new(place).ok_or_else(too_many_categories)?);
        }
        for category in self.events.iter_mut().filter_map(|event| event.category.as_mut()) {
            *category = ids.get(category.index()).copied().unwrap_or(*category);
        }
        Ok(())
    }

    fn segments_of(&mut self, key: Key, value: Value) -> Result<Vec<Segment>, Why> {
        let at = match value {
            Value::EmptyList(_) => return Ok(Vec::new()),
            Value::List(at, _) => at as usize,
            _ => return Err(wrong(key, "a list of segments", value)),
        };
        let range = match std::mem::replace(&mut self.lists[at], List::Taken) {
            List::Segments(range) => range,
            List::Taken => return Err(Why::Twice("a list of segments")),
            _ => return Err(wrong(key, "a list of segments", value)),
        };
        let mut segments: Vec<Segment> = self.segments[range.start as usize..range.end as usize].to_vec();
        segments.iter_mut().for_each(|segment| place_blocks(segment.address, &mut segment.blocks));
        Ok(segments)
    }

    fn lists_of(&self, key: Key, value: Value) -> Result<Vec<Value>, Why> {
        match value {
            Value::EmptyList(_) => Ok(Vec::new()),
            Value::List(at, _) => match &self.lists[at as usize] {
                List::Lists(lists) => Ok(lists.clone()),
                _ => Err(wrong(key, "a list of lists", value)),
            },
            _ => Err(wrong(key, "a list of lists", value)),
        }
    }

    /// The events of a trace. An event that belongs to two traces is an error.
    fn range_of(&mut self, key: Key, value: Value) -> Result<Range<usize>, Why> {
        match value {
            Value::EmptyList(_) => Ok(0..0),
            Value::List(at, _) => match std::mem::replace(&mut self.lists[at as usize], List::Taken) {
                List::Events(range) => Ok(range.start as usize..range.end as usize),
                List::Taken => Err(Why::Twice("a trace")),
                _ => Err(wrong(key, "a list of trace entries", value)),
            },
            _ => Err(wrong(key, "a list of trace entries", value)),
        }
    }

    /// Moves the events to their traces. The trace whose events come last in memory is split off first, so that no
    /// event is copied twice.
    fn place_traces(&mut self, mut traces: Vec<(Option<usize>, Range<usize>)>) {
        traces.retain(|(_, range)| !range.is_empty());
        traces.sort_by_key(|(_, range)| range.start);
        let mut events = std::mem::take(&mut self.events);
        for (device, range) in traces.into_iter().rev() {
            events.truncate(range.end);
            let trace: Vec<Event> =
                if range.start == 0 { std::mem::take(&mut events) } else { events.split_off(range.start) };
            match device {
                Some(device) => self.snapshot.traces[device] = trace,
                None => self.snapshot.host_trace = trace,
            }
        }
    }

    fn settings_of(&self, value: Value, depth: u32, left: &mut u64) -> Result<Vec<(String, Setting)>, Why> {
        let at = match value {
            Value::EmptyDict(_) => return Ok(Vec::new()),
            Value::Dict(at, _) if depth > 0 => at as usize,
            _ => return Err(wrong(Key::AllocatorSettings, "a dict of settings", value)),
        };
        let mut settings = Vec::new();
        for &(name, value) in &self.dicts[at] {
            *left = left.checked_sub(1).ok_or(Why::TooMany { what: "settings", most: MOST_SETTINGS })?;
            let name = self.snapshot.texts.get(name).to_owned();
            settings.push((name, self.setting_of(value, depth - 1, left)?));
        }
        Ok(settings)
    }

    fn setting_of(&self, value: Value, depth: u32, left: &mut u64) -> Result<Setting, Why> {
        Ok(match value {
            Value::None => Setting::None,
            Value::Bool(on) => Setting::Bool(on),
            Value::Int(number) => Setting::Int(number),
            // PyTorch writes "no limit" as the largest `size_t`.
            Value::Big(_) => {
                Setting::Int(natural(value).and_then(|big| i64::try_from(big).ok()).unwrap_or(-1))
            }
            Value::Float(number) => Setting::Float(number),
            Value::Text(text) => Setting::Text(self.word(text)),
            _ => Setting::Map(self.settings_of(value, depth, left)?),
        })
    }

    /// The text with this id, for a setting or an error.
    pub(crate) fn word(&self, text: TextId) -> String {
        self.snapshot.texts.get(text).to_owned()
    }
}

/// Gives each block without an address the address at which the previous block ends.
fn place_blocks(segment: Addr, blocks: &mut [Block]) {
    let mut end = segment.0;
    for block in blocks {
        if block.address == Addr(u64::MAX) {
            block.address = Addr(end);
        }
        end = block.address.0.saturating_add(block.size);
    }
}

fn wrong(key: Key, expected: &'static str, found: Value) -> Why {
    Why::WrongType { key, expected, found: found.what() }
}
