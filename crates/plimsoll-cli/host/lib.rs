//! A library that is loaded into every process of a program under `plimsoll predict`, and counts the process's host
//! memory: its large requests, by owner, and how much of its memory is resident.
//!
//! It replaces the C library's functions that allocate (`heap.rs`, `maps.rs`) and CUDA's that allocate pinned memory
//! (`cuda.rs`), and passes each call on. Requests below 1 MiB are not recorded. Their total is the resident memory that is
//! not in a larger piece. At moments that may be a peak (`sample.rs`) it reads how much memory is resident, and writes the
//! peaks of each phase to a file (`file.rs`), which the launcher reads. Our Python in the process names owners and phases
//! (`hooks.rs`).
//!
//! None of this allocates memory on the heap, because it runs inside `malloc`. `build.rs` of the program compiles this
//! folder separately, without dependencies.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `sys.rs` | system calls |
//! | `spin.rs` | a lock that may be taken inside `malloc` |
//! | `owners.rs` | the names of owners, and a thread's current one |
//! | `ledger.rs` | the large pieces: addresses, bytes, owners |
//! | `resident.rs` | resident memory: the process's counters, and the pages of a range |
//! | `sample.rs` | the peaks of each phase |
//! | `file.rs` | the file with the peaks |
//! | `moments.rs` | when to sample: before memory is freed, at intervals, at a fork and at the end |
//! | `real.rs` | the functions that are replaced |
//! | `heap.rs`, `maps.rs`, `cuda.rs`, `hooks.rs` | the exported functions |

#![allow(clippy::missing_safety_doc, reason = "they are the C library's functions, with its contracts")]

mod cuda;
mod file;
mod heap;
mod hooks;
mod ledger;
mod maps;
mod moments;
mod owners;
mod real;
mod resident;
mod sample;
mod spin;
mod sys;
