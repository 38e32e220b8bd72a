//! The conclusions from a recording: the process that decides, why memory ran out, what grows, and the verdict.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `judged.rs` | the process and device that decide, and the analysis of its snapshot |
//! | `growth.rs` | memory that was growing when the run was cut short |
//! | `host.rs` | the memory of the machine: the sum over all processes |
//! | `without.rs` | the peaks without workspaces |
//! | `warm.rs` | the peaks with warm compile caches |
//! | `shortage.rs` | the request that failed |
//! | `verdict.rs` | whether the program fits |
//! | `failed.rs`, `judge.rs` | the verdict of a program that failed; the verdict of any other |
//! | `need.rs` | what a program that ran out needs |
//! | `waste.rs` | memory that is live at the peak but not needed there: the program's source with lines that free it |

mod failed;
pub(super) mod growth;
pub(crate) mod host;
pub(super) mod judge;
pub(super) mod judged;
pub(super) mod need;
pub(super) mod shortage;
pub(super) mod verdict;
pub(super) mod warm;
pub(crate) mod waste;
pub(super) mod without;
