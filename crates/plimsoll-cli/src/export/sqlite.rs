//! A database in the format of PyTorch's proposal for large snapshots
//! (<https://github.com/pytorch/pytorch/pull/178670>): `device_traces`, `segments`, `blocks`. `segment_id` joins
//! `segments` and `blocks`; `addr` joins `device_traces` and `blocks`. `frames` is JSON, innermost frame first. The
//! three are views, so that each stack is stored once, in `stacks`: in a recording of training, the same stacks occur in every step.

use plimsoll_trace::snapshot::{Frame, Segment, Snapshot, StackId};
use rusqlite::{Connection, Transaction, params};
use serde_json::{Value, json};

const TABLES: &str = "
CREATE TABLE stacks (id INTEGER PRIMARY KEY, frames TEXT NOT NULL);
CREATE TABLE trace_rows (
    id INTEGER PRIMARY KEY, device INTEGER NOT NULL, action TEXT NOT NULL, addr INTEGER, device_free INTEGER,
    size INTEGER NOT NULL, stream INTEGER NOT NULL, time_us INTEGER, stack_id INTEGER REFERENCES stacks (id)
);
CREATE TABLE segment_rows (
    id INTEGER PRIMARY KEY, device INTEGER NOT NULL, addr INTEGER NOT NULL, total_size INTEGER NOT NULL,
    allocated_size INTEGER, active_size INTEGER, stream INTEGER NOT NULL, segment_type TEXT NOT NULL,
    is_expandable INTEGER, stack_id INTEGER REFERENCES stacks (id)
);
CREATE TABLE block_rows (
    id INTEGER PRIMARY KEY, segment_id INTEGER NOT NULL REFERENCES segment_rows (id), addr INTEGER NOT NULL,
    size INTEGER NOT NULL, requested_size INTEGER, state TEXT NOT NULL, stack_id INTEGER REFERENCES stacks (id)
);
CREATE VIEW device_traces AS
    SELECT r.id, device, action, addr, device_free, size, stream, time_us, frames
    FROM trace_rows r LEFT JOIN stacks s ON s.id = stack_id;
CREATE VIEW segments AS
    SELECT r.id, device, addr, total_size, allocated_size, active_size, stream, segment_type, is_expandable, frames
    FROM segment_rows r LEFT JOIN stacks s ON s.id = stack_id;
CREATE VIEW blocks AS
    SELECT r.id, segment_id, addr, size, requested_size, state, frames
    FROM block_rows r LEFT JOIN stacks s ON s.id = stack_id;
";

/// The bytes of the database. Ids count from 1 in the order of the file. Needs as much memory as the file's size.
///
/// # Errors
/// If SQLite runs out of memory.
pub(super) fn database(snapshot: &Snapshot, devices: &[i32]) -> rusqlite::Result<Vec<u8>> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch(TABLES)?;
    let transaction = connection.transaction()?;
    stacks(&transaction, snapshot)?;
    traces(&transaction, snapshot, devices)?;
    let here = |segment: &&Segment| devices.contains(&segment.device());
    for (id, segment) in (1_i64..).zip(snapshot.segments.iter().filter(here)) {
        insert_segment(&transaction, id, segment)?;
    }
    transaction.commit()?;
    connection.serialize("main").map(|bytes| bytes.to_vec())
}

fn traces(transaction: &Transaction<'_>, snapshot: &Snapshot, devices: &[i32]) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare(
        "INSERT INTO trace_rows (device, action, addr, device_free, size, stream, time_us, stack_id) \
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
                stack_id(event.stack),
            ])?;
        }
    }
    Ok(())
}

fn insert_segment(transaction: &Transaction<'_>, id: i64, segment: &Segment) -> rusqlite::Result<()> {
    let mut insert =
        transaction.prepare_cached("INSERT INTO segment_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
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
        stack_id(segment.stack),
    ])?;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO block_rows (segment_id, addr, size, requested_size, state, stack_id) VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    for block in &segment.blocks {
        insert.execute(params![
            id,
            number(block.address.0),
            number(block.size),
            block.requested_size.get().map(number),
            block.state.name(),
            stack_id(block.stack),
        ])?;
    }
    Ok(())
}

/// SQLite's integers are signed; device addresses are far below that limit.
fn number(number: u64) -> i64 {
    number.cast_signed()
}

fn stack_id(stack: Option<StackId>) -> Option<i64> {
    stack.and_then(|stack| i64::try_from(stack.index()).ok())
}

fn stacks(transaction: &Transaction<'_>, snapshot: &Snapshot) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare("INSERT INTO stacks VALUES (?, ?)")?;
    let frame = |frame: &Frame| {
        let (filename, name) = (snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name));
        json!({ "filename": filename, "line": frame.line, "name": name })
    };
    for stack in (0..snapshot.stacks.len()).filter_map(StackId::new) {
        let frames = Value::Array(snapshot.stacks.frames(stack).map(frame).collect());
        insert.execute(params![stack_id(Some(stack)), frames.to_string()])?;
    }
    Ok(())
}
