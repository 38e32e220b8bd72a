//! The common index space of several operands, with as few dimensions as possible.

use smallvec::{SmallVec, smallvec};

use super::Placed;
use crate::layout::{Dims, Layout};

/// The sizes, and the strides of each operand, after merging dimensions that are contiguous in all operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) size: Dims,
    pub(super) strides: SmallVec<[Dims; 5]>,
}

impl Space {
    /// The space of the output, followed by the inputs, broadcast to it. Dimensions are in the output's memory
    /// order.
    pub(super) fn of(out: &Layout, ins: &[Placed<'_>]) -> Space {
        let shape = out.shape();
        let mut strides: SmallVec<[Dims; 5]> = smallvec![Dims::from_slice(out.strides())];
        for x in ins {
            let wide = x.layout.expand(shape);
            let wide =
                wide.unwrap_or_else(|| unreachable!("{:?} does not broadcast to {shape:?}", x.shape()));
            strides.push(Dims::from_slice(wide.strides()));
        }
        let mut order: SmallVec<[usize; 6]> = (0..shape.len()).filter(|&dim| shape[dim] != 1).collect();
        order.sort_by_key(|&dim| std::cmp::Reverse(out.strides()[dim]));
        Space::collapsed(shape, &strides, &order)
    }

    /// A space of only these dimensions, in this order.
    pub(super) fn collapsed(shape: &[usize], strides: &[Dims], order: &[usize]) -> Space {
        let mut space = Space { size: Dims::new(), strides: strides.iter().map(|_| Dims::new()).collect() };
        for &dim in order {
            let joins = !space.size.is_empty()
                && space.strides.iter().zip(strides).all(|(joined, strides)| {
                    joined.last().is_some_and(|&outer| outer == strides[dim] * shape[dim])
                });
            if joins && let Some(last) = space.size.last_mut() {
                *last *= shape[dim];
            } else {
                space.size.push(shape[dim]);
            }
            for (to, from) in space.strides.iter_mut().zip(strides) {
                if joins {
                    to.pop();
                }
                to.push(from[dim]);
            }
        }
        if space.size.is_empty() {
            space.size.push(1);
            space.strides.iter_mut().for_each(|strides| strides.push(0));
        }
        space
    }

    pub(super) fn rank(&self) -> usize {
        self.size.len()
    }

    /// The words of the kernel's struct: sizes, then the strides of each operand.
    pub(super) fn words(&self) -> SmallVec<[u64; 24]> {
        let all = std::iter::once(&self.size).chain(&self.strides);
        all.flat_map(|dims| dims.iter().map(|&n| n as u64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn space(out: &Layout, ins: &[&Layout]) -> (Vec<usize>, Vec<Vec<usize>>) {
        let ins: Vec<Placed<'_>> =
            ins.iter().map(|layout| Placed { address: 0, dtype: DType::F32, layout }).collect();
        let space = Space::of(out, &ins);
        (space.size.to_vec(), space.strides.iter().map(|dims| dims.to_vec()).collect())
    }

    #[test]
    fn what_lies_alike_is_one_dimension() {
        let x = Layout::contiguous(&[2, 3, 4]);
        assert_eq!(space(&x, &[&x]), (vec![24], vec![vec![1], vec![1]]));
        let last = x.permute(&[0, 2, 1]);
        assert_eq!(space(&last, &[&last]), (vec![24], vec![vec![1], vec![1]]));
        assert_eq!(space(&Layout::contiguous(&[]), &[]), (vec![1], vec![vec![0]]));
    }

    #[test]
    fn a_row_that_is_repeated_leaves_two_dimensions() {
        let (x, row) = (Layout::contiguous(&[2, 3, 4]), Layout::contiguous(&[4]));
        assert_eq!(space(&x, &[&x, &row]), (vec![6, 4], vec![vec![4, 1], vec![4, 1], vec![0, 1]]));
    }
}
