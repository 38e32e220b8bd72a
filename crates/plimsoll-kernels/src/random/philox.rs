//! The random bits of dropout and of stochastic rounding. They are computed from the position of an element, so that only a seed is stored.
//!
//! Philox 4x32-10 (Salmon and others, 2011), the generator of PyTorch on GPUs: a counter goes in, four words come out.
//! The forward and the backward pass use the same positions and get the same bits, on every machine and in any order.

use super::draw::RandomStream;
use crate::number::Float;
use crate::simd::vectorize;

/// The number of elements that are drawn together. A caller that draws by rows uses a whole number of groups for each
/// row.
pub const GROUP: usize = 64;
const LANES: usize = 16;

/// A dropout, which multiplies each element by 0 or by `1 / (1 - p)`.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    stream: RandomStream,
    threshold: u32,
    factor: f32,
}

impl Dropout {
    /// The threshold for the random words, the factor for kept elements, and the stream of the words, for GPU kernels.
    pub fn words(&self) -> ((u32, f32), RandomStream) {
        ((self.threshold, self.factor), self.stream)
    }

    /// A dropout with probability `p`, which must be between 0 and 1.
    pub fn new(p: f64, stream: RandomStream) -> Self {
        // With p = 1 every element is multiplied by 0, kept or not.
        let factor = if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 };
        Self { stream, threshold: (p * 4_294_967_296.0) as u32, factor }
    }

    /// The factors of a group of elements, which begins at `group * GROUP`.
    #[inline(always)]
    pub fn factors(&self, group: u64) -> [f32; GROUP] {
        words_of_group(self.stream, group).map(|word| if word >= self.threshold { self.factor } else { 0.0 })
    }

    /// Writes the elements of `x`, which begin at element `group * GROUP`, times their factors.
    pub fn write<T: Float>(&self, group: u64, x: &[T], out: &mut [T]) {
        vectorize(
            #[inline(always)]
            || {
                for (i, (out, x)) in out.chunks_mut(GROUP).zip(x.chunks(GROUP)).enumerate() {
                    let factors = self.factors(group + i as u64);
                    for ((out, &x), factor) in out.iter_mut().zip(x).zip(factors) {
                        *out = x * T::of(f64::from(factor));
                    }
                }
            },
        );
    }

    /// Multiplies `values`, which begin at element `group * GROUP`, by their factors.
    #[inline(always)]
    pub fn apply(&self, group: u64, values: &mut [f32]) {
        for (i, values) in values.chunks_mut(GROUP).enumerate() {
            let factors = self.factors(group + i as u64);
            values.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
        }
    }
}

/// The random words of a group of elements, which begins at `group * GROUP`.
#[inline(always)]
pub fn words_of_group(stream: RandomStream, group: u64) -> [u32; GROUP] {
    let mut all = [0; GROUP];
    for (lane, words) in words(stream, group).into_iter().enumerate() {
        all[lane * LANES..][..LANES].copy_from_slice(&words);
    }
    all
}

/// The four words of each of sixteen adjacent counters.
#[inline(always)]
fn words(stream: RandomStream, group: u64) -> [[u32; LANES]; 4] {
    let first = group.wrapping_mul(LANES as u64);
    let counter: [u64; LANES] = std::array::from_fn(|i| first.wrapping_add(i as u64));
    let mut x = [
        counter.map(|at| at as u32),
        counter.map(|at| (at >> 32) as u32),
        [stream.stream as u32; LANES],
        [(stream.stream >> 32) as u32; LANES],
    ];
    let mut key = [stream.seed as u32, (stream.seed >> 32) as u32];
    for _ in 0..10 {
        let mut next = [[0; LANES]; 4];
        for i in 0..LANES {
            let a = u64::from(x[0][i]) * 0xD251_1F53;
            let b = u64::from(x[2][i]) * 0xCD9E_8D57;
            next[0][i] = (b >> 32) as u32 ^ x[1][i] ^ key[0];
            next[1][i] = b as u32;
            next[2][i] = (a >> 32) as u32 ^ x[3][i] ^ key[1];
            next[3][i] = a as u32;
        }
        x = next;
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_random123() {
        // Random123's known answers for an all-zero and an all-one counter and key.
        let zeros = words(RandomStream { seed: 0, stream: 0 }, 0);
        assert_eq!(zeros.map(|lane| lane[0]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = words(RandomStream { seed: u64::MAX, stream: u64::MAX }, u64::MAX);
        assert_eq!(ones.map(|lane| lane[LANES - 1]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn the_share_that_is_dropped_is_p_and_the_mean_stays() {
        let dropout = Dropout::new(0.25, RandomStream { seed: 3, stream: 1 });
        let all: Vec<f32> = (0..1000).flat_map(|group| dropout.factors(group)).collect();
        let dropped = all.iter().filter(|&&x| x == 0.0).count() as f64 / all.len() as f64;
        let mean = all.iter().map(|&x| f64::from(x)).sum::<f64>() / all.len() as f64;
        assert!((dropped - 0.25).abs() < 0.01 && (mean - 1.0).abs() < 0.02, "{dropped} {mean}");
    }

    #[test]
    fn the_ends_of_the_range_keep_all_and_none() {
        let factors = |p| Dropout::new(p, RandomStream { seed: 3, stream: 1 }).factors(0);
        assert_eq!((factors(0.0), factors(1.0)), ([1.0; GROUP], [0.0; GROUP]));
    }
}
