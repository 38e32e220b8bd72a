//! Softmax of rows, and its logarithm.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, flag, threads_for, typed};
use crate::error::Result;

const SOFTMAX: &str = include_str!("softmax.cu");

/// Softmax or log-softmax of contiguous rows. With two inputs (the gradient and the output), computes its
/// derivative.
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
