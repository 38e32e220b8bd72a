//! Rotary embedding: rotates pairs of elements by an angle.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed, name};
use crate::error::Result;
use crate::layout::Dims;

const ROTARY: &str = include_str!("rotary.cu");

/// `x, cos, sin -> out`: rotates pairs (one element of each half, or two neighbours) by `sign`
/// times their angles.
pub(crate) fn rotate(call: &mut CudaCall<'_>, halves: bool, sign: f64) -> Result<()> {
    let ([x, cos, sin], out) =
        (<[Placed<'_>; 3]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    if out.is_empty() {
        return Ok(());
    }
    if cos.dtype != sin.dtype {
        return call.missing();
    }
    let (shape, last) = (x.shape(), x.shape().len() - 1);
    let strides = [Dims::from_slice(out.layout.strides()), Dims::from_slice(x.layout.strides())];
    let leading: SmallVec<[usize; 6]> = (0..last).filter(|&dim| shape[dim] != 1).collect();
    let space = Space::collapsed(shape, &strides, &leading);
    let half = cos.shape()[1];
    let source = call
        .source(ROTARY)
        .with("A", name(x.dtype.accumulator()))
        .with("T", name(x.dtype))
        .with("C", name(cos.dtype))
        .with("RANK", space.rank().to_string())
        .with("HALVES", if halves { "1" } else { "0" });
    let (count, cols) = (x.rows(), x.cols());
    let args = Args::new().address(out.address).address(x.address).address(cos.address).address(sin.address);
    let args = args.size(count).size(cols).size(half).size(cos.shape()[0].max(1)).f64(sign);
    let blocks = (count * (cols - half)).div_ceil(256);
    call.launch(source, [blocks, 1, 1], 256, args.words(&space.words()))
}
