//! The layout of a tensor in its storage: shape, strides and offset, in elements.
//!
//! Pure index arithmetic: nothing here touches memory or knows a dtype. A view ([`crate::Tensor`]'s `transpose`, `narrow`,
//! `expand`, …) is a new `Layout` on the same storage. Strides are never negative.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Sizes or strides, one per dimension; short lists need no heap allocation.
pub type Dims = SmallVec<[usize; 6]>;

/// Shape, strides and offset of a tensor in its storage, all in elements. Clones share one allocation, so an output with
/// its input's layout costs no allocation.
#[derive(Clone)]
pub struct Layout(Arc<Placed>);

struct Placed {
    parts: Parts,
    /// Derived from the parts, computed once.
    len: usize,
    end: usize,
    contiguous: bool,
}

/// The parts of a layout in a mutable form, from which another layout is made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parts {
    shape: Dims,
    strides: Dims,
    offset: usize,
}

impl Parts {
    fn layout(self) -> Layout {
        let Parts { shape, strides, offset } = &self;
        let empty = shape.contains(&0);
        // `checked_len` rejects an element count that overflows, before anything is allocated.
        let len = if empty { 0 } else { shape.iter().fold(1, |n: usize, &d| n.saturating_mul(d)) };
        let last = || {
            let steps = shape.iter().zip(strides).map(|(&n, &stride)| (n - 1).saturating_mul(stride));
            steps.fold(0, usize::saturating_add)
        };
        let end = if empty { *offset } else { offset.saturating_add(last()).saturating_add(1) };
        let contiguous = empty || row_major(shape, strides);
        Layout(Arc::new(Placed { len, end, contiguous, parts: self }))
    }
}

fn row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 {
            if stride != expected {
                return false;
            }
            expected = usize::saturating_mul(expected, size);
        }
    }
    true
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { shape, strides, offset } = &self.0.parts;
        f.debug_struct("Layout")
            .field("shape", shape)
            .field("strides", strides)
            .field("offset", offset)
            .finish()
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.parts == other.0.parts
    }
}

impl Eq for Layout {}

/// The number of elements of `shape`, or an error if it overflows.
pub(crate) fn checked_len(shape: &[usize]) -> Result<usize> {
    // Any zero makes the product zero, no matter how large the other sizes are.
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .filter(|&n| n <= (isize::MAX as usize) / 8)
        .ok_or_else(|| {
            Error::shape("shape", format!("{shape:?} has more elements than an address space holds"))
        })
}

impl Layout {
    /// A row-major layout without gaps, at offset 0.
    pub fn contiguous(shape: &[usize]) -> Layout {
        let mut strides: Dims = SmallVec::from_elem(1, shape.len());
        for i in (1..shape.len()).rev() {
            // A size of 0 counts as 1 here, as in PyTorch. The product can overflow only for an empty shape (see
            // `checked_len`), whose strides do not matter.
            strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
        }
        Parts { shape: shape.into(), strides, offset: 0 }.layout()
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.0.parts.shape
    }

    /// Distance between neighbours of each dimension, in elements; 0 for a broadcast dimension.
    pub fn strides(&self) -> &[usize] {
        &self.0.parts.strides
    }

