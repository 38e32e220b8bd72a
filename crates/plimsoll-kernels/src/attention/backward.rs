//! The backward pass: a block of keys against block after block of the queries that see it.
//!
//! With `P` the weights, computed again from the log-sum-exp, `g` the output's gradient and `D` the sum over a row of
//! `g` times the output: `dv = Pᵀ g`, `dS = P ∘ (g vᵀ - D)`, `dk = scale · dSᵀ q`, `dq = scale · dS k`. A chunk is one head
//! of the keys with all the query heads that share it, so that each gradient is added up by one thread in one order.

use super::super::exp::exp;
use super::super::parallel::{Cut, for_each_chunk_with, scratch_workers};
use super::super::simd::vectorize;
use super::super::tile::ROWS;
use super::block::{Into, Left, load, padded, product, turn};
use super::{AttentionShape, Heads, KEYS, SCORES, Scores};

/// Queries of a block: a whole number of tiles.
const QUERIES: usize = 8 * ROWS;

fn chunks(shape: &AttentionShape) -> usize {
    shape.batch * shape.kv_heads
}

/// Lengths of a worker's parts of the scratch, in the order of [`Parts`].
fn parts(shape: &AttentionShape) -> [usize; 12] {
    let (dim, value_dim) = (padded(shape.dim), padded(shape.value_dim));
    let all = shape.group() * shape.queries;
    let scores = QUERIES * SCORES;
    let keys = [KEYS * dim, shape.dim * SCORES, KEYS * value_dim, shape.value_dim * SCORES];
    let [key, turned_key, value, turned_value] = keys;
    let query = [QUERIES * dim, QUERIES * value_dim];
    [key, turned_key, value, turned_value, key, value, query[0], query[1], scores, scores, all * dim, all]
}

/// Floats of scratch that [`attention_backward`] needs.
pub fn backward_scratch_len(shape: &AttentionShape) -> usize {
    parts(shape).iter().sum::<usize>() * scratch_workers(chunks(shape))
}

/// Where the gradients of queries, keys and values go: memory that may be one, beginnings and strides.
pub struct Gradients<'a> {
    pub memory: [&'a Cut<'a, f32>; 3],
    pub begins: [usize; 3],
    pub strides: [[usize; 3]; 3],
}

impl Gradients<'_> {
    /// Writes rows of the gradient of input `i` from a row on.
    ///
    /// # Safety
    /// No other thread writes these rows, and no two places of the gradients overlap.
    unsafe fn store(&self, i: usize, at: [usize; 3], block: &[f32], (rows, dim): (usize, usize), scale: f32) {
        if dim == 0 {
            return;
        }
        let strides = self.strides[i];
        let begin = self.begins[i] + (0..3).map(|d| at[d] * strides[d]).sum::<usize>();
        for (row, from) in block.chunks_exact(padded(dim)).take(rows).enumerate() {
            // SAFETY: the caller's promise.
            let to = unsafe { self.memory[i].range(begin + row * strides[2], dim) };
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x * scale);
        }
    }
}

/// Writes the gradients of queries, keys and values. The inputs are those of the forward pass, its output and its
/// log-sum-exp, and the output's gradient.
pub fn attention_backward(
    shape: &AttentionShape,
    scores: &Scores<'_>,
    [q, k, v]: [Heads<'_, f32>; 3],
    [out, grad]: [Heads<'_, f32>; 2],
    log_sums: &[f32],
    to: &Gradients<'_>,
    scratch: &mut [f32],
) {
    let lens = parts(shape);
    let group = shape.group();
    for_each_chunk_with(chunks(shape), scratch, lens.iter().sum(), |chunk, own| {
        let (batch, kv_head) = (chunk / shape.kv_heads, chunk % shape.kv_heads);
        let mut own = Parts::of(own, lens);
        let store = |i: usize, at: [usize; 3], block: &[f32], size: (usize, usize), scale: f32| {
            // SAFETY: `at` is in the heads of this chunk, which has them alone.
            unsafe { to.store(i, at, block, size, scale) };
        };
        own.dq.fill(0.0);
        for (i, level) in own.levels.iter_mut().enumerate() {
            let at = [batch, kv_head * group + i / shape.queries, i % shape.queries];
            let pairs = out.row(at).iter().zip(grad.row(at)).take(shape.value_dim);
            *level = pairs.map(|(x, g)| x * g).sum();
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
                    let step = (q.row(block.at), q.strides[2]);
                    load(step, (block.rows, shape.dim), scores.scale, own.queries);
                    load(
                        (grad.row(block.at), grad.strides[2]),
                        (block.rows, shape.value_dim),
                        1.0,
                        own.grads,
                    );
                    let row = (block.at[0] * shape.heads + block.at[1]) * shape.queries + first;
                    block.run(&mut own, &log_sums[row..][..block.rows]);
                }
            }
            let at = [batch, kv_head, key];
            // The queries were scaled, so `dk` is already.
            store(1, at, own.dk, (count, shape.dim), 1.0);
            store(2, at, own.dv, (count, shape.value_dim), 1.0);
        }
        for member in 0..group {
            let at = [batch, kv_head * group + member, 0];
            let dq = &own.dq[member * shape.queries * padded(shape.dim)..];
            store(0, at, dq, (shape.queries, shape.dim), scores.scale);
        }
    });
}

