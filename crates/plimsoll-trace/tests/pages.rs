//! Every snapshot has a page, regardless of its contents, and no page is too large.

use plimsoll_alloc::{Addr, Bytes, StreamId};
use plimsoll_trace::explain::{CustomCategory, DeviceExplanation, Options, Origins};
use plimsoll_trace::render::Report;
use plimsoll_trace::render::comparison::SnapshotDiff;
use plimsoll_trace::render::html::{About, Page};
use plimsoll_trace::snapshot::{Action, Event, Segment, SegmentType, Snapshot};

use crate::files;

const MOST_BYTES: usize = 5_000_000;

fn explained(snapshot: &Snapshot) -> (Origins, Vec<DeviceExplanation>) {
    let origins = Origins::of(snapshot);
    let numbers = snapshot.devices().into_iter();
    let explained = |device| DeviceExplanation::of(snapshot, device, &origins, Options::default());
    let devices = numbers.map(explained).collect();
    (origins, devices)
}

fn page(snapshot: &Snapshot) -> String {
    let (origins, devices) = explained(snapshot);
    let report = Report { file: "run.pickle", snapshot, origins: &origins, devices: &devices };
    Page { about: About::Recording(report), title: "run.pickle", command: "plimsoll explain" }.html()
}

#[test]
fn every_snapshot_has_a_page_of_less_than_five_megabytes() {
    for (name, snapshot) in files::snapshots() {
        let page = page(&snapshot);
        assert!(page.len() < MOST_BYTES, "{name}: {} bytes", page.len());
        let verdicts = page.matches("<h2 class=\"verdict").count();
        // Several devices share a verdict.
        let devices = snapshot.devices().len();
        assert_eq!(verdicts, devices + usize::from(devices > 1), "{name}");
    }
}

/// The text without its tags, so that sizes are separate numbers.
fn read(page: &str) -> String {
    let shown = page.split("<script").next().unwrap_or_default();
    shown.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
}

#[test]
fn a_leak_is_drawn_as_a_staircase_with_its_line() {
    let page = page(&files::open(&files::here("tests/snapshots/leak_layer.pickle.gz")));
    let text = read(&page);
    assert!(
        text.contains("Leaking (certain): 64.00 KiB per step in 56 of 56 steps, 3.50 MiB in total"),
        "{text}"
    );
    assert!(text.contains("look for an append to self"));
    let (_, table) = page.split_once("<table class=\"growing\">").expect("the lines that grow");
    let (first, _) = table.split_once("<tr><td>").expect("a head").1.split_once("</table>").expect("its end");
    assert!(first.contains("3.69 MiB") && first.contains("scenarios.py_:30 forward"), "{first}");
    assert!(page.contains("<path class=\"stair-0\" d=\"M0 "), "a part of the staircase");
    assert!(text.contains("step 1step 60"), "its axis");
}

#[test]
fn a_leak_is_a_verdict_that_something_is_wrong() {
    let page = page(&files::open(&files::here("tests/snapshots/leak_layer.pickle.gz")));
    assert!(page.contains("<h2 class=\"verdict failed\">LEAK: "), "not as one that nothing is wrong with");
    let page = self::page(&files::open(&files::here("tests/snapshots/programs/adam_fused.pickle.gz")));
    assert!(page.contains("<h2 class=\"verdict well\">nothing failed"), "{}", &page[..9000]);
}

#[test]
fn what_would_help_and_the_largest_owners_come_right_below_the_verdict() {
    for (name, help) in [
        ("gpt2_oom", "less memory: 104.93 MiB for this request, the remainder for"),
        ("leak_layer", "A module stores a tensor at each forward call"),
        ("programs/fragmented", "would have served the failed request"),
    ] {
        let page = page(&files::open(&files::here(&format!("tests/snapshots/{name}.pickle.gz"))));
        let text = |part: &str| page.find(part).unwrap_or_else(|| panic!("{name}: no {part}"));
        let places =
            ["<h2 class=\"verdict", "What would help", help, "The largest owners", "<nav>"].map(text);
        assert!(places.is_sorted(), "{name}: {places:?}");
    }
}

