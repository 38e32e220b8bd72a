//! The integration tests of `plimsoll-alloc`. They are one program, with a module per subject, because linking takes
//! most of a test's build time.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod adopt;
mod bodies;
mod checkpoint;
mod clockwork;
mod config;
mod devices;
mod failures;
mod fuzz;
mod graphs;
mod history;
mod ledger;
mod naive;
mod no_heap;
mod out_of_memory;
mod packed;
mod pinned;
mod placement;
mod pools;
mod programs;
mod release_lock;
mod scripts;
mod segment_allocator;
mod shared;
mod statistics;
mod streams;
mod threads;
mod trace;
mod worked_options;
mod worked_traces;
