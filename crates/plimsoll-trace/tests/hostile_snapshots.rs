//! Files that are not snapshots, or are malicious, cause a clear error within bounded memory. Nothing panics.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use plimsoll_trace::snapshot::Snapshot;
use plimsoll_trace::{SnapshotError, Why, input};

use crate::bodies::snapshot::any_bytes_are_read_or_refused;

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).expect("a fixture");
    bytes
}

fn pickle() -> Vec<u8> {
    unpacked(include_bytes!("snapshots/tiny.pickle.gz"))
}

/// A trace with one event, in a pickle so short that most changes affect something.
const SMALL: &[u8] =
    b"}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94]\x94(}\x94(\x8c\x06action\x94\x8c\
    \x05alloc\x94\x8c\x04addrK\x07\x8c\x04sizeM\x00\x02\x8c\x06streamK\x00\x8c\x06frames]\x94uh\x06eau";

fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    input::read(bytes)
}

fn gzip(write: impl FnOnce(&mut GzEncoder<Vec<u8>>)) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    write(&mut packed);
    packed.finish().expect("memory")
}

/// A protocol-4 pickle of these operations.
fn operations(parts: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04", parts.concat().as_slice(), b"."].concat()
}

fn check(bytes: &[u8], words: &str) {
    let why = read(bytes).err().unwrap_or_else(|| panic!("read, where it should say: {words}"));
    assert!(why.to_string().contains(words), "{why}\nshould say: {words}");
}

#[test]
fn a_file_cut_anywhere_says_that_it_ends() {
    let whole = pickle();
    read(&whole).expect("a snapshot");
    for length in 1..whole.len() {
        let why = read(&whole[..length]).expect_err("it was cut");
        assert!(matches!(why.why, Why::Ends), "cut at {length}: {why}");
        assert_eq!(why.at, Some(length as u64), "cut at {length}: {why}");
    }
    assert!(matches!(read(&[]).expect_err("nothing").why, Why::Empty));
    for (packed, name) in [
        (&include_bytes!("snapshots/tiny.pickle.gz")[..], "gzip"),
        (include_bytes!("snapshots/tiny.pickle.zst"), "zstd"),
    ] {
        for length in 1..packed.len() {
            assert!(read(&packed[..length]).is_err(), "{name} cut at {length} was read");
        }
    }
}

#[test]
fn a_json_cut_anywhere_is_refused() {
    let whole =
        br#" {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 2, "stream": 0}]]}"#;
    assert_eq!(read(whole).expect("a snapshot").traces[0].len(), 1);
    (1..whole.len()).for_each(|length| assert!(read(&whole[..length]).is_err(), "cut at {length}"));
}

/// Marsaglia's xorshift: the same bytes on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn changed_bytes_are_read_or_refused() {
    let bare = unpacked(include_bytes!("snapshots/features.bare.pickle.gz"));
    let seeds = [pickle(), bare, operations(&[SMALL])];
    let mut random = Random(0x5eed_0001);
    let (mut read, mut refused) = (0, 0);
    for round in 0..6000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"(.]}aesuh\x94\x86\x8a\x8c0"[random.below(14)]),
                _ => {
                    let (from, count) = (random.below(bytes.len()), 1 + random.below(40));
                    let part = bytes[from..bytes.len().min(from + count)].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        match any_bytes_are_read_or_refused(&bytes) {
            None => read += 1,
            Some(_) => refused += 1,
        }
    }
    assert!(read > 100 && refused > 1000, "{read} read, {refused} refused: no test of much");
}

#[test]
fn a_global_is_refused_with_its_name() {
    check(&operations(&[b"cos\nsystem\n(X\x02\x00\x00\x00lstR"]), "`os.system`");
    check(&operations(&[b"\x8c\x08builtins\x94\x8c\x04eval\x94\x93"]), "`builtins.eval`");
    check(&operations(&[b"(ios\nsystem\n"]), "`os.system`");
    check(&operations(&[b"}}R"]), "REDUCE");
    check(&operations(&[b"}}b"]), "BUILD");
    check(&operations(&[b"\x82\x01"]), "EXT1");
    check(&operations(&[b"Pname\n"]), "PERSID");
    check(&operations(&[b"\x97"]), "NEXT_BUFFER");
}

