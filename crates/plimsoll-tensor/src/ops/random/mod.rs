//! What draws random numbers for other tensors. Tensors of random numbers are in the family `creation`.
//!
//! | file | what it has |
//! |---|---|
//! | `dropout` | dropout that keeps a seed, not a mask |
//! | `multinomial` | places drawn at random by weights |

pub(super) mod dropout;
pub(super) mod multinomial;

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("dropout", dropout::cases), ("multinomial", multinomial::cases)];
