//! Cases for the conformance suite: attention compared with its definition.

use smallvec::smallvec;

use super::call::AttentionOptions;
use super::operands::{Arrangement, Attention};
use crate::dispatch::{Tensors, call};
use crate::dtype::DType;
use crate::error::Result;
use crate::random::RandomStream;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// Query heads, key and value heads, queries, keys, dim, value_dim; one batch.
type Sizes = [usize; 6];

/// Softmax(q kᵀ / √dim + mask) v; the mask has the shape `[queries, keys]`.
fn naive(
    [heads, kv_heads, queries, keys, dim, value_dim]: Sizes,
    ins: &[Vec<f64>],
    causal: bool,
) -> Vec<f64> {
    let mut out = Vec::new();
    for (h, i) in (0..heads).flat_map(|h| (0..queries).map(move |i| (h, i))) {
        let row = |j: usize| h / (heads / kv_heads) * keys + j;
        let score = |j: usize| -> f64 {
            let product: f64 =
                (0..dim).map(|d| ins[0][(h * queries + i) * dim + d] * ins[1][row(j) * dim + d]).sum();
            let hidden = causal && j > i;
            let bias = ins.get(3).map_or(0.0, |mask| mask[i * keys + j]);
            if hidden { f64::NEG_INFINITY } else { product / (dim as f64).sqrt() + bias }
        };
        let weights: Vec<f64> = (0..keys).map(|j| score(j).exp()).collect();
        let total: f64 = weights.iter().sum();
        let value =
            |d: usize| (0..keys).map(|j| weights[j] / total * ins[2][row(j) * value_dim + d]).sum::<f64>();
        out.extend((0..value_dim).map(value));
    }
    out
}

#[track_caller]
fn run(ins: &[&Tensor], causal: bool, enable_gqa: bool) -> Result<Tensors> {
    let attn_mask = ins.get(3).copied();
    let options =
        AttentionOptions { attn_mask, is_causal: causal, enable_gqa, ..AttentionOptions::default() };
    Ok(smallvec![ins[0].scaled_dot_product_attention(ins[1], ins[2], options)?])
}

fn case(sizes: Sizes, causal: bool, mask: bool) -> Case {
    let [heads, kv_heads, queries, keys, dim, value_dim] = sizes;
    let shapes = [[1, heads, queries, dim], [1, kv_heads, keys, dim], [1, kv_heads, keys, value_dim]];
    let of_mask = [queries, keys];
    let mut all: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
    if mask {
        all.push(&of_mask);
    }
    let name = format!("scaled_dot_product_attention {shapes:?}, causal {causal}, mask {mask}");
    Case::new(name, &all, move |ins| run(ins, causal, heads != kv_heads))
        .expect(move |ins| vec![naive(sizes, ins, causal)])
}

pub(crate) fn cases() -> Vec<Case> {
    let packed = |kv_heads: usize, causal: bool| {
        let width = (2 + 2 * kv_heads) * 3;
        Case::new(format!("packed_attention, {kv_heads} kv_heads"), &[&[2, 4, width]], move |ins| {
            let options = AttentionOptions { is_causal: causal, ..AttentionOptions::default() };
            Ok(smallvec![ins[0].packed_attention(2, kv_heads, options)?])
        })
    };
    let stream = RandomStream { seed: 4, stream: 2 };
    let dropout = Some((0.4, stream));
    let dropped = Attention { arrangement: Arrangement::Apart, scale: 0.5, causal: false, dropout };
    let shape: &[usize] = &[1, 2, 3, 4];
    vec![
        case([2, 2, 3, 5, 4, 3], false, false),
        case([1, 1, 4, 4, 2, 2], true, false),
        case([4, 2, 2, 3, 3, 1], false, true),
        Case::new("attention with a mask of truth values", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 4]], |ins| {
            run(ins, false, false)
        })
        .and(&[3, 5], DType::Bool, Domain::Below(2)),
        Case::new("attention with dropout", &[shape, shape, shape], move |ins| {
            Ok(smallvec![call(dropped, ins)?.remove(0)])
        }),
        packed(2, false),
        packed(1, true),
    ]
}
