//! The unprocessed results of a run: the reports of its processes, and what it would have written. No conclusions are
//! drawn here.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `read.rs` | values that the program read from the device |
//! | `report.rs` | what one process says of itself: its state, its peaks, its failure |
//! | `job.rs` | all processes, and how the program ended |
//! | `traces.rs` | what the program would have written, and the hosts that it contacted |

pub(super) mod job;
pub(super) mod read;
pub(crate) mod report;
pub(super) mod traces;