#[test]
fn what_stays_at_the_end_is_a_table_that_sums_to_it() {
    let page = page(&files::open(&files::here("tests/snapshots/programs/adam_fused.pickle.gz")));
    let (_, end) = page.split_once("<h3>Live at the end</h3>").expect("a section");
    let tables: Vec<&str> = end.split("<table class=\"remaining\">").skip(1).take(2).collect();
    let sums = tables.iter().map(|table| {
        let rows = table.split("</table>").next().unwrap_or_default().split("<tr><td>").skip(1);
        let bytes =
            rows.filter_map(|row| row.strip_prefix("<data value=\"")?.split('"').next()?.parse::<u64>().ok());
        bytes.sum::<u64>()
    });
    let sums: Vec<u64> = sums.collect();
    assert!(sums.len() == 2 && sums[0] == sums[1] && sums[0] > 0, "{sums:?}");
}

#[test]
fn other_settings_are_shown_with_the_bound_of_any_arrangement() {
    let page = page(&files::open(&files::here("tests/snapshots/gpt2_oom.pickle.gz")));
    let text = read(&page);
    assert!(
        text.contains(
            "The simulated device has 24.00 GiB for the allocator, shown by the request that failed."
        ),
        "{text}"
    );
    assert!(text.contains("The simulation of the recorded settings matches the recording"), "the baseline");
    let expandable = "<code>export PYTORCH_ALLOC_CONF=expandable_segments:True</code>";
    assert!(page.contains(expandable) && text.contains("runs out"));
    assert!(text.contains("perfect packing"));
}

#[test]
fn phases_rises_and_the_purpose_of_a_request_are_shown() {
    let open = |name: &str| page(&files::open(&files::here("tests/snapshots").join(name)));
    let text = read(&open("programs/oom_evaluation.pickle.gz"));
    assert!(text.contains(", during evaluation"), "{text}");
    let adam = open("programs/adam_fused.pickle.gz");
    let (_, phases) = adam.split_once("<table class=\"phases\">").expect("phases");
    let rows: Vec<&str> = phases.split("</table>").next().expect("its end").split("<tr>").skip(2).collect();
    let highest = rows.first().expect("a row");
    assert!(highest.starts_with("<td><data value=\"") && highest.contains(">100.0 %<td>backward<td>step "));
    let (head, rise) = adam.split_once("<table class=\"rise\">").expect("a rise");
    assert!(head.ends_with("</h3>") && head.contains("<h3>step 1 -&gt; step 2"), "its sentence");
    assert!(rise.split("</table>").next().is_some_and(|rows| rows.contains("optimizer state")));
    let text = read(&open("gpt2_oom.pickle.gz"));
    assert!(text.contains("perhaps ["), "{text}");
    assert!(text.contains("nvidia-smi shows more"), "{text}");
}

#[test]
fn sections_come_in_the_order_of_the_questions() {
    let page = page(&files::open(&files::here("tests/snapshots/leak_loss.pickle.gz")));
    let ids = ["bytes", "time", "held", "cached", "steps", "settings", "quality"];
    let places = ids.map(|id| page.find(&format!("<section id=\"device-0-{id}\">")).expect(id));
    assert!(places.is_sorted(), "{places:?}");
    let last = page.find("How to regenerate this page").expect("the end");
    assert!(page.find("verdict failed").or(page.find("verdict well")) < places.first().copied());
    assert!(Some(&last) > places.last());
}

