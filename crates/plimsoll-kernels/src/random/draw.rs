//! Fills memory with random numbers: the same bits on every machine, for any number of threads.
//!
//! ChaCha8 is counter-based: each piece of the output starts at a known word of the stream. Logarithm and
//! cosine come from a Rust library, because the versions in system libraries differ in the last bit.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::parallel::{PIECE, for_each_piece};

/// A distribution to draw values from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// The uniform distribution in `low..high`.
    Uniform {
        /// Smallest value.
        low: f64,
        /// Values stay below this.
        high: f64,
    },
    /// The normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// The exponential distribution.
    Exponential {
        /// One over the mean.
        rate: f64,
    },
}

impl Distribution {
    /// PyTorch's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform { .. } => "uniform",
            Distribution::Normal { .. } => "normal",
            Distribution::Exponential { .. } => "exponential",
        }
    }
}

/// A sequence of random numbers: one of 2^64 independent streams of a seed. Its bits are the same on every
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    /// The generator's seed.
    pub seed: u64,
    /// The stream of that seed.
    pub stream: u64,
}

/// A float type for random values.
pub trait Drawn: Copy + Send {
    /// The number of 32-bit words of the stream for one value.
    const WORDS: usize;
    /// A value of at least `low`, below `high`.
    fn uniform(low: f64, high: f64, rng: &mut ChaCha8Rng) -> Self;
    /// `mean + std * z`.
    fn normal(mean: f64, std: f64, z: f64) -> Self;
    /// Rounds to the nearest value of this type.
    fn nearest(x: f64) -> Self;
}

impl Drawn for f32 {
    const WORDS: usize = 1;
    fn uniform(low: f64, high: f64, rng: &mut ChaCha8Rng) -> f32 {
        uniform(low as f32, high as f32, rng.next_u32())
    }
    fn normal(mean: f64, std: f64, z: f64) -> f32 {
        mean as f32 + std as f32 * z as f32
    }
    fn nearest(x: f64) -> f32 {
        x as f32
    }
}

impl Drawn for f64 {
    const WORDS: usize = 2;
    fn uniform(low: f64, high: f64, rng: &mut ChaCha8Rng) -> f64 {
        let value = low + (high - low) * ((rng.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0));
        if value < high { value } else { high.next_down().max(low) }
    }
    fn normal(mean: f64, std: f64, z: f64) -> f64 {
        mean + std * z
    }
    fn nearest(x: f64) -> f64 {
        x
    }
}

/// Fills `out` from the beginning of a stream: one or two words for each uniform value, two for each pair of
/// normal values.
pub fn fill<T: Drawn>(distribution: Distribution, from: RandomStream, out: &mut [T]) {
    // Pieces begin at even positions, so that no pair is split.
    for_each_piece(out, PIECE, |start, piece| {
        let mut words = ChaCha8Rng::seed_from_u64(from.seed);
        words.set_stream(from.stream);
        match distribution {
            Distribution::Uniform { low, high } => {
                words.set_word_pos((start * T::WORDS) as u128);
                piece.iter_mut().for_each(|x| *x = T::uniform(low, high, &mut words));
            }
            Distribution::Exponential { rate } => {
                words.set_word_pos(start as u128);
                piece
                    .iter_mut()
                    .for_each(|x| *x = T::nearest(-libm::log(above_zero(words.next_u32())) / rate));
            }
            Distribution::Normal { mean, std } => {
                words.set_word_pos(start as u128);
                for pair in piece.chunks_mut(2) {
                    let drawn = normals(words.next_u32(), words.next_u32());
                    pair.iter_mut().zip(drawn).for_each(|(x, z)| *x = T::normal(mean, std, z));
                }
            }
        }
    });
}

/// A value in `low..high` from the upper 24 bits of a word, the precision of an `f32`.
fn uniform(low: f32, high: f32, word: u32) -> f32 {
    let value = low + (high - low) * ((word >> 8) as f32 * (1.0 / 16_777_216.0));
    // Rounding can reach `high`, which must not be drawn.
    if value < high { value } else { high.next_down().max(low) }
}

/// Fills `out` with random integers from `low` up to, but not including, `high`; two words each.
pub fn integers(low: i64, high: i64, from: RandomStream, out: &mut [i64]) {
    let range = high.wrapping_sub(low) as u64;
    for_each_piece(out, PIECE, |start, piece| {
        let mut words = ChaCha8Rng::seed_from_u64(from.seed);
        words.set_stream(from.stream);
        words.set_word_pos(2 * start as u128);
        piece.iter_mut().for_each(|x| *x = low.wrapping_add(below(range, words.next_u64()) as i64));
    });
}

/// Fills `out` with the integers from 0 up to, but not including, its length, in random order.
pub fn permutation(from: RandomStream, out: &mut [i64]) {
    let mut words = ChaCha8Rng::seed_from_u64(from.seed);
    words.set_stream(from.stream);
    out.iter_mut().enumerate().for_each(|(i, x)| *x = i as i64);
    for i in (1..out.len()).rev() {
        out.swap(i, below(i as u64 + 1, words.next_u64()) as usize);
    }
}

/// An integer below `range` from a word. The distribution is uniform except for one part in 2^64 / range.
fn below(range: u64, word: u64) -> u64 {
    ((u128::from(word) * u128::from(range)) >> 64) as u64
}

/// A value in (0, 1], so that its logarithm is finite.
fn above_zero(word: u32) -> f64 {
    (f64::from(word) + 1.0) / 4_294_967_296.0
}

/// Two independent standard normal values from two words: the Box-Muller transform.
fn normals(a: u32, b: u32) -> [f64; 2] {
    let u = above_zero(a);
    let angle = std::f64::consts::TAU * (f64::from(b) / 4_294_967_296.0);
    let radius = libm::sqrt(-2.0 * libm::log(u));
    [radius * libm::cos(angle), radius * libm::sin(angle)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: RandomStream = RandomStream { seed: 7, stream: 3 };

    #[test]
    fn a_long_draw_begins_like_a_short_one() {
        let draw = |n: usize, distribution| {
            let mut out = vec![0.0f32; n];
            fill(distribution, STREAM, &mut out);
            out
        };
        for distribution in
            [Distribution::Uniform { low: -1.0, high: 1.0 }, Distribution::Normal { mean: 0.0, std: 1.0 }]
        {
            assert_eq!(draw(3 * PIECE + 5, distribution)[..1001], draw(1001, distribution));
        }
    }

    #[test]
    fn uniform_values_fill_their_range_and_stay_inside() {
        let mut out = vec![0.0f32; 100_000];
        fill(Distribution::Uniform { low: 2.0, high: 3.0 }, STREAM, &mut out);
        assert!(out.iter().all(|x| (2.0..3.0).contains(x)));
        let mean = out.iter().map(|&x| f64::from(x)).sum::<f64>() / 1e5;
        assert!((mean - 2.5).abs() < 0.005, "{mean}");
        assert!(uniform(0.0, f32::MIN_POSITIVE, u32::MAX) < f32::MIN_POSITIVE);
    }

    #[test]
    fn normal_values_have_mean_and_deviation() {
        let mut out = vec![0.0f32; 100_001];
        fill(Distribution::Normal { mean: 1.0, std: 2.0 }, STREAM, &mut out);
        let n = out.len() as f64;
        let mean = out.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = out.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        assert!((mean - 1.0).abs() < 0.03 && (variance - 4.0).abs() < 0.06, "{mean} {variance}");
    }
}
