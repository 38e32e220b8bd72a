//! Elements from other places.
//!
//! | file | what it has |
//! |---|---|
//! | `remap` | padding, flips, overlapping windows |

pub(crate) mod remap;
