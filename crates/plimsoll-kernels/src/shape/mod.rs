//! Kernels that move elements.
//!
//! | file | contents |
//! |---|---|
//! | `remap` | flips, rolls, padding |
//! | `unfold` | the derivative of overlapping windows |

pub mod remap;
pub mod unfold;
