//! Sums and other reductions over any dimensions, and running ones.
//!
//! | file | what it has |
//! |---|---|
//! | `sum` | sums, and the place of the largest |
//! | `fold` | reductions that keep more than a sum |
//! | `folds` | the reductions there are: variances, norms, extremes, products |
//! | `scan` | running sums and products |
//! | `ordered_sum` | sums of parts in one order |

pub mod fold;
pub mod folds;
pub mod ordered_sum;
pub mod scan;
pub(crate) mod sum;

pub use sum::{argmax, sum, sum_whole};
