//! Losses of an input and a target of equal shape: a function of each pair, summed without an intermediate
//! tensor.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;

/// Parts of a sum that may run in parallel; they are combined in order.
const PARTS: usize = 64;

/// The sum of `f(x, target)`: runs of 1024 elements are summed in the type itself, and the runs in `f64`.
pub fn sum<T: Float>(x: &[T], target: &[T], f: impl Fn(T, T) -> T + Sync) -> f64 {
    assert_eq!(x.len(), target.len(), "pair_loss: input and target differ in length");
    let part_len = x.len().div_ceil(PARTS).max(PIECE);
    let mut parts = [0f64; PARTS];
    for_each_piece(&mut parts[..x.len().div_ceil(part_len)], 1, |part, total| {
        let range = part * part_len..x.len().min((part + 1) * part_len);
        let (x, target) = (&x[range.clone()], &target[range]);
        vectorize(
            #[inline(always)]
            || {
                let mut buffer = [T::default(); 1024];
                for (x, target) in x.chunks(1024).zip(target.chunks(1024)) {
                    let values = &mut buffer[..x.len()];
                    for ((value, &x), &t) in values.iter_mut().zip(x).zip(target) {
                        *value = f(x, t);
                    }
                    total[0] += crate::normalization::softmax::row_sum(values).wide();
                }
            },
        );
    });
    parts.iter().sum()
}

/// `out[i] = f(x[i], target[i])`.
pub fn each<T: Float>(x: &[T], target: &[T], out: &mut [T], f: impl Fn(T, T) -> T + Sync) {
    assert_eq!([x.len(), target.len()], [out.len(); 2], "pair_loss: input, target and out differ in length");
    for_each_piece(out, PIECE, |start, out| {
        vectorize(
            #[inline(always)]
            || {
                for ((out, &x), &t) in out.iter_mut().zip(&x[start..]).zip(&target[start..]) {
                    *out = f(x, t);
                }
            },
        );
    });
}

/// Multiplies each element by its gradient (or all elements by a single one) and by `weight`.
pub fn scale<T: Float>(out: &mut [T], grad: &[T], weight: f64) {
    let (single, weight) = (grad.len() == 1, T::of(weight));
    for_each_piece(out, PIECE, |start, out| {
        for (i, out) in out.iter_mut().enumerate() {
            *out *= weight * grad[if single { 0 } else { start + i }];
        }
    });
}
