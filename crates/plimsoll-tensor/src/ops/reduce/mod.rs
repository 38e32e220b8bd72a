//! Reductions over dimensions, cumulative reductions, and statistics.
//!
//! | file | contents |
//! |---|---|
//! | `reduced` | code that reductions share: the reduced dimensions and the resulting shapes |
//! | `sum` | sums and means |
//! | `prod` | products |
//! | `var` | variance and standard deviation |
//! | `norm` | norms of vectors |
//! | `logsumexp` | log-sum-exp |
//! | `extreme` | maxima and minima, and their indices |
//! | `argmax` | the index of the maximum |
//! | `order_statistics` | elements by their rank: medians, quantiles |
//! | `statistics` | statistics composed of other operations |
//! | `scan` | cumulative sums and products |
//! | `ordered_sum` | sums of parts in one order |
//! | `running` | cumulative maxima, minima and log-sum-exp |

pub(super) mod argmax;
pub(super) mod extreme;
pub(super) mod logsumexp;
pub(super) mod norm;
pub(super) mod order_statistics;
pub(super) mod ordered_sum;
pub(super) mod prod;
pub(super) mod reduced;
pub(super) mod running;
pub(super) mod scan;
pub(super) mod statistics;
pub(super) mod sum;
pub(super) mod var;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("argmax", argmax::cases),
    ("extreme", extreme::cases),
    ("logsumexp", logsumexp::cases),
    ("norm", norm::cases),
    ("ordered_sum", ordered_sum::cases),
    ("prod", prod::cases),
    ("scan", scan::cases),
    ("sum", sum::cases),
    ("var", var::cases),
];
