//! Reductions over any dimensions, and running ones.
//!
//! | file | what it has |
//! |---|---|
//! | `sum` | sums, and the place of the largest |
//! | `fold` | reductions that keep more than a sum: variances, norms, extremes, products |
//! | `scan` | running sums and products |

pub(crate) mod fold;
pub(crate) mod scan;
pub(crate) mod sum;

pub(crate) use sum::{argmax, sum, sum_scratch};
