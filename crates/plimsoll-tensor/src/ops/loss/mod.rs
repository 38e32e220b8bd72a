//! Losses and their gradients.
//!
//! | file | contents |
//! |---|---|
//! | `cross_entropy/` | cross entropy of logits, also of a projection |
//! | `nll` | negative log-likelihood |
//! | `mse` | mean squared error |
//! | `losses` | losses of an input and a target of the same shape |
//! | `margin_losses` | losses with a margin, multi-label losses, and losses of distributions |
//! | `ctc` | connectionist temporal classification (CTC) loss |

pub(super) mod cross_entropy;
pub(super) mod ctc;
pub(super) mod losses;
pub(super) mod margin_losses;
pub(super) mod mse;
pub(super) mod nll;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("cross_entropy", cross_entropy::cases),
    ("losses", losses::cases),
    ("mse", mse::cases),
    ("nll", nll::cases),
];
