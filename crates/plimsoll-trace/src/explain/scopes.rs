//! Scopes that the program or PyTorch marked, and the highest moment in each: [`Scopes`].

use std::collections::BTreeMap;

use crate::snapshot::{Annotation, Snapshot, Stage, TextId};
use crate::timeline::Moment;

/// The scopes that are open at an event and, for each scope name, the highest moment so far.
pub(super) struct Scopes {
    /// Whether the recording contains scopes.
    is_any: bool,
    /// The starts and ends of scopes, the latest first.
    ends: Vec<(u64, Annotation)>,
    /// The starts of the open scopes, each as the number of events before it.
    open: BTreeMap<TextId, Vec<usize>>,
    events: usize,
    /// Moments that no later moment exceeds, with their indices. The highest moment since an event is the first entry
    /// at or after that event.
    falling: Vec<(usize, Moment)>,
    highest: BTreeMap<TextId, Moment>,
}

impl Scopes {
    /// The scopes of a recording, before its first event.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        // The steps of the profiler do not count as scopes, because each has a different name.
        let is_step = |it: &Annotation| snapshot.texts.get(it.name).starts_with("ProfilerStep#");
        let own = snapshot.annotations.iter().filter(|it| !is_step(it));
        let mut ends: Vec<(u64, Annotation)> = own.filter_map(|it| Some((it.time_us.get()?, *it))).collect();
        ends.sort_by_key(|&(time_us, _)| time_us);
        ends.reverse();
        let is_any = !ends.is_empty();
        Self { is_any, ends, open: BTreeMap::new(), events: 0, falling: Vec::new(), highest: BTreeMap::new() }
    }

    /// Adds the moment of the next event.
    pub(super) fn follow(&mut self, time_us: Option<u64>, moment: Moment) {
        if !self.is_any {
            return;
        }
        while let Some((_, end)) = self.ends.pop_if(|(at_us, _)| time_us.is_some_and(|now| *at_us < now)) {
            self.turn(end);
        }
        let is_above =
            |(_, below): &mut (usize, Moment)| below.level.allocated_bytes < moment.level.allocated_bytes;
        while self.falling.pop_if(is_above).is_some() {}
        self.falling.push((self.events, moment));
        self.events += 1;
    }

    /// Starts or ends a scope. If a scope ends without a recorded start, it started with the recording.
    fn turn(&mut self, end: Annotation) {
        match end.stage {
            Stage::Start => self.open.entry(end.name).or_default().push(self.events),
            Stage::End => {
                let began = self.open.get_mut(&end.name).and_then(Vec::pop);
                self.leave(end.name, began.unwrap_or(0));
            }
        }
    }

    fn leave(&mut self, name: TextId, began: usize) {
        let first = self.falling.partition_point(|&(place, _)| place < began);
        if let Some(&(_, moment)) = self.falling.get(first) {
            raise(self.highest.entry(name).or_insert(moment), moment);
        }
    }

    /// The highest moment of each name. Scopes without a recorded end last until the end of the recording.
    pub(super) fn close(mut self) -> BTreeMap<TextId, Moment> {
        while let Some((_, end)) = self.ends.pop() {
            self.turn(end);
        }
        for (name, began) in std::mem::take(&mut self.open) {
            began.into_iter().for_each(|began| self.leave(name, began));
        }
        self.highest
    }
}

/// Keeps the higher of two moments; if they are equal, keeps the first.
pub(super) fn raise(peak: &mut Moment, moment: Moment) {
    if peak.after.is_none() || moment.level.allocated_bytes > peak.level.allocated_bytes {
        *peak = moment;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Level;

    const STARTS: Stage = Stage::Start;
    const ENDS: Stage = Stage::End;

    /// Checks the highest level inside each scope, given the times of scopes, and times and levels of events.
    fn check(ends: &[(&str, Stage, u64)], levels: &[(u64, u64)], expected: &[(&str, u64)]) {
        let mut snapshot = Snapshot::default();
        for &(name, stage, time_us) in ends {
            let name = snapshot.texts.intern(name).unwrap();
            snapshot.annotations.push(Annotation { name, stage, device: None, time_us: time_us.into() });
        }
        let mut scopes = Scopes::of(&snapshot);
        for (nth, &(time_us, allocated_bytes)) in levels.iter().enumerate() {
            let level = Level { allocated_bytes, ..Level::default() };
            scopes.follow(Some(time_us), Moment { after: crate::snapshot::EventIndex::new(nth), level });
        }
        let mut found: Vec<(&str, u64)> = scopes
            .close()
            .into_iter()
            .map(|(name, moment)| (snapshot.texts.get(name), moment.level.allocated_bytes))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_scope_has_the_highest_level_inside_it() {
        let ends = [
            ("a", STARTS, 10),
            ("b", STARTS, 20),
            ("b", ENDS, 30),
            ("a", ENDS, 50),
            ("b", STARTS, 60),
            ("b", ENDS, 70),
        ];
        check(
            &ends,
            &[(5, 99), (12, 7), (22, 4), (24, 5), (40, 6), (65, 3), (80, 98)],
            &[("a", 7), ("b", 5)],
        );
    }

    #[test]
    fn a_scope_without_an_event_has_none_and_one_that_stays_open_ends_with_the_recording() {
        check(
            &[("a", STARTS, 10), ("a", ENDS, 11), ("b", STARTS, 30)],
            &[(5, 9), (20, 4), (40, 7), (50, 6)],
            &[("b", 7)],
        );
        check(&[("a", ENDS, 10)], &[(5, 9), (20, 10)], &[("a", 9)]);
        check(&[("a", ENDS, 30)], &[(5, 9), (20, 10)], &[("a", 10)]); // after the last event
        check(&[("a", STARTS, 30), ("a", ENDS, 40)], &[(5, 9), (20, 10)], &[]);
        check(&[("ProfilerStep#1", STARTS, 1), ("ProfilerStep#1", ENDS, 9)], &[(5, 9)], &[]);
    }
}