#[test]
fn what_is_no_snapshot_is_refused() {
    check(b"PK\x03\x04", "begins with 0x50 0x4b");
    check(b"\x80\x06.", "protocol 6");
    check(b"\x80\x04N.", "this is None");
    check(b"\x80\x04}\x94(\x8c\x01aK\x01u.", "a dict without them");
    check(b"{\"a\": 1}", "a dict without them");
    check(b"[1, 2", "not the JSON");
    check(b"\x80\x04.", "empty stack");
    check(b"\x80\x04h\x07.", "never written");
    check(b"\x80\x04e.", "items end without a mark");
    assert!(read(b"\x80\x04].what follows the end is not looked at").is_ok());
}

#[test]
fn a_wrong_value_is_named_with_its_key_and_place() {
    let event = |pairs: &str| format!(r#"{{"segments": [], "device_traces": [[{{{pairs}}}]]}}"#);
    check(event(r#""action": "alloc", "addr": -1"#).as_bytes(), "`addr` should be a non-negative integer");
    check(event(r#""action": "malloc""#).as_bytes(), "`action` has the unknown value \"malloc\"");
    check(event(r#""action": "alloc", "addr": 1, "size": 2"#).as_bytes(), "a trace entry without `stream`");
    check(event(r#""action": "oom", "stream": 1"#).as_bytes(), "a trace entry without `size`");
    check(event(r#""action": "alloc", "frames": [1]"#).as_bytes(), "`frames` should be a list of frames");
    check(br#"{"segments": {}}"#, "`segments` should be a list of segments, but is an empty dict");
    check(br#"{"segments": [], "device_traces": [[], 1]}"#, "a list of lists also contains an integer");
    let why = read(&operations(&[b"}(\x8c\x06action\x8c\x05allocu"])).expect_err("no address");
    assert!(matches!(why.why, Why::Missing { .. }), "{why}");
}

#[test]
fn a_container_within_itself_is_refused_or_empty() {
    // l = []; l.append(l)
    let _ = any_bytes_are_read_or_refused(&operations(&[b"]\x94h\x00a"]));
    // d = {}; d["segments"] = d
    check(&operations(&[b"}\x94\x8c\x08segmentsh\x00s"]), "`segments` should be a list of segments");
    // A list of traces that contains itself: one trace, which is empty.
    let traces = operations(&[b"}(\x8c\x08segments]\x8c\x0ddevice_traces]\x94h\x00au"]);
    assert!(read(&traces).is_ok_and(|snapshot| snapshot.traces.concat().is_empty()));
}

#[test]
fn doubling_containers_cost_no_more_than_their_bytes() {
    // l0 = [[]]; l1 = [l0, l0]; l2 = [l1, l1]; … forty times, as device_traces.
    let mut lists = b"]\x94]a0".to_vec();
    for level in 0_u8..40 {
        lists.extend([b']', 0x94, b'(', b'h', level, b'h', level, b'e', b'0']);
    }
    let top = operations(&[&lists, b"}(\x8c\x08segments]\x8c\x0ddevice_tracesh\x28u"]);
    check(&top, "`device_traces` should be a list of trace entries");
    // The same with dictionaries of settings.
    let mut dicts = b"}\x94(\x8c\x01aK\x01u0".to_vec();
    for level in 0_u8..40 {
        dicts.extend(b"}\x94(\x8c\x01b");
        dicts.extend([b'h', level]);
        dicts.extend(b"\x8c\x01c");
        dicts.extend([b'h', level]);
        dicts.extend(b"u0");
    }
    let top = operations(&[&dicts, b"}(\x8c\x08segments]\x8c\x12allocator_settingsh\x28u"]);
    check(&top, "`allocator_settings` should be a dict of settings");
}

#[test]
fn claimed_lengths_are_not_believed() {
    check(b"\x80\x04X\xff\xff\xff\xffabc", "more than 16777216 bytes in one string");
    check(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "more than 16777216 bytes in one string");
    check(b"\x80\x04\x8b\xff\xff\xff\x7fabc", "truncated");
    check(b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\xffabc", "truncated");
    check(b"\x80\x04r\xff\xff\xff\xff.", "empty stack");
    check(b"\x80\x04]r\xff\xff\xff\xff.", "out of order");
    assert!(read(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff].").is_ok(), "a frame's length is of no use");
}

#[test]
fn a_file_that_unpacks_to_far_more_than_its_length_is_refused() {
    // One gibibyte of `None`s in a few megabytes of gzip. Each would take 16 bytes of memory if there were no limit.
    let bomb = gzip(|out| {
        out.write_all(b"\x80\x04").expect("memory");
        let nones = vec![b'N'; 1 << 20];
        (0..1024).for_each(|_| out.write_all(&nones).expect("memory"));
    });
    assert!(bomb.len() < 8 << 20, "{} bytes packed", bomb.len());
    let why = read(&bomb).expect_err("a bomb");
    assert!(matches!(why.why, Why::TooLarge { .. }), "{why}");
}

#[test]
fn memory_that_stands_in_the_file_again_is_refused_and_not_copied() {
    // A segment with one block, and two bytes for each further reference to it.
    let block = b"}(\x8c\x07addressK\x00\x8c\x04sizeM\x00\x02\x8c\x05state\x8c\x10active_allocatedu";
    let segment = [
        b"}(\x8c\x07addressK\x00\x8c\ntotal_sizeM\x00\x02\x8c\x06streamK\x00\x8c\x0csegment_type\x8c\x05large",
        b"\x8c\x06blocks](".as_slice(),
    ]
    .concat();
    let again = b"h\x00".repeat(1000);
    let segments = [b"\x80\x04](", segment.as_slice(), block, b"eu\x94", &again, b"e."].concat();
    check(&segments, "a segment appears twice");
    let blocks = [b"\x80\x04](", segment.as_slice(), block, b"\x94", &again, b"eue."].concat();
    check(&blocks, "a block appears twice");
    // The same block in the lists of two segments.
    let other = [segment.as_slice(), b"h\x00eu"].concat();
    let shared = [b"\x80\x04](", segment.as_slice(), block, b"\x94eu", &other, b"e."].concat();
    check(&shared, "a block appears twice");
}

#[test]
fn ten_million_frames_are_read_within_what_their_bytes_are_worth() {
    // One stack of ten million frames, appended one at a time.
    let frame = b"}\x94(\x8c\x04name\x8c\x01f\x8c\x08filename\x8c\x01g\x8c\x04lineK\x07u0";
    let mut bytes = [b"\x80\x04", frame.as_slice(), b"]"].concat();
    (0..10_000_000).for_each(|_| bytes.extend(b"h\x00a"));
    bytes.push(b'.');
    check(&bytes, "this is a list of frames");
    // Ten million different frames, generated as they are read.
    let head: &[u8] = b"\x80\x04\x8c\x04name\x94\x8c\x08filename\x94\x8c\x04line\x94";
    let different = head.chain(Frames { line: 0, rest: Vec::new() }).chain(b"].".as_slice());
    match input::read(different) {
        Ok(snapshot) => assert_eq!(snapshot.stacks.frame_count(), 10_000_000),
        Err(why) => assert!(matches!(why.why, Why::TooLarge { .. }), "{why}"),
    }
}

/// The pickled frames of ten million lines, generated one at a time.
struct Frames {
    line: u32,
    rest: Vec<u8>,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.len() < buffer.len() && self.line < 10_000_000 {
            self.rest.extend(b"}(h\x00h\x00h\x01h\x00h\x02J");
            self.rest.extend(self.line.to_le_bytes());
            self.rest.extend(b"u0");
            self.line += 1;
        }
        let given = buffer.len().min(self.rest.len());
        buffer[..given].copy_from_slice(&self.rest[..given]);
        self.rest.drain(..given);
        Ok(given)
    }
}

#[test]
fn deep_nesting_needs_no_stack_of_the_system() {
    let deep = [b"\x80\x04".to_vec(), vec![b']'; 1 << 20], vec![b'a'; (1 << 20) - 1], b".".to_vec()].concat();
    let _ = any_bytes_are_read_or_refused(&deep);
    let marks = [b"\x80\x04".to_vec(), vec![b'('; 1 << 20], vec![b't'; 1 << 20], b".".to_vec()].concat();
    assert!(any_bytes_are_read_or_refused(&marks).is_some());
    let json = [vec![b'['; 1 << 20], vec![b']'; 1 << 20]].concat();
    check(&json, "recursion limit");
}
