//! Compares attention and its gradients with sums by definition, in 64 bits.

use super::super::block::Scored;
use super::*;
use crate::dtype::{Element, bf16, f16};
use crate::parallel::Cut;
use crate::random::draw::RandomStream;
use crate::testing::*;

/// The results of one case with operands in one type and scores in another: the output, the log-sum-exp and three gradients,
/// one after the other.
fn ours<E: Element<Stored = E> + bytemuck::Pod, T: Scored>(
    shape: &AttentionShape,
    scores: &Scores<'_>,
    data: &[Vec<f32>; 4],
    packed: bool,
) -> Vec<f64> {
    let &AttentionShape { heads, kv_heads, queries, keys, dim, value_dim, .. } = shape;
    // The memory order is batches, rows, heads (the output of a projection), or batches, heads, rows.
    let strides = |heads: usize, rows: usize, dim: usize| match packed {
        true => [rows * heads * dim, dim, heads * dim],
        false => [heads * rows * dim, rows * dim, dim],
    };
    let all =
        [strides(heads, queries, dim), strides(kv_heads, keys, dim), strides(kv_heads, keys, value_dim)];
    let of_out = strides(heads, queries, value_dim);
    let typed =
        data.each_ref().map(|data| data.iter().map(|&x| E::from_f64(f64::from(x))).collect::<Vec<E>>());
    let heads_of =
        |data, strides| Heads { bytes: bytemuck::cast_slice::<E, u8>(data), dtype: E::DTYPE, strides };
    let view = |i: usize, strides: [usize; 3]| heads_of(&typed[i][..], strides);
    let ins = [view(0, all[0]), view(1, all[1]), view(2, all[2])];
    let of = |len: usize| vec![E::from_f64(9.0); len];
    let mut out = of(data[3].len());
    let mut log_sums = vec![T::default(); shape.batch * heads * queries];
    let scratch = |len: usize| vec![f64::NAN; len.div_ceil(2)];
    let mut own = scratch(forward_scratch_len(shape, E::DTYPE));
    let (to, sums) = (cast_slice_mut(&mut out), cast_slice_mut(&mut log_sums));
    attention(shape, scores, ins, (to, of_out), sums, cast_slice_mut(&mut own));
    let mut own = scratch(backward_scratch_len(shape, E::DTYPE));
    let mut grads = [0, 1, 2].map(|i| of(data[i].len()));
    {
        let cuts = grads.each_mut().map(|grad| Cut::new(cast_slice_mut(grad)));
        let memory = [&cuts[0], &cuts[1], &cuts[2]];
        let to = Gradients { memory, dtype: E::DTYPE, begins: [0; 3], strides: all };
        let both = [heads_of(&out[..], of_out), view(3, of_out)];
        let sums = bytemuck::cast_slice(&log_sums);
        attention_backward(shape, scores, ins, both, sums, &to, cast_slice_mut(&mut own));
    }
    let rows = |values: &[E], (heads, rows, dim): (usize, usize, usize)| -> Vec<f64> {
        let at = strides(heads, rows, dim);
        let index = |i: usize| {
            let (col, row, head) = (i % dim, i / dim % rows, i / dim / rows % heads);
            (i / dim / rows / heads) * at[0] + head * at[1] + row * at[2] + col
        };
        (0..values.len()).map(|i| values[index(i)].to_f64()).collect()
    };
    let sizes = [(heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim)];
    let mut result = rows(&out, (heads, queries, value_dim));
    result.extend(log_sums.iter().map(|x| x.wide()));
    grads.iter().zip(sizes).for_each(|(grad, sizes)| result.extend(rows(grad, sizes)));
    result
}

