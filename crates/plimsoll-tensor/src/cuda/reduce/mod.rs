//! Reductions over any dimensions, and cumulative ones.
//!
//! | file | contents |
//! |---|---|
//! | `sum` | sums, and argmax |
//! | `fold` | reductions that keep more than a sum: variances, norms, extremes, products |
//! | `scan` | cumulative sums and products |
//! | `ordered_sum` | sums of parts in one order |

pub(crate) mod fold;
pub(crate) mod ordered_sum;
pub(crate) mod scan;
pub(crate) mod sum;

pub(crate) use sum::{argmax, sum, sum_scratch};