    /// Index of the first element in the storage.
    pub fn offset(&self) -> usize {
        self.0.parts.offset
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Whether the layout is row-major without gaps (at any offset).
    pub fn is_contiguous(&self) -> bool {
        self.0.contiguous
    }

    /// The dimensions sorted by decreasing stride: row-major is `0, 1, …`. Dimensions with equal strides, and those of size
    /// 1, keep their order as far as possible.
    pub(crate) fn order(&self) -> Dims {
        let mut order: Dims = (0..self.rank()).collect();
        // Dimensions of size 1 stay in place; only the others are sorted.
        let wide: Dims = (0..self.rank()).filter(|&dim| self.shape()[dim] != 1).collect();
        let mut sorted = wide.clone();
        sorted.sort_by_key(|&dim| std::cmp::Reverse(self.strides()[dim]));
        wide.iter().zip(&sorted).for_each(|(&place, &dim)| order[place] = dim);
        order
    }

    /// A layout without gaps at offset 0 whose dimensions are in the same order, so channels-last is preserved. A broadcast
    /// layout becomes row-major.
    pub(crate) fn dense(&self) -> Layout {
        if self.is_contiguous() && self.offset() == 0 {
            return self.clone();
        }
        let repeats = || self.shape().iter().zip(self.strides()).any(|(&n, &stride)| n > 1 && stride == 0);
        if self.is_contiguous() || repeats() {
            return Layout::contiguous(self.shape());
        }
        let order = self.order();
        let inner: Dims = order.iter().map(|&dim| self.shape()[dim]).collect();
        let dense = Layout::contiguous(&inner);
        let mut strides = Dims::from_slice(self.strides());
        order.iter().zip(dense.strides()).for_each(|(&dim, &stride)| strides[dim] = stride);
        Parts { shape: Dims::from_slice(self.shape()), strides, offset: 0 }.layout()
    }

    /// One past the last element's index in the storage; equal to the offset when empty.
    pub fn end(&self) -> usize {
        self.0.end
    }

    fn parts(&self) -> Parts {
        self.0.parts.clone()
    }

    /// The region of this layout that corresponds to `view` in `base`, if this layout matches `base` and contains that
    /// region.
    pub(crate) fn region(&self, base: &Layout, view: &Layout) -> Option<Layout> {
        let same = |d: usize| self.shape()[d] == 1 || self.strides()[d] == base.strides()[d];
        let alike = self.shape() == base.shape() && (self.is_empty() || (0..self.rank()).all(same));
        if !alike || view.offset() < base.offset() || view.end() > base.end() {
            return None;
        }
        Some(Parts { offset: self.offset() + view.offset() - base.offset(), ..view.parts() }.layout())
    }

    /// The same elements with a different shape, if that needs no copy.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Option<Layout> {
        if self.is_empty() || self.is_contiguous() {
            return Some(Parts { offset: self.offset(), ..Layout::contiguous(shape).parts() }.layout());
        }
        // Split both shapes into the smallest groups of dimensions with equal products. Within each group of the old shape,
        // the dimensions must be contiguous. Dimensions of size 1 do not matter and are left out.
        let old: SmallVec<[(usize, usize); 6]> = self
            .shape()
            .iter()
            .copied()
            .zip(self.strides().iter().copied())
            .filter(|&(n, _)| n != 1)
            .collect();
        let mut strides: Dims = SmallVec::from_elem(1, shape.len());
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (mut old_len, mut new_len, first) = (old[i].0, 1, j);
            let mut last = i;
            while new_len != old_len || j == first {
                if new_len < old_len || j == first {
                    new_len *= *shape.get(j)?;
                    j += 1;
                } else {
                    last += 1;
                    let (n, stride) = *old.get(last)?;
                    if old[last - 1].1 != n * stride {
                        return None;
                    }
                    old_len *= n;
                }
            }
            let mut stride = old[last].1;
            for k in (first..j).rev() {
                strides[k] = stride;
                stride *= shape[k];
            }
            i = last + 1;
        }
        Some(Parts { shape: shape.into(), strides, offset: self.offset() }.layout())
    }

    /// Dimensions `a` and `b` swapped. Both must be below the rank.
    pub(crate) fn transpose(&self, a: usize, b: usize) -> Layout {
        let mut out = self.parts();
        out.shape.swap(a, b);
        out.strides.swap(a, b);
        out.layout()
    }

    /// Dimensions in the order `dims`, which must name each exactly once.
    pub(crate) fn permute(&self, dims: &[usize]) -> Layout {
        Parts {
            shape: dims.iter().map(|&d| self.shape()[d]).collect(),
            strides: dims.iter().map(|&d| self.strides()[d]).collect(),
            offset: self.offset(),
        }
        .layout()
    }

    /// The elements `start..start + len` of dimension `dim`.
    pub(crate) fn narrow(&self, dim: usize, start: usize, len: usize) -> Layout {
        let mut out = self.parts();
        out.shape[dim] = len;
        if len > 0 {
            out.offset += start * self.strides()[dim];
        }
        out.layout()
    }

    /// Every `step`-th element of dimension `dim`, beginning at `start`, `len` in all.
    pub(crate) fn slice(&self, dim: usize, start: usize, len: usize, step: usize) -> Layout {
        let mut out = self.narrow(dim, start, len).parts();
        out.strides[dim] = out.strides[dim].saturating_mul(step);
        out.layout()
    }

    /// The element `index` of dimension `dim`; removes that dimension.
    pub(crate) fn select(&self, dim: usize, index: usize) -> Layout {
        self.narrow(dim, index, 1).squeeze(dim)
    }

    /// The diagonal of dimensions `a` and `b` as a new last dimension; removes `a` and `b`. It begins `right` columns to
    /// the right and `down` rows below the first element.
    pub(crate) fn diagonal(&self, (a, b): (usize, usize), (right, down): (usize, usize)) -> Layout {
        let len = self.shape()[a].saturating_sub(down).min(self.shape()[b].saturating_sub(right));
        let (stride_a, stride_b) = (self.strides()[a], self.strides()[b]);
        let mut out = self.parts();
        if len > 0 {
            out.offset += down * stride_a + right * stride_b;
        }
        for dim in [a.max(b), a.min(b)] {
            out.shape.remove(dim);
            out.strides.remove(dim);
        }
        out.shape.push(len);
        out.strides.push(stride_a.saturating_add(stride_b));
        out.layout()
    }

    /// Windows of `size` elements along dimension `dim`, `step` elements apart. The elements of a window form a new last
    /// dimension. `size` must not exceed the dimension's size.
    pub(crate) fn unfold(&self, dim: usize, size: usize, step: usize) -> Layout {
        let mut out = self.parts();
        out.shape[dim] = (self.shape()[dim] - size) / step + 1;
        out.strides[dim] = out.strides[dim].saturating_mul(step);
        out.shape.push(size);
        out.strides.push(self.strides()[dim]);
        out.layout()
    }

    /// A layout without gaps for a different shape of the same rank, with this layout's order of dimensions.
    pub(crate) fn dense_as(&self, shape: &[usize]) -> Layout {
        let order = self.order();
        let inner: Dims = order.iter().map(|&dim| shape[dim]).collect();
        let dense = Layout::contiguous(&inner);
        let mut strides = Dims::from_elem(1, shape.len());
        order.iter().zip(dense.strides()).for_each(|(&dim, &stride)| strides[dim] = stride);
        Parts { shape: shape.into(), strides, offset: 0 }.layout()
    }

    /// Inserts a dimension of size 1 at `dim`.
    pub(crate) fn unsqueeze(&self, dim: usize) -> Layout {
        let mut out = self.parts();
        let stride =
            if dim < self.rank() { self.shape()[dim].saturating_mul(self.strides()[dim]) } else { 1 };
        out.shape.insert(dim, 1);
        out.strides.insert(dim, stride);
        out.layout()
    }

    /// Removes a dimension of size 1.
    pub(crate) fn squeeze(&self, dim: usize) -> Layout {
        let mut out = self.parts();
        out.shape.remove(dim);
        out.strides.remove(dim);
        out.layout()
    }

    /// Broadcasts to `shape` as NumPy does: missing leading dimensions and dimensions of size 1 get stride 0.
    pub(crate) fn expand(&self, shape: &[usize]) -> Option<Layout> {
        let lead = shape.len().checked_sub(self.rank())?;
        let mut strides: Dims = SmallVec::from_elem(0, shape.len());
        for (i, (&size, &stride)) in self.shape().iter().zip(self.strides()).enumerate() {
            match (size, shape[lead + i]) {
                (have, want) if have == want => strides[lead + i] = stride,
                (1, _) => {}
                _ => return None,
            }
        }
        Some(Parts { shape: shape.into(), strides, offset: self.offset() }.layout())
    }
}

