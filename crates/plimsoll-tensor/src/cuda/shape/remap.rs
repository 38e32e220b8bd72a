//! Moves elements to other positions: flips, rolls and padding.

use plimsoll_cuda::Args;

use crate::cuda::indexing::index::word;
use crate::cuda::{CudaCall, name};
use crate::error::Result;

const REMAP: &str = include_str!("remap.cu");
const UNFOLD: &str = include_str!("unfold.cu");
const REMAP_ADD: &str = include_str!("remap_add.cu");

/// The source of the elements of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The same positions, after `before` elements of padding with a constant.
    Same { before: usize },
    /// The same positions, in reverse order.
    Turned,
    /// The same positions, wrapping around at the ends.
    Circle { before: usize },
    /// Reflected at the first and the last element.
    Reflected { before: usize },
    /// The nearest element.
    Nearest { before: usize },
}

impl Source {
    fn words(self) -> [u64; 2] {
        match self {
            Source::Same { before } => [before as u64, 0],
            Source::Turned => [0, 1],
            Source::Circle { before } => [before as u64, 2],
            Source::Reflected { before } => [before as u64, 3],
            Source::Nearest { before } => [before as u64, 4],
        }
    }
}

/// The words of the kernel's struct, and its rank.
fn space(size: &[usize], out: &[usize], step: &[usize], axes: &[Source]) -> (Vec<u64>, usize) {
    // A scalar is treated as having one dimension.
    if size.is_empty() {
        return (vec![1, 1, 1, 0, 0], 1);
    }
    let of = |dims: &[usize]| dims.iter().map(|&n| n as u64).collect::<Vec<u64>>();
    let from = |at: usize| axes.iter().map(|axis| axis.words()[at]).collect::<Vec<u64>>();
    ([of(size), of(out), of(step), from(0), from(1)].concat(), size.len())
}

/// `x -> out`, row-major. `outside` is the word for elements without a source.
pub(crate) fn remap(call: &mut CudaCall<'_>, axes: &[Source], outside: u64) -> Result<()> {
    let (x, out) = (call.ins[0], call.outs[0]);
    let (words, rank) = space(x.shape(), out.shape(), x.layout.strides(), axes);
    let source = call.source(REMAP).with("W", word(x.dtype)).with("RANK", rank.to_string());
    let args = Args::new().address(out.address).address(x.address).size(out.len());
    let args = args.address(outside).words(&words);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}

/// `grad -> sums`, row-major: the gradient of [`remap`].
pub(crate) fn remap_add(call: &mut CudaCall<'_>, axes: &[Source]) -> Result<()> {
    let (grad, out) = (call.ins[0], call.outs[0]);
    let dtype = call.float(&[grad, out])?;
    let (words, rank) = space(out.shape(), grad.shape(), grad.layout.strides(), axes);
    let source = call
        .source(REMAP_ADD)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("RANK", rank.to_string());
    let args = Args::new().address(out.address).address(grad.address).size(out.len()).words(&words);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}

/// `grad -> sums`, row-major: the gradient of overlapping windows along a dimension. In `grad`, that dimension counts the
/// windows, and their elements are the last dimension.
pub(crate) fn unfold_backward(call: &mut CudaCall<'_>, dim: usize, [size, step]: [usize; 2]) -> Result<()> {
    let (grad, out) = (call.ins[0], call.outs[0]);
    let dtype = call.float(&[grad, out])?;
    let rank = out.shape().len();
    let strides = grad.layout.strides();
    let more = [strides[rank], size, step, grad.shape()[dim]];
    let words = out.shape().iter().chain(&strides[..rank]).chain(&more).map(|&n| n as u64);
    let words: Vec<u64> = words.collect();
    let source = call
        .source(UNFOLD)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("RANK", rank.to_string())
        .with("DIM", dim.to_string());
    let args = Args::new().address(out.address).address(grad.address).size(out.len()).words(&words);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}
