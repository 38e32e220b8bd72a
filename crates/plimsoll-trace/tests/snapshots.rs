//! Reads PyTorch's snapshots in every format, and compares the contents with what CPython finds in them.
//!
//! `snapshots/` has three dumps of PyTorch, one synthetic snapshot with every feature of the format, in each encoding
//! that we read, and CPython's counts (`make.py` made them). All others are read from `../shared/snapshots` next to the
//! repository, if they exist.

use std::cell::RefCell;
use std::collections::BTreeMap;

use plimsoll_trace::snapshot::{
    Action, Block, BlockState, Event, Frame, Key, Kind, Segment, Setting, Snapshot, StackId,
};
use plimsoll_trace::{Sharing, input, output};
use serde_json::{Value, json};

use crate::files;
use crate::files::{here, open};

fn kept(name: &str) -> Snapshot {
    open(&here("tests/snapshots").join(name))
}

/// The counts that `make.py` makes.
fn counts(snapshot: &Snapshot) -> Value {
    let blocks: Vec<&Block> = snapshot.segments.iter().flat_map(|segment| &segment.blocks).collect();
    let events: Vec<&Event> = snapshot.traces.iter().flatten().collect();
    let mut actions = BTreeMap::new();
    events.iter().for_each(|event| *actions.entry(event.action.name()).or_insert(0) += 1);
    let mut state_bytes = BTreeMap::new();
    blocks.iter().for_each(|block| *state_bytes.entry(block.state.name()).or_insert(0) += block.size);
    let stacks: Vec<StackId> = (snapshot.segments.iter().map(|segment| segment.stack))
        .chain(blocks.iter().map(|block| block.stack))
        .chain(events.iter().map(|event| event.stack))
        .flatten()
        .collect();
    let frames = || stacks.iter().flat_map(|&stack| snapshot.stacks.frames(stack));
    let mut distinct = stacks.clone();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.retain(|&stack| stack != StackId::EMPTY);
    let sum = |number: &dyn Fn(&Event) -> u64| {
        events.iter().fold(0_u64, |sum, event| sum.wrapping_add(number(event)))
    };
    json!({
        "segments": snapshot.segments.len(),
        "segment_bytes": snapshot.segments.iter().map(|segment| segment.total_size).sum::<u64>(),
        "blocks": blocks.len(),
        "state_bytes": state_bytes,
        "requested_bytes": blocks.iter().filter_map(|block| block.requested_size.get()).sum::<u64>(),
        "traces": snapshot.traces.iter().map(Vec::len).collect::<Vec<_>>(),
        "actions": actions,
        "addr_sum": sum(&|event| event.addr().map_or(0, |addr| addr.0)),
        "size_sum": sum(&|event| event.size),
        "time_sum": sum(&|event| event.time_us.get().unwrap_or(0)),
        "with_stack": stacks.len(),
        "frames": frames().count(),
        "line_sum": frames().map(|frame| frame.line).sum::<i64>(),
        "name_bytes": frames().map(|frame| snapshot.texts.get(frame.name).len()).sum::<usize>(),
        "distinct_stacks": distinct.len(),
        "annotations": snapshot.annotations.len(),
        "settings": snapshot.settings.len(),
        "host": [snapshot.host_segments.len(), snapshot.host_trace.len()],
    })
}

#[test]
fn every_snapshot_reads_as_cpython_reads_it() {
    let known = std::fs::read_to_string(here("tests/snapshots/counts.json")).expect("counts");
    let known: BTreeMap<String, Value> = serde_json::from_str(&known).expect("counts");
    let paths = files::paths();
    assert!(paths.len() >= 13, "{} snapshots", paths.len());
    for path in paths {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert_eq!(counts(&open(&path)), known[&name], "{name}");
    }
}

#[test]
fn only_what_is_new_is_ignored_and_it_is_counted_by_name() {
    for path in files::paths() {
        let snapshot = open(&path);
        let ignored = snapshot.facts.ignored.iter().map(|it| (it.kind, snapshot.texts.get(it.key), it.times));
        let ignored: Vec<_> = ignored.collect();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.starts_with("features.bare") {
            assert_eq!(ignored, [(Kind::Frame, "fx_node_info", 1)], "{name}");
        } else if name.starts_with("little") {
            // In JSON, each frame is repeated.
            assert!(ignored.contains(&(Kind::Event, "unheard_of", 1)), "{name}: {ignored:?}");
        } else if name.starts_with("features") || name.starts_with("tiny") {
            let new = [(Kind::Frame, "fx_node_info", 1), (Kind::Event, "unheard_of", 1)];
            assert_eq!(ignored, new, "{name}");
        } else {
            assert_eq!(ignored, [], "{name}");
        }
    }
}

