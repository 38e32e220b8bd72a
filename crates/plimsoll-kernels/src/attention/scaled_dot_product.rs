//! Attention in blocks: softmax(scale · q kᵀ + mask) v, with the scores of a few rows at a time.
//!
//! 16-bit operands are converted to `f32` row by row when a block is loaded, and results when they are stored. `f64` is computed
//! in `f64`, with simpler products.
//!
//! Each chunk of work has its own scratch memory. Its size depends on the head's width and, in the backward pass, on
//! the number of queries, but never on queries times keys.

use bytemuck::cast_slice_mut;

use super::backward::Gradients;
use super::operands::{AttentionShape, Heads, Mask, Scores};
use super::{backward, forward};
use crate::dtype::DType;
use crate::number::by_float;
use crate::random::philox::Dropout;

/// The number of floats of scratch memory that [`attention`] needs for operands of this type.
pub fn forward_scratch_len(shape: &AttentionShape, dtype: DType) -> usize {
    forward::scratch_len(shape) * words(dtype)
}

/// The number of floats of scratch memory that [`attention_backward`] needs for operands of this type.
pub fn backward_scratch_len(shape: &AttentionShape, dtype: DType) -> usize {
    backward::scratch_len(shape) * words(dtype)
}

/// The size, in floats, of a number in the compute type for operands of this type.
fn words(dtype: DType) -> usize {
    dtype.accumulator().size() / size_of::<f32>()
}

/// Writes the output, with contiguous columns and in the operands' type, and the log-sum-exp of each row of scores, in the
/// compute type. A row that attends to no key is 0, as in PyTorch, and its log-sum-exp is minus infinity.
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

/// The dropout factor for every score, `[batch, heads, queries, keys]`, for the second derivative, which consists of
/// operations on complete tensors.
pub fn dropout_factors(shape: &AttentionShape, dropout: &Dropout, out: &mut [f32]) {
    let scores = Scores { scale: 1.0, causal: false, mask: Mask::None, dropout: None };
    crate::parallel::for_each_piece(out, shape.keys.max(1), |start, row| {
        let index = start / shape.keys;
        let (pair, query) = (index / shape.queries, index % shape.queries);
        row.fill(1.0);
        dropout.apply(scores.group(shape, [pair / shape.heads, pair % shape.heads, query], 0), row);
    });
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
