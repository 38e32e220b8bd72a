//! Tests of the complete page: what it contains, what it never contains, how large it gets.

use plimsoll_alloc::{Addr, StreamId};

use super::super::Report;
use super::super::comparison::SnapshotDiff;
use super::super::ranks::RankTable;
use super::{About, BLOCKS, PAGE, Page, SCRIPT};
use crate::explain::{DeviceExplanation, Options, Origins};
use crate::snapshot::{Action, Event, Frame, Snapshot, StackId};

const MIB: u64 = 1 << 20;
/// A name that would end a script, an attribute and a text, if it were not escaped.
const HOSTILE: &str = "</script><img src=x onerror=\"alert('{{data}}')\">";

/// A recording of this many events, the last of which fails. Blocks of several sizes are allocated, and freed in
/// a different order. Each stack has a frame with a hostile name.
pub(super) fn recording(events: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let stacks: Vec<StackId> = (0..50).map(|line| stack(&mut snapshot, line)).collect();
    let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
    let mut trace = vec![event(Action::SegmentAlloc, 1 << 30, 4096 * MIB)];
    let (mut held, mut seed) = (Vec::new(), 7_u64);
    while trace.len() + 2 < events {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = (seed >> 33) as usize;
        let place = random % 400;
        match held.iter().position(|&(known, _)| known == place) {
            None => {
                let bytes = 512 * (1 + random as u64 % 20_000);
                held.push((place, bytes));
                let addr = (1 << 30) + 10 * MIB * place as u64;
                let stack = Some(stacks[random % stacks.len()]);
                let mut alloc = event(Action::Alloc, addr, bytes);
                alloc.stack = stack;
                trace.push(alloc);
            }
            Some(known) => {
                let (place, bytes) = held.swap_remove(known);
                let addr = (1 << 30) + 10 * MIB * place as u64;
                trace.push(event(Action::FreeRequested, addr, bytes));
                trace.push(event(Action::FreeCompleted, addr, bytes));
            }
        }
    }
    trace.push(Event::oom(8192 * MIB, Some(1024 * MIB), StreamId(0)));
    for (place, event) in trace.iter_mut().enumerate() {
        event.time_us = (1_700_000_000_000_000 + 3 * place as u64).into();
    }
    snapshot.traces = vec![trace];
    snapshot
}

fn stack(snapshot: &mut Snapshot, line: i64) -> StackId {
    let frames =
        [("/x/site-packages/torch/nn/linear.py", "forward"), ("a/<m>.py", HOSTILE), ("main.py", "main")];
    let ids: Vec<_> = frames
        .iter()
        .map(|(file, name)| {
            let filename = snapshot.texts.intern(file).unwrap();
            let name = snapshot.texts.intern(name).unwrap();
            snapshot.stacks.frame(Frame { filename, name, line, fx: None }).unwrap()
        })
        .collect();
    snapshot.stacks.stack(&ids).unwrap()
}

pub(super) fn explained(snapshot: &Snapshot) -> (Origins, DeviceExplanation) {
    let origins = Origins::of(snapshot);
    let options = Options { infer: true, device_total_bytes: None };
    let device = DeviceExplanation::of(snapshot, 0, &origins, options);
    (origins, device)
}

fn page(snapshot: &Snapshot, file: &str) -> String {
    let (origins, device) = explained(snapshot);
    let report = Report { file, snapshot, origins: &origins, devices: &[device] };
    Page { about: About::Recording(report), title: file, command: "plimsoll explain" }.html()
}

#[test]
fn the_verdict_and_the_tables_are_there_without_a_script() {
    let page = page(&recording(3000), "run.pickle");
    let read = page.split("<script").next().unwrap();
    assert!(read.contains("out of memory: CAPACITY. Tried to allocate 8.00 GiB, short by"), "the verdict");
    for table in ["Device memory when memory ran out", "by category", "By line", "The largest blocks"] {
        assert!(read.contains(table), "{table}");
    }
    assert!(read.contains("main.py") || read.contains("a/&lt;m&gt;.py"), "a line");
}

#[test]
fn what_a_file_says_never_becomes_a_tag_or_a_place() {
    let page = page(&recording(3000), HOSTILE);
    assert!(!page.contains("<img") && !page.contains("onerror=\""), "a tag got through");
    let scripts = page.matches("<script").count();
    assert_eq!((scripts, page.matches("</script").count()), (PAGE.matches("<script").count(), scripts));
    assert!(page.contains("alert(&#39;{{data}}&#39;)"), "what is put in is not read again");
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).expect("it is still JSON");
    assert_eq!(data["devices"].as_array().map(Vec::len), Some(1));
}