/// The shape to which both broadcast, as NumPy and PyTorch define it.
pub(crate) fn broadcast(op: &'static str, a: &[usize], b: &[usize]) -> Result<Dims> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |k| s[k]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            (x, y) => Err(Error::shape(
                op,
                format!("{a:?} and {b:?} do not broadcast: {x} and {y} differ at dimension {i} of {rank}"),
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strides(shape: &[usize]) -> Vec<usize> {
        Layout::contiguous(shape).strides().to_vec()
    }

    #[test]
    fn contiguous_strides_are_row_major() {
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strides(&[]), [0usize; 0]);
        assert_eq!(strides(&[3, 0, 2]), [2, 2, 1]);
    }

    #[test]
    fn a_transpose_is_not_contiguous_until_sizes_are_one() {
        assert!(!Layout::contiguous(&[2, 3]).transpose(0, 1).is_contiguous());
        assert!(Layout::contiguous(&[1, 3]).transpose(0, 1).is_contiguous());
    }

    #[test]
    fn a_dense_layout_keeps_the_order_of_dimensions() {
        let dense = |layout: Layout| layout.dense().strides().to_vec();
        let images = Layout::contiguous(&[2, 4, 5, 3]);
        assert_eq!(dense(images.permute(&[0, 3, 1, 2])), [60, 1, 15, 3], "channels-last");
        assert_eq!(dense(Layout::contiguous(&[4, 6]).narrow(1, 0, 3)), [3, 1]);
        assert_eq!(dense(Layout::contiguous(&[4, 6]).transpose(0, 1).narrow(0, 0, 3)), [1, 3]);
        assert_eq!(dense(Layout::contiguous(&[1, 6]).expand(&[4, 6]).unwrap()), [6, 1]);
        assert_eq!(dense(Layout::contiguous(&[2, 3, 1]).transpose(0, 1)), [1, 3, 1]);
    }

    #[test]
    fn reshape_follows_strides_where_no_copy_is_needed() {
        // Rows 1..3 of a 4x6 matrix stay contiguous. Its first 3 columns can be split into more dimensions, but rows cannot
        // be merged.
        let m = Layout::contiguous(&[4, 6]);
        assert_eq!(
            m.narrow(0, 1, 2).reshape(&[12]).map(|l| (l.offset(), l.strides().to_vec())),
            Some((6, vec![1]))
        );
        let columns = m.narrow(1, 0, 3);
        assert_eq!(columns.reshape(&[12]), None);
        assert_eq!(columns.reshape(&[2, 2, 3]).map(|l| l.strides().to_vec()), Some(vec![12, 6, 1]));
        assert_eq!(columns.reshape(&[4, 1, 3, 1]).map(|l| l.end()), Some(columns.end()));
    }

    #[test]
    fn every_reshape_names_the_same_elements_in_order() {
        let index = |l: &Layout| -> Vec<usize> {
            let mut all = vec![l.offset()];
            for (&n, &s) in l.shape().iter().zip(l.strides()) {
                all = all.iter().flat_map(|&at| (0..n).map(move |i| at + i * s)).collect();
            }
            all
        };
        let base = Layout::contiguous(&[2, 3, 4]);
        let views = [
            base.clone(),
            base.permute(&[1, 0, 2]),
            base.narrow(1, 1, 2),
            base.transpose(1, 2),
            base.narrow(2, 0, 1),
            base.narrow(0, 0, 1).expand(&[5, 3, 4]).unwrap(),
        ];
        for view in &views {
            let n = view.len();
            for a in 1..=n {
                for b in (1..=n).filter(|b| n.is_multiple_of(a * b)) {
                    if let Some(l) = view.reshape(&[a, b, n / (a * b)]) {
                        assert_eq!(index(&l), index(view), "{view:?} as {:?}", l.shape());
                    }
                }
            }
        }
    }

    #[test]
    fn broadcasting_is_numpys() {
        assert_eq!(broadcast("add", &[3, 1], &[2, 1, 4]).unwrap().as_slice(), [2, 3, 4]);
        assert_eq!(broadcast("add", &[], &[0]).unwrap().as_slice(), [0]);
        let error = broadcast("add", &[3], &[4]).unwrap_err().to_string();
        assert_eq!(error, "add: [3] and [4] do not broadcast: 3 and 4 differ at dimension 0 of 1");
    }

    #[test]
    fn a_shape_too_large_to_count_is_an_error() {
        assert!(checked_len(&[usize::MAX, 2]).is_err());
        assert_eq!(checked_len(&[usize::MAX, 2, 0]).unwrap(), 0);
        assert_eq!(Layout::contiguous(&[usize::MAX, 2, 0]).len(), 0);
        assert_eq!(Layout::contiguous(&[0, usize::MAX, 2]).end(), 0);
    }
}
