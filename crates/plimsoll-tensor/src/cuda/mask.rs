//! Triangles of matrices, and the places of a mask.

use plimsoll_cuda::Args;

use super::index::word;
use super::{CudaCall, Placed};
use crate::error::Result;

const NONZERO: &str = include_str!("kernels/nonzero.cu");
const TRIANGLE: &str = include_str!("kernels/triangle.cu");

/// `mask -> places`, of a contiguous mask.
pub(crate) fn nonzero(call: &mut CudaCall<'_>) -> Result<()> {
    let (mask, out) = (call.ins[0], call.outs[0]);
    if out.is_empty() {
        return Ok(());
    }
    let shape: Vec<u64> = mask.shape().iter().map(|&n| n as u64).collect();
    let source = call.source(NONZERO).with("RANK", shape.len().to_string());
    let args = Args::new().address(out.address).address(mask.address).size(mask.len());
    call.launch(source, [1; 3], 1024, args.size(out.shape()[0]).words(&shape))
}

/// What of matrices stays, and what becomes of the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triangle {
    pub(crate) upper: bool,
    pub(crate) diagonal: i64,
    /// The words of elements inside, where there is no input, and outside.
    pub(crate) words: [u64; 2],
}

/// The triangle of `x`, or a new one.
pub(crate) fn triangle(call: &mut CudaCall<'_>, x: Option<Placed<'_>>, of: Triangle) -> Result<()> {
    let out = call.outs[0];
    let shape = out.shape();
    let [.., rows, cols] = *shape else { return call.missing() };
    let strides = x.map_or(shape, |x| x.layout.strides());
    let words: Vec<u64> = shape.iter().chain(strides).map(|&n| n as u64).collect();
    let source = call
        .source(TRIANGLE)
        .with("W", word(out.dtype))
        .with("RANK", shape.len().to_string())
        .with("UPPER", if of.upper { "1" } else { "0" });
    let args = Args::new().address(out.address).address(x.map_or(0, |x| x.address)).size(out.len());
    let args = args.i64(of.diagonal).size(rows).size(cols).address(of.words[0]).address(of.words[1]);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args.words(&words))
}