/// A page about two recordings, and a page about this many ranks, the first of which is another recording.
fn pages_about_several(snapshots: [&Snapshot; 2], name: &str, ranks: usize) -> [String; 2] {
    let explained = snapshots.map(explained);
    let report = |side: usize| {
        let (origins, device) = &explained[side];
        Report { file: name, snapshot: snapshots[side], origins, devices: std::slice::from_ref(device) }
    };
    let diff = SnapshotDiff::of([report(0), report(1)]);
    let unreadable = [(name.to_owned(), name.to_owned())];
    let files: Vec<_> = (0..ranks).map(|nth| (name, report(usize::from(nth > 0)))).collect();
    let table = RankTable::of(&files, &unreadable, &[]);
    let commands = vec![name.to_owned(); ranks];
    [About::Comparison(&diff), About::Ranks(&table, &commands)]
        .map(|about| Page { about, title: name, command: name }.html())
}

#[test]
fn pages_about_several_recordings_escape_what_these_say() {
    let snapshots = [recording(300), recording(3000)];
    for page in pages_about_several(snapshots.each_ref(), HOSTILE, 12) {
        assert!(!page.contains("<img") && !page.contains("onerror=\""), "a tag got through");
        assert_eq!(page.matches("<script").count(), PAGE.matches("<script").count());
        assert!(page.contains("alert(&#39;{{data}}&#39;)"), "what is put in is not read again");
        let ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let distinct: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), distinct.len(), "{ids:?}");
    }
}

#[test]
fn a_page_about_many_ranks_draws_the_odd_one_and_few_others_and_is_not_large() {
    let (odd, long) = (recording(300), recording(BLOCKS));
    let sizes = [64, 600].map(|ranks| {
        let [_, page] = pages_about_several([&odd, &long], "x".repeat(400).as_str(), ranks);
        assert_eq!(page.matches("<section class=\"device\"").count(), 4);
        assert!(page.contains(&format!("{} ranks are not drawn below", ranks - 4)), "{ranks}");
        page.len()
    });
    assert!(sizes[1] < 5_000_000, "{sizes:?} bytes");
}

#[test]
fn each_pair_of_a_comparison_leads_to_its_own_sections() {
    let mut snapshot = recording(300);
    snapshot.traces.push(snapshot.traces[0].clone());
    let origins = Origins::of(&snapshot);
    let devices = [0, 1].map(|number| DeviceExplanation::of(&snapshot, number, &origins, Options::default()));
    let report = Report { file: "a", snapshot: &snapshot, origins: &origins, devices: &devices };
    let diff = SnapshotDiff::of([report, report]);
    let page = Page { about: About::Comparison(&diff), title: "a a", command: "plimsoll diff" }.html();
    let links = page.split("<figcaption><a href=\"#device-").skip(1);
    let links: Vec<&str> = links.filter_map(|rest| rest.split("</a>").next()).collect();
    let led = ["before: a, device 0", "after: a, device 0", "before: a, device 1", "after: a, device 1"];
    assert_eq!(links, [0, 1, 2, 3].map(|nth| format!("{nth}\">{}", led[nth])));
}

#[test]
fn a_recording_without_events_is_compared_in_tables() {
    let [comparison, ranks] = pages_about_several([&Snapshot::default(), &recording(300)], "a", 1);
    assert!(comparison.contains("it has no events") && comparison.contains("<table class=\"changes\">"));
    assert_eq!(
        comparison.matches("<figure><figcaption><a href=\"#device-1\">").count(),
        1,
        "the one with events"
    );
    assert!(!ranks.contains("ranks is odd") && ranks.contains(" allocated at its peak</h2>"));
    assert!(!ranks.contains("<div class=\"panels\">"));
}

#[test]
fn the_page_asks_nobody_for_anything() {
    let page = page(&recording(300), "run.pickle");
    for what in ["http:", "https:", "//cdn", "@import", "url(", "<link", "<iframe", "<script src"] {
        assert!(!page.contains(what), "{what}");
    }
    assert!(!SCRIPT.contains("innerHTML") && !SCRIPT.contains("eval("), "the script writes text only");
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_long_recording_is_no_larger_page() {
    // Each block has three events.
    let (short, long) = (page(&recording(4 * BLOCKS), "a").len(), page(&recording(8 * BLOCKS), "a").len());
    assert!(long < short + short / 10, "{short} bytes, then {long}");
    assert!(long < 4 << 20, "{long} bytes");
}

#[test]
fn a_device_without_events_has_a_page_of_tables() {
    let page = page(&Snapshot::default(), "empty.pickle");
    assert!(page.contains("no events were recorded") && !page.contains("<canvas"));
}
