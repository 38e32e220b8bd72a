//! The negative log likelihood of log-probabilities.

use plimsoll_cuda::{Args, Source};

use crate::cuda::{CudaCall, Placed, blocks_for, fault, flag, name, typed};
use crate::dtype::DType;
use crate::error::Result;

const NLL: &str = include_str!("nll.cu");

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
