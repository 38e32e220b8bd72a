//! Reductions of a strided input: sum over any set of dimensions, and argmax over one.
//!
//! Sums are as accurate as pairwise summation, without its recursion: `f32` lanes add at most `BLOCK`
//! values each, and the blocks' results are added in `f64`. The order depends only on the shape.

use std::ops::Range;

use crate::number::{Float, Number};
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;
use crate::walk::Walk;

/// Values that one `f32` lane adds before it is added to the total.
const BLOCK: usize = 64;
/// Lanes of a contiguous sum, and columns of a tile.
const LANES: usize = 64;
/// Parts of one long sum that may run in parallel.
const PARTS: usize = 64;

/// `out` = sum of `src` over the dimensions for which `reduced` is set; the others keep their order. A
/// sum over no elements is 0.
pub fn sum<T: Float>(shape: &[usize], src: &[T], strides: &[usize], reduced: &[bool], out: &mut [T]) {
    assert_eq!(strides.len(), shape.len(), "sum: strides do not match the rank");
    assert_eq!(reduced.len(), shape.len(), "sum: mask does not match the rank");
    let dims = |wanted: bool| {
        let chosen = (0..shape.len()).filter(move |&d| reduced[d] == wanted);
        Walk::of_dims(chosen.map(|d| (shape[d], [strides[d]])))
    };
    let (kept, folded) = (dims(false), dims(true));
    assert_eq!(out.len(), kept.len(), "sum: out does not match the kept dimensions of {shape:?}");
    if folded.len() == 0 {
        return out.fill(T::default());
    }
    let reads = kept.span(0) + folded.span(0);
    assert!(
        out.is_empty() || src.len() + 1 >= reads,
        "sum: src of {} where {} are read",
        src.len(),
        reads - 1
    );
    let columns = kept.run_strides() == [1] && folded.run_strides() != [1] && kept.run_len() >= 8;
    if out.len() == 1 && folded.len() > PIECE {
        out[0] = add_in_parts(src, &folded);
        return;
    }
    let piece_len = (PIECE / folded.len()).max(if columns { LANES } else { 1 });
    let [kept_step] = kept.run_strides();
    for_each_piece(out, piece_len, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                kept.for_each_run(
                    start..start + piece.len(),
                    #[inline(always)]
                    |at, [from], len| {
                        let out = &mut piece[at - start..][..len];
                        if columns {
                            for (i, out) in out.chunks_mut(LANES).enumerate() {
                                add_columns(&src[from + i * LANES..], &folded, out);
                            }
                        } else {
                            for (i, out) in out.iter_mut().enumerate() {
                                let src = &src[from + i * kept_step..];
                                *out = T::of(add(src, &folded, 0..folded.len()));
                            }
                        }
                    },
                );
            },
        );
    });
}

/// [`sum`] for integers, which wrap.
pub fn sum_whole(shape: &[usize], src: &[i64], strides: &[usize], reduced: &[bool], out: &mut [i64]) {
    let dims = |wanted: bool| {
        let chosen = (0..shape.len()).filter(move |&d| reduced[d] == wanted);
        Walk::of_dims(chosen.map(|d| (shape[d], [strides[d]])))
    };
    let (kept, folded) = (dims(false), dims(true));
    let ([kept_step], [step]) = (kept.run_strides(), folded.run_strides());
    for_each_piece(out, (PIECE / folded.len().max(1)).max(1), |start, piece| {
        kept.for_each_run(start..start + piece.len(), |at, [from], len| {
            for (i, out) in piece[at - start..][..len].iter_mut().enumerate() {
                *out = 0;
                folded.for_each_run(0..folded.len(), |_, [inner], len| {
                    for k in 0..len {
                        *out = out.wrapping_add(src[from + i * kept_step + inner + k * step]);
                    }
                });
            }
        });
    });
}

/// `out` = index along `dim` of the largest value, the first if there are several; the first NaN wins.
pub fn argmax<T: Number>(shape: &[usize], src: &[T], strides: &[usize], dim: usize, out: &mut [i64]) {
    let (size, step) = (shape[dim], strides[dim]);
    let kept = Walk::of_dims((0..shape.len()).filter(|&d| d != dim).map(|d| (shape[d], [strides[d]])));
    assert!(size > 0 || kept.len() == 0, "argmax over dimension {dim} of size 0");
    assert_eq!(out.len(), kept.len(), "argmax: out does not match shape {shape:?} without {dim}");
    let [kept_step] = kept.run_strides();
    for_each_piece(out, (PIECE / size.max(1)).max(1), |start, piece| {
        kept.for_each_run(start..start + piece.len(), |at, [from], len| {
            for i in 0..len {
                let row = &src[from + i * kept_step..];
                let mut best = 0;
                for j in 1..size {
                    let (x, y) = (row[j * step], row[best * step]);
                    if x > y || (x.is_nan() && !y.is_nan()) {
                        best = j;
                    }
                }
                piece[at - start + i] = best as i64;
            }
        });
    });
}

/// Adds everything `folded` visits, in fixed parts that run in parallel and are combined in order.
fn add_in_parts<T: Float>(src: &[T], folded: &Walk<1>) -> T {
    let part_len = folded.len().div_ceil(PARTS).max(PIECE);
    let mut totals = [0f64; PARTS];
    for_each_piece(&mut totals[..folded.len().div_ceil(part_len)], 1, |part, total| {
        let positions = part * part_len..folded.len().min((part + 1) * part_len);
        vectorize(
            #[inline(always)]
            || total[0] = add(src, folded, positions),
        );
    });
    T::of(totals.into_iter().sum::<f64>())
}

