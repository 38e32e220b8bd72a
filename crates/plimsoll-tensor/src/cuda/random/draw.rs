//! Random values, identical to the host's, and dropout.

use plimsoll_cuda::Args;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::cuda::{CudaCall, Placed, blocks_for, fault, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::random::{Distribution, RandomStream};

const DROPOUT: &str = include_str!("dropout.cu");
const DRAW: &str = concat!(include_str!("chacha.cu"), include_str!("draw.cu"));
const MULTINOMIAL: &str = concat!(include_str!("chacha.cu"), include_str!("multinomial.cu"));
const INTEGERS: &str = concat!(include_str!("chacha.cu"), include_str!("integers.cu"));
const FACTORS: &str = include_str!("factors.cu");

/// Fills a contiguous output from the beginning of a stream.
pub(crate) fn draw(
    call: &mut CudaCall<'_>,
    distribution: Distribution,
    from: RandomStream,
    out: Placed<'_>,
) -> Result<()> {
    let is_wide = out.dtype == DType::F64;
    let (is_normal, first, second) = match distribution {
        Distribution::Uniform { low, high } => (false, low, high),
        Distribution::Normal { mean, std } => (true, mean, std),
        Distribution::Exponential { rate } => (false, rate, 0.0),
    };
    let is_exponential = matches!(distribution, Distribution::Exponential { .. });
    // The replacement for a uniform value that rounding moves to the end of its range.
    let largest = match is_wide {
        true => second.next_down().max(first),
        false => f64::from((second as f32).next_down().max(first as f32)),
    };
    let flag = |on: bool| if on { "1" } else { "0" };
    let source = call
        .source(DRAW)
        .with("T", name(out.dtype))
        .with("NORMAL", flag(is_normal))
        .with("EXPONENTIAL", flag(is_exponential))
        .with("WIDE", flag(is_wide));
    let key = key(from);
    let args = Args::new().address(out.address).size(out.len()).words(&key).address(from.stream);
    let args = args.f64(first).f64(second).f64(largest);
    let each = if is_wide && !is_normal && !is_exponential { 8 } else { 16 };
    call.launch(source, [out.len().div_ceil(each * 256), 1, 1], 256, args)
}

/// Random integers from `low` up to, but not including, `high`.
pub(crate) fn integers(
    call: &mut CudaCall<'_>,
    low: i64,
    high: i64,
    from: RandomStream,
    out: Placed<'_>,
) -> Result<()> {
    let source = call.source(INTEGERS).with("T", name(out.dtype)).with("SHUFFLE", "0");
    let args = Args::new().address(out.address).size(out.len()).words(&key(from)).address(from.stream);
    let args = args.i64(low).address(high.wrapping_sub(low).cast_unsigned());
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}

/// The integers below the length in random order. One thread computes them, since each swap depends on those
/// before.
pub(crate) fn permutation(call: &mut CudaCall<'_>, from: RandomStream, out: Placed<'_>) -> Result<()> {
    let source = call.source(INTEGERS).with("T", name(out.dtype)).with("SHUFFLE", "1");
    let args = Args::new().address(out.address).size(out.len()).words(&key(from)).address(from.stream);
    call.launch(source, [1; 3], 256, args.i64(0).address(0))
}

/// The key of a stream's cipher.
fn key(from: RandomStream) -> [u64; 4] {
    let key = ChaCha8Rng::seed_from_u64(from.seed).get_seed();
    std::array::from_fn(|i| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&key[8 * i..8 * i + 8]);
        u64::from_le_bytes(bytes)
    })
}

/// Bytes of scratch of [`multinomial`]: one number for each weight.
pub(crate) fn multinomial_scratch(len: usize) -> u64 {
    (len * 8) as u64
}

/// `weights -> places`, for contiguous rows.
pub(crate) fn multinomial(
    call: &mut CudaCall<'_>,
    drawn: usize,
    replace: bool,
    from: RandomStream,
) -> Result<()> {
    let (weights, out, scratch) = (call.ins[0], call.outs[0], call.scratch_address());
    let source = call
        .source(MULTINOMIAL)
        .with("T", name(weights.dtype))
        .with("REPLACE", if replace { "1" } else { "0" });
    let args = Args::new().address(out.address).address(weights.address).address(scratch);
    let args = args.size(weights.cols()).size(drawn).words(&key(from)).address(from.stream);
    let rows = if out.is_empty() { 0 } else { weights.rows() };
    call.launch(source, [rows, 1, 1], 256, args.fault(fault::WEIGHT))
}

/// The dropout factors of attention: rows of `keys` elements. Each row's random words begin at a multiple of 64.
pub(crate) fn factors(
    call: &mut CudaCall<'_>,
    keys: usize,
    (threshold, factor): (u32, f32),
    stream: RandomStream,
) -> Result<()> {
    let out = call.outs[0];
    let source = call.source(FACTORS);
    let args = Args::new().address(out.address).size(out.len()).size(keys).address(stream.stream);
    let args = args.address(stream.seed).u32(threshold).f32(factor);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}

/// The threshold for the random words of dropout with probability `p`, and the factor for kept elements.
pub(crate) fn threshold(p: f64) -> (u32, f32) {
    ((p * 4_294_967_296.0) as u32, if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 })
}

/// `x[, residual] -> out`, all contiguous.
pub(crate) fn dropout(call: &mut CudaCall<'_>, p: f64, stream: RandomStream) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let dtype = call.float(&ins)?;
    let source = call.source(DROPOUT).with("A", name(dtype.accumulator())).with("T", name(dtype));
    let (threshold, factor) = threshold(p);
    let args = Args::new().address(out.address).address(ins[0].address);
    let args = args.address(ins.get(1).map_or(0, |residual| residual.address)).size(out.len());
    let args = args.address(stream.stream).address(stream.seed).u32(threshold).f32(factor);
    call.launch(source, [blocks_for(out.len(), 256, 4), 1, 1], 256, args)
}
