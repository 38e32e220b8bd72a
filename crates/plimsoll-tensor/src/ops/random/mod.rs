//! Operations that use random numbers. Creating random tensors is in the family `creation`.
//!
//! | file | contents |
//! |---|---|
//! | `dropout` | dropout that saves a seed, not a mask |
//! | `multinomial` | weighted sampling of indices |

pub(super) mod dropout;
pub(super) mod multinomial;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("dropout", dropout::cases), ("multinomial", multinomial::cases)];
