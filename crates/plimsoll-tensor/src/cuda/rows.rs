//! What works on rows: softmax, losses of log-probabilities.

use plimsoll_cuda::{Args, Source};

use super::{CudaCall, Placed, blocks_for, fault, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;

const SOFTMAX: &str = include_str!("kernels/softmax.cu");
const NLL: &str = include_str!("kernels/nll.cu");

/// A text with the types that its rows are of and are computed in.
pub(super) fn typed(call: &CudaCall<'_>, text: &'static str, dtype: DType) -> Source {
    call.source(text).with("A", name(dtype.accumulator())).with("T", name(dtype))
}

pub(super) fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// Softmax or its logarithm of contiguous rows; from two inputs, the gradient and the output, its derivative.
pub(crate) fn softmax(call: &mut CudaCall<'_>, log: bool) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let dtype = call.float(&[out])?;
    let backward = ins.len() == 2;
    let source = typed(call, SOFTMAX, dtype).with("LOG", flag(log)).with("BACKWARD", flag(backward));
    let args =
        ins.iter().fold(Args::new().address(out.address), |args, x| args.address(x.address)).size(out.cols());
    let rows = if out.is_empty() { 0 } else { out.rows() };
    call.launch(source, [rows, 1, 1], threads_for(out.cols()), args)
}

/// `log_probabilities, target -> loss`, times a scale.
pub(crate) fn nll(call: &mut CudaCall<'_>, mean: bool) -> Result<()> {
    let ([x, target], out) = (both(call)?, call.outs[0]);
    let source = nll_text(call, call.float(&[x])?, target.dtype, mean).with("BACKWARD", "0");
    let args = Args::new().address(out.address).address(x.address).address(target.address);
    let args = args.size(target.len()).size(x.cols()).fault(fault::TARGET);
    call.launch(source, [1; 3], 512, args)
}

/// `grad, target -> grad of log_probabilities`.
pub(crate) fn nll_backward(call: &mut CudaCall<'_>, mean: bool) -> Result<()> {
    let ([grad, target], out) = (both(call)?, call.outs[0]);
    let source = nll_text(call, call.float(&[out])?, target.dtype, mean).with("BACKWARD", "1");
    let args = Args::new().address(out.address).address(grad.address).address(target.address);
    let args = args.size(target.len()).size(out.cols()).fault(fault::TARGET);
    call.launch(source, [blocks_for(out.len(), 256, 4), 1, 1], 256, args)
}

fn nll_text(call: &CudaCall<'_>, dtype: DType, target: DType, mean: bool) -> Source {
    typed(call, NLL, dtype).with("TARGET", name(target)).with("MEAN", flag(mean))
}

fn both<'a>(call: &CudaCall<'a>) -> Result<[Placed<'a>; 2]> {
    match call.ins[..] {
        [a, b] => Ok([a, b]),
        _ => call.missing(),
    }
}
