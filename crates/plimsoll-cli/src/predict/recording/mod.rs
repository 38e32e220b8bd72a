//! The unprocessed results of a run: the reports of its processes, and the files that it would have written. No
//! conclusions are drawn here.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `read.rs` | values that the program read from the device |
//! | `report.rs` | the report of one process: its state, its peaks, its failure |
//! | `host.rs` | the memory of one process on the host |
//! | `job.rs` | all processes, and how the program ended |
//! | `traces.rs` | the files that the program would have written, and the hosts that it contacted |

pub(super) mod host;
pub(super) mod job;
pub(crate) mod read;
pub(crate) mod report;
pub(super) mod traces;
