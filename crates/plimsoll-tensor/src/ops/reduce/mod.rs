//! Reductions over dimensions, running ones, and statistics.
//!
//! | file | what it has |
//! |---|---|
//! | `reduced` | what reductions share: which dimensions go, and the shapes that are left |
//! | `sum` | sums and means |
//! | `prod` | products |
//! | `var` | variance and standard deviation |
//! | `norm` | norms of vectors |
//! | `logsumexp` | the logarithm of a sum of exponentials |
//! | `extreme` | largest and smallest elements, and their places |
//! | `argmax` | where the largest value is |
//! | `order_statistics` | elements by their rank: median, quantiles |
//! | `statistics` | statistics composed of others |
//! | `scan` | running sums and products |
//! | `ordered_sum` | sums of parts in one order |
//! | `running` | running extremes and logarithms of sums |

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

/// What the suite runs of the operators here, by their files.
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
