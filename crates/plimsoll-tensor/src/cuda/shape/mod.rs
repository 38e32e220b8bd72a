//! Operators that move elements.
//!
//! | file | what it has |
//! |---|---|
//! | `remap` | padding, flips, overlapping windows |

pub(crate) mod remap;
