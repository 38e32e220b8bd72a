//! Random numbers.
//!
//! | file | what it has |
//! |---|---|
//! | `draw` | drawn values, dropout, places drawn by weights |

pub(crate) mod draw;

pub(crate) use draw::{draw, dropout, factors, integers, multinomial, multinomial_scratch, permutation};
