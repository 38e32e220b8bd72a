//! The forward pass: each block of queries against one block of keys after another, with an online softmax.
//!
//! For each row it keeps the largest score so far, the sum of exponentials relative to it, and the weighted sum of the
//! values; a larger score rescales both sums (Milakov and Gimelshein 2018; Dao and others 2022). The results are the
//! output and, as one number per row, the log-sum-exp, from which the backward pass recomputes any weight.

use super::super::number::Float;
use super::super::parallel::{Cut, Pieces, for_each_cut_with, scratch_workers};
use super::super::simd::vectorize;
use super::super::tile::ROWS;
use super::block::{Into, LeftFactor, Scored, load, padded};
use super::operands::{AttentionShape, Heads, KEYS, SCORES, Scores};

/// Queries per block.
const QUERIES: usize = 256;

fn chunks(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * shape.queries.div_ceil(QUERIES)
}

/// Lengths of a worker's parts of the scratch memory: queries, keys, transposed keys, values, weighted sums, scores, and
/// the largest score and the sum of each row.
fn parts(shape: &AttentionShape) -> [usize; 7] {
    let queries = shape.queries.min(QUERIES);
    let (dim, value_dim) = (padded(shape.dim), padded(shape.value_dim));
    [
        queries * dim,
        KEYS * dim,
        shape.dim * SCORES,
        KEYS * value_dim,
        queries * value_dim,
        ROWS * SCORES,
        2 * queries,
    ]
}

/// Numbers of scratch memory that [`run`] needs.
pub(super) fn scratch_len(shape: &AttentionShape) -> usize {
    parts(shape).iter().sum::<usize>() * scratch_workers(chunks(shape))
}

/// [`attention`](super::scaled_dot_product::attention), computed in one type.
pub(super) fn run<T: Scored>(
    shape: &AttentionShape,
    scores: &Scores<'_>,
    [q, k, v]: [Heads<'_>; 3],
    (out, out_strides): (&mut [u8], [usize; 3]),
    log_sums: &mut [T],
    scratch: &mut [f32],
) {
    let (size, store) = (q.dtype.size(), T::store(q.dtype));
    let blocks = shape.queries.div_ceil(QUERIES);
    let out = Cut::new(out);
    let log_sums = Pieces::in_rows(log_sums, shape.queries, QUERIES);
    let lens = parts(shape);
    let words = lens.iter().sum::<usize>() * size_of::<T>() / size_of::<f32>();
    for_each_cut_with(chunks(shape), log_sums, scratch, words, |chunk, log_sums, own| {
        let own: &mut [T] = bytemuck::cast_slice_mut(own);
        let (pair, block) = (chunk / blocks, chunk % blocks);
        let (batch, head) = (pair / shape.heads, pair % shape.heads);
        let first = block * QUERIES;
        let rows = QUERIES.min(shape.queries - first);
        let mut state = State::new(shape, scores, [batch, head, first], rows, own, lens);
        load(q.rows([batch, head, first]), (rows, shape.dim), <T as Float>::of(scores.scale), state.queries);
        let kv_head = head / shape.group();
        let seen = scores.visible(first + rows - 1, shape.keys);
        for key in (0..seen).step_by(KEYS) {
            let count = KEYS.min(shape.keys - key);
            load(k.rows([batch, kv_head, key]), (count, shape.dim), T::ONE, state.keys);
            T::turn(state.keys, (count, shape.dim), state.turned, SCORES);
            load(v.rows([batch, kv_head, key]), (count, shape.value_dim), T::ONE, state.values);
            state.add(key);
        }
        state.finish(log_sums, |row, values| {
            let at = batch * out_strides[0] + head * out_strides[1] + (first + row) * out_strides[2];
            if !values.is_empty() {
                // SAFETY: the rows of different chunks are different; the output does not overlap itself.
                store(values, unsafe { out.range(at * size, shape.value_dim * size) });
            }
        });
    });
}

/// A block of queries, with the sums over the keys so far.
struct State<'a, T> {
    shape: &'a AttentionShape,
    scores: &'a Scores<'a>,
    /// The batch, the head and the first query.
    at: [usize; 3],
    rows: usize,
    queries: &'a mut [T],
    keys: &'a mut [T],
    turned: &'a mut [T],
    values: &'a mut [T],
    sums: &'a mut [T],
    tile: &'a mut [T],
    largest: &'a mut [T],
    totals: &'a mut [T],
}

