//! Pooling: the largest element of each window, or its mean.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const MAX_POOL: &str = include_str!("max_pool.cu");
const AVG_POOL: &str = include_str!("avg_pool.cu");

/// Images and channels side by side, then for depth, height and width the sizes of input and output, the window, its stride,
/// padding and dilation, and whether windows are spread evenly over the image.
pub(crate) type PoolWords = [usize; 23];

/// What max pooling does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxPass {
    /// `x -> out, index`.
    Forward,
    /// `grad, index -> grad of x`.
    Backward,
    /// `x, index -> out`: the elements at the places of the index.
    Pick,
    /// `index -> places`: from places in a window to those in the image.
    Places,
}

/// How many channels, side by side, a thread takes: as many elements as 16 bytes have.
fn together(call: &CudaCall<'_>, pass: MaxPass, dtype: DType, channels: usize) -> usize {
    let elements = 16 / dtype.size();
    let fit = |x: &Placed<'_>| x.address.is_multiple_of((elements * x.dtype.size()) as u64);
    let all_fit = call.outs.iter().chain(&call.ins).all(fit) && channels.is_multiple_of(elements);
    if all_fit && matches!(pass, MaxPass::Forward | MaxPass::Backward) { elements } else { 1 }
}

/// One pass of max pooling.
pub(crate) fn max_pool(call: &mut CudaCall<'_>, pass: MaxPass, shape: PoolWords) -> Result<()> {
    let (index, dtype) = match pass {
        MaxPass::Forward => (call.outs[1], call.ins[0].dtype),
        MaxPass::Places => (call.ins[0], call.outs[0].dtype),
        MaxPass::Backward | MaxPass::Pick => (call.ins[1], call.ins[0].dtype),
    };
    let [_, channels, ..] = shape;
    let width = together(call, pass, dtype, channels);
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
    call.launch(source, [len.div_ceil(256), 1, 1], 256, args.words(&shape.map(|n| n as u64)))
}

/// What a window's sum is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Divided {
    /// Its places inside the image.
    Inside,
    /// Its places inside the padded image.
    Padded,
    /// This number.
    By(usize),
}

/// `x -> out`, or `grad -> grad of x`.
pub(crate) fn avg_pool(
    call: &mut CudaCall<'_>,
    backward: bool,
    shape: PoolWords,
    divided: Divided,
) -> Result<()> {
    let (from, to) = (call.ins[0], call.outs[0]);
    let (kind, fixed) = match divided {
        Divided::Inside => ("0", 1),
        Divided::Padded => ("1", 1),
        Divided::By(n) => ("2", n),
    };
    let source = call
        .source(AVG_POOL)
        .with("A", name(to.dtype.accumulator()))
        .with("T", name(to.dtype))
        .with("DIVISOR", kind)
        .with("BACKWARD", if backward { "1" } else { "0" });
    let args = Args::new().address(to.address).address(from.address).size(to.len()).size(fixed);
    let args = args.words(&shape.map(|n| n as u64));
    call.launch(source, [to.len().div_ceil(256), 1, 1], 256, args)
}
