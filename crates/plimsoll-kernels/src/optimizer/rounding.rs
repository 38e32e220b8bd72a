//! Stochastic rounding to `bfloat16`: up or down at random, so that the mean is the value itself.
//!
//! Rounding to nearest loses updates below half a unit of the parameter; after stochastic rounding, they arrive on average. The
//! random bits follow from a seed, the number of the step and the position of the element, so they are the same on every device.

use crate::random::RandomStream;
use crate::random::philox::{GROUP, words_of_group};
use crate::simd::vectorize;

/// The random bits of one step of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// The seed of the parameter.
    pub seed: u64,
    /// The number of the step.
    pub step: u64,
}

impl Rounding {
    /// Writes `values` as `bfloat16`. They are those of the `nth` tensor that changes (the parameter, then its state), from
    /// element `first` on, which must be a multiple of 64. A random word has the bits for two tensors.
    pub fn store(self, nth: usize, first: usize, values: &[f32], to: &mut [u8]) {
        let stream = RandomStream { seed: self.seed, stream: 2 * self.step + nth as u64 / 2 };
        let shift = if nth.is_multiple_of(2) { 0 } else { 16 };
        let to: &mut [u16] = bytemuck::cast_slice_mut(to);
        vectorize(
            #[inline(always)]
            || {
                for (i, (to, values)) in to.chunks_mut(GROUP).zip(values.chunks(GROUP)).enumerate() {
                    let words = words_of_group(stream, (first / GROUP + i) as u64);
                    for ((to, &x), word) in to.iter_mut().zip(values).zip(words) {
                        *to = rounded(x, word >> shift);
                    }
                }
            },
        );
    }
}

/// The upper half of the bits after a random number below one unit of it has been added.
#[inline(always)]
fn rounded(x: f32, random: u32) -> u16 {
    let bits = x.to_bits();
    let up = (bits.wrapping_add(random & 0xffff) >> 16) as u16;
    // A NaN whose upper half has no mantissa bit would become infinite.
    let as_it_is = (bits >> 16) as u16 | if x.is_nan() { 0x0040 } else { 0 };
    if x.is_finite() { up } else { as_it_is }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(values: &[f32], nth: usize, step: u64) -> Vec<f32> {
        let mut bytes = vec![0u16; values.len()];
        Rounding { seed: 7, step }.store(nth, 0, values, bytemuck::cast_slice_mut(&mut bytes));
        bytes.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_value() {
        const COUNT: usize = 1 << 18;
        for nth in 0..4 {
            for share in [0.0f64, 0.1, 0.5, 0.9] {
                for sign in [1.0, -1.0] {
                    // A unit of bfloat16 above 1 is 2^-7.
                    let x = (sign * (1.0 + share / 128.0)) as f32;
                    let rounded = round(&vec![x; COUNT], nth, 3);
                    let mean = rounded.iter().map(|&x| f64::from(x)).sum::<f64>() / COUNT as f64;
                    let up = (mean.abs() - 1.0) * 128.0;
                    let deviation = (share * (1.0 - share) / COUNT as f64).sqrt();
                    assert!((up - share).abs() <= 5.0 * deviation + 1e-6, "{nth} {x}: {up}, not {share}");
                    assert!(rounded.iter().all(|x| [1.0, 1.0078125].contains(&x.abs())));
                }
            }
        }
    }

    #[test]
    fn tensors_and_steps_have_their_own_bits() {
        let half = vec![1.0 + 1.0 / 256.0; 4096];
        let all: Vec<Vec<f32>> =
            (0..4).map(|nth| round(&half, nth, 1)).chain((2..4).map(|step| round(&half, 0, step))).collect();
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                let equal = a.iter().zip(b).filter(|(a, b)| a == b).count();
                assert!((1800..2300).contains(&equal), "{equal} of 4096 are equal");
            }
        }
    }

    #[test]
    fn what_is_exact_or_not_finite_stays() {
        let values = [0.0, -0.0, 1.5, f32::INFINITY, f32::NEG_INFINITY, -3.0];
        assert_eq!(round(&values, 0, 1), values);
        assert!(round(&[f32::NAN, f32::from_bits(0x7f80_0001)], 0, 1).iter().all(|x| x.is_nan()));
    }
}
