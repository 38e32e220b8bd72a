//! Compares operators on an NVIDIA GPU with the host's: values and derivatives, in four types. `cargo run --example
//! check_operators -- cuda:0 row_norm layer_norm`. Without names it checks all operators, as `plimsoll doctor cuda` does, and two
//! more: attention at the sizes that the GPU's tiled kernels take (`attention_by_tiles_64`, `_128` and `_80`, for heads of that
//! width), and functions of integers (`whole_numbers`).

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use plimsoll::suite::{Case, Comparison, Domain, compare_cases};
use plimsoll::{AttentionOptions, DType, OPERATORS, Tensor, allow_tf32_in_convolutions};
use support::{Arguments, Failure};

/// Attention with queries, keys and values packed in one tensor. The output is multiplied by weights, so that each element has a
/// different gradient.
fn packed(tokens: usize, (heads, kv_heads): (usize, usize), dim: usize, causal: bool) -> Case {
    let name = format!("{tokens} tokens, {heads} heads of {dim}, {kv_heads} of keys, causal {causal}");
    let shapes = [[2, tokens, (heads + 2 * kv_heads) * dim], [2, tokens, heads * dim]];
    Case::new(name, &[&shapes[0], &shapes[1]], move |ins| {
        let options = AttentionOptions { is_causal: causal, ..AttentionOptions::default() };
        Ok(std::iter::once(ins[0].packed_attention(heads, kv_heads, options)?.mul(ins[1])?).collect())
    })
}

/// The same after a projection with a bias, whose gradient the attention kernels sum.
fn projected(tokens: usize, (heads, kv_heads): (usize, usize), dim: usize, causal: bool) -> Case {
    let name =
        format!("bias of {tokens} tokens, {heads} heads of {dim}, {kv_heads} of keys, causal {causal}");
    let width = (heads + 2 * kv_heads) * dim;
    let shapes: [&[usize]; 4] = [&[2, tokens, 8], &[width, 8], &[width], &[2, tokens, heads * dim]];
    Case::new(name, &shapes, move |ins| {
        let options = AttentionOptions { is_causal: causal, ..AttentionOptions::default() };
        let packed = ins[0].linear(ins[1], Some(ins[2]))?;
        Ok(std::iter::once(packed.packed_attention(heads, kv_heads, options)?.mul(ins[3])?).collect())
    })
}

/// The same with three separate tensors and any number of keys.
fn apart(queries: usize, keys: usize, (heads, kv_heads): (usize, usize), dim: usize, causal: bool) -> Case {
    let name = format!(
        "{queries} queries, {keys} keys, {heads} heads of {dim}, {kv_heads} of keys, causal {causal}"
    );
    let (of_q, of_k) = ([1, heads, queries, dim], [1, kv_heads, keys, dim]);
    Case::new(name, &[&of_q, &of_k, &of_k, &of_q], move |ins: &[&Tensor]| {
        let enable_gqa = heads != kv_heads;
        let options = AttentionOptions { is_causal: causal, enable_gqa, ..AttentionOptions::default() };
        Ok(std::iter::once(ins[0].scaled_dot_product_attention(ins[1], ins[2], options)?.mul(ins[3])?)
            .collect())
    })
}

/// Sizes around the edges of tiles: odd lengths, grouped heads.
fn attention_by_tiles(dim: usize) -> Vec<Case> {
    vec![
        packed(197, (3, 3), dim, false),
        packed(77, (4, 2), dim, true),
        packed(64, (2, 1), dim, true),
        packed(300, (4, 1), dim, true),
        packed(1, (2, 2), dim, true),
        projected(197, (2, 2), dim, false),
        projected(130, (4, 2), dim, true),
        apart(100, 333, (2, 2), dim, false),
        apart(333, 100, (4, 2), dim, true),
        apart(70, 333, (2, 1), dim, true),
    ]
}

/// Functions of the integers from -4 to 4; their results are used as factors.
fn whole_numbers() -> Vec<Case> {
    let case = |name: &str, function: fn(&Tensor) -> plimsoll::Result<Tensor>| {
        let multiply = move |ins: &[&Tensor]| {
            let whole = function(&ins[1].add_scalar(-4)?)?;
            assert_eq!(whole.dtype(), DType::I64);
            Ok(std::iter::once(ins[0].mul(&whole.to_dtype(ins[0].dtype())?)?).collect())
        };
        Case::new(format!("{name} of whole numbers"), &[&[3, 40]], multiply).and(
            &[3, 40],
            DType::I64,
            Domain::Below(9),
        )
    };
    vec![
        case("floor_divide", |n| n.floor_divide_scalar(3)),
        case("floor_divide by less than 0", |n| n.floor_divide_scalar(-3)),
        case("div_trunc", |n| n.div_trunc_scalar(3)),
        case("remainder", |n| n.remainder_scalar(-3)),
        case("fmod", |n| n.fmod_scalar(3)),
        case("powers", |n| n.pow(&n.abs()?)),
        case("negative powers", |n| n.pow(n)),
        case("rounding", |n| n.floor()?.add(&n.ceil()?)?.add(&n.round()?)?.add(&n.trunc()?)),
        case("clamp, sign, neg and relu", |n| n.clamp(-2.0, 3.0)?.mul(&n.sign()?)?.add(&n.neg()?.relu()?)),
    ]
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read();
    let device = arguments.device()?;
    // The host multiplies in 32 bits.
    allow_tf32_in_convolutions(false);
    let names: Vec<String> =
        (1..).map(|i| arguments.get(i, "")).take_while(|name| !name.is_empty()).collect();
    let operators = OPERATORS.iter().map(|&(name, cases)| (name, cases()));
    let cases: Vec<Case> = operators
        .chain([
            ("attention_by_tiles_64", attention_by_tiles(64)),
            ("attention_by_tiles_128", attention_by_tiles(128)),
            // Other kernels handle these.
            ("attention_by_tiles_80", attention_by_tiles(80)),
            ("whole_numbers", whole_numbers()),
        ])
        .filter(|(name, _)| names.is_empty() || names.iter().any(|n| n == name))
        .flat_map(|(_, cases)| cases)
        .collect();
    let Comparison { agree, differ, missing } = compare_cases(&cases, &device);
    differ.iter().for_each(|why| println!("{why}"));
    println!("{agree} checks agree, {} operators have no kernel, {} differ", missing.len(), differ.len());
    if differ.is_empty() { Ok(()) } else { Err("operators differ from the host's".into()) }
}
