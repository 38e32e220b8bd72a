//! Random numbers.
//!
//! | file | contents |
//! |---|---|
//! | `draw` | filling memory with random numbers |
//! | `philox` | the random bits of dropout and of stochastic rounding |
//! | `multinomial` | weighted sampling |

pub(crate) mod draw;
pub mod multinomial;
pub mod philox;

pub use draw::{Distribution, Drawn, RandomStream, fill, integers, permutation};
