//! Attention in blocks: softmax(scale · q kᵀ + mask) v, with the scores of a few rows at a time.
//!
//! | file | what it has |
//! |---|---|
//! | this one | sizes, where the operands lie, what changes the scores |
//! | `block` | rows into blocks of the type that is computed in, and products of blocks |
//! | `forward` | the output and each row's log-sum-exp, by an online softmax |
//! | `backward` | the gradients, with the scores computed once more |
//!
//! Operands of 16 bits are converted row by row as they come into a block of `f32`, and results as they leave one. `f64` is computed in
//! itself, by plainer products.
//!
//! A chunk of work has scratch of its own whose size depends on the head's width, in the backward pass also on the number
//! of queries, never on queries times keys.

mod backward;
mod block;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::Gradients;

use bytemuck::cast_slice_mut;

use self::block::{Rows, Scored};
use super::number::by_float;
use super::philox::{Dropout, GROUP};
use crate::dtype::DType;

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
pub struct Heads<'a> {
    /// Elements of floating point, and of which type.
    pub bytes: &'a [u8],
    pub dtype: DType,
    /// Elements between batches, heads and rows.
    pub strides: [usize; 3],
}

impl<'a> Heads<'a> {
    /// The rows from one on.
    fn rows(&self, at: [usize; 3]) -> Rows<'a> {
        let first = (0..3).map(|i| at[i] * self.strides[i]).sum();
        Rows { bytes: self.bytes, dtype: self.dtype, first, step: self.strides[2] }
    }
}

/// What is added to the scores, broadcast to `[batch, heads, queries, keys]` by strides.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    None,
    /// These numbers of floating point, of that type.
    Add(&'a [u8], DType, [usize; 4]),
    /// Nothing where the byte is not 0, else minus infinity.
    Keep(&'a [u8], [usize; 4]),
}

/// What makes scores of products.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    pub scale: f64,
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
    fn add_mask<T: Scored>(&self, [batch, head, query]: [usize; 3], first: usize, row: &mut [T]) {
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

    /// The number of the first group of dropout's random bits for a row from key `first`, a multiple of [`KEYS`].
    fn group(&self, shape: &AttentionShape, [batch, head, query]: [usize; 3], first: usize) -> u64 {
        let row = (batch * shape.heads + head) * shape.queries + query;
        (row * shape.keys.div_ceil(GROUP) + first / GROUP) as u64
    }
}

/// Floats of scratch that [`attention`] needs for operands of this type.
pub fn forward_scratch_len(shape: &AttentionShape, dtype: DType) -> usize {
    forward::scratch_len(shape) * words(dtype)
}

/// Floats of scratch that [`attention_backward`] needs for operands of this type.
pub fn backward_scratch_len(shape: &AttentionShape, dtype: DType) -> usize {
    backward::scratch_len(shape) * words(dtype)
}

/// Floats in a number of the type that operands of this one are computed in.
fn words(dtype: DType) -> usize {
    dtype.accumulator().size() / size_of::<f32>()
}

/// Writes the output, whose columns are side by side and of the operands' type, and the log-sum-exp of each row of scores, of the type
/// that is computed in. A row that sees no key is 0, as in PyTorch, and its log-sum-exp minus infinity.
pub fn attention(
    shape: &AttentionShape,
    scores: &Scores<'_>,
    operands: [Heads<'_>; 3],
    out: (&mut [u8], [usize; 3]),
    log_sums: &mut [u8],
    scratch: &mut [f32],
) {
    by_float!(operands[0].dtype, T => {
        forward::run::<T>(shape, scores, operands, out, cast_slice_mut(log_sums), scratch);
    });
}

/// Writes the gradients of queries, keys and values. The inputs are those of the forward pass, its output and the output's
/// gradient, and its log-sum-exp.
pub fn attention_backward(
    shape: &AttentionShape,
    scores: &Scores<'_>,
    operands: [Heads<'_>; 3],
    of_out: [Heads<'_>; 2],
    log_sums: &[u8],
    to: &Gradients<'_>,
    scratch: &mut [f32],
) {
    by_float!(operands[0].dtype, T => {
        backward::run::<T>(shape, scores, operands, of_out, bytemuck::cast_slice(log_sums), to, scratch);
    });
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
