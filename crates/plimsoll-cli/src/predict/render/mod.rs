//! The report. The short text, the full text, the JSON and the page are made from it.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `reads.rs`, `cut_loops.rs`, `traces.rs` | values that were read from the device, loops that were cut short, files that would have been written |
//! | `host.rs` | the machine's host memory |
//! | `sentences.rs` | the verdict, and growth |
//! | `late.rs` | code of the training loop that did not run |
//! | `graphs.rs`, `waste.rs` | graphs that no backward pass uses; memory at the peak that the program does not read again |
//! | `limits.rs`, `warnings.rs` | the assumptions behind the figures, and the memory that they leave out |
//! | `outside.rs` | the memory that the process uses outside the allocator |
//! | `memory.rs` | the GPU's memory as a sum, the peaks, the processes, the largest owners |
//! | `next.rs` | the next command |
//! | `json.rs` | values for programs |
//! | `report.rs` | the report: its sections |

pub(super) mod cut_loops;
pub(super) mod graphs;
pub(crate) mod host;
pub(super) mod json;
mod late;
mod limits;
mod memory;
mod next;
mod outside;
pub(crate) mod reads;
pub(super) mod report;
pub(super) mod sentences;
pub(crate) mod traces;
mod warnings;
mod waste;