#[test]
fn the_rows_of_a_comparison_sum_to_the_change_of_the_peak() {
    let snapshots = ["leak_layer", "leak_loss"]
        .map(|name| files::open(&files::here(&format!("tests/snapshots/{name}.pickle.gz"))));
    let explained = snapshots.each_ref().map(explained);
    let report = |side: usize| {
        let (origins, devices) = &explained[side];
        Report { file: ["a.pickle", "b.pickle"][side], snapshot: &snapshots[side], origins, devices }
    };
    let diff = SnapshotDiff::of([report(0), report(1)]);
    let page = Page { about: About::Comparison(&diff), title: "a b", command: "plimsoll diff" }.html();
    let peaks = diff.pairs[0].peaks();
    let tables: Vec<&str> = page
        .split("<table class=\"changes\">")
        .skip(1)
        .filter_map(|it| it.split("</table>").next())
        .collect();
    assert_eq!(tables.len(), 3, "in all, by category, by line");
    let changes = |rows: &str| -> Vec<i128> {
        let first_cell = |row: &str| row.strip_prefix("<data value=\"")?.split('"').next()?.parse().ok();
        rows.split("<tr><td>").filter_map(first_cell).collect()
    };
    assert_eq!(changes(tables[0]), peaks.map(|peak| peak.change()));
    for table in &tables[1..] {
        let (rows, foot) = table.split_once("<tfoot>").expect("a sum");
        assert!(changes(rows).len() > 2 && changes(foot) == [peaks[0].change()], "{table}");
        assert_eq!(changes(rows).iter().sum::<i128>(), peaks[0].change());
    }
    for (section, name) in ["before: a.pickle", "after: b.pickle"].into_iter().enumerate() {
        assert!(page.contains(&format!("<a href=\"#device-{section}\">{name}</a>")), "{name} is drawn");
        assert!(page.contains(&format!("<p class=\"title\">{name}</p>")), "{name} has a section");
    }
    let verdict = diff.pairs[0].verdict(&diff.pairs[0].lines(), |bytes| Bytes(bytes).to_string());
    assert!(read(&page).contains(&verdict.replace('<', "&lt;").replace('>', "&gt;")), "{verdict}");
}

#[test]
fn a_ring_that_ran_over_and_blocks_without_stacks_come_with_what_to_record() {
    let text = read(&page(&files::open(&files::here("tests/snapshots/stackless/ring.pickle.gz"))));
    assert!(text.contains("The recording overflowed its ring buffer"), "{text}");
    let text = read(&page(&files::open(&files::here("tests/snapshots/stackless/late.pickle.gz"))));
    assert!(text.contains("allocated before recording started"), "{text}");
    assert!(text.contains("torch.cuda.memory._record_memory_history(context=&quot;all&quot;"), "{text}");
}

#[test]
fn sizes_and_places_that_no_device_has_do_no_harm() {
    let far = [0, 1, 511, 1 << 20, (1 << 63) + 7, u64::MAX - 9, u64::MAX];
    for (addr, bytes) in far.into_iter().flat_map(|addr| far.map(|bytes| (addr, bytes))) {
        let segment = Segment {
            device: None,
            address: Addr(addr),
            total_size: bytes,
            allocated_size: None.into(),
            active_size: None.into(),
            requested_size: None.into(),
            stream: StreamId(0),
            segment_type: SegmentType::Large,
            pool: None,
            is_expandable: Some(false),
            stack: None,
            blocks: Vec::new(),
        };
        let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
        let trace = vec![
            event(Action::Alloc, addr, bytes),
            event(Action::SegmentAlloc, addr / 2, bytes),
            event(Action::FreeRequested, addr, bytes),
            event(Action::Alloc, addr.saturating_add(bytes / 2), bytes / 2),
            Event::oom(bytes, Some(addr), StreamId(0)),
        ];
        let snapshot = Snapshot { segments: vec![segment], traces: vec![trace], ..Snapshot::default() };
        let page = page(&snapshot);
        assert!(page.len() < MOST_BYTES, "{addr:#x}, {bytes}: {} bytes", page.len());
    }
}

#[test]
fn the_users_categories_have_bands_of_their_own() {
    let mut snapshot = files::open(&files::here("tests/snapshots/leak_loss.pickle.gz"));
    let name = snapshot.texts.intern("my losses").expect("room");
    let matches = |frame: &str| frame.contains(".py");
    let categories = [CustomCategory { name, matches: &matches }];
    let origins = Origins::of(&snapshot).with_categories(&snapshot, &categories);
    let devices = [DeviceExplanation::of(&snapshot, 0, &origins, Options::default())];
    let report = Report { file: "a", snapshot: &snapshot, origins: &origins, devices: &devices };
    let page = Page { about: About::Recording(report), title: "a", command: "plimsoll explain" }.html();
    assert!(page.contains("class=\"kind-11\""), "a bar of the table has the category's colour");
    assert!(page.contains("\"kind\":11,\"name\":\"my losses\""), "and so has a band");
}
