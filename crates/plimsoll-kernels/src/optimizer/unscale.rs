//! Multiplies gradients by a factor and checks for non-finite values.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;

/// Multiplies by `factor`. Returns whether any value was infinite or NaN.
pub fn scale_and_check<T: Float>(gradient: &mut [T], factor: T) -> bool {
    let found = AtomicBool::new(false);
    for_each_piece(gradient, PIECE, |_, piece| {
        let sum = vectorize(
            #[inline(always)]
            || {
                // Finite values times zero are zero. All others give NaN, which makes the sum NaN.
                let mut sum = T::default();
                for x in piece.iter_mut() {
                    sum += *x * T::default();
                    *x *= factor;
                }
                sum
            },
        );
        if sum.is_nan() {
            found.store(true, Ordering::Relaxed);
        }
    });
    found.into_inner()
}