#[test]
fn every_field_has_its_value() {
    let snapshot = kept("features.p4.pickle.gz");
    let oom = snapshot.traces[0].last().expect("an event");
    assert_eq!((oom.action, oom.addr(), oom.device_free()), (Action::Oom, None, Some(91 << 20)));
    assert_eq!((oom.stream.0, oom.stack), ((1 << 63) + 5, None));
    let text = |id| snapshot.texts.get(id);
    assert_eq!(oom.internal_metadata.map(text), Some("theirs"));
    assert_eq!(oom.compile_context.map(text), Some("[0/1]"));
    assert_eq!(oom.category.map(|id| text(snapshot.categories[id.index()])), Some("PARAMETER"));
    let [segment, old] = snapshot.segments.as_slice() else { panic!("two segments") };
    assert_eq!(segment.stream.0, u64::MAX - 1);
    assert_eq!(snapshot.pools.get(segment.pool.expect("a pool")).to_string(), "7_0");
    assert_eq!(segment.blocks[1].state, BlockState::ActivePendingFree);
    let relu = snapshot.stacks.frames(segment.blocks[0].stack.expect("a stack")).last().expect("a frame");
    let fx = snapshot.stacks.get_fx(relu.fx.expect("a node"));
    assert_eq!(
        (fx.node_name.map(text), fx.original_trace.map(|id| text(id).len())),
        (Some("relu_1"), Some(300))
    );
    assert_eq!(
        text(snapshot.stacks.frames(segment.stack.expect("a stack")).next().expect("a frame").filename),
        "C:\\train\\näh.py"
    );
    // A segment of 2022: no pool, the requested size only in the history, addresses only by position.
    assert_eq!((old.pool, old.is_expandable, old.requested_size.get()), (None, None, None));
    assert_eq!(old.blocks[0].requested_size.get(), Some(1000));
    assert_eq!(old.blocks[1].address.0, 0x7E00_0000_0400);
    assert_eq!(snapshot.setting("later"), Some(&Setting::None));
    assert_eq!(snapshot.setting("garbage_collection_threshold"), Some(&Setting::Float(0.8)));
    assert_eq!(snapshot.devices(), [0, 1]);
    assert!(snapshot.facts.seen(Kind::Event).contains(Key::Category));
    assert_eq!(snapshot.facts.written_by(), "PyTorch 2.13 or newer");
}

/// The content of a snapshot as texts, without the ids, which depend on the order in the file.
fn said(snapshot: &Snapshot) -> Vec<String> {
    let text = |id| snapshot.texts.get(id).to_owned();
    // Stacks are numbered in the order of their first use, and written at the end.
    let met = RefCell::new((BTreeMap::new(), Vec::new()));
    let stack = |id: Option<StackId>| {
        let (numbers, order) = &mut *met.borrow_mut();
        id.map(|id| {
            *numbers.entry(id).or_insert_with(|| {
                order.push(id);
                order.len()
            })
        })
    };
    let frame = |frame: &Frame| {
        let fx = frame.fx.map(|id| *snapshot.stacks.get_fx(id));
        let fx =
            fx.map(|fx| [fx.node_op, fx.node_name, fx.original_trace, fx.node_info].map(|id| id.map(text)));
        format!("{} {} {} {fx:?}", text(frame.filename), text(frame.name), frame.line)
    };
    let pool = |id: Option<_>| id.map(|id| snapshot.pools.get(id));
    let segment = |it: &Segment| {
        let blocks = it
            .blocks
            .iter()
            .map(|block| format!("{:?} {:?}", Block { stack: None, ..*block }, stack(block.stack)));
        let bare = Segment { stack: None, pool: None, blocks: Vec::new(), ..it.clone() };
        format!("{bare:?} {:?} {:?} {:?}", pool(it.pool), stack(it.stack), blocks.collect::<Vec<_>>())
    };
    let event = |it: &Event| {
        let texts = [it.compile_context, it.user_metadata, it.internal_metadata].map(|id| id.map(text));
        let mut bare = *it;
        (bare.compile_context, bare.user_metadata, bare.internal_metadata) = (None, None, None);
        (bare.stack, bare.pool) = (None, None);
        format!("{bare:?} {texts:?} {:?} {:?}", stack(it.stack), pool(it.pool))
    };
    let mut lines: Vec<String> =
        snapshot.segments.iter().chain(&snapshot.host_segments).map(segment).collect();
    for trace in snapshot.traces.iter().chain([&snapshot.host_trace]) {
        lines.push(format!("{} events", trace.len()));
        lines.extend(trace.iter().map(event));
    }
    lines.extend(
        snapshot
            .annotations
            .iter()
            .map(|it| format!("{:?} {} {:?} {:?}", it.stage, text(it.name), it.device, it.time_us)),
    );
    let stacks = met.borrow().1.clone();
    lines.extend(stacks.iter().flat_map(|&stack| snapshot.stacks.frames(stack).map(frame)));
    lines.push(format!("{:?}", snapshot.settings));
    lines.push(format!("{:?}", snapshot.categories.iter().map(|&id| text(id)).collect::<Vec<_>>()));
    lines
}