/// The same results by definition; `data` is row-major by heads.
fn naive(shape: &AttentionShape, scores: &Scores<'_>, data: &[Vec<f32>; 4]) -> Vec<f64> {
    let &AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim } = shape;
    let mut factors = vec![1.0; batch * heads * queries * keys];
    if let Some(dropout) = &scores.dropout {
        dropout_factors(shape, dropout, &mut factors);
    }
    let wide = |i: usize, at: usize| f64::from(data[i][at]);
    let (mut out, mut log_sums) = (vec![0f64; data[3].len()], vec![]);
    let mut grads = [0, 1, 2].map(|i| vec![0f64; data[i].len()]);
    for (b, h, i) in
        (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |i| (b, h, i))))
    {
        let row = (b * heads + h) * queries + i;
        let kv = |j: usize| (b * kv_heads + h / (heads / kv_heads)) * keys + j;
        let score = |j: usize| -> f64 {
            let product: f64 = (0..dim).map(|d| wide(0, row * dim + d) * wide(1, kv(j) * dim + d)).sum();
            let mut one = [0.0f64];
            scores.add_mask([b, h, i], j, &mut one);
            let hidden = scores.causal && j > i;
            if hidden { f64::NEG_INFINITY } else { product * scores.scale + one[0] }
        };
        let all: Vec<f64> = (0..keys).map(score).collect();
        let max = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all.iter().map(|x| (x - max).exp()).sum();
        let nothing = max == f64::NEG_INFINITY;
        log_sums.push(if nothing { max } else { max + sum.ln() });
        let weight: Vec<f64> =
            all.iter().map(|x| if nothing { 0.0 } else { (x - max).exp() / sum }).collect();
        let factor = |j: usize| f64::from(factors[row * keys + j]);
        let g = |d: usize| wide(3, row * value_dim + d);
        let slope: Vec<f64> = (0..keys)
            .map(|j| factor(j) * (0..value_dim).map(|d| g(d) * wide(2, kv(j) * value_dim + d)).sum::<f64>())
            .collect();
        let level: f64 = weight.iter().zip(&slope).map(|(w, s)| w * s).sum();
        for j in 0..keys {
            for d in 0..value_dim {
                out[row * value_dim + d] += weight[j] * factor(j) * wide(2, kv(j) * value_dim + d);
                grads[2][kv(j) * value_dim + d] += weight[j] * factor(j) * g(d);
            }
            let ds = weight[j] * (slope[j] - level) * scores.scale;
            for d in 0..dim {
                grads[0][row * dim + d] += ds * wide(1, kv(j) * dim + d);
                grads[1][kv(j) * dim + d] += ds * wide(0, row * dim + d);
            }
        }
    }
    out.extend(log_sums);
    grads.into_iter().for_each(|grad| out.extend(grad));
    out
}

/// Rearranges `[batch, heads, rows, dim]` to `[batch, rows, heads, dim]`, the layout of a projection's output.
fn pack(values: &[f32], (heads, rows, dim): (usize, usize, usize)) -> Vec<f32> {
    let mut packed = vec![0.0; values.len()];
    for (i, &x) in values.iter().enumerate() {
        let (col, row, head, b) = (i % dim, i / dim % rows, i / dim / rows % heads, i / dim / rows / heads);
        packed[((b * rows + row) * heads + head) * dim + col] = x;
    }
    packed
}

fn check(shape: AttentionShape, scores: Scores<'_>) {
    check_within(shape, scores, 2e-5);
}

