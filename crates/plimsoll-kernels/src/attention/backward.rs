//! The backward pass: each block of keys against one block after another of the queries that attend to it.
//!
//! With `P` the weights, recomputed from the log-sum-exp, `g` the output's gradient and `D` the sum over a row of `g` times
//! the output: `dv = Pᵀ g`, `dS = P ∘ (g vᵀ - D)`, `dk = scale · dSᵀ q`, `dq = scale · dS k`. A chunk is one head of the
//! keys with all the query heads that share it, so that one thread sums each gradient, in a fixed order.

use super::super::number::Float;
use super::super::parallel::{Cut, for_each_chunk_with, scratch_workers};
use super::super::simd::vectorize;
use super::super::tile::ROWS;
use super::block::{Into, LeftFactor, Scored, load, padded};
use super::operands::{AttentionShape, Heads, KEYS, SCORES, Scores};
use crate::dtype::DType;

/// Queries per block: a multiple of the tile size.
const QUERIES: usize = 8 * ROWS;

fn chunks(shape: &AttentionShape) -> usize {
    shape.batch * shape.kv_heads
}

/// Lengths of a worker's parts of the scratch memory, in the order of [`Parts`].
fn parts(shape: &AttentionShape) -> [usize; 12] {
    let (dim, value_dim) = (padded(shape.dim), padded(shape.value_dim));
    let all = shape.group() * shape.queries;
    let scores = QUERIES * SCORES;
    let keys = [KEYS * dim, shape.dim * SCORES, KEYS * value_dim, shape.value_dim * SCORES];
    let [key, turned_key, value, turned_value] = keys;
    let query = [QUERIES * dim, QUERIES * value_dim];
    [key, turned_key, value, turned_value, key, value, query[0], query[1], scores, scores, all * dim, all]
}

/// Numbers of scratch memory that [`run`] needs.
pub(super) fn scratch_len(shape: &AttentionShape) -> usize {
    parts(shape).iter().sum::<usize>() * scratch_workers(chunks(shape))
}

/// The destination of the gradients of queries, keys and values: memory (the three may share one tensor), element type, offsets
/// and strides.
pub struct Gradients<'a> {
    pub memory: [&'a Cut<'a, u8>; 3],
    pub dtype: DType,
    pub begins: [usize; 3],
    pub strides: [[usize; 3]; 3],
}

impl Gradients<'_> {
    /// Writes rows of the gradient of input `i`, starting at a given row, times `scale`. Also scales the block in place.
    ///
    /// # Safety
    /// No other thread may write these rows, and no two positions of the gradients may overlap.
    unsafe fn store<T: Scored>(
        &self,
        i: usize,
        at: [usize; 3],
        block: &mut [T],
        (rows, dim): (usize, usize),
        scale: T,
    ) {
        if dim == 0 {
            return;
        }
        let (strides, size, store) = (self.strides[i], self.dtype.size(), T::store(self.dtype));
        let begin = self.begins[i] + (0..3).map(|d| at[d] * strides[d]).sum::<usize>();
        for (row, from) in block.chunks_exact_mut(padded(dim)).take(rows).enumerate() {
            if scale != T::ONE {
                from.iter_mut().for_each(|x| *x *= scale);
            }
            // SAFETY: the caller's promise.
            let to = unsafe { self.memory[i].range((begin + row * strides[2]) * size, dim * size) };
            store(&from[..dim], to);
        }
    }
}

