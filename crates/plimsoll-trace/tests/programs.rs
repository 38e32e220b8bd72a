//! Explanations of programs' snapshots, compared with the known facts about the programs: PyTorch's figures, and the
//! addresses of their tensors (`snapshots/programs/make.py` writes both). With `PROGRAMS=DIR`, tests the programs in
//! another folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use plimsoll_alloc::{Bytes, Category, PoolId};
use plimsoll_trace::explain::leaks::{Pattern, Verdict};
use plimsoll_trace::explain::{Cause, DeviceExplanation, Failure, Options, Origins, Phase, Rest, Why};
use plimsoll_trace::snapshot::{EventIndex, LifeIndex, Snapshot};
use plimsoll_trace::whatif::{SETTINGS, WhatIf};
use serde_json::Value;

use crate::files;

/// One device of one program, and the known facts about it.
struct Case<'a> {
    name: &'a str,
    known: &'a Value,
    device: i32,
    explained: DeviceExplanation,
    /// The differences found.
    wrong: Vec<String>,
}

#[test]
fn what_is_said_of_programs_is_what_is_known_of_them() {
    let mut wrong = Vec::new();
    for path in paths() {
        let name = path.file_name().expect("a name").to_string_lossy().replace(".pickle.gz", "");
        let (snapshot, known) = (files::open(&path), known(&path));
        for device in snapshot.devices() {
            wrong.extend(judge(&name, &snapshot, device, &known));
        }
    }
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn paths() -> Vec<PathBuf> {
    let folder = std::env::var_os("PROGRAMS").map_or(files::here("tests/snapshots/programs"), PathBuf::from);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".pickle.gz"));
    paths.sort();
    assert!(paths.len() > 5, "programs");
    paths
}

fn known(path: &Path) -> Value {
    let known = path.to_string_lossy().replace(".pickle.gz", ".json.gz");
    let file = std::fs::File::open(&known).unwrap_or_else(|why| panic!("{known}: {why}"));
    serde_json::from_reader(GzDecoder::new(file)).expect("figures")
}

fn judge(name: &str, snapshot: &Snapshot, device: i32, known: &Value) -> Vec<String> {
    let options = Options { infer: true, device_total_bytes: None };
    let origins = Origins::of(snapshot);
    let explained = DeviceExplanation::of(snapshot, device, &origins, options);
    let mut case = Case { name, known, device, explained, wrong: Vec::new() };
    case.pools(snapshot);
    case.scopes(snapshot);
    case.settings(snapshot);
    case.sums();
    case.growth();
    case.failures();
    case.purposes();
    case.wrong
}

