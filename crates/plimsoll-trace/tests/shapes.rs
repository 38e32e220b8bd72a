//! The guesses for the shape of a request that failed.

use plimsoll_alloc::{Addr, StreamId};
use plimsoll_trace::explain::{DeviceExplanation, Evidence, Guess, Options, Origins};
use plimsoll_trace::snapshot::{Action, Event, Snapshot};

const SEGMENT: u64 = 0x7000_0000_0000;

/// Guesses for a program that allocates blocks of these sizes, frees those with a `true`, then makes a request that fails.
fn guesses(blocks: &[(u64, bool)], asked_bytes: u64) -> Vec<Guess> {
    let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
    let mut trace = vec![event(Action::SegmentAlloc, SEGMENT, 64 << 20)];
    for (nth, &(bytes, is_freed)) in (0..).zip(blocks) {
        let addr = SEGMENT + nth * (1 << 20);
        trace.push(event(Action::Alloc, addr, bytes));
        if is_freed {
            let freed = [Action::FreeRequested, Action::FreeCompleted];
            trace.extend(freed.map(|action| event(action, addr, bytes)));
        }
    }
    trace.push(Event::oom(asked_bytes.next_multiple_of(512), Some(1 << 30), StreamId(0)));
    let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
    let origins = Origins::of(&snapshot);
    DeviceExplanation::of(&snapshot, 0, &origins, Options::default()).shapes
}

/// The first guess, if it is a broadcast: its dimensions, the bytes of an element, and the number of live vectors.
fn broadcast(blocks: &[(u64, bool)], asked_bytes: u64) -> Option<(Vec<u64>, u64, usize)> {
    let first = guesses(blocks, asked_bytes).into_iter().next()?;
    match first.evidence {
        Evidence::Broadcast { vectors, .. } => Some((first.dims, first.element_bytes, vectors)),
        _ => None,
    }
}

const N: u64 = 100_003;

#[test]
fn a_square_beside_vectors_that_are_held_is_guessed_as_what_broadcasting_makes_of_them() {
    let floats = [(4 * N, false), (4 * N, false)];
    assert_eq!(broadcast(&floats, 4 * N * N), Some((vec![N, N], 4, 2)));
    // Targets of 8-byte integers, and predictions in half precision.
    let mixed = [(2 * N, false), (8 * N, false)];
    assert_eq!(broadcast(&mixed, 2 * N * N), Some((vec![N, N], 2, 2)));
    assert_eq!(broadcast(&[(4 * N, false)], 4 * N * N), Some((vec![N, N], 4, 1)));
}

#[test]
fn a_square_without_a_vector_that_is_held_is_not_guessed_as_broadcast() {
    assert_eq!(broadcast(&[(4 * N, true), (4 * N, true)], 4 * N * N), None);
    assert_eq!(broadcast(&[(4 * (N + 1), false)], 4 * N * N), None);
    assert_eq!(broadcast(&[(4 * N, false)], 4 * N * (N + 9)), None);
}
