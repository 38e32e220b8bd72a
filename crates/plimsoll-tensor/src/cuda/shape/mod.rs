//! Operators that move elements.
//!
//! | file | contents |
//! |---|---|
//! | `remap` | padding, flips, overlapping windows |

pub(crate) mod remap;
