//! One loop for reductions over any set of dimensions. A [`Fold`] defines the state that is kept for the elements so
//! far.
//!
//! Contiguous elements are folded into `LANES` independent states, neighbouring outputs are folded together, and a
//! long fold to one output is split into parts. States are combined in an order that depends only on the shape.

use std::ops::Range;

use crate::parallel::{Cuts, PIECE, Pieces, for_each_cut, for_each_piece};
use crate::simd::vectorize;
use crate::walk::Walk;

/// The number of independent states of a contiguous fold, and of outputs folded together.
const LANES: usize = 16;
/// Parts of one long fold that may run in parallel.
const PARTS: usize = 64;

/// A reduction, defined by a state for the elements so far.
pub trait Fold<T>: Sync {
    /// The state.
    type State: Copy + Send;
    /// The state before any element. `first` is the first element to come, or any value if there is none.
    fn start(&self, first: T) -> Self::State;
    /// The state after one more element, the `at`-th of its output.
    fn step(&self, state: Self::State, x: T, at: usize) -> Self::State;
    /// Combines the states of two disjoint sets of elements.
    fn join(&self, a: Self::State, b: Self::State) -> Self::State;
}

/// Folds `src` over the dimensions for which `reduced` is set, and writes `finish` of the states to `out`; the other
/// dimensions keep their order.
pub fn fold<T: Copy + Default + Sync, O: Send, F: Fold<T>>(
    shape: &[usize],
    src: (&[T], &[usize]),
    reduced: &[bool],
    folding: &F,
    out: &mut [O],
    finish: impl Fn(F::State) -> O + Sync,
) {
    let outputs = out.len();
    for_each_fold(
        shape,
        src,
        reduced,
        folding,
        outputs,
        |len| Pieces::of(out, len),
        |out, i, state| out[i] = finish(state),
    );
}

/// [`fold`] with two outputs.
pub fn fold2<T: Copy + Default + Sync, O: Send, P: Send, F: Fold<T>>(
    shape: &[usize],
    src: (&[T], &[usize]),
    reduced: &[bool],
    folding: &F,
    (first, second): (&mut [O], &mut [P]),
    finish: impl Fn(F::State) -> (O, P) + Sync,
) {
    assert_eq!(first.len(), second.len(), "fold2: its outputs");
    let outputs = first.len();
    for_each_fold(
        shape,
        src,
        reduced,
        folding,
        outputs,
        |len| (Pieces::of(first, len), Pieces::of(second, len)),
        |(first, second), i, state| (first[i], second[i]) = finish(state),
    );
}

/// Calls `write` once for each output, with its fold, its piece and its position there. `cut` splits the outputs.
fn for_each_fold<T: Copy + Default + Sync, F: Fold<T>, C: Cuts>(
    shape: &[usize],
    (src, strides): (&[T], &[usize]),
    reduced: &[bool],
    folding: &F,
    outputs: usize,
    cut: impl FnOnce(usize) -> C,
    write: impl Fn(&mut C::Piece, usize, F::State) + Sync,
) {
    let dims = |wanted: bool| {
        let chosen = (0..shape.len()).filter(move |&d| reduced[d] == wanted);
        Walk::of_dims(chosen.map(|d| (shape[d], [strides[d]])))
    };
    let (kept, folded) = (dims(false), dims(true));
    assert_eq!(outputs, kept.len(), "fold: outputs do not match the kept dimensions of {shape:?}");
    if folded.len() == 0 {
        return for_each_cut(1, cut(outputs), |_, mut piece| {
            (0..outputs).for_each(|i| write(&mut piece, i, folding.start(T::default())));
        });
    }
    if outputs == 1 && folded.len() > PIECE {
        return for_each_cut(1, cut(1), |_, mut piece| write(&mut piece, 0, in_parts(src, &folded, folding)));
    }
    let columns = kept.run_strides() == [1] && folded.run_strides() != [1] && kept.run_len() >= 8;
    let chunk_len = (PIECE / folded.len()).max(if columns { LANES } else { 1 });
    let [kept_step] = kept.run_strides();
    for_each_cut(outputs.div_ceil(chunk_len), cut(chunk_len), |chunk, mut piece| {
        let first = chunk * chunk_len;
        vectorize(
            #[inline(always)]
            || {
                kept.for_each_run(
                    first..outputs.min(first + chunk_len),
                    #[inline(always)]
                    |at, [from], len| {
                        if columns {
                            for i in (0..len).step_by(LANES) {
                                let states =
                                    side_by_side(&src[from + i..], &folded, folding, LANES.min(len - i));
                                let states = states.into_iter().take(len - i).enumerate();
                                states.for_each(|(lane, state)| {
                                    write(&mut piece, at - first + i + lane, state);
                                });
                            }
                        } else {
                            for i in 0..len {
                                let src = &src[from + i * kept_step..];
                                write(
                                    &mut piece,
                                    at - first + i,
                                    one(src, &folded, 0..folded.len(), folding),
                                );
                            }
                        }
                    },
                );
            },
        );
    });
}

/// The fold of everything, in fixed parts that run in parallel and are combined in order.
fn in_parts<T: Copy + Sync, F: Fold<T>>(src: &[T], folded: &Walk<1>, folding: &F) -> F::State {
    let part_len = folded.len().div_ceil(PARTS).max(PIECE);
    let mut states = [folding.start(src[0]); PARTS];
    let states = &mut states[..folded.len().div_ceil(part_len)];
    for_each_piece(states, 1, |part, state| {
        let positions = part * part_len..folded.len().min((part + 1) * part_len);
        vectorize(
            #[inline(always)]
            || state[0] = one(src, folded, positions, folding),
        );
    });
    let (first, rest) = states.split_at(1);
    rest.iter().fold(first[0], |a, &b| folding.join(a, b))
}

