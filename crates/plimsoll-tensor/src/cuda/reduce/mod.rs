//! Reductions over any dimensions, and running ones.
//!
//! | file | what it has |
//! |---|---|
//! | `sum` | sums, and the place of the largest |
//! | `fold` | reductions that keep more than a sum: variances, norms, extremes, products |
//! | `scan` | running sums and products |
//! | `ordered_sum` | sums of parts in one order |

pub(crate) mod fold;
pub(crate) mod ordered_sum;
pub(crate) mod scan;
pub(crate) mod sum;

pub(crate) use sum::{argmax, sum, sum_scratch};
