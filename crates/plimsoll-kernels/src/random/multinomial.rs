//! Weighted sampling of indices, with the same results on every machine and for any number of threads.
//!
//! Each row uses separate words of the stream. With replacement, a random number between 0 and the sum of the weights
//! falls between two partial sums. Without replacement, each index gets an exponential arrival time with its weight as
//! the rate, and the earliest are drawn.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::draw::RandomStream;
use crate::number::Float;
use crate::parallel::{Pieces, for_each_cut_with};

/// Floats of scratch memory for one worker.
pub fn multinomial_scratch_len(weights: usize) -> usize {
    2 * weights
}

/// An error in the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BadWeights {
    /// A weight that is negative, infinite or NaN.
    Weight { row: usize, place: usize, value: f64 },
    /// Too few weights above 0.
    Few { row: usize, found: usize, needed: usize },
}

/// A random number from 0 up to, but not including, 1.
fn uniform(words: &mut ChaCha8Rng) -> f64 {
    (words.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Draws `drawn` indices for each row of `cols` weights.
pub fn multinomial<T: Float>(
    cols: usize,
    weights: &[T],
    (drawn, replace): (usize, bool),
    from: RandomStream,
    out: &mut [i64],
    scratch: &mut [f32],
) -> Result<(), BadWeights> {
    if out.is_empty() {
        return Ok(());
    }
    for (row, weights) in weights.chunks(cols).enumerate() {
        let bad = |weight: &T| !(weight.wide() >= 0.0 && weight.wide().is_finite());
        if let Some(place) = weights.iter().position(bad) {
            return Err(BadWeights::Weight { row, place, value: weights[place].wide() });
        }
        let found = weights.iter().filter(|weight| weight.wide() > 0.0).count();
        let needed = if replace { 1 } else { drawn };
        if found < needed {
            return Err(BadWeights::Few { row, found, needed });
        }
    }
    let rows = out.len() / drawn;
    let out = Pieces::of(out, drawn);
    for_each_cut_with(rows, out, scratch, multinomial_scratch_len(cols), |row, out, scratch| {
        let weights = &weights[row * cols..][..cols];
        let mut words = ChaCha8Rng::seed_from_u64(from.seed);
        words.set_stream(from.stream);
        words.set_word_pos(row as u128 * 2 * if replace { drawn } else { cols } as u128);
        if replace {
            let sums: &mut [f64] = bytemuck::cast_slice_mut(scratch);
            let mut sum = 0.0;
            for (so_far, weight) in sums.iter_mut().zip(weights) {
                sum += weight.wide();
                *so_far = sum;
            }
            for out in out {
                let at = uniform(&mut words) * sum;
                *out = sums.partition_point(|&so_far| so_far <= at).min(cols - 1) as i64;
            }
        } else {
            let times: &mut [u64] = bytemuck::cast_slice_mut(scratch);
            for (i, (time, weight)) in times.iter_mut().zip(weights).enumerate() {
                let waited = -libm::log(1.0 - uniform(&mut words)) / weight.wide();
                // 0 divided by 0 also counts as never. The bits of positive floats have the same order as the floats.
                let waited = if weight.wide() > 0.0 { waited as f32 } else { f32::INFINITY };
                *time = u64::from(waited.to_bits()) << 32 | i as u64;
            }
            if drawn < cols {
                times.select_nth_unstable(drawn - 1);
            }
            times[..drawn].sort_unstable();
            out.iter_mut().zip(&*times).for_each(|(out, time)| *out = (time & u64::from(u32::MAX)) as i64);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: RandomStream = RandomStream { seed: 3, stream: 1 };

    fn draw(weights: &[f32], cols: usize, drawn: usize, replace: bool) -> Result<Vec<i64>, BadWeights> {
        let mut out = vec![0; weights.len() / cols * drawn];
        let mut scratch = vec![0f64; cols];
        let scratch = bytemuck::cast_slice_mut(&mut scratch);
        multinomial(cols, weights, (drawn, replace), STREAM, &mut out, scratch).map(|()| out)
    }

    #[test]
    fn places_come_as_often_as_their_weights_say() {
        let weights = [1.0, 0.0, 2.0, 5.0];
        let drawn = draw(&weights, 4, 80_000, true).unwrap();
        let share = |place: i64| drawn.iter().filter(|&&x| x == place).count() as f32 / 10_000.0;
        (0..4).for_each(|i| assert!((share(i) - weights[i as usize]).abs() < 0.1, "{i}: {}", share(i)));
        let first = |_| draw(&weights.repeat(20_000), 4, 1, false).unwrap();
        let firsts = first(());
        let share = |place: i64| firsts.iter().filter(|&&x| x == place).count() as f32 / 2_500.0;
        (0..4).for_each(|i| assert!((share(i) - weights[i as usize]).abs() < 0.1, "{i}: {}", share(i)));
    }

    #[test]
    fn without_replacement_no_place_comes_twice() {
        for row in draw(&[1.0f32; 50].repeat(20), 50, 50, false).unwrap().chunks(50) {
            let mut row = row.to_vec();
            row.sort_unstable();
            assert!(row.into_iter().eq(0..50));
        }
    }

    #[test]
    fn weights_that_cannot_be_are_found() {
        assert_eq!(draw(&[1.0, -2.0], 2, 1, true), Err(BadWeights::Weight { row: 0, place: 1, value: -2.0 }));
        assert_eq!(
            draw(&[1.0, 1.0, 0.0, 0.0], 2, 1, true),
            Err(BadWeights::Few { row: 1, found: 0, needed: 1 })
        );
        assert_eq!(draw(&[1.0, 0.0], 2, 2, false), Err(BadWeights::Few { row: 0, found: 1, needed: 2 }));
    }
}
