//! Iterates over several strided operands of one shape together.
//!
//! [`Walk`] drops dimensions of size one, merges neighbours that are contiguous for all operands, and then
//! hands out runs along the last dimension for any range of row-major positions. Elementwise kernels,
//! copies and reductions are all loops over such runs; the merged contiguous case is one long run.

use std::ops::Range;

/// The maximum number of dimensions that may remain after merging. PyTorch allows 64; real programs need
/// fewer than half of these 16.
pub(crate) const MAX_RANK: usize = 16;

/// The simplified strides of `N` operands over one shape.
#[derive(Debug, Clone)]
pub(super) struct Walk<const N: usize> {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [[usize; N]; MAX_RANK],
}

impl<const N: usize> Walk<N> {
    /// Panics if ranks differ or more than [`MAX_RANK`] dimensions remain.
    pub(super) fn new(shape: &[usize], strides: [&[usize]; N]) -> Self {
        for (operand, strides) in strides.iter().enumerate() {
            assert_eq!(strides.len(), shape.len(), "strides of operand {operand} against rank");
        }
        Self::of_dims((0..shape.len()).map(|d| (shape[d], strides.map(|s| s[d]))))
    }

    /// Makes a walk from `(size, stride per operand)` pairs, outermost first.
    pub(super) fn of_dims(dims: impl Iterator<Item = (usize, [usize; N])>) -> Self {
        let mut walk = Self { rank: 0, shape: [1; MAX_RANK], strides: [[1; N]; MAX_RANK] };
        for (size, strides) in dims.filter(|&(size, _)| size != 1) {
            let last = walk.rank.wrapping_sub(1);
            let merges = walk.rank > 0 && (0..N).all(|i| walk.strides[last][i] == size * strides[i]);
            if merges {
                walk.shape[last] *= size;
                walk.strides[last] = strides;
            } else {
                assert!(walk.rank < MAX_RANK, "more than {MAX_RANK} dimensions that do not merge");
                (walk.shape[walk.rank], walk.strides[walk.rank]) = (size, strides);
                walk.rank += 1;
            }
        }
        walk.rank = walk.rank.max(1); // a scalar is one run of one
        walk
    }

    /// The number of positions in the shape.
    pub(super) fn len(&self) -> usize {
        self.shape[..self.rank].iter().product()
    }

    /// The strides along a run.
    #[inline(always)]
    pub(super) fn run_strides(&self) -> [usize; N] {
        self.strides[self.rank - 1]
    }

    /// The number of positions in the longest run.
    pub(super) fn run_len(&self) -> usize {
        self.shape[self.rank - 1]
    }

    /// The largest offset at which operand `i` is read, plus one; 0 if the shape is empty.
    pub(super) fn span(&self, i: usize) -> usize {
        if self.len() == 0 {
            return 0;
        }
        1 + (0..self.rank).map(|d| (self.shape[d] - 1) * self.strides[d][i]).sum::<usize>()
    }

    /// Whether no element of operand `i` is visited twice, by a sufficient test: sorted strides nest.
    pub(super) fn visits_once(&self, i: usize) -> bool {
        if self.len() == 0 {
            return true;
        }
        let mut dims: [(usize, usize); MAX_RANK] =
            std::array::from_fn(|d| (self.strides[d][i], self.shape[d]));
        let dims = &mut dims[..self.rank];
        dims.sort_unstable();
        let mut reach = 0;
        dims.iter().filter(|dim| dim.1 > 1).all(|&(stride, size)| {
            let nests = stride > reach;
            reach += stride * (size - 1);
            nests
        })
    }

    /// Calls `body(position, offset per operand, length)` for consecutive runs that cover `positions`.
    #[inline(always)]
    pub(super) fn for_each_run(
        &self,
        positions: Range<usize>,
        mut body: impl FnMut(usize, [usize; N], usize),
    ) {
        if positions.is_empty() {
            return;
        }
        let last = self.rank - 1;
        let (mut index, mut offsets) = self.locate(positions.start);
        let mut position = positions.start;
        loop {
            let len = (self.shape[last] - index[last]).min(positions.end - position);
            body(position, offsets, len);
            position += len;
            if position == positions.end {
                return;
            }
            self.next_row(&mut index, &mut offsets);
        }
    }

    /// Goes from the end of a row to the start of the next one: advances the outer dimensions like an odometer. Compiled once,
    /// not for each body.
    fn next_row(&self, index: &mut [usize; MAX_RANK], offsets: &mut [usize; N]) {
        let last = self.rank - 1;
        self.rewind(last, index, offsets);
        for d in (0..last).rev() {
            index[d] += 1;
            *offsets = std::array::from_fn(|i| offsets[i] + self.strides[d][i]);
            if index[d] < self.shape[d] {
                break;
            }
            self.rewind(d, index, offsets);
        }
    }

    /// Goes back to the start of dimension `d`.
    #[inline(always)]
    fn rewind(&self, d: usize, index: &mut [usize; MAX_RANK], offsets: &mut [usize; N]) {
        *offsets = std::array::from_fn(|i| offsets[i] - index[d] * self.strides[d][i]);
        index[d] = 0;
    }

    fn locate(&self, mut position: usize) -> ([usize; MAX_RANK], [usize; N]) {
        let (mut index, mut offsets) = ([0; MAX_RANK], [0; N]);
        for d in (0..self.rank).rev() {
            index[d] = position % self.shape[d];
            position /= self.shape[d];
            offsets = std::array::from_fn(|i| offsets[i] + index[d] * self.strides[d][i]);
        }
        (index, offsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_dimensions_merge_into_one_run() {
        let walk = Walk::new(&[2, 1, 3, 4], [&[12, 7, 4, 1]]);
        assert_eq!((walk.rank, walk.run_len(), walk.span(0)), (1, 24, 24));
    }

    #[test]
    fn runs_from_any_position_visit_what_the_whole_walk_visits() {
        let walk = Walk::new(&[3, 4, 5], [&[5, 15, 1], &[0, 1, 4]]);
        let visit = |range: Range<usize>| {
            let mut seen = vec![];
            let [a, b] = walk.run_strides();
            walk.for_each_run(range, |at, [x, y], len| {
                seen.extend((0..len).map(|i| (at + i, x + i * a, y + i * b)));
            });
            seen
        };
        let whole = visit(0..60);
        for start in 0..60 {
            assert_eq!(visit(start..60), whole[start..]);
            assert_eq!(visit(0..start), whole[..start]);
        }
    }

    #[test]
    fn overlapping_strides_differ_from_nested_ones() {
        assert!(Walk::new(&[3, 4], [&[1, 3]]).visits_once(0));
        assert!(!Walk::new(&[3, 4], [&[0, 1]]).visits_once(0));
        assert!(!Walk::new(&[3, 4], [&[2, 1]]).visits_once(0));
    }
}
