//! Random numbers.
//!
//! | file | what it has |
//! |---|---|
//! | `draw` | random values, dropout, weighted sampling |

pub(crate) mod draw;

pub(crate) use draw::{draw, dropout, factors, integers, multinomial, multinomial_scratch, permutation};
