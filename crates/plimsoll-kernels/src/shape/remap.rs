//! Moves elements within each dimension: flips, rolls, padding.
//!
//! An [`Axis`] defines the sources of the elements of one dimension, as at most three stretches that run forwards, run
//! backwards or repeat one element. So rows are moved in complete stretches, and the derivative is a sum over the same
//! map.

use smallvec::SmallVec;

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};

/// A stretch of an output dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The number of elements.
    pub len: usize,
    /// The source of the first element.
    pub from: usize,
    /// The step from one source to the next: 1, -1 or 0.
    pub step: isize,
}

impl Stretch {
    fn source(self, i: usize) -> usize {
        self.from.wrapping_add_signed(self.step * i as isize)
    }
}

/// The sources of the elements of an output dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis(SmallVec<[Stretch; 3]>);

impl Axis {
    fn of(stretches: &[(usize, usize, isize)]) -> Axis {
        let stretches = stretches.iter().filter(|stretch| stretch.0 > 0);
        Axis(stretches.map(|&(len, from, step)| Stretch { len, from, step }).collect())
    }

    /// All elements in order.
    pub fn same(size: usize) -> Axis {
        Axis::of(&[(size, 0, 1)])
    }

    /// All elements in reverse order.
    pub fn flipped(size: usize) -> Axis {
        Axis::of(&[(size, size.wrapping_sub(1), -1)])
    }

    /// All elements shifted by `shift`, which must be below `size`; elements past the end reappear at the front.
    pub fn rolled(size: usize, shift: usize) -> Axis {
        Axis::of(&[(shift, size - shift, 1), (size - shift, 0, 1)])
    }

    /// Reflection padding: adds `before` and `after` elements that mirror the others, without repeating the edges.
    pub fn reflected(size: usize, before: usize, after: usize) -> Axis {
        Axis::of(&[(before, before, -1), (size, 0, 1), (after, size.wrapping_sub(2), -1)])
    }

    /// Replication padding: adds `before` and `after` copies of the edges.
    pub fn replicated(size: usize, before: usize, after: usize) -> Axis {
        Axis::of(&[(before, 0, 0), (size, 0, 1), (after, size - 1, 0)])
    }

    /// Circular padding: adds the last `before` elements at the front and the first `after` elements at the end.
    pub fn circular(size: usize, before: usize, after: usize) -> Axis {
        Axis::of(&[(before, size - before, 1), (size, 0, 1), (after, 0, 1)])
    }

    /// The number of elements.
    #[allow(clippy::len_without_is_empty, reason = "nothing asks whether there are none")]
    pub fn len(&self) -> usize {
        self.0.iter().map(|stretch| stretch.len).sum()
    }

    fn source(&self, mut place: usize) -> usize {
        for stretch in &self.0 {
            if place < stretch.len {
                return stretch.source(place);
            }
            place -= stretch.len;
        }
        unreachable!("a place beyond {self:?}");
    }
}

/// The offset in the operand of row `row` of the outer dimensions.
fn row_offset(outer: &[Axis], strides: &[usize], mut row: usize) -> usize {
    outer.iter().zip(strides).rev().fold(0, |offset, (axis, stride)| {
        let place = row % axis.len();
        row /= axis.len();
        offset + axis.source(place) * stride
    })
}

