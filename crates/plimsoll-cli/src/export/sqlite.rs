//! A database of three tables, as PyTorch's proposal for large snapshots has them
//! (<https://github.com/pytorch/pytorch/pull/178670>): `device_traces`, `segments`, `blocks`. `segment_id` joins
//! the latter two, `addr` the first and the last. `frames` is JSON, innermost frame first.

use plimsoll_trace::snapshot::{Segment, Snapshot, StackId};
use rusqlite::{Connection, Transaction, params};
use serde_json::{Value, json};

const TABLES: &str = "
CREATE TABLE device_traces (
    id INTEGER PRIMARY KEY, device INTEGER NOT NULL, action TEXT NOT NULL, addr INTEGER, device_free INTEGER,
    size INTEGER NOT NULL, stream INTEGER NOT NULL, time_us INTEGER, frames TEXT
);
CREATE TABLE segments (
    id INTEGER PRIMARY KEY, device INTEGER NOT NULL, addr INTEGER NOT NULL, total_size INTEGER NOT NULL,
    allocated_size INTEGER, active_size INTEGER, stream INTEGER NOT NULL, segment_type TEXT NOT NULL,
    is_expandable INTEGER, frames TEXT
);
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY, segment_id INTEGER NOT NULL REFERENCES segments (id), addr INTEGER NOT NULL,
    size INTEGER NOT NULL, requested_size INTEGER, state TEXT NOT NULL, frames TEXT
);
";

/// The bytes of the database; ids count from 1 in the order of the file. Takes the file's size of memory.
///
/// # Errors
/// SQLite's: for want of memory.
pub(super) fn database(snapshot: &Snapshot, devices: &[i32]) -> rusqlite::Result<Vec<u8>> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch(TABLES)?;
    let transaction = connection.transaction()?;
    let stacks: Vec<Option<String>> =
        (0..snapshot.stacks.len()).map(|index| StackId::new(index).map(|id| frames(snapshot, id))).collect();
    let frames = |stack: Option<StackId>| stack.and_then(|id| stacks[id.index()].as_deref());
    traces(&transaction, snapshot, devices, frames)?;
    let here = |segment: &&Segment| devices.contains(&segment.device());
    for (id, segment) in (1_i64..).zip(snapshot.segments.iter().filter(here)) {
        insert_segment(&transaction, id, segment, frames)?;
    }
    transaction.commit()?;
    connection.serialize("main").map(|bytes| bytes.to_vec())
}

fn traces<'a>(
    transaction: &Transaction<'_>,
    snapshot: &Snapshot,
    devices: &[i32],
    frames: impl Fn(Option<StackId>) -> Option<&'a str>,
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare(
        "INSERT INTO device_traces (device, action, addr, device_free, size, stream, time_us, frames) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    for &device in devices {
        for event in snapshot.trace(device) {
            insert.execute(params![
                device,
                event.action.name(),
                event.addr().map(|addr| number(addr.0)),
                event.device_free().map(number),
                number(event.size),
                number(event.stream.0),
                event.time_us.get().map(number),
                frames(event.stack),
            ])?;
        }
    }
    Ok(())
}

fn insert_segment<'a>(
    transaction: &Transaction<'_>,
    id: i64,
    segment: &Segment,
    frames: impl Fn(Option<StackId>) -> Option<&'a str>,
) -> rusqlite::Result<()> {
    let mut insert =
        transaction.prepare_cached("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
    insert.execute(params![
        id,
        segment.device(),
        number(segment.address.0),
        number(segment.total_size),
        segment.allocated_size.get().map(number),
        segment.active_size.get().map(number),
        number(segment.stream.0),
        segment.segment_type.name(),
        segment.is_expandable,
        frames(segment.stack),
    ])?;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO blocks (segment_id, addr, size, requested_size, state, frames) VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    for block in &segment.blocks {
        insert.execute(params![
            id,
            number(block.address.0),
            number(block.size),
            block.requested_size.get().map(number),
            block.state.name(),
            frames(block.stack),
        ])?;
    }
    Ok(())
}

/// SQLite's integers are signed; the addresses of devices are far below.
fn number(number: u64) -> i64 {
    number.cast_signed()
}

fn frames(snapshot: &Snapshot, stack: StackId) -> String {
    let frame = |frame: &plimsoll_trace::snapshot::Frame| {
        let (filename, name) = (snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name));
        json!({ "filename": filename, "line": frame.line, "name": name })
    };
    Value::Array(snapshot.stacks.frames(stack).map(frame).collect()).to_string()
}
