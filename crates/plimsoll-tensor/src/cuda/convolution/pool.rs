//! Pooling: the largest element or the mean of each window.

use plimsoll_cuda::Args;
use plimsoll_kernels::pool::average::Divisor;
use plimsoll_kernels::pool::{PoolShape, Windows};

use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const MAX_POOL: &str = concat!(include_str!("windows.cu"), include_str!("max_pool.cu"));
const AVG_POOL: &str = concat!(include_str!("windows.cu"), include_str!("avg_pool.cu"));

/// The sizes in the form that the kernels use (`Shape` in `windows.cu`): the numbers of images and of adjacent channels, then
/// for depth, height and width the sizes of input and output, the window, its stride, padding and dilation, and whether
/// windows are spread evenly.
fn words(shape: &PoolShape) -> [u64; 23] {
    let mut words = [0; 23];
    words[..2].copy_from_slice(&[shape.outer as u64, shape.inner as u64]);
    for (axis, words) in shape.axes.iter().zip(words[2..].chunks_mut(7)) {
        let numbers = match axis.windows {
            Windows::Sliding { kernel, stride, padding, dilation } => {
                [axis.size, axis.out, kernel, stride, padding, dilation, 0]
            }
            Windows::Adaptive => [axis.size, axis.out, axis.kernel(), 1, 0, 1, 1],
        };
        words.copy_from_slice(&numbers.map(|n| n as u64));
    }
    words
}

/// A pass of max pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxPass {
    /// `x -> out, index`.
    Forward,
    /// `grad, index -> grad of x`.
    Backward,
    /// `x, index -> out`: the elements at the positions in the index.
    Pick,
    /// `index -> places`: converts positions in a window to positions in the image.
    Places,
}

/// How many adjacent channels a thread handles: as many as fit in 16 bytes.
fn together(call: &CudaCall<'_>, pass: MaxPass, dtype: DType, channels: usize) -> usize {
    let elements = 16 / dtype.size();
    let fit = |x: &Placed<'_>| x.address.is_multiple_of((elements * x.dtype.size()) as u64);
    let all_fit = call.outs.iter().chain(&call.ins).all(fit) && channels.is_multiple_of(elements);
    if all_fit && matches!(pass, MaxPass::Forward | MaxPass::Backward) { elements } else { 1 }
}

/// Queues one pass of max pooling.
pub(crate) fn max_pool(call: &mut CudaCall<'_>, pass: MaxPass, shape: &PoolShape) -> Result<()> {
    let (index, dtype) = match pass {
        MaxPass::Forward => (call.outs[1], call.ins[0].dtype),
        MaxPass::Places => (call.ins[0], call.outs[0].dtype),
        MaxPass::Backward | MaxPass::Pick => (call.ins[1], call.ins[0].dtype),
    };
    let width = together(call, pass, dtype, shape.inner);
    let source = call
        .source(MAX_POOL)
        .with("V", width.to_string())
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("I", name(index.dtype))
        .with("PASS", (pass as u8).to_string());
    let all = call.outs.iter().chain(&call.ins);
    let len = call.outs[0].len() / width;
    let args = all.fold(Args::new(), |args, x| args.address(x.address)).size(len);
    call.launch(source, [len.div_ceil(256), 1, 1], 256, args.words(&words(shape)))
}

/// `x -> out`, or `grad -> grad of x`.
pub(crate) fn avg_pool(
    call: &mut CudaCall<'_>,
    backward: bool,
    shape: &PoolShape,
    divisor: Divisor,
) -> Result<()> {
    let (from, to) = (call.ins[0], call.outs[0]);
    let (kind, fixed) = match divisor {
        Divisor::Inside => ("0", 1),
        Divisor::Padded => ("1", 1),
        Divisor::Fixed(n) => ("2", n),
    };
    let source = call
        .source(AVG_POOL)
        .with("A", name(to.dtype.accumulator()))
        .with("T", name(to.dtype))
        .with("DIVISOR", kind)
        .with("BACKWARD", if backward { "1" } else { "0" });
    let args = Args::new().address(to.address).address(from.address).size(to.len()).size(fixed);
    let args = args.words(&words(shape));
    call.launch(source, [to.len().div_ceil(256), 1, 1], 256, args)
}
