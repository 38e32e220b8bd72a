//! Sums and other reductions over any dimensions, and cumulative sums and products.
//!
//! | file | contents |
//! |---|---|
//! | `sum` | sums, and argmax |
//! | `fold` | reductions that keep more than a sum |
//! | `folds` | the individual reductions: variances, norms, extremes, products |
//! | `scan` | cumulative sums and products |
//! | `ordered_sum` | sums of parts in one order |

pub mod fold;
pub mod folds;
pub mod ordered_sum;
pub mod scan;
pub(crate) mod sum;

pub use sum::{argmax, sum, sum_whole};