/// [`attention_backward`](super::scaled_dot_product::attention_backward), computed in one type.
pub(super) fn run<T: Scored>(
    shape: &AttentionShape,
    scores: &Scores<'_>,
    [q, k, v]: [Heads<'_>; 3],
    [out, grad]: [Heads<'_>; 2],
    log_sums: &[T],
    to: &Gradients<'_>,
    scratch: &mut [f32],
) {
    let lens = parts(shape);
    let words = lens.iter().sum::<usize>() * size_of::<T>() / size_of::<f32>();
    let (group, scale) = (shape.group(), <T as Float>::of(scores.scale));
    for_each_chunk_with(chunks(shape), scratch, words, |chunk, own| {
        let own: &mut [T] = bytemuck::cast_slice_mut(own);
        let (batch, kv_head) = (chunk / shape.kv_heads, chunk % shape.kv_heads);
        let mut own = Parts::of(own, lens);
        let store = |i: usize, at: [usize; 3], block: &mut [T], size: (usize, usize), scale: T| {
            // SAFETY: `at` is in the heads of this chunk, and no other chunk has these heads.
            unsafe { to.store(i, at, block, size, scale) };
        };
        own.dq.fill(T::default());
        for (i, level) in own.levels.iter_mut().enumerate() {
            let at = [batch, kv_head * group + i / shape.queries, i % shape.queries];
            load(out.rows(at), (1, shape.value_dim), T::ONE, own.values);
            load(grad.rows(at), (1, shape.value_dim), T::ONE, own.grads);
            let pairs = own.values.iter().zip(&*own.grads).take(shape.value_dim);
            *level = pairs.map(|(&x, &g)| x * g).sum();
        }
        for key in (0..shape.keys).step_by(KEYS) {
            let count = KEYS.min(shape.keys - key);
            own.load_keys([k, v], [batch, kv_head, key], count, shape);
            for member in 0..group {
                for first in (scores.first_query(key).min(shape.queries)..shape.queries).step_by(QUERIES) {
                    let block = Block {
                        shape,
                        scores,
                        at: [batch, kv_head * group + member, first],
                        index: member * shape.queries + first,
                        rows: QUERIES.min(shape.queries - first),
                        key,
                        count,
                    };
                    load(q.rows(block.at), (block.rows, shape.dim), scale, own.queries);
                    load(grad.rows(block.at), (block.rows, shape.value_dim), T::ONE, own.grads);
                    let row = (block.at[0] * shape.heads + block.at[1]) * shape.queries + first;
                    block.run(&mut own, &log_sums[row..][..block.rows]);
                }
            }
            let at = [batch, kv_head, key];
            // The queries were scaled, so `dk` already is.
            store(1, at, own.dk, (count, shape.dim), T::ONE);
            store(2, at, own.dv, (count, shape.value_dim), T::ONE);
        }
        for member in 0..group {
            let at = [batch, kv_head * group + member, 0];
            let dq = &mut own.dq[member * shape.queries * padded(shape.dim)..];
            store(0, at, dq, (shape.queries, shape.dim), scale);
        }
    });
}

/// A worker's scratch memory.
struct Parts<'a, T> {
    keys: &'a mut [T],
    turned_keys: &'a mut [T],
    values: &'a mut [T],
    turned_values: &'a mut [T],
    dk: &'a mut [T],
    dv: &'a mut [T],
    queries: &'a mut [T],
    grads: &'a mut [T],
    weights: &'a mut [T],
    slopes: &'a mut [T],
    /// The gradient of queries, for all query heads that share the keys.
    dq: &'a mut [T],
    /// For each row, the sum of the output times its gradient.
    levels: &'a mut [T],
}

impl<'a, T: Scored> Parts<'a, T> {
    fn of(mut own: &'a mut [T], lens: [usize; 12]) -> Self {
        let [keys, turned_keys, values, turned_values, dk, dv, queries, grads, weights, slopes, dq, levels] =
            lens.map(|len| {
                let (part, rest) = std::mem::take(&mut own).split_at_mut(len);
                own = rest;
                part
            });
        Parts {
            keys,
            turned_keys,
            values,
            turned_values,
            dk,
            dv,
            queries,
            grads,
            weights,
            slopes,
            dq,
            levels,
        }
    }

    fn load_keys(&mut self, [k, v]: [Heads<'_>; 2], at: [usize; 3], count: usize, shape: &AttentionShape) {
        load(k.rows(at), (count, shape.dim), T::ONE, self.keys);
        T::turn(self.keys, (count, shape.dim), self.turned_keys, SCORES);
        load(v.rows(at), (count, shape.value_dim), T::ONE, self.values);
        T::turn(self.values, (count, shape.value_dim), self.turned_values, SCORES);
        self.dk.fill(T::default());
        self.dv.fill(T::default());
    }
}

/// A block of queries against a block of keys.
struct Block<'a> {
    shape: &'a AttentionShape,
    scores: &'a Scores<'a>,
    /// The batch, the head and the first query.
    at: [usize; 3],
    /// The index of the first query among the queries of all heads that share the keys.
    index: usize,
    rows: usize,
    /// The first key, and the number of keys.
    key: usize,
    count: usize,
}

impl Block<'_> {
    fn run<T: Scored>(&self, own: &mut Parts<'_, T>, log_sums: &[T]) {
        let shape = self.shape;
        let (dim, value_dim) = (padded(shape.dim), padded(shape.value_dim));
        let seen = |row: usize| {
            let keys = self.scores.visible(self.at[2] + row, shape.keys);
            keys.saturating_sub(self.key).min(self.count)
        };
        let all = seen(self.rows - 1);
        for row in (0..self.rows).step_by(ROWS) {
            let count = ROWS.min(self.rows - row);
            let most = seen(row + count - 1);
            let queries = LeftFactor { data: &own.queries[row * dim..], row: dim, step: 1 };
            let weights = &mut own.weights[row * SCORES..];
            let keys = (&*own.turned_keys, SCORES);
            T::product([count, shape.dim, most], queries, keys, (&mut *weights, SCORES), Into::Replace);
            let grads = LeftFactor { data: &own.grads[row * value_dim..], row: value_dim, step: 1 };
            let slopes = &mut own.slopes[row * SCORES..];
            let values = (&*own.turned_values, SCORES);
            T::product([count, shape.value_dim, most], grads, values, (&mut *slopes, SCORES), Into::Replace);
            vectorize(
                #[inline(always)]
                || {
                    for i in 0..count {
                        let seen = seen(row + i);
                        let (weights, slopes) = (&mut weights[i * SCORES..], &mut slopes[i * SCORES..]);
                        weights[seen..all.max(seen)].fill(T::default());
                        slopes[seen..all.max(seen)].fill(T::default());
                        let level = own.levels[self.index + row + i];
                        let both = (&mut weights[..seen], &mut slopes[..seen]);
                        self.slopes(row + i, both, log_sums[row + i], level);
                    }
                },
            );
            let dq = (&mut own.dq[(self.index + row) * dim..], dim);
            let slopes = LeftFactor { data: slopes, row: SCORES, step: 1 };
            T::product([count, most, dim], slopes, (&*own.keys, dim), dq, Into::Add);
        }
        for key in (0..all).step_by(ROWS) {
            let count = ROWS.min(all - key);
            // Earlier queries do not attend to this key.
            let first = self.scores.first_query(self.key + key).saturating_sub(self.at[2]).min(self.rows);
            let depth = self.rows - first;
            let turned = |data| LeftFactor { data, row: 1, step: SCORES };
            let weights = turned(&own.weights[first * SCORES + key..]);
            let grads = (&own.grads[first * value_dim..], value_dim);
            let dv = (&mut own.dv[key * value_dim..], value_dim);
            T::product([count, depth, value_dim], weights, grads, dv, Into::Add);
            let slopes = turned(&own.slopes[first * SCORES + key..]);
            let queries = (&own.queries[first * dim..], dim);
            T::product([count, depth, dim], slopes, queries, (&mut own.dk[key * dim..], dim), Into::Add);
        }
    }

    /// Turns scores and the gradients of weights into weights and the gradients of scores, for one row.
    #[inline(always)]
    fn slopes<T: Scored>(&self, row: usize, (weights, slopes): (&mut [T], &mut [T]), log_sum: T, level: T) {
        let at = [self.at[0], self.at[1], self.at[2] + row];
        self.scores.add_mask(at, self.key, weights);
        if log_sum == T::LOWEST {
            // A row that attends to no key.
            weights.fill(T::default());
        } else {
            weights.iter_mut().for_each(|x| *x = (*x - log_sum).exp());
        }
        let Some(dropout) = &self.scores.dropout else {
            for (&mut weight, slope) in weights.iter_mut().zip(slopes) {
                *slope = weight * (*slope - level);
            }
            return;
        };
        let group = self.scores.group(self.shape, at, self.key);
        T::drop(dropout, group, slopes);
        for (&mut weight, slope) in weights.iter_mut().zip(slopes) {
            *slope = weight * (*slope - level);
        }
        T::drop(dropout, group, weights);
    }
}
