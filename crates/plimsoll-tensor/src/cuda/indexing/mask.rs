//! Triangles of matrices, and the positions and elements that a mask selects.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use super::index::word;
use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed};
use crate::error::Result;
use crate::layout::Dims;

const MASKED: &str = include_str!("masked.cu");
const NONZERO: &str = include_str!("nonzero.cu");
const TRIANGLE: &str = include_str!("triangle.cu");

/// `mask -> places`, for a contiguous mask.
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

/// The number of parts in which a mask is counted.
const PARTS: usize = 256;

/// Bytes of scratch memory for [`masked`].
pub(crate) const MASKED_SCRATCH_BYTES: u64 = (PARTS * 8) as u64;

/// `x, mask -> packed`: the elements for which the mask is set, in row-major order. With `backward`: `packed, mask -> x`, with
/// zeros elsewhere.
pub(crate) fn masked(call: &mut CudaCall<'_>, backward: bool) -> Result<()> {
    let ([from, mask], to) =
        (<[Placed<'_>; 2]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    if to.is_empty() {
        return Ok(());
    }
    let (packed, x) = if backward { (from, to) } else { (to, from) };
    let strides = [Dims::from_slice(mask.layout.strides()), Dims::from_slice(x.layout.strides())];
    let dims: SmallVec<[usize; 6]> = (0..x.shape().len()).filter(|&dim| x.shape()[dim] != 1).collect();
    let space = Space::collapsed(x.shape(), &strides, &dims);
    let source = call.source(MASKED).with("W", word(x.dtype)).with("RANK", space.rank().to_string());
    let step = packed.layout.strides().first().copied().unwrap_or(1);
    let args = Args::new().address(packed.address).address(x.address).address(call.scratch_address());
    let args = args.address(mask.address).size(x.len()).size(x.len().div_ceil(PARTS));
    let args = args.size(packed.len()).size(step).words(&space.words());
    call.launch(source.clone().with("PASS", "0"), [PARTS, 1, 1], 1024, args.clone())?;
    call.launch(source.with("PASS", if backward { "2" } else { "1" }), [PARTS, 1, 1], 1024, args)
}

/// The triangle of a matrix to keep, and the value of the other elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triangle {
    pub(crate) upper: bool,
    pub(crate) diagonal: i64,
    /// The words for elements inside (if there is no input) and outside.
    pub(crate) words: [u64; 2],
}

/// Queues the triangle of `x`, or a new one.
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