#[test]
fn what_is_written_reads_the_same() {
    for path in files::paths() {
        let snapshot = open(&path);
        for sharing in [Sharing::Equal, Sharing::Neighbours] {
            let mut pickle = Vec::new();
            output::write(&snapshot, &mut pickle, sharing).expect("memory");
            let again =
                input::read(pickle.as_slice()).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            assert!(said(&again) == said(&snapshot), "{}: something changed", path.display());
            let mut twice = Vec::new();
            output::write(&again, &mut twice, sharing).expect("memory");
            assert!(twice == pickle, "{}: written twice, and not the same bytes", path.display());
        }
    }
}

#[test]
fn a_category_may_be_a_name_or_a_number_in_the_list() {
    let categories = |list: &str| {
        let trace = r#"{"device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "stream": 0, "category": "gradient"},
            {"action": "alloc", "addr": 2, "size": 1, "stream": 0, "category": "unknown"}]]"#;
        let snapshot = input::read(format!("{trace}{list}}}").as_bytes()).expect("a snapshot");
        let name = |event: &Event| {
            snapshot.texts.get(snapshot.categories[event.category.unwrap().index()]).to_owned()
        };
        (snapshot.traces[0].iter().map(name).collect::<Vec<_>>(), snapshot.categories.len())
    };
    let expected = vec!["gradient".to_owned(), "unknown".to_owned()];
    assert_eq!(categories(""), (expected.clone(), 2));
    assert_eq!(categories(r#", "categories": ["unknown", "parameter"]"#), (expected, 3));
}

/// Frames of `torch.compile`'s tracing have the line `-1`, written by C++ as an unsigned number.
#[test]
fn a_frame_without_a_line_has_minus_one() {
    let of = |line: &str| {
        let frame =
            format!(r#"{{"filename": "fake_tensor.py", "name": "init_gpu_context", "line": {line}}}"#);
        let event =
            format!(r#"{{"action": "alloc", "addr": 1, "size": 2, "stream": 0, "frames": [{frame}]}}"#);
        let file = format!(r#"{{"segments": [], "device_traces": [[{event}]]}}"#);
        let snapshot = input::read(file.as_bytes()).expect("a snapshot");
        let stack = snapshot.traces[0][0].stack.expect("a stack");
        snapshot.stacks.frames(stack).map(|frame| frame.line).collect::<Vec<_>>()
    };
    assert_eq!(of("18446744073709551615"), [-1]);
    assert_eq!(of("-1"), [-1]);
}

#[test]
fn every_form_of_one_snapshot_says_the_same() {
    let expected = said(&kept("features.p4.pickle.gz"));
    for form in ["p2", "p3", "p5", "one_by_one", "all_at_once"] {
        assert!(said(&kept(&format!("features.{form}.pickle.gz"))) == expected, "{form} differs");
    }
    assert_eq!(said(&kept("tiny.pickle.zst")), said(&kept("tiny.pickle.gz")));
}

#[test]
fn a_saved_snapshot_replaces_the_file_and_leaves_nothing_beside_it() {
    let folder = std::env::temp_dir().join(format!("plimsoll-trace-save-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("snapshot.pickle");
    std::fs::write(&path, "what was there before").expect("a file");
    let snapshot = kept("tiny.pickle.gz");
    output::save(&snapshot, &path, Sharing::Equal).expect("a file");
    assert!(said(&open(&path)) == said(&snapshot));
    assert!(output::save(&snapshot, &folder.join("no/such/folder.pickle"), Sharing::Equal).is_err());
    let names: Vec<_> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["snapshot.pickle"]);
    std::fs::remove_dir_all(&folder).expect("it was ours");
}
