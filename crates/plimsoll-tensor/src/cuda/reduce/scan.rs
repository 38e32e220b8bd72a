//! Cumulative sums and products along a dimension.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("scan.cu");

/// The kind of scan along the dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// A sum.
    Sum,
    /// A product.
    Product,
    /// `grad, x, product -> grad of x`.
    ProductBackward,
    /// `g, a -> s`, with `s = g + a ·` (the previous `s`).
    Recurrence,
}

/// Scans contiguous inputs along a dimension, from its end if `back`.
pub(crate) fn scan(call: &mut CudaCall<'_>, kind: Scan, dim: usize, back: bool) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    if out.is_empty() {
        return Ok(());
    }
    let shape = out.shape();
    let (length, inner) = (shape[dim], shape[dim + 1..].iter().product::<usize>());
    let lines = out.len() / length;
    // As on the host, in 64 bits; integers wrap.
    let (wide, word) =
        if out.dtype.is_float() { (name(DType::F64), "double") } else { (name(DType::I64), "u64") };
    let source = call
        .source(TEXT)
        .with("A", wide)
        .with("WORD", word)
        .with("T", name(ins[0].dtype))
        .with("TO", name(out.dtype))
        .with("BACK", if back { "1" } else { "0" })
        .with("KIND", (kind as u8).to_string());
    let at = |i: usize| ins.get(i).map_or(0, |x| x.address);
    let args = Args::new().address(out.address).address(at(0)).address(at(1)).address(at(2));
    let args = args.size(lines).size(length).size(inner);
    call.launch(source, [lines.div_ceil(256), 1, 1], 256, args)
}