/// Fills `out`, row-major, with the elements of `x` that the axes select.
pub fn remap<W: bytemuck::Pod + Send + Sync>(axes: &[Axis], x: &[W], strides: &[usize], out: &mut [W]) {
    let total: usize = axes.iter().map(Axis::len).product();
    assert_eq!(out.len(), total, "remap: out does not match {axes:?}");
    let (Some((inner, outer)), false) = (axes.split_last(), out.is_empty()) else {
        return out.copy_from_slice(&x[..total]);
    };
    let (cols, stride) = (inner.len(), strides[outer.len()]);
    for_each_piece(out, (PIECE / cols).max(1) * cols, |start, piece| {
        for (i, row) in piece.chunks_mut(cols).enumerate() {
            let x = &x[row_offset(outer, strides, start / cols + i)..];
            let mut rest = row;
            for &stretch in &inner.0 {
                let (out, after) = rest.split_at_mut(stretch.len);
                rest = after;
                match (stretch.step, stride) {
                    (1, 1) => out.copy_from_slice(&x[stretch.from..][..out.len()]),
                    (-1, 1) => {
                        let from = &x[stretch.from + 1 - out.len()..=stretch.from];
                        out.iter_mut().zip(from.iter().rev()).for_each(|(out, &x)| *out = x);
                    }
                    (0, _) => out.fill(x[stretch.from * stride]),
                    _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = x[stretch.source(i) * stride]),
                }
            }
        }
    });
}

/// The derivative of [`remap`]: each element of `out`, row-major of `shape`, is the sum of `grad` over its copies, in a
/// fixed order.
pub fn remap_add<T: Float>(
    axes: &[Axis],
    (grad, grad_strides): (&[T], &[usize]),
    shape: &[usize],
    out: &mut [T],
) {
    assert_eq!(out.len(), shape.iter().product::<usize>(), "remap_add: out does not match {shape:?}");
    out.fill(T::default());
    if out.is_empty() || axes.iter().any(|axis| axis.len() == 0) {
        return;
    }
    // Leading dimensions that are unchanged: their planes are independent.
    let lead = axes.iter().zip(shape).take_while(|&(axis, &size)| *axis == Axis::same(size)).count();
    let plane: usize = shape[lead..].iter().product();
    let moved: usize = axes[lead..].iter().map(Axis::len).product();
    let contiguous = |d: usize| shape[d + 1..].iter().product::<usize>();
    for_each_piece(out, plane, |start, out| {
        let mut lead_place = start / plane;
        let from = (0..lead).rev().fold(0, |from, d| {
            let place = lead_place % shape[d];
            lead_place /= shape[d];
            from + place * grad_strides[d]
        });
        for position in 0..moved {
            let (mut rest, mut from, mut to) = (position, from, 0);
            for d in (lead..axes.len()).rev() {
                let place = rest % axes[d].len();
                rest /= axes[d].len();
                from += place * grad_strides[d];
                to += axes[d].source(place) * contiguous(d);
            }
            out[to] += grad[from];
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn axes_name_the_places_that_their_names_say() {
        let places = |axis: Axis| (0..axis.len()).map(|i| axis.source(i)).collect::<Vec<_>>();
        assert_eq!(places(Axis::flipped(3)), [2, 1, 0]);
        assert_eq!(places(Axis::rolled(4, 1)), [3, 0, 1, 2]);
        assert_eq!(places(Axis::reflected(4, 2, 1)), [2, 1, 0, 1, 2, 3, 2]);
        assert_eq!(places(Axis::replicated(2, 1, 2)), [0, 0, 1, 1, 1]);
        assert_eq!(places(Axis::circular(3, 1, 2)), [2, 0, 1, 2, 0, 1]);
        assert_eq!(places(Axis::flipped(0)), [0usize; 0]);
    }

    #[test]
    fn the_derivative_of_a_map_adds_up_what_it_copied() {
        let axes = [Axis::same(2), Axis::reflected(3, 1, 2), Axis::circular(4, 2, 3)];
        let shape = [2, 3, 4];
        let x: Vec<u32> = (0..24).collect();
        let mut out = vec![0; 2 * 6 * 9];
        remap(&axes, &x, &contiguous(&shape), &mut out);
        let grad = random(out.len(), 1);
        let mut expected = vec![0.0; 24];
        out.iter().zip(&grad).for_each(|(&from, grad)| expected[from as usize] += grad);
        let mut sums = vec![9.0; 24];
        remap_add(&axes, (&grad, &contiguous(&[2, 6, 9])), &shape, &mut sums);
        assert_close(&sums, &expected, 1e-6);
    }
}
