//! The answer for people and for programs: one screen, all tables, JSON.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `lines.rs` | lines that fit on a screen |
//! | `reads.rs`, `cut_loops.rs`, `traces.rs` | values that were read, loops that were cut, files that were not written |
//! | `sentences.rs` | the verdict, and growth |
//! | `limits.rs`, `warnings.rs` | what the figures assume and leave out |
//! | `brief.rs` | one screen |
//! | `text.rs` | the text report |
//! | `json.rs` | the JSON report |

mod brief;
pub(super) mod cut_loops;
pub(super) mod json;
mod limits;
mod lines;
pub(crate) mod reads;
pub(super) mod sentences;
pub(super) mod text;
pub(crate) mod traces;
mod warnings;
