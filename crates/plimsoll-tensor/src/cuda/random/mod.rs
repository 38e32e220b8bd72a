//! Random numbers.
//!
//! | file | contents |
//! |---|---|
//! | `draw` | random values, dropout, weighted sampling |

pub(crate) mod draw;

pub(crate) use draw::{draw, dropout, factors, integers, multinomial, multinomial_scratch, permutation};