impl Case<'_> {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "numbers and short texts, made where they are compared"
    )]
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, said: T, known: T) {
        if said != known {
            self.wrong.push(format!("{} {}: {what}: said {said:?}, is {known:?}", self.name, self.device));
        }
    }

    fn expected(&self, what: &str) -> &Value {
        &self.known["expected"][what]
    }

    fn is_cut(&self) -> bool {
        self.expected("truncated") == true
    }

    /// Checks that blocks of private pools are found if and only if the program has any.
    fn pools(&mut self, snapshot: &Snapshot) {
        let lives = self.explained.timeline.lives.iter();
        let mut pools = lives.filter_map(|life| life.pool).map(|pool| snapshot.pools.get(pool));
        let is_there = pools.any(|pool| pool != PoolId::default());
        self.check("private pools", is_there, self.expected("private_pools") == true);
    }

    /// Checks that the user's scopes are among the phases.
    fn scopes(&mut self, snapshot: &Snapshot) {
        for scope in self.expected("scopes").as_array().cloned().unwrap_or_default() {
            let named = |phase| matches!(phase, Phase::Scope(name) if snapshot.texts.get(name) == scope);
            let is_told = self.explained.peaks.phases.iter().any(|&(phase, _)| named(phase));
            self.check(&format!("{scope} among the phases"), is_told, true);
        }
    }

    /// Checks the setting that would have served a request that failed.
    fn settings(&mut self, snapshot: &Snapshot) {
        if self.expected("expandable_fits") == true {
            let tried = WhatIf::of(snapshot, &self.explained.timeline, &SETTINGS);
            let runs_out = tried.rows.iter().find(|row| row.setting == "expandable_segments:True");
            self.check("runs out", runs_out.map(|row| row.outcome.runs_out()), Some(false));
        }
    }

    /// Checks that the peaks equal PyTorch's to the byte, and that every block is at PyTorch's address.
    fn sums(&mut self) {
        let figures = &self.known["devices"][self.device as usize];
        let timeline = &self.explained.timeline;
        let said =
            (timeline.peak_allocated.level.allocated_bytes, timeline.peak_reserved.level.reserved_bytes);
        let known = (number(&figures["max_allocated"]), number(&figures["max_reserved"]));
        let (identical, cut) = (self.explained.replay.is_identical(), timeline.quality.is_cut);
        if !self.is_cut() {
            self.check("peaks", said, known);
        }
        self.check("replay", identical, true);
        self.check("ring ran over", cut, self.is_cut());
    }

    /// Checks that leaks, and nothing else, are reported as leaks; and checks the number of steps.
    fn growth(&mut self) {
        let leaks = &self.explained.leaks;
        let (verdict, steps) = (leaks.whole.verdict, self.explained.steps.len());
        if let Some(leak) = self.expected("leak").as_bool() {
            self.check("leaks", verdict == Verdict::Leaking, leak);
        }
        if let Some(expected) = self.expected("verdict").as_str() {
            self.check("verdict", format!("{verdict:?}"), expected.to_owned());
        } else if !self.is_cut() && self.known["failures"] == Value::Array(Vec::new()) {
            let known = self.known["steps"].as_array().map_or(0, Vec::len);
            self.check("steps", if known == 0 { 0 } else { steps }, known);
        }
        let is_carried = |pattern: Option<Pattern>| pattern == Some(Pattern::CarriedNumber);
        let is_told = self.explained.leaks.lines.iter().any(|line| is_carried(line.pattern));
        self.check("a number is carried", is_told, self.expected("pattern") == "CarriedNumber");
        if let Some(expected) = self.expected("pattern").as_str() {
            let leaks = &self.explained.leaks;
            let patterns = leaks.lines.iter().filter_map(|line| line.pattern).chain(leaks.pattern);
            let patterns: Vec<String> = patterns.map(|pattern| format!("{pattern:?}")).collect();
            let is_told = patterns.iter().any(|pattern| pattern.starts_with(expected));
            self.check(&format!("{expected} among {patterns:?}"), is_told, true);
        }
    }

    /// Checks why a request failed, using the figures in the exception.
    fn failures(&mut self) {
        let known = self.known["failures"].as_array().expect("failures").clone();
        let fails = self.expected("fails") == true;
        let (said, Some(last)) = (self.explained.failure, known.last()) else {
            self.check("fails", self.explained.failure.is_some(), fails);
            return;
        };
        let Some(failure) = said else { return self.check("fails", false, true) };
        self.check("failures", failure.failures, known.len());
        let message = last["message"].as_str().expect("a message");
        let allocated = format!(
            "Of the allocated memory {} is allocated by PyTorch",
            Bytes(failure.level.allocated_bytes)
        );
        if !message.contains("private pools") {
            self.check(&format!("{allocated:?} in {message:?}"), message.contains(&allocated), true);
        }
        let figures = &last["devices"][self.device as usize];
        self.check("reserved", failure.level.reserved_bytes, number(&figures["reserved"]));
        let limit = self.expected("limit").as_u64();
        self.check("limited", failure.limit.is_some(), limit.is_some());
        self.check("shared with others", failure.is_shared, self.expected("outside") == true);
        if let (Some(limit), Some(said)) = (limit, failure.limit) {
            let is_within = said.at_least_bytes <= limit && limit < said.below_bytes;
            self.check(&format!("{said:?} around {limit}"), is_within, true);
        }
        if let Some(shape) = self.known["expected"].get("shape").cloned() {
            let said = self.explained.shapes.first().map(|guess| guess.dims.clone());
            self.check("shape", said.into(), shape);
        }
        if let Some(needs) = self.expected("needs").as_u64() {
            let said = self.needs(&failure);
            let is_near = said <= needs && needs - said <= needs / 50;
            self.check(&format!("{said} bytes needed of {needs}"), is_near, true);
        }
        let capacity = limit.unwrap_or(failure.level.reserved_bytes + number(&figures["free"]));
        self.check(&format!("{:?} of {capacity}", failure.cause()), is_cause(&failure, capacity), true);
    }

    /// The total size of the optimizer's state, or of a series of identical layers: the bytes that exist, the request,
    /// and what was still needed.
    fn needs(&self, failure: &Failure) -> u64 {
        let Some(needed) = &self.explained.still_needed else { return 0 };
        if let Rest::Layers { layers, bytes_each, .. } = needed.rest {
            return layers as u64 * bytes_each;
        }
        let lives = (0..).map_while(LifeIndex::new).zip(&self.explained.timeline.lives);
        let held = lives.filter(|(index, life)| {
            let category = self.explained.purposes.get(*index).category;
            life.is_held_after(Some(failure.at)) && category == Some(Category::OptimizerState)
        });
        let made: u64 = held.map(|(_, life)| life.requested_bytes.get().unwrap_or(life.bytes)).sum();
        made + failure.asked_bytes + needed.bytes
    }

    /// Checks the purposes of the tensors that are live at each moment.
    fn purposes(&mut self) {
        let moments = self.known["moments"].as_array().expect("moments").clone();
        for moment in &moments {
            let events = if self.is_cut() {
                self.explained.timeline.quality.events
            } else {
                number(&moment["events"][self.device as usize]) as usize
            };
            let Some(after) = events.checked_sub(1).and_then(EventIndex::new) else { continue };
            let held = self.held(after);
            for (role, category) in ROLES {
                let places = moment[role].as_array().map_or(&[][..], Vec::as_slice);
                let here = places.iter().filter(|place| place[0] == self.device);
                let mut sums: BTreeMap<String, (usize, u64)> = BTreeMap::new();
                let mut all = 0;
                for place in here {
                    let (said, bytes) = match held.get(&number(&place[1])) {
                        Some(&(life, bytes)) => {
                            let purpose = self.explained.purposes.get(life);
                            let is_right = purpose.category == Some(category);
                            all += bytes;
                            if is_right {
                                continue;
                            }
                            (format!("{:?} by {:?}", purpose.category, purpose.why), bytes)
                        }
                        None => ("nothing".to_owned(), number(&place[2])),
                    };
                    let sum = sums.entry(said).or_default();
                    *sum = (sum.0 + 1, sum.1 + bytes);
                }
                let kept = ["None by Unknown", "Some(Output) by OutlivesBackward"];
                let unknown: u64 = kept.iter().filter_map(|said| sums.get(*said)).map(|sum| sum.1).sum();
                // For blocks from before the recording, sizes show only how many have each purpose, not which.
                let is_by_size = |said: &String| {
                    let by_size = ["SizesOfGradients", "BeyondStates"];
                    by_size.iter().any(|why| said.ends_with(why)) || said == "None by Unknown"
                };
                let are_by_sizes = !sums.is_empty() && sums.keys().all(is_by_size);
                if are_by_sizes && category != Category::Activation && self.has_all_of(category, moment) {
                    continue;
                }
                // If the program still holds tensors of a pass that has ended, their purpose is not known.
                if sums.len() == 1 && unknown > 0 && unknown * 20 <= all && role == "activations" {
                    continue;
                }
                let what = format!("{role} {}", moment["name"]);
                self.check(&what, sums, BTreeMap::new());
            }
            self.strangers(moment, &held);
        }
    }

    /// Whether the bytes from before the recording that are classified as parameters, or as optimizer state, equal
    /// the true number.
    fn has_all_of(&self, category: Category, moment: &Value) -> bool {
        let (role, _) = ROLES.into_iter().find(|role| role.1 == category).expect("a role");
        let places = moment[role].as_array().expect("places").iter();
        let known: u64 = places.map(|place| number(&place[2]).div_ceil(512) * 512).sum();
        let lives = (0..).map_while(LifeIndex::new).zip(&self.explained.timeline.lives);
        let by_size = [Why::SizesOfGradients, Why::BeyondStates];
        let said = lives.filter(|(life, _)| by_size.contains(&self.explained.purposes.get(*life).why));
        let said = said.filter(|(life, _)| self.explained.purposes.get(*life).category == Some(category));
        known
            == said.map(|(_, life)| life.requested_bytes.get().unwrap_or(0).div_ceil(512) * 512).sum::<u64>()
    }

    /// Checks that blocks of no known tensor are not called parameters, gradients or optimizer state.
    fn strangers(&mut self, moment: &Value, held: &BTreeMap<u64, (LifeIndex, u64)>) {
        if moment["name"] != "at the end" {
            return; // at other moments, temporary gradients are not known
        }
        let roles = moment.as_object().expect("roles").values().filter_map(Value::as_array).flatten();
        let named: BTreeSet<u64> = roles.filter_map(|place| place[1].as_u64()).collect();
        let strangers = held.iter().filter(|(addr, _)| !named.contains(addr));
        let mut sums: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for (_, &(life, bytes)) in strangers {
            let purpose = self.explained.purposes.get(life);
            let kept = [Category::Parameter, Category::Gradient, Category::OptimizerState];
            let is_by_size = matches!(purpose.why, Why::SizesOfGradients | Why::BeyondStates); // a count, not which blocks
            if !is_by_size && purpose.category.is_some_and(|category| kept.contains(&category)) {
                let sum = sums.entry(format!("{:?} by {:?}", purpose.category, purpose.why)).or_default();
                *sum = (sum.0 + 1, sum.1 + bytes);
            }
        }
        self.check("strangers at the end", sums, BTreeMap::new());
    }

    /// The live blocks after an event, by address.
    fn held(&self, after: EventIndex) -> BTreeMap<u64, (LifeIndex, u64)> {
        let lives = (0..).map_while(LifeIndex::new).zip(&self.explained.timeline.lives);
        let held = lives.filter(|(_, life)| life.born <= Some(after) && life.is_held_after(Some(after)));
        held.map(|(index, life)| (life.addr.0, (index, life.bytes))).collect()
    }
}

/// The categories of tensor roles. Batches and caches have no category to compare with.
const ROLES: [(&str, Category); 5] = [
    ("parameters", Category::Parameter),
    ("buffers", Category::Buffer),
    ("gradients", Category::Gradient),
    ("optimizer", Category::OptimizerState),
    ("activations", Category::Activation),
];

/// Whether the cause is right for a process with this capacity.
fn is_cause(failure: &Failure, capacity: u64) -> bool {
    let needed = failure.level.active_bytes + failure.asked_bytes;
    let is_exact = failure.limit.is_none();
    match failure.cause() {
        Cause::Capacity { short_bytes } if is_exact => needed == capacity + short_bytes,
        Cause::Fragmentation { spare_bytes } if is_exact => needed + spare_bytes == capacity,
        Cause::Capacity { short_bytes } => needed > capacity && needed - capacity <= short_bytes,
        Cause::Fragmentation { spare_bytes } => needed + spare_bytes <= capacity,
        Cause::Limit { short_bytes } => needed <= capacity + short_bytes,
        Cause::Unknown => false,
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