impl<'a, T: Scored> State<'a, T> {
    fn new(
        shape: &'a AttentionShape,
        scores: &'a Scores<'a>,
        at: [usize; 3],
        rows: usize,
        mut own: &'a mut [T],
        lens: [usize; 7],
    ) -> Self {
        let [queries, keys, turned, values, sums, tile, numbers] = lens.map(|len| {
            let (part, rest) = std::mem::take(&mut own).split_at_mut(len);
            own = rest;
            part
        });
        let (largest, totals) = numbers.split_at_mut(numbers.len() / 2);
        sums.fill(T::default());
        largest.fill(T::LOWEST);
        totals.fill(T::default());
        State { shape, scores, at, rows, queries, keys, turned, values, sums, tile, largest, totals }
    }

    /// Adds the loaded block of keys that begins at `key`.
    fn add(&mut self, key: usize) {
        let (dim, value_dim) = (padded(self.shape.dim), padded(self.shape.value_dim));
        let [batch, head, first] = self.at;
        for row in (0..self.rows).step_by(ROWS) {
            let count = ROWS.min(self.rows - row);
            let seen = |row: usize| {
                let keys = self.scores.visible(first + row, self.shape.keys);
                keys.saturating_sub(key).min(KEYS)
            };
            let most = seen(row + count - 1);
            if most == 0 {
                continue;
            }
            let queries = LeftFactor { data: &self.queries[row * dim..], row: dim, step: 1 };
            let turned = (&*self.turned, SCORES);
            T::product([count, self.shape.dim, most], queries, turned, (self.tile, SCORES), Into::Replace);
            vectorize(
                #[inline(always)]
                || {
                    for i in 0..count {
                        let scores = &mut self.tile[i * SCORES..][..most.next_multiple_of(LANES)];
                        let at = [batch, head, first + row + i];
                        let seen = seen(row + i);
                        self.scores.add_mask(at, key, &mut scores[..seen]);
                        scores[seen..].fill(T::LOWEST);
                        let (largest, total) = (&mut self.largest[row + i], &mut self.totals[row + i]);
                        let rescale = exponentials(scores, largest, total);
                        if rescale != T::ONE {
                            self.sums[(row + i) * value_dim..][..value_dim]
                                .iter_mut()
                                .for_each(|x| *x *= rescale);
                        }
                        if let Some(dropout) = &self.scores.dropout {
                            T::drop(dropout, self.scores.group(self.shape, at, key), scores);
                        }
                    }
                },
            );
            let weights = LeftFactor { data: &*self.tile, row: SCORES, step: 1 };
            let sums = (&mut self.sums[row * value_dim..], value_dim);
            T::product([count, most, value_dim], weights, (&*self.values, value_dim), sums, Into::Add);
        }
    }

    /// Divides by the totals.
    fn finish(self, log_sums: &mut [T], store: impl Fn(usize, &[T])) {
        let value_dim = padded(self.shape.value_dim);
        for (row, log_sum) in log_sums.iter_mut().enumerate() {
            let total = self.totals[row];
            let nothing = total == T::default();
            *log_sum = if nothing { T::LOWEST } else { self.largest[row] + total.ln() };
            let scale = if nothing { T::default() } else { T::ONE / total };
            let values = &mut self.sums[row * value_dim..][..self.shape.value_dim];
            values.iter_mut().for_each(|x| *x *= scale);
            store(row, values);
        }
    }
}

const LANES: usize = 16;

/// Replaces scores (a multiple of [`LANES`]) by their exponentials relative to the largest so far. Returns the factor
/// that rescales earlier sums to the new maximum.
#[inline(always)]
fn exponentials<T: Scored>(scores: &mut [T], largest: &mut T, total: &mut T) -> T {
    let (blocks, _) = scores.as_chunks::<LANES>();
    let mut lanes = [*largest; LANES];
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = if lanes[i] > block[i] { lanes[i] } else { block[i] };
        }
    }
    let max = lanes.into_iter().fold(T::LOWEST, |max, x| if max > x { max } else { x });
    if max == T::LOWEST && scores.iter().all(|&x| x == max) {
        // No key has been attended to so far; avoid infinity minus infinity, and use weight 0.
        scores.fill(T::default());
        return T::ONE;
    }
    let rescale = if max == *largest { T::ONE } else { (*largest - max).exp() };
    let mut sums = [T::default(); LANES];
    for block in scores.as_chunks_mut::<LANES>().0 {
        for i in 0..LANES {
            block[i] = (block[i] - max).exp();
            sums[i] += block[i];
        }
    }
    *largest = max;
    *total = *total * rescale + sums.into_iter().sum::<T>();
    rescale
}
