//! Random numbers.
//!
//! | file | what it has |
//! |---|---|
//! | `draw` | random numbers into memory |
//! | `philox` | the random bits of dropout |
//! | `multinomial` | places drawn by weights |

pub(crate) mod draw;
pub mod multinomial;
pub mod philox;

pub use draw::{Distribution, Drawn, RandomStream, fill, integers, permutation};
