//! The sizes of attention, the layouts of its operands, and the changes to its scores (scale, mask, dropout).

use super::block::{Rows, Scored};
use crate::dtype::DType;
use crate::random::philox::{Dropout, GROUP};

/// Keys per block.
pub(super) const KEYS: usize = 128;
/// The distance between rows of a block's scores. It is not a power of two, because the rows would then share only a
/// few cache sets.
pub(super) const SCORES: usize = KEYS + 16;

/// The sizes of attention: `queries x dim` against `keys x dim` and `keys x value_dim`, for each head of each batch.
/// `heads / kv_heads` query heads share a head of the keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub value_dim: usize,
}

impl AttentionShape {
    /// The shape of all scores: for each head, a row for each query and a column for each key.
    pub fn of_scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// The number of query heads that share a head of the keys.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }
}

/// A tensor `[batch, heads, rows, columns]` with contiguous columns.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The floating-point elements, and their type.
    pub bytes: &'a [u8],
    pub dtype: DType,
    /// The strides of batches, heads and rows, in elements.
    pub strides: [usize; 3],
}

impl<'a> Heads<'a> {
    /// The rows from the given one onward.
    pub(super) fn rows(&self, at: [usize; 3]) -> Rows<'a> {
        let first = (0..3).map(|i| at[i] * self.strides[i]).sum();
        Rows { bytes: self.bytes, dtype: self.dtype, first, step: self.strides[2] }
    }
}

/// The mask of the scores, broadcast to `[batch, heads, queries, keys]` by strides.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    None,
    /// Adds floating-point values of this type, with these strides.
    Add(&'a [u8], DType, [usize; 4]),
    /// Keeps a score if the byte is not 0, otherwise sets it to minus infinity.
    Keep(&'a [u8], [usize; 4]),
}

/// The steps from products to scores: scale, mask, causality and dropout.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    pub scale: f64,
    /// Whether query `i` attends only to keys up to `i`.
    pub causal: bool,
    pub mask: Mask<'a>,
    pub dropout: Option<Dropout>,
}

impl Scores<'_> {
    /// The number of keys to which a query attends.
    #[inline(always)]
    pub(super) fn visible(&self, query: usize, keys: usize) -> usize {
        if self.causal { keys.min(query + 1) } else { keys }
    }

    /// The first query that attends to a key.
    pub(super) fn first_query(&self, key: usize) -> usize {
        if self.causal { key } else { 0 }
    }

    /// Adds the mask to the scores of a row, for the keys from `first` onward.
    #[inline(always)]
    pub(super) fn add_mask<T: Scored>(&self, [batch, head, query]: [usize; 3], first: usize, row: &mut [T]) {
        let from = |strides: [usize; 4]| {
            batch * strides[0] + head * strides[1] + query * strides[2] + first * strides[3]
        };
        match self.mask {
            Mask::None => {}
            Mask::Add(bytes, dtype, strides) => {
                let (from, mut added) = (from(strides), [T::default(); KEYS]);
                let added = &mut added[..row.len()];
                if !added.is_empty() {
                    T::load(dtype)(bytes, from, strides[3], added);
                }
                row.iter_mut().zip(added).for_each(|(x, add)| *x += *add);
            }
            Mask::Keep(data, strides) => {
                let data = &data[from(strides)..];
                for (i, x) in row.iter_mut().enumerate() {
                    *x = if data[i * strides[3]] == 0 { T::LOWEST } else { *x };
                }
            }
        }
    }

    /// The index of the first group of dropout's random bits for a row, starting at key `first`, a multiple of
    /// [`KEYS`].
    pub(super) fn group(
        &self,
        shape: &AttentionShape,
        [batch, head, query]: [usize; 3],
        first: usize,
    ) -> u64 {
        let row = (batch * shape.heads + head) * shape.queries + query;
        (row * shape.keys.div_ceil(GROUP) + first / GROUP) as u64
    }
}
