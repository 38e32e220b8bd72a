//! The curve in as few points as a screen shows: [`Buckets`]. Each bucket keeps its highest moment, so that no peak is
//! lost at any scale.

use serde_json::{Value, json};

use super::flow::{Change, Ends, Flow};
use super::kinds::{KINDS, kind, names};
use super::numbers::{count, floats, grains, octets, words};
use crate::explain::{DeviceExplanation, Origins, PassKind};
use crate::render::Report;
use crate::snapshot::{Event, EventIndex, LifeIndex};
use crate::timeline::Moment;

/// A range of consecutive events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bucket {
    /// The first moment with the bucket's highest allocated bytes.
    pub(super) peak: Moment,
    /// The bytes of each kind at that moment.
    pub(super) bytes: [u64; KINDS],
    /// The highest reserved bytes.
    reserved_bytes: u64,
    /// The time at which the bucket begins, in microseconds since the first event. Never earlier than the time of the
    /// previous bucket.
    begins_us: u64,
    /// The pass at the peak: 0 for none, then in the order of [`PassKind`].
    pass: u8,
}

/// A trace, divided into buckets with the same number of events. The moment before the first event is in the first bucket.
pub(super) struct Buckets {
    pub(super) events: usize,
    pub(super) list: Vec<Bucket>,
    /// The time of the last event, in microseconds since the first event; `None` if no event has a time.
    span_us: Option<u64>,
}

impl Buckets {
    /// The curve of a device in at most `most` buckets; empty without events.
    pub(super) fn of(
        device: &DeviceExplanation,
        origins: &Origins,
        trace: &[Event],
        ends: &Ends,
        most: usize,
    ) -> Self {
        let timeline = &device.timeline;
        let kind_of = |index: LifeIndex| {
            let life = &timeline.lives[index.index()];
            kind(origins, device.purposes.shown(index, life, origins).0)
        };
        let mut sums = [0_u64; KINDS];
        let mut flow = Flow::new(timeline, ends);
        let mut follow = |after: Option<EventIndex>, sums: &mut [u64; KINDS]| {
            flow.until(after, |change| match change {
                Change::Comes(life) => {
                    let sum = &mut sums[kind_of(life)];
                    *sum = sum.saturating_add(timeline.lives[life.index()].bytes);
                }
                Change::Goes(life) => {
                    let sum = &mut sums[kind_of(life)];
                    *sum = sum.saturating_sub(timeline.lives[life.index()].bytes);
                }
            });
        };
        follow(None, &mut sums);
        let events = timeline.quality.events;
        let buckets = most.min(events);
        let mut list: Vec<Bucket> = Vec::with_capacity(buckets);
        let first_us = trace.iter().find_map(|event| event.time_us.get());
        let mut now_us = 0;
        let start = Moment { after: None, level: timeline.start };
        let begin = Bucket::at(start, sums, now_us);
        for (place, (moment, event)) in timeline.curve(trace).zip(trace).enumerate() {
            follow(moment.after, &mut sums);
            let time_us = event.time_us.get().zip(first_us).map(|(time, first)| time.saturating_sub(first));
            now_us = time_us.map_or(now_us, |time| time.max(now_us));
            if place == list.len() * events / buckets {
                list.push(if place == 0 { begin } else { Bucket::at(moment, sums, now_us) });
            }
            if let Some(bucket) = list.last_mut() {
                bucket.take(moment, &sums);
            }
        }
        for bucket in &mut list {
            bucket.pass = pass(device, bucket.peak.after);
        }
        Self { events, list, span_us: first_us.map(|_| now_us) }
    }

    /// The highest allocated bytes.
    #[cfg(test)]
    fn highest_bytes(&self) -> u64 {
        self.list.iter().map(|bucket| bucket.peak.level.allocated_bytes).max().unwrap_or(0)
    }

    pub(super) fn json(&self, report: &Report<'_>) -> Value {
        let each = |of: fn(&Bucket) -> u32| words(self.list.iter().map(of));
        let kinds = names(report).into_iter().enumerate();
        let kinds = kinds.filter(|(kind, _)| self.list.iter().any(|bucket| bucket.bytes[*kind] > 0));
        let kinds = kinds.map(|(kind, name)| {
            let bytes = words(self.list.iter().map(|bucket| grains(bucket.bytes[kind])));
            json!({ "kind": kind, "name": name, "bytes": bytes })
        });
        json!({
            "events": self.events,
            "span": self.span_us.map(|span| span as f64),
            "begins": floats(self.list.iter().map(|bucket| bucket.begins_us as f64)),
            "peak": each(|bucket| number(bucket.peak.after)),
            "allocated": each(|bucket| grains(bucket.peak.level.allocated_bytes)),
            "reserved": each(|bucket| grains(bucket.reserved_bytes)),
            "pass": octets(self.list.iter().map(|bucket| bucket.pass)),
            "kinds": kinds.collect::<Vec<_>>(),
        })
    }
}

impl Bucket {
    fn at(moment: Moment, bytes: [u64; KINDS], begins_us: u64) -> Self {
        Self { peak: moment, bytes, reserved_bytes: moment.level.reserved_bytes, begins_us, pass: 0 }
    }

    fn take(&mut self, moment: Moment, bytes: &[u64; KINDS]) {
        if moment.level.allocated_bytes > self.peak.level.allocated_bytes {
            (self.peak, self.bytes) = (moment, *bytes);
        }
        self.reserved_bytes = self.reserved_bytes.max(moment.level.reserved_bytes);
    }
}

/// The number of a moment on the page: 0 is before the first event, 1 is after it.
pub(super) fn number(after: Option<EventIndex>) -> u32 {
    after.map_or(0, |event| count(event.index() + 1))
}

fn pass(device: &DeviceExplanation, after: Option<EventIndex>) -> u8 {
    match after.and_then(|event| device.passes.kind_at(event)) {
        None => 0,
        Some(PassKind::Forward) => 1,
        Some(PassKind::Backward) => 2,
        Some(PassKind::Optimizer) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{explained, recording};
    use super::*;

    #[test]
    fn buckets_keep_the_peak_and_their_categories_are_all_that_is_allocated() {
        let snapshot = recording(5000);
        let (origins, device) = explained(&snapshot);
        let (timeline, trace) = (&device.timeline, snapshot.trace(0));
        for most in [1, 7, 100, 4096, 1 << 20] {
            let buckets = Buckets::of(&device, &origins, trace, &Ends::of(timeline), most);
            assert_eq!(buckets.list.len(), most.min(trace.len()));
            assert_eq!(buckets.highest_bytes(), timeline.peak_allocated.level.allocated_bytes, "{most}");
            let reserved = buckets.list.iter().map(|bucket| bucket.reserved_bytes).max();
            assert_eq!(reserved, Some(timeline.peak_reserved.level.reserved_bytes), "{most}");
            for bucket in &buckets.list {
                assert_eq!(bucket.bytes.iter().sum::<u64>(), bucket.peak.level.allocated_bytes);
                let held = timeline.held_after(bucket.peak.after).map(|life| life.bytes).sum::<u64>();
                assert_eq!(held, bucket.peak.level.allocated_bytes, "after {:?}", bucket.peak.after);
            }
            assert!(buckets.list.is_sorted_by_key(|bucket| (bucket.peak.after, bucket.begins_us)));
        }
    }
}
