//! Convolution and pooling, by plain kernels of ours.

use plimsoll_cuda::Args;

use super::{CudaCall, Placed, name};
use crate::error::Result;

const CONV: &str = include_str!("kernels/conv.cu");
const MAX_POOL: &str = include_str!("kernels/max_pool.cu");

/// Which pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvPass {
    /// `x, w[, bias] -> out`.
    Forward,
    /// `grad, w[, bias] -> grad of x`, which is the transposed convolution too.
    Input,
    /// `grad, x -> grad of w`.
    Weight,
}

/// Strides of a tensor `[batch, channels, …]` with three spatial dimensions: those that are missing come first.
fn strides(x: &Placed<'_>) -> [u64; 5] {
    let strides = x.layout.strides();
    let missing = 5 - strides.len();
    std::array::from_fn(|i| match i {
        0 | 1 => strides[i] as u64,
        i if i - 2 < missing => 0,
        i => strides[i - missing] as u64,
    })
}

/// A convolution. `sizes` is batch, groups, channels of images and results, then by depth, height and width the sizes of images
/// and results, the window, its stride, padding and dilation.
pub(crate) fn convolution(call: &mut CudaCall<'_>, pass: ConvPass, sizes: [usize; 22]) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let [first, second, bias @ ..] = &ins[..] else { return call.missing() };
    if out.is_empty() || ins.iter().any(|x| x.dtype != out.dtype) {
        return if out.is_empty() { Ok(()) } else { call.missing() };
    }
    let (x, w, y) = match pass {
        ConvPass::Forward => (first, second, &out),
        ConvPass::Input => (&out, second, first),
        ConvPass::Weight => (second, &out, first),
    };
    let mut words: Vec<u64> = sizes.iter().map(|&n| n as u64).collect();
    words.extend([strides(x), strides(w), strides(y)].concat());
    let source = call
        .source(CONV)
        .with("A", name(out.dtype.accumulator()))
        .with("T", name(out.dtype))
        .with("PASS", (pass as u8).to_string());
    let mut args = Args::new().address(out.address).address(first.address).address(second.address);
    if pass != ConvPass::Weight {
        args = args.address(bias.first().map_or(0, |bias| bias.address)).size(out.len());
    }
    let blocks = if pass == ConvPass::Weight { out.len() } else { out.len().div_ceil(256) };
    call.launch(source, [blocks, 1, 1], 256, args.words(&words))
}

/// `x -> out, index`, or `grad, index -> grad of x`. `shape` is images and channels side by side, then for depth, height and width
/// the sizes of input and output, the window, its stride, padding and dilation.
pub(crate) fn max_pool(call: &mut CudaCall<'_>, backward: bool, shape: [usize; 20]) -> Result<()> {
    let (first, index) = if backward { (call.outs[0], call.ins[1]) } else { (call.ins[0], call.outs[1]) };
    let source = call
        .source(MAX_POOL)
        .with("A", name(first.dtype.accumulator()))
        .with("T", name(first.dtype))
        .with("I", name(index.dtype))
        .with("BACKWARD", if backward { "1" } else { "0" });
    let all = call.outs.iter().chain(&call.ins);
    let args = all.fold(Args::new(), |args, x| args.address(x.address)).words(&shape.map(|n| n as u64));
    let blocks = call.outs[0].len().div_ceil(256);
    call.launch(source, [blocks, 1, 1], 256, args)
}