/// The fold of the elements at `positions`. Every state starts from the first element of the whole input.
#[inline(always)]
fn one<T: Copy, F: Fold<T>>(src: &[T], folded: &Walk<1>, positions: Range<usize>, folding: &F) -> F::State {
    let [step] = folded.run_strides();
    let mut state = folding.start(src[0]);
    folded.for_each_run(
        positions,
        #[inline(always)]
        |at, [from], len| {
            let src = &src[from..];
            if step == 1 && len >= 2 * LANES {
                let mut lanes = [folding.start(src[0]); LANES];
                let (rows, rest) = src[..len].as_chunks::<LANES>();
                for (i, row) in rows.iter().enumerate() {
                    for lane in 0..LANES {
                        lanes[lane] = folding.step(lanes[lane], row[lane], at + i * LANES + lane);
                    }
                }
                for (lane, &x) in rest.iter().enumerate() {
                    lanes[lane] = folding.step(lanes[lane], x, at + rows.len() * LANES + lane);
                }
                let mut half = LANES / 2;
                while half > 0 {
                    for lane in 0..half {
                        lanes[lane] = folding.join(lanes[lane], lanes[lane + half]);
                    }
                    half /= 2;
                }
                state = folding.join(state, lanes[0]);
            } else {
                for i in 0..len {
                    state = folding.step(state, src[i * step], at + i);
                }
            }
        },
    );
    state
}

/// Folds up to [`LANES`] neighbouring outputs at once.
#[inline(always)]
fn side_by_side<T: Copy, F: Fold<T>>(
    src: &[T],
    folded: &Walk<1>,
    folding: &F,
    width: usize,
) -> [F::State; LANES] {
    let [step] = folded.run_strides();
    let mut lanes: [F::State; LANES] = std::array::from_fn(|lane| folding.start(src[lane.min(width - 1)]));
    folded.for_each_run(
        0..folded.len(),
        #[inline(always)]
        |at, [from], len| {
            for i in 0..len {
                let row = &src[from + i * step..][..width];
                if let Some(row) = row.as_array::<LANES>() {
                    for lane in 0..LANES {
                        lanes[lane] = folding.step(lanes[lane], row[lane], at + i);
                    }
                } else {
                    for (lane, &x) in row.iter().enumerate() {
                        lanes[lane] = folding.step(lanes[lane], x, at + i);
                    }
                }
            }
        },
    );
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    /// A fold that keeps the sum, the count, and the position of the first largest element.
    struct Everything;

    impl Fold<f32> for Everything {
        type State = (f64, usize, f32, usize);
        fn start(&self, first: f32) -> Self::State {
            (0.0, 0, first, usize::MAX)
        }
        fn step(&self, (sum, n, best, place): Self::State, x: f32, at: usize) -> Self::State {
            (
                sum + f64::from(x),
                n + 1,
                if x > best { x } else { best },
                if x > best || (x == best && place > at) { at } else { place },
            )
        }
        fn join(&self, a: Self::State, b: Self::State) -> Self::State {
            let second = b.2 > a.2 || (b.2 == a.2 && b.3 < a.3);
            (a.0 + b.0, a.1 + b.1, if second { b.2 } else { a.2 }, if second { b.3 } else { a.3 })
        }
    }

    #[test]
    fn every_element_is_seen_once_over_any_mask_and_strides() {
        let src = random(1000, 1);
        for (shape, strides) in strided_cases() {
            for bits in 0..1 << shape.len() {
                let mask: Vec<bool> = (0..shape.len()).map(|d| bits >> d & 1 == 1).collect();
                let sizes = |wanted: bool| {
                    let dims = (0..shape.len()).filter(|&d| mask[d] == wanted);
                    dims.map(|d| (shape[d], strides[d])).unzip::<_, _, Vec<_>, Vec<_>>()
                };
                let ((kept, kept_strides), (folded, folded_strides)) = (sizes(false), sizes(true));
                let mut out = vec![(0.0, 0, 0.0, 0); kept.iter().product()];
                fold(&shape, (&src, &strides), &mask, &Everything, &mut out, |state| state);
                for (out, base) in out.iter().zip(offsets(&kept, &kept_strides)) {
                    let all: Vec<f32> = offsets(&folded, &folded_strides).map(|at| src[base + at]).collect();
                    let sum: f64 = all.iter().copied().map(f64::from).sum();
                    assert!((out.0 - sum).abs() < 1e-5 && out.1 == all.len(), "{shape:?} {mask:?}");
                    let best = (0..all.len()).fold(0, |best, i| if all[i] > all[best] { i } else { best });
                    assert!(all.is_empty() || out.3 == best, "{shape:?} {strides:?} {mask:?}");
                }
            }
        }
    }

    #[test]
    fn a_long_fold_is_the_same_on_any_threads() {
        let src = random(1_000_003, 2);
        let out = on_any_threads(|| {
            let mut out = vec![0.0; 1];
            fold(&[src.len()], (&src, &[1]), &[true], &Everything, &mut out, |state| state.0 as f32);
            out
        });
        let expected: f64 = src.iter().copied().map(f64::from).sum();
        assert!((f64::from(out[0]) - expected).abs() < 1e-3);
    }
}
