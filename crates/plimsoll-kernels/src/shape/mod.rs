//! Elements at other places.
//!
//! | file | what it has |
//! |---|---|
//! | `remap` | flips, rolls, padding |
//! | `unfold` | the derivative of overlapping windows |

pub mod remap;
pub mod unfold;
