//! The answer for people and for programs: one screen, all tables, JSON.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `lines.rs` | lines that fit on a screen |
//! | `reads.rs`, `cut_loops.rs`, `traces.rs` | values that were read, loops that were cut, files that were not written |
//! | `sentences.rs` | the verdict, and growth |
//! | `graphs.rs` | graphs that no backward pass uses |
//! | `limits.rs`, `warnings.rs` | what the figures assume and leave out |
//! | `brief.rs` | one screen |
//! | `text.rs` | the text report |
//! | `json.rs` | the JSON report |

mod brief;
pub(super) mod cut_loops;
pub(super) mod graphs;
pub(super) mod json;
mod limits;
mod lines;
pub(crate) mod reads;
pub(super) mod sentences;
pub(super) mod text;
mod traces;
mod warnings;
