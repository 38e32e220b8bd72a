//! Fourier transforms of rows: complex ones, and real ones with half of their spectrum.
//!
//! A complex number is two neighbouring elements. A real row of `n` elements has a spectrum of `n / 2 + 1` numbers, because the others are
//! their conjugates.
//!
//! | file | contents |
//! |---|---|
//! | `roots` | the roots of unity |
//! | `stages` | transforms of lengths with small prime factors, by Stockham's algorithm |
//! | `plan` | transforms of any length; other lengths by Bluestein's algorithm |
//! | `rows` | reading rows, and writing their results |
//!
//! Real and imaginary parts are separate arrays, and several rows lie side by side, so that loops over
//! neighbouring elements are vectorized in each stage.

mod plan;
mod roots;
mod rows;
mod stages;
#[cfg(test)]
mod tests;

pub use rows::{Factors, Transform, fft_scratch_len, transform};
