//! `plimsoll explain` of input other than snapshots: a message, a log, counters, a profile.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::program::{Folder, json, kept, plimsoll, stderr, stdout, text};

const FRAGMENTED: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 0 has a total capacity of 39.56 GiB of \
    which 2.81 MiB is free. Process 16368 has 39.55 GiB memory in use. Of the allocated memory 38.05 GiB is allocated by PyTorch, and \
    1021.72 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n";

const SHORT: &str = "Traceback (most recent call last):\n  File \"/home/user/train.py\", line 88, in <module>\n    loss.backward()\n  File \
    \"/opt/conda/lib/python3.10/site-packages/torch/_tensor.py\", line 487, in backward\n    torch.autograd.backward(\nRuntimeError: CUDA \
    out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.56 GiB total capacity; 36.00 GiB already allocated; 512.00 MiB free; 37.00 GiB \
    reserved in total by PyTorch)\n";

/// Runs `explain -` with this text on stdin.
fn piped(text: &str, more: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    child
        .args(["explain", "-"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().expect("the program starts");
    child.stdin.take().expect("stdin").write_all(text.as_bytes()).expect("written");
    child.wait_with_output().expect("an answer")
}

#[test]
fn a_message_alone_says_capacity_or_fragmentation_by_how_much_and_what_next() {
    let output = piped(FRAGMENTED, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = stdout(&output);
    let first = answer.lines().next().expect("a line");
    assert!(
        first.starts_with("out of memory: FRAGMENTATION. Tried to allocate 36.00 MiB; 1.00 GiB is free, but in pieces: 988.53 MiB more than it needs"),
        "{first}"
    );
    for part in [
        "expandable_segments:True python FILE",
        "unknown",
        "the line that ran out of memory: also paste the traceback",
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
    // The process in the message is the failed one itself, in a container.
    assert!(!answer.contains("16368"), "{answer}");

    let folder = Folder::new("pasted");
    let log = folder.file("train.log");
    fs::write(&log, format!("epoch 1\n\x1b[31m{SHORT}\x1b[0m")).expect("a file");
    let answer = text(&["explain", &log]);
    let first = answer.lines().next().expect("a line");
    assert!(first.starts_with("out of memory: CAPACITY. Tried to allocate 2.00 GiB"), "{first}");
    assert!(first.ends_with("with 1.50 GiB free, short by about 512.00 MiB"), "{first}");
    for part in [
        "requested at /home/user/train.py:88 <module>: loss.backward()",
        "plimsoll plan --gpu A100-40GB -- python /home/user/train.py",
        "2.06 GiB is used outside PyTorch's allocator, more than a CUDA context",
        "whether other processes use the GPU",
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
}

#[test]
fn of_two_messages_of_a_process_the_last_is_told() {
    let retried = SHORT.replace("line 88", "line 41").replace("2.00 GiB", "4.00 GiB");
    let answer = stdout(&piped(&format!("{retried}retrying with half the batch\n{SHORT}"), &[]));
    assert!(answer.starts_with("out of memory: CAPACITY. Tried to allocate 2.00 GiB"), "{answer}");
    for part in ["requested at /home/user/train.py:88", "2 messages in all; this one is the last\n"] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
    let other = SHORT.replace("GPU 0", "GPU 1");
    let answer = stdout(&piped(&format!("{retried}{SHORT}{other}"), &[]));
    assert!(answer.contains("3 messages in all; this one is the last of GPU 0; also GPU 1\n"), "{answer}");
    assert!(answer.contains("train.py:88"), "{answer}");
}

#[test]
fn what_a_message_does_not_say_is_left_open() {
    let old = "RuntimeError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 1; 23.65 GiB total capacity; 16.22 GiB already \
        allocated; 1.04 GiB free; 5.17 GiB cached)\n";
    let answer = stdout(&piped(old, &[]));
    assert!(
        answer.starts_with("out of memory: FRAGMENTATION. Tried to allocate 1.17 GiB; 6.21 GiB is free"),
        "{answer}"
    );
    assert!(answer.contains("5.17 GiB  reserved by this process, but unallocated"), "{answer}");

    // There is no command that would fail unchanged, and no table of unknown figures.
    let answer = stdout(&piped("RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB\n", &[]));
    for part in [
        "plimsoll plan --gpu NAME -- python FILE",
        "where NAME is your GPU: its name (`plimsoll predict --list`) or its memory size",
        "where FILE is your program",
        "unknown from stdin: the GPU's memory, who uses it, and how much was free",
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
    assert!(!answer.contains("  unknown  "), "{answer}");

    let answer = stdout(&piped("RuntimeError: CUDA error: out of memory\n", &[]));
    for part in ["does not say who uses the memory", "another process", "a smaller batch", "  nvidia-smi\n"] {
        assert!(answer.contains(part), "{part} in {answer}");
    }

    let cut = FRAGMENTED.replace("38.05 GiB", "38.\n05 GiB").replace("unallocated. If", "unallo\ncated. If");
    assert_eq!(stdout(&piped(&cut, &[])), stdout(&piped(FRAGMENTED, &[])));
}

#[test]
fn the_answer_is_json_where_json_was_asked_for() {
    let answer = json(&piped(SHORT, &["--json"]));
    assert_eq!(
        (&answer["schema"], &answer["kind"], &answer["file"]),
        (&"plimsoll.message/1".into(), &"message".into(), &"stdin".into())
    );
    let failure = &answer["failure"];
    assert_eq!((&failure["cause"], failure["short_bytes"].as_u64()), (&"capacity".into(), Some(512 << 20)));
    assert_eq!(
        (&failure["line"]["file"], &failure["line"]["line"]),
        (&"/home/user/train.py".into(), &88.into())
    );
    let message = &answer["messages"][0];
    assert_eq!(
        (message["device_bytes"].as_u64().map(|it| it >> 20), &message["process_bytes"]),
        (Some(40509), &serde_json::Value::Null)
    );
    assert!(
        answer["next"][0].as_str().is_some_and(|next| next.starts_with("plimsoll plan --gpu A100-40GB")),
        "{answer}"
    );
}

#[test]
fn counters_and_profiles_say_what_they_cannot_say() {
    let counters =
        r#"{"allocated_bytes.all.peak": 4294967296, "reserved_bytes.all.peak": 5368709120, "num_ooms": 1}"#;
    let answer = stdout(&piped(counters, &[]));
    assert!(
        answer.starts_with("out of memory 1 time; peak 4.00 GiB allocated, 5.00 GiB reserved\n"),
        "{answer}"
    );
    assert!(answer.contains("unknown from stdin: whether memory was short or fragmented"), "{answer}");
    let profile = r#"{"traceEvents": [{"name": "[memory]", "args": {"Total Reserved": 4194304, "Total Allocated": 2097152, "Bytes": 512,
        "Device Id": 0, "Device Type": 1}}]}"#;
    let answer = stdout(&piped(profile, &[]));
    assert!(
        answer.starts_with(
            "GPU 0: nothing failed; peak 2.00 MiB allocated, 4.00 MiB reserved while the profiler ran\n"
        ),
        "{answer}"
    );
    let empty = piped(r#"{"traceEvents": []}"#, &[]);
    assert!(
        empty.status.code() == Some(3) && stderr(&empty).contains("profile_memory=True"),
        "{}",
        stderr(&empty)
    );
}

#[test]
fn options_of_snapshots_are_refused_and_other_texts_are_no_snapshot() {
    let output = piped(SHORT, &["--device", "0"]);
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("is text, not a snapshot"),
        "{}",
        stderr(&output)
    );
    for (other, part) in [
        ("a poem\n", "no PyTorch out-of-memory message in this text: paste the whole message"),
        ("[rank0] Epoch 1\n", "no PyTorch out-of-memory message in this text"),
        ("Epoch 1 loss 0.3\nKilled\n", "likely the host ran out of memory, not the GPU"),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory\n", "plimsoll does not read JAX's messages"),
        ("ab\u{1}", "not a memory snapshot"),
        ("{\"segments\": [", "not the JSON of a snapshot"),
    ] {
        let output = piped(other, &[]);
        let error = stderr(&output);
        assert!(output.status.code() == Some(3) && error.contains(part), "{part} in {error}");
        assert!(!part.starts_with("no ") || !error.contains("byte 0"), "{error}");
    }
    // A snapshot is recognized, compressed or not.
    assert!(text(&["explain", &kept("little.json.gz")]).contains("Live memory"));
    assert_eq!(plimsoll(&["explain", &kept("features.bare.pickle.gz")]).status.code(), Some(0));
}

/// The tables of `nsys export --type sqlite`, as far as they are read. The process is 4711.
const NSYS: &str = "
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, \"end\" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL, bytes INTEGER NOT NULL,
    memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER, streamId INTEGER);
INSERT INTO StringIds VALUES (1, 'forward: 0 (Linear)');
INSERT INTO NVTX_EVENTS VALUES (0, 9000000000, 59, 'forward: Sequential', (4711 << 24) | 5000, NULL),
    (1000000000, 2500000000, 59, NULL, (4711 << 24) | 5000, 1), (0, 9000000000, 59, 'another process', 42 << 24, NULL);
INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES
    (500000000, 4711 << 24, 0, 1, 4096, 0, 2097152, 2, 0, NULL, 1, 0), (2000000000, 4711 << 24, 0, 1, 8192, 0, 20971520, 2, 0, NULL, 2, 0),
    (2100000000, 4711 << 24, 0, 1, 12288, 0, 1073741824, 1, 0, NULL, 3, 0), (3000000000, 4711 << 24, 0, 1, 4096, 0, 2097152, 2, 1, NULL, 4, 0),
    (3000000001, 4711 << 24, 0, 1, 99, 0, 2097152, 2, 1, NULL, 4, 0), (4000000000, 4711 << 24, 0, 1, 4096, 0, 1048576, 2, 0, NULL, 5, 0);
";

#[test]
fn an_export_of_nsight_systems_shows_the_peak_and_the_ranges_of_its_allocations() {
    let folder = Folder::new("nsys");
    let file = folder.file("it.sqlite");
    rusqlite::Connection::open(&file).and_then(|it| it.execute_batch(NSYS)).expect("a database");
    let said = "GPU 0: process 4711 had at most 22.00 MiB of device memory, at 2.000 s of the profile\n  \
                GPU 0, process 4711: peak 22.00 MiB at 2.000 s; 21.00 MiB at the end of the profile; 3 allocations\n    \
                20.00 MiB at 2.000 s in `forward: 0 (Linear)`\n    2.00 MiB at 0.500 s in `forward: Sequential`\n";
    let answer = stdout(&plimsoll(&["explain", &file]));
    assert!(answer.starts_with(said), "{answer}");
    let answer = json(&plimsoll(&["explain", "--json", &file]));
    assert_eq!((&answer["kind"], &answer["devices"][0]["peak_bytes"]), (&"nsys".into(), &(22 << 20).into()));
    let refused = plimsoll(&["explain", "--device", "0", &file]);
    assert!(
        refused.status.code() == Some(2) && stderr(&refused).contains("an SQLite database"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_database_without_memory_events_is_an_error_and_its_views_are_not_run() {
    let folder = Folder::new("nsys-bad");
    let view = "CREATE VIEW CUDA_GPU_MEMORY_USAGE_EVENTS AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                SELECT i AS start FROM n";
    for (name, tables) in [("empty", "CREATE TABLE other (id INTEGER)"), ("view", view)] {
        let file = folder.file(name);
        rusqlite::Connection::open(&file).and_then(|it| it.execute_batch(tables)).expect("a database");
        let output = plimsoll(&["explain", &file]);
        assert!(
            output.status.code() == Some(3) && stderr(&output).contains("--cuda-memory-usage=true"),
            "{}",
            stderr(&output)
        );
    }
    let file = folder.file("cut");
    fs::write(&file, b"SQLite format 3\0 and no more").expect("written");
    let output = plimsoll(&["explain", &file]);
    assert!(output.status.code() == Some(3) && stderr(&output).contains("SQLite"), "{}", stderr(&output));
}
