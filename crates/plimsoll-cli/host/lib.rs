//! A library that is loaded into every process of a program under `plimsoll predict`, and counts the process's memory on
//! the host: what it requests in large pieces, by owner, and what of it is resident.
//!
//! It replaces the C library's functions that allocate (`heap.rs`, `maps.rs`) and CUDA's that allocate pinned memory
//! (`cuda.rs`), and passes each call on. Requests below 1 MiB are not recorded: together they are what is resident and not
//! in a larger piece. At moments that may be a peak (`sample.rs`) it reads what is resident, and writes the peaks of each
//! phase to a file (`file.rs`), which the launcher reads. Our Python in the process names owners and phases (`hooks.rs`).
//!
//! None of this allocates memory on the heap, because it runs inside of `malloc`. `build.rs` of the program compiles this
//! folder separately, without dependencies.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `sys.rs` | system calls |
//! | `spin.rs` | a lock that may be taken inside of `malloc` |
//! | `owners.rs` | the names of owners, and a thread's current one |
//! | `ledger.rs` | the large pieces: addresses, bytes, owners |
//! | `resident.rs` | what is resident: the process's counters, and pages of a range |
//! | `sample.rs` | the peaks of each phase |
//! | `file.rs` | the file with the peaks |
//! | `moments.rs` | when to sample: before memory is freed, now and then, at a fork and at the end |
//! | `real.rs` | the functions that are replaced |
//! | `heap.rs`, `maps.rs`, `cuda.rs`, `hooks.rs` | what is exported |

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
