//! Attention in blocks: softmax(scale · q kᵀ + mask) v, with the scores of a few rows at a time.
//!
//! | file | what it has |
//! |---|---|
//! | this one | sizes, where the operands lie, what changes the scores |
//! | `block` | rows into and out of blocks of `f32`, and products of blocks |
//! | `forward` | the output and each row's log-sum-exp, by an online softmax |
//! | `backward` | the gradients, with the scores computed once more |
//!
//! A chunk of work has scratch of its own whose size depends on the head's width, in the backward pass also on the number
//! of queries, never on queries times keys.

mod backward;
mod block;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{Gradients, attention_backward, backward_scratch_len};
pub use forward::{attention, forward_scratch_len};

use super::philox::{Dropout, GROUP};

/// Keys of a block.
const KEYS: usize = 128;
/// Distance between rows of a block's scores: not a power of two, whose rows would share few cache sets.
const SCORES: usize = KEYS + 16;

/// Sizes: `queries x dim` against `keys x dim` and `keys x value_dim`, for each head of each batch. A head of the keys
/// and values serves `heads / kv_heads` heads of the queries.
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
    /// The matrices of all heads: a row for each query, a column for each key.
    pub fn of_scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// Heads of the queries that share a head of the keys.
    fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }
}

/// `[batch, heads, rows, columns]` with neighbouring columns side by side.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a, T> {
    pub data: &'a [T],
    /// Elements between batches, heads and rows.
    pub strides: [usize; 3],
}

impl<'a, T> Heads<'a, T> {
    /// The elements from a row on; none where rows have no columns.
    fn row(&self, at: [usize; 3]) -> &'a [T] {
        let at: usize = (0..3).map(|i| at[i] * self.strides[i]).sum();
        self.data.get(at..).unwrap_or(&[])
    }
}

/// What is added to the scores, broadcast to `[batch, heads, queries, keys]` by strides.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    None,
    /// These numbers.
    Add(&'a [f32], [usize; 4]),
    /// Nothing where the byte is not 0, else minus infinity.
    Keep(&'a [u8], [usize; 4]),
}

/// What makes scores of products.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    pub scale: f32,
    /// Whether query `i` sees keys up to `i` only.
    pub causal: bool,
    pub mask: Mask<'a>,
    pub dropout: Option<Dropout>,
}

impl Scores<'_> {
    /// How many keys a query sees.
    #[inline(always)]
    fn visible(&self, query: usize, keys: usize) -> usize {
        if self.causal { keys.min(query + 1) } else { keys }
    }

    /// The first query that sees a key.
    fn first_query(&self, key: usize) -> usize {
        if self.causal { key } else { 0 }
    }

    /// Adds the mask to the scores of a row with the keys from `first`.
    #[inline(always)]
    fn add_mask(&self, [batch, head, query]: [usize; 3], first: usize, row: &mut [f32]) {
        let from = |strides: [usize; 4]| {
            batch * strides[0] + head * strides[1] + query * strides[2] + first * strides[3]
        };
        match self.mask {
            Mask::None => {}
            Mask::Add(data, strides) => match (&data[from(strides)..], strides[3]) {
                (data, 1) => row.iter_mut().zip(data).for_each(|(x, add)| *x += add),
                (data, step) => row.iter_mut().enumerate().for_each(|(i, x)| *x += data[i * step]),
            },
            Mask::Keep(data, strides) => {
                let data = &data[from(strides)..];
                for (i, x) in row.iter_mut().enumerate() {
                    *x = if data[i * strides[3]] == 0 { f32::NEG_INFINITY } else { *x };
                }
            }
        }
    }

    /// The number of the first group of dropout's random bits for a row from key `first`, a multiple of [`KEYS`].
    fn group(&self, shape: &AttentionShape, [batch, head, query]: [usize; 3], first: usize) -> u64 {
        let row = (batch * shape.heads + head) * shape.queries + query;
        (row * shape.keys.div_ceil(GROUP) + first / GROUP) as u64
    }
}

/// The factors of dropout for every score, `[batch, heads, queries, keys]`: for the derivative of the derivative, which
/// is made of operations on whole tensors.
pub fn dropout_factors(shape: &AttentionShape, dropout: &Dropout, out: &mut [f32]) {
    let scores = Scores { scale: 1.0, causal: false, mask: Mask::None, dropout: None };
    super::parallel::for_each_piece(out, shape.keys.max(1), |start, row| {
        let index = start / shape.keys;
        let (pair, query) = (index / shape.queries, index % shape.queries);
        row.fill(1.0);
        dropout.apply(scores.group(shape, [pair / shape.heads, pair % shape.heads, query], 0), row);
    });
}
