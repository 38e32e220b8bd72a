//! Random numbers that are the same on every machine and with every release of a library.
//!
//! A [`Stream`] is identified by a seed, a purpose and an index, so any epoch's order and any drawing can be made
//! independently, on any thread. ChaCha8 is specified exactly; everything derived from its words (a
//! number below n, a float, a permutation) is implemented here rather than taken from `rand`, whose
//! derivations may change between releases. Floats use only `+ - * /`, which IEEE 754 rounds the same way
//! everywhere.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The purpose of a stream; streams of different purposes are independent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// The order of samples in an epoch.
    EpochOrder = 1,
    /// The digit that each drawing shows.
    DigitLabels = 2,
    /// The strokes of each digit.
    DigitStrokes = 3,
    /// The sample drawn at each position of an epoch.
    Draws = 4,
    /// The sentences of a generated text.
    Sentences = 5,
    /// The seed of each worker.
    Worker = 6,
    /// The seed of the random choices in each sample.
    SampleSeeds = 7,
    /// The random change of an image.
    Augment = 8,
}

/// One stream of random numbers.
pub(super) struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of this seed, purpose and index (an epoch, a sample).
    pub(super) fn new(seed: u64, purpose: Purpose, index: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = purpose as u8;
        let mut words = ChaCha8Rng::from_seed(key);
        words.set_stream(index);
        Self(words)
    }

    /// The numbers of one position of a stream, independent of those of its other positions. They overlap only if
    /// more than sixteen words are taken.
    pub(super) fn at(seed: u64, purpose: Purpose, index: u64, position: u64) -> Self {
        let mut stream = Self::new(seed, purpose, index);
        stream.0.set_word_pos(u128::from(position) * 16);
        stream
    }

    /// A uniformly distributed integer below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "bound must be above 0");
        let bound = bound as u64;
        // Lemire's method: the high word of a product; the few low words that would bias the result are
        // rejected. https://arxiv.org/abs/1805.10941
        let unfair = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(bound);
            if product as u64 >= unfair {
                return (product >> 64) as usize;
            }
        }
    }

    /// A uniformly distributed float in `low..high`.
    pub(super) fn between(&mut self, low: f32, high: f32) -> f32 {
        // 24 bits are exactly a float's precision.
        let unit = (self.0.next_u32() >> 8) as f32 / 16_777_216.0;
        low + (high - low) * unit
    }

    /// A uniformly distributed float in `0..1`, with 53 random bits.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    /// A random word.
    pub(super) fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// An approximately normal float of mean 0 and standard deviation 1, never beyond ±3.5.
    /// It is the sum of four uniform numbers; the last bit of a logarithm would differ between
    /// machines.
    pub(super) fn bell(&mut self) -> f32 {
        const UNIT_DEVIATION: f32 = 1.732_050_8;
        let sum: f32 = (0..4).map(|_| self.between(-0.5, 0.5)).sum();
        sum * UNIT_DEVIATION
    }

    /// Random bytes.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// Shuffles items (Fisher–Yates, last position first).
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permutation(seed: u64, index: u64, len: usize) -> Vec<usize> {
        let mut items: Vec<usize> = (0..len).collect();
        Stream::new(seed, Purpose::EpochOrder, index).shuffle(&mut items);
        items
    }

    /// A golden value: if it changes, every shuffled run changes. Do not update it lightly.
    #[test]
    fn an_order_never_changes_between_releases() {
        assert_eq!(permutation(1, 0, 10), [8, 1, 6, 4, 0, 5, 9, 3, 7, 2]);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items = permutation(7, 3, 1000);
        assert_ne!(items, permutation(7, 4, 1000));
        assert_ne!(items, permutation(8, 3, 1000));
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn all_orders_of_three_are_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for index in 0..6000 {
            *counts.entry(permutation(1, index, 3)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Each count should be 1,000, with a standard deviation of 29.
        assert!(counts.values().all(|count| (860..1140).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_bell_has_mean_zero_and_deviation_one() {
        let mut stream = Stream::new(1, Purpose::DigitStrokes, 0);
        let draws: Vec<f32> = (0..10_000).map(|_| stream.bell()).collect();
        let mean = draws.iter().sum::<f32>() / 10_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