fn check_within(shape: AttentionShape, scores: Scores<'_>, tolerance: f32) {
    let AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim } = shape;
    let sizes = [
        (heads, queries, dim),
        (kv_heads, keys, dim),
        (kv_heads, keys, value_dim),
        (heads, queries, value_dim),
    ];
    let mut seed = 0;
    let data = sizes.map(|(heads, rows, dim)| {
        seed += 1;
        random(batch * heads * rows * dim, seed)
    });
    let short = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let expected = naive(&shape, &scores, &data);
    let dense = || short(&ours::<f32, f32>(&shape, &scores, &data, false));
    assert_close(&on_any_threads(dense), &short(&expected), tolerance);
    let mut each = sizes.into_iter();
    let packed = data.each_ref().map(|values| pack(values, each.next().unwrap()));
    assert_close(&short(&ours::<f32, f32>(&shape, &scores, &packed, true)), &short(&expected), tolerance);
    for (got, expected) in ours::<f64, f64>(&shape, &scores, &packed, true).iter().zip(&expected) {
        let near = (got - expected).abs() <= f64::from(tolerance) * 1e-7 * expected.abs().max(1.0);
        assert!(near || got == expected, "{got} in 64 bits, not {expected}");
    }
    if tolerance > 1e-3 {
        return;
    }
    // The same numbers, rounded, and rounded again when written.
    let rounded = data.map(|values| values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect());
    let expected = short(&naive(&shape, &scores, &rounded));
    let [halves, brain] = [ours::<f16, f32>, ours::<bf16, f32>];
    assert_close(&short(&brain(&shape, &scores, &rounded, false)), &expected, 1e-2 + tolerance);
    assert_close(&short(&halves(&shape, &scores, &rounded, false)), &expected, 4e-3 + tolerance);
}

const PLAIN: Scores<'_> = Scores { scale: 0.3, causal: false, mask: Mask::None, dropout: None };

fn shape(batch: usize, [heads, kv_heads]: [usize; 2], rows: [usize; 2], dims: [usize; 2]) -> AttentionShape {
    AttentionShape {
        batch,
        heads,
        kv_heads,
        queries: rows[0],
        keys: rows[1],
        dim: dims[0],
        value_dim: dims[1],
    }
}

#[test]
fn any_size_matches_the_definition() {
    for (rows, dims) in [
        ([1, 1], [1, 1]),
        ([5, 7], [4, 3]),
        ([13, 140], [8, 17]),
        ([100, 31], [40, 33]),
        ([270, 130], [16, 16]),
        ([1, 300], [64, 64]),
    ] {
        for causal in [false, true] {
            check(shape(2, [2, 2], rows, dims), Scores { causal, ..PLAIN });
        }
    }
    check(shape(1, [6, 2], [30, 150], [20, 24]), PLAIN);
    check(shape(2, [3, 1], [150, 150], [8, 48]), Scores { causal: true, ..PLAIN });
}

#[test]
fn no_rows_no_keys_and_no_columns_are_sizes_too() {
    for (rows, dims) in [([0, 3], [2, 2]), ([3, 0], [2, 2]), ([3, 2], [0, 2]), ([3, 2], [2, 0])] {
        check(shape(1, [1, 1], rows, dims), PLAIN);
    }
    check(shape(0, [2, 2], [3, 3], [2, 2]), PLAIN);
}

#[test]
fn masks_are_broadcast_and_hide_whole_rows() {
    let mut add = random(2 * 140, 7);
    // The second batch attends to nothing.
    add[140..].fill(f32::NEG_INFINITY);
    let mask = Mask::Add(bytemuck::cast_slice(&add), DType::F32, [140, 0, 0, 1]);
    check(shape(2, [2, 2], [5, 140], [8, 8]), Scores { mask, ..PLAIN });
    let keep: Vec<u8> = (0..20 * 140).map(|i| u8::from(i % 3 != 0 && i / 140 != 4)).collect();
    let mask = Mask::Keep(&keep, [0, 0, 140, 1]);
    check(shape(2, [2, 1], [20, 140], [8, 8]), Scores { mask, ..PLAIN });
    let turned = Mask::Keep(&keep, [0, 0, 1, 20]);
    check(shape(2, [2, 1], [20, 140], [8, 8]), Scores { mask: turned, ..PLAIN });
}

#[test]
fn the_backward_pass_drops_what_the_forward_pass_dropped() {
    let dropout = Some(Dropout::new(0.3, RandomStream { seed: 5, stream: 9 }));
    check(shape(2, [4, 2], [40, 150], [8, 16]), Scores { dropout, causal: true, ..PLAIN });
}

#[test]
fn scores_of_any_size_do_not_overflow() {
    // The rounding error of scores grows with their size.
    check_within(shape(1, [1, 1], [20, 200], [8, 8]), Scores { scale: 200.0, ..PLAIN }, 2e-3);
}