/// Adds the values at `positions`.
#[inline(always)]
fn add<T: Float>(src: &[T], folded: &Walk<1>, positions: Range<usize>) -> f64 {
    let [step] = folded.run_strides();
    let mut total = 0.0;
    folded.for_each_run(
        positions,
        #[inline(always)]
        |_, [from], len| {
            let src = &src[from..];
            if step == 1 && len >= LANES {
                for block in src[..len].chunks(BLOCK * LANES) {
                    total += add_block(block).wide();
                }
            } else {
                for block in (0..len).step_by(BLOCK) {
                    let block = block..len.min(block + BLOCK);
                    total += block
                        .fold(
                            T::default(),
                            #[inline(always)]
                            |sum, i| sum + src[i * step],
                        )
                        .wide();
                }
            }
        },
    );
    total
}

/// Adds contiguous values in [`LANES`] interleaved lanes, then the lanes by halves.
#[inline(always)]
fn add_block<T: Float>(block: &[T]) -> T {
    let mut lanes = [T::default(); LANES];
    let (rows, rest) = block.as_chunks::<LANES>();
    for row in rows {
        for i in 0..LANES {
            lanes[i] += row[i];
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            let other = lanes[i + half];
            lanes[i] += other;
        }
        half /= 2;
    }
    lanes[0]
}

/// Adds up to [`LANES`] neighbouring columns at once.
#[inline(always)]
fn add_columns<T: Float>(src: &[T], folded: &Walk<1>, out: &mut [T]) {
    let [step] = folded.run_strides();
    let width = out.len();
    let (mut totals, mut lanes, mut rows) = ([0f64; LANES], [T::default(); LANES], 0);
    folded.for_each_run(
        0..folded.len(),
        #[inline(always)]
        |_, [from], len| {
            for i in 0..len {
                let row = &src[from + i * step..][..width];
                if let Some(row) = row.as_array::<LANES>() {
                    for i in 0..LANES {
                        lanes[i] += row[i];
                    }
                } else {
                    for (lane, &x) in lanes.iter_mut().zip(row) {
                        *lane += x;
                    }
                }
                rows += 1;
                if rows == BLOCK {
                    for i in 0..LANES {
                        totals[i] += lanes[i].wide();
                    }
                    (lanes, rows) = ([T::default(); LANES], 0);
                }
            }
        },
    );
    for (i, out) in out.iter_mut().enumerate() {
        *out = T::of(totals[i] + lanes[i].wide());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    /// Reference: adds in `f64`, one element at a time.
    fn reference(shape: &[usize], src: &[f32], strides: &[usize], mask: &[bool]) -> Vec<f32> {
        let kept_shape: Vec<usize> = (0..shape.len()).filter(|&d| !mask[d]).map(|d| shape[d]).collect();
        let kept = contiguous(&kept_shape);
        let mut next = kept.iter();
        let to: Vec<usize> = mask.iter().map(|&m| if m { 0 } else { *next.next().unwrap() }).collect();
        let mut out = vec![0.0; kept_shape.iter().product()];
        for (from, to) in offsets(shape, strides).zip(offsets(shape, &to)) {
            out[to] += f64::from(src[from]);
        }
        out.into_iter().map(|x| x as f32).collect()
    }

    #[test]
    fn any_mask_over_any_strides_matches_the_reference() {
        let src = random(1000, 1);
        for (shape, strides) in strided_cases() {
            for bits in 0..1 << shape.len() {
                let mask: Vec<bool> = (0..shape.len()).map(|d| bits >> d & 1 == 1).collect();
                let expected = reference(&shape, &src, &strides, &mask);
                let mut out = vec![9.0; expected.len()];
                sum(&shape, &src, &strides, &mask, &mut out);
                assert_close(&out, &expected, 1e-6);
            }
        }
    }

    #[test]
    fn a_long_sum_is_as_exact_as_pairwise_and_the_same_on_any_threads() {
        let src = vec![0.1f32; 10_000_019];
        let out = on_any_threads(|| {
            let mut out = vec![0.0; 1];
            sum(&[src.len()], &src, &[1], &[true], &mut out);
            out
        });
        let expected = f64::from(0.1f32) * src.len() as f64;
        assert!((f64::from(out[0]) / expected - 1.0).abs() < 1e-6, "{} of {expected}", out[0]);
    }

    #[test]
    fn column_sums_and_channel_sums_match_the_reference() {
        for (shape, mask) in
            [(vec![1000, 130], vec![true, false]), (vec![7, 20, 300], vec![true, false, true])]
        {
            let (src, strides) = (random(shape.iter().product(), 3), contiguous(&shape));
            let expected = reference(&shape, &src, &strides, &mask);
            let out = on_any_threads(|| {
                let mut out = vec![0.0; expected.len()];
                sum(&shape, &src, &strides, &mask, &mut out);
                out
            });
            assert_close(&out, &expected, 1e-5);
        }
    }

    #[test]
    fn argmax_takes_the_first_largest_along_any_dimension() {
        let src = [1.0, 3.0, 3.0, 5.0, 5.0, 4.0];
        let mut rows = [9; 2];
        argmax(&[2, 3], &src, &[3, 1], 1, &mut rows);
        assert_eq!(rows, [1, 0]);
        let mut columns = [9; 3];
        argmax(&[2, 3], &src, &[3, 1], 0, &mut columns);
        assert_eq!(columns, [1, 1, 1]);
        argmax(&[2, 2], &[0.0, f32::NAN, f32::NAN, 9.0], &[2, 1], 1, &mut rows);
        assert_eq!(rows, [1, 0]);
    }
}