/// A worker's scratch.
struct Parts<'a> {
    keys: &'a mut [f32],
    turned_keys: &'a mut [f32],
    values: &'a mut [f32],
    turned_values: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    queries: &'a mut [f32],
    grads: &'a mut [f32],
    weights: &'a mut [f32],
    slopes: &'a mut [f32],
    /// Of all query heads that share the keys.
    dq: &'a mut [f32],
    /// The sum over each row of the output times its gradient.
    levels: &'a mut [f32],
}

impl<'a> Parts<'a> {
    fn of(mut own: &'a mut [f32], lens: [usize; 12]) -> Self {
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

    fn load_keys(
        &mut self,
        [k, v]: [Heads<'_, f32>; 2],
        at: [usize; 3],
        count: usize,
        shape: &AttentionShape,
    ) {
        load((k.row(at), k.strides[2]), (count, shape.dim), 1.0, self.keys);
        turn(self.keys, (count, shape.dim), self.turned_keys, SCORES);
        load((v.row(at), v.strides[2]), (count, shape.value_dim), 1.0, self.values);
        turn(self.values, (count, shape.value_dim), self.turned_values, SCORES);
        self.dk.fill(0.0);
        self.dv.fill(0.0);
    }
}

/// Some queries against some keys.
struct Block<'a> {
    shape: &'a AttentionShape,
    scores: &'a Scores<'a>,
    /// Batch, head and the first query.
    at: [usize; 3],
    /// The first query among those of all heads that share the keys.
    index: usize,
    rows: usize,
    /// The first key, and how many.
    key: usize,
    count: usize,
}

impl Block<'_> {
    fn run(&self, own: &mut Parts<'_>, log_sums: &[f32]) {
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
            let queries = Left { data: &own.queries[row * dim..], row: dim, step: 1 };
            let weights = &mut own.weights[row * SCORES..];
            let keys = (&*own.turned_keys, SCORES);
            product([count, shape.dim, most], queries, keys, (&mut *weights, SCORES), Into::Replace);
            let grads = Left { data: &own.grads[row * value_dim..], row: value_dim, step: 1 };
            let slopes = &mut own.slopes[row * SCORES..];
            let values = (&*own.turned_values, SCORES);
            product([count, shape.value_dim, most], grads, values, (&mut *slopes, SCORES), Into::Replace);
            vectorize(
                #[inline(always)]
                || {
                    for i in 0..count {
                        let seen = seen(row + i);
                        let (weights, slopes) = (&mut weights[i * SCORES..], &mut slopes[i * SCORES..]);
                        weights[seen..all.max(seen)].fill(0.0);
                        slopes[seen..all.max(seen)].fill(0.0);
                        let level = own.levels[self.index + row + i];
                        let both = (&mut weights[..seen], &mut slopes[..seen]);
                        self.slopes(row + i, both, log_sums[row + i], level);
                    }
                },
            );
            let dq = (&mut own.dq[(self.index + row) * dim..], dim);
            let slopes = Left { data: slopes, row: SCORES, step: 1 };
            product([count, most, dim], slopes, (&*own.keys, dim), dq, Into::Add);
        }
        for key in (0..all).step_by(ROWS) {
            let count = ROWS.min(all - key);
            // Earlier queries do not see this key.
            let first = self.scores.first_query(self.key + key).saturating_sub(self.at[2]).min(self.rows);
            let depth = self.rows - first;
            let turned = |data| Left { data, row: 1, step: SCORES };
            let weights = turned(&own.weights[first * SCORES + key..]);
            let grads = (&own.grads[first * value_dim..], value_dim);
            let dv = (&mut own.dv[key * value_dim..], value_dim);
            product([count, depth, value_dim], weights, grads, dv, Into::Add);
            let slopes = turned(&own.slopes[first * SCORES + key..]);
            let queries = (&own.queries[first * dim..], dim);
            product([count, depth, dim], slopes, queries, (&mut own.dk[key * dim..], dim), Into::Add);
        }
    }

    /// From scores and the gradients of weights to weights and the gradients of scores, for one row.
    #[inline(always)]
    fn slopes(&self, row: usize, (weights, slopes): (&mut [f32], &mut [f32]), log_sum: f32, level: f32) {
        let at = [self.at[0], self.at[1], self.at[2] + row];
        self.scores.add_mask(at, self.key, weights);
        if log_sum == f32::NEG_INFINITY {
            // A row that sees no key.
            weights.fill(0.0);
        } else {
            weights.iter_mut().for_each(|x| *x = exp(*x - log_sum));
        }
        let Some(dropout) = &self.scores.dropout else {
            for (weight, slope) in weights.iter().zip(slopes) {
                *slope = weight * (*slope - level);
            }
            return;
        };
        let group = self.scores.group(self.shape, at, self.key);
        dropout.apply(group, slopes);
        for (weight, slope) in weights.iter().zip(slopes) {
            *slope = weight * (*slope - level);
        }
        dropout.apply(group, weights);
    }
}
