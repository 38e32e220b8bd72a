//! The derivative of overlapping windows: each element is the sum over its positions in all windows.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};
use crate::walk::Walk;

/// Windows along one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// The dimension.
    pub dim: usize,
    /// Elements in a window.
    pub size: usize,
    /// The distance between the beginnings of neighbouring windows.
    pub step: usize,
    /// The number of windows.
    pub count: usize,
}

/// Computes `out`, row-major with shape `shape`, from `grad`, which has the windows in dimension `windows.dim` and
/// their elements in a new last dimension.
pub fn unfold_backward<T: Float>(
    shape: &[usize],
    windows: Windows,
    (grad, grad_strides): (&[T], &[usize]),
    out: &mut [T],
) {
    let Windows { dim, size, step, count } = windows;
    assert_eq!(grad_strides.len(), shape.len() + 1, "unfold_backward: strides do not match the rank");
    assert_eq!(out.len(), shape.iter().product::<usize>(), "unfold_backward: out does not match {shape:?}");
    let (window_step, element_step) = (grad_strides[dim], grad_strides[shape.len()]);
    // Positions in `grad`, not counting the window dimensions.
    let rest =
        Walk::of_dims((0..shape.len()).map(|d| (shape[d], [if d == dim { 0 } else { grad_strides[d] }])));
    let [rest_step] = rest.run_strides();
    let inner: usize = shape[dim + 1..].iter().product();
    for_each_piece(out, PIECE / 4, |start, piece| {
        rest.for_each_run(start..start + piece.len(), |at, [from], len| {
            for i in 0..len {
                let place = (at + i) / inner % shape[dim];
                let first = if place < size { 0 } else { (place - size) / step + 1 };
                let last = (place / step + 1).min(count);
                let from = from + i * rest_step;
                let sum = (first..last)
                    .map(|w| grad[from + w * window_step + (place - w * step) * element_step])
                    .sum();
                piece[at - start + i] = sum;
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_the_sum_over_its_windows() {
        // Windows 0..3, 2..5 of 6 elements: the last element is in none.
        let windows = Windows { dim: 0, size: 3, step: 2, count: 2 };
        let mut out = [9.0; 6];
        unfold_backward(&[6], windows, (&[1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0], &[3, 1]), &mut out);
        assert_eq!(out, [1.0, 2.0, 13.0, 20.0, 30.0, 0.0]);
    }
}
