//! Sums of parts, in a fixed order.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, name};
use crate::error::Result;

const TEXT: &str = include_str!("ordered_sum.cu");

/// `x -> out`: the sum of the `parts` parts of `x`, times `scale`.
pub(crate) fn ordered_sum(call: &mut CudaCall<'_>, parts: usize, scale: f64) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    if out.is_empty() {
        return Ok(());
    }
    let dtype = call.float(&ins)?;
    let source = call.source(TEXT).with("A", name(dtype.accumulator())).with("T", name(dtype));
    let args =
        Args::new().address(out.address).address(ins[0].address).size(out.len()).size(parts).f64(scale);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}
