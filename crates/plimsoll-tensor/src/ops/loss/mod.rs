//! Losses and their gradients.
//!
//! | file | what it has |
//! |---|---|
//! | `cross_entropy/` | cross entropy of logits, also of a projection |
//! | `nll` | negative log-likelihood |
//! | `mse` | mean squared error |
//! | `losses` | losses of an input and a target of one shape |
//! | `margin_losses` | losses with a margin, of several labels, and of distributions |
//! | `ctc` | the loss of connectionist temporal classification |

pub(super) mod cross_entropy;
pub(super) mod ctc;
pub(super) mod losses;
pub(super) mod margin_losses;
pub(super) mod mse;
pub(super) mod nll;

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("cross_entropy", cross_entropy::cases),
    ("losses", losses::cases),
    ("mse", mse::cases),
    ("nll", nll::cases),
];
