//! Output to a terminal: with any verb, it contains no control character from a file, a file's name or an
//! argument.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::program::{Folder, kept, verbs};

/// Escape codes of a title and of colours (both forms), a bell, a carriage return, and marks that reverse the
/// following text.
const HOSTILE: &str = "\x1b]0;owned\x07\x1b[31mx\u{9b}32m\r\u{8}\u{7f}\u{202e}gpj\u{2066}\u{200f}\u{61c}.y";

/// The program's output to a terminal that is both of its streams.
fn shown<W: AsRef<OsStr>>(folder: &str, words: &[W]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&master).expect("granted");
    unlockpt(&master).expect("unlocked");
    let name = ptsname(&master, Vec::new()).expect("a name");
    let open = || File::options().read(true).write(true).open(Path::new(name.to_str().expect("text")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command.env_remove("NO_COLOR").env("TERM", "xterm-256color").env("CLICOLOR_FORCE", "1");
    command.stdout(open().expect("a stream")).stderr(open().expect("a stream"));
    let mut child = command.spawn().expect("the program starts");
    drop(command);
    let reader = thread::spawn(move || {
        let (mut out, mut chunk, mut master) = (Vec::new(), [0; 4096], File::from(master));
        // On Linux, reading a terminal whose other end is closed is an error.
        while let Ok(length @ 1..) = master.read(&mut chunk) {
            out.extend_from_slice(&chunk[..length]);
        }
        out
    });
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a status").is_none() {
        if Instant::now() > until {
            child.kill().expect("killed");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let bytes = reader.join().expect("read");
    // The terminal's driver adds the carriage return.
    String::from_utf8(bytes).expect("text").replace("\r\n", "\n")
}

/// Checks that a text contains only text and our own colours.
fn check(words: &impl Debug, text: &str) {
    let mut rest = text.to_owned();
    for code in ["0", "1", "4", "31", "32", "33", "1;31", "2"] {
        rest = rest.replace(&format!("\x1b[{code}m"), "");
    }
    let is_harmful = |char: char| {
        char.is_control() && char != '\n' && char != '\t'
            || "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}".contains(char)
            || ('\u{2066}'..='\u{2069}').contains(&char)
    };
    assert!(!rest.contains(is_harmful), "{words:?}: {rest:?}");
    assert!(!text.contains("\x1b[31mx"), "{words:?}: a colour of the file: {text:?}");
}

/// A recording in which every text contains control characters.
fn hostile_snapshot() -> String {
    let frames = serde_json::json!([{ "name": HOSTILE, "filename": format!("{HOSTILE}.py"), "line": 7 }]);
    let event = |action: &str, addr: u64, size: u64, time: u64| {
        serde_json::json!({ "action": action, "addr": addr, "size": size, "stream": 0, "frames": frames,
            "time_us": time, "user_metadata": HOSTILE, "compile_context": HOSTILE, "category": HOSTILE })
    };
    let mut trace = vec![event("segment_alloc", 1 << 30, 20 << 20, 1)];
    for step in 0..8u64 {
        trace.push(event("alloc", (1 << 30) + (step << 20), 1 << 20, 10 + step));
    }
    let block = |step: u64| {
        serde_json::json!({ "address": (1u64 << 30) + (step << 20), "size": 1 << 20, "requested_size": 1 << 20,
            "state": "active_allocated", "frames": frames })
    };
    let free = serde_json::json!({ "address": (1u64 << 30) + (8 << 20), "size": 12 << 20,
        "requested_size": 0, "state": "inactive", "frames": [] });
    let blocks: Vec<_> = (0..8).map(block).chain([free]).collect();
    let marks = |stage: &str, time: u64| serde_json::json!({ "stage": stage, "name": HOSTILE, "device": 0, "time_us": time });
    serde_json::json!({
        "segments": [{ "device": 0, "address": 1 << 30, "total_size": 20 << 20, "allocated_size": 8 << 20,
            "active_size": 8 << 20, "requested_size": 8 << 20, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": false, "frames": frames, "blocks": blocks }],
        "device_traces": [trace],
        "allocator_settings": { "PYTORCH_CUDA_ALLOC_CONF": HOSTILE, HOSTILE: HOSTILE },
        "external_annotations": [marks("START", 2), marks("END", 90)],
        HOSTILE: HOSTILE,
    })
    .to_string()
}

#[test]
fn no_verb_writes_what_a_file_says_as_a_command_to_the_terminal() {
    let folder = Folder::new("terminal");
    let name = format!("{}.json", HOSTILE.replace('\r', ""));
    fs::write(folder.0.join(&name), hostile_snapshot()).expect("a file");
    let other = kept("tiny.pickle.gz");
    let mut said = 0;
    let mut all: Vec<Vec<String>> = Vec::new();
    for verb in verbs::reading_snapshots() {
        all.push(verb.words(&name));
        all.extend(verb.has_json.then(|| [verb.words(&name), vec!["--json".to_owned()]].concat()));
    }
    for words in [
        &["explain", &name, "--events"][..],
        &["explain", &name, "--device", "5"],
        &["explain", &name, &other],
        &["explain", &name, "--html", HOSTILE],
        &["check", &name, "--peak-below", "1MiB"],
        &["diff", &name, &other],
        &["export", &name, "--to", "perfetto"],
        &["export", &name, "--to", "speedscope"],
        &["export", &name, "--to", "folded", "-o", &format!("{name}.folded")],
    ] {
        all.push(words.iter().map(|&word| word.to_owned()).collect());
    }
    for words in &all {
        let text = shown(folder.path(), words);
        check(words, &text);
        said += usize::from(text.contains("\\u001b"));
    }
    assert!(said >= 12, "the texts of the file are shown by {said} verbs only");
}

#[test]
fn no_error_and_no_unknown_word_commands_the_terminal() {
    let folder = Folder::new("terminal-errors");
    let bad = format!("bad{}", HOSTILE.replace('\r', ""));
    fs::write(folder.0.join(&bad), HOSTILE).expect("a file");
    let option = format!("--{HOSTILE}");
    let size = format!("12{HOSTILE}");
    let errors = [
        &[HOSTILE][..],
        &["explain", &option],
        &["explain", &option, "--json"],
        &["explain", "x", "--device-total", &size],
        &["explain", "x", "--category", HOSTILE],
        &["predict", "--gpu", HOSTILE, "--", "python", "x.py"],
        &["predict", "--gpu", "RTX-4090", "--", HOSTILE],
        &["plan", "--gpu", "RTX-4090", "--", HOSTILE],
        &["run", "--", HOSTILE],
        &["run", "--with", HOSTILE, "--", "true"],
        &["train", "mnist", "--data", HOSTILE],
        &["train", HOSTILE],
        &["top", "--prometheus", HOSTILE],
        &["top", HOSTILE],
        &["conformance", HOSTILE],
        &["bench", "snapshot", HOSTILE],
        &["completions", HOSTILE],
        &["man", "/dev/null/\u{9b}31m"],
        &["record", "-o", "/dev/null/\u{9b}31m"],
        &["help", HOSTILE],
    ];
    let errors = errors.iter().map(|words| words.iter().map(|&word| word.to_owned()).collect());
    let mut errors: Vec<Vec<String>> = errors.collect();
    for verb in verbs::reading_snapshots() {
        for file in [HOSTILE, &bad] {
            errors.push(verb.words(file));
            errors.extend(verb.has_json.then(|| [verb.words(file), vec!["--json".to_owned()]].concat()));
        }
    }
    for words in errors {
        let text = shown(folder.path(), &words);
        assert!(!text.is_empty(), "{words:?}");
        check(&words, &text);
    }
}
