//! Sums of parts, in a fixed order.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, name};
use crate::error::Result;

const TEXT: &str = include_str!("ordered_sum.cu");

/// The largest number of parts for which the code is unrolled: the ranks of one machine.
const MOST_UNROLLED: usize = 8;
/// The widest load of a thread.
const LOAD_BYTES: usize = 16;

/// The number of elements that a thread handles: those of one full-width load, if all loads are aligned.
fn width(element_bytes: usize, len: usize, addresses: [u64; 3]) -> usize {
    let width = LOAD_BYTES / element_bytes;
    let is_aligned = addresses.iter().all(|address| address.is_multiple_of(LOAD_BYTES as u64));
    if is_aligned && len.is_multiple_of(width) { width } else { 1 }
}

/// `x -> out`: the sum of `parts` parts, times `scale`. All are in `x`, or all but part `own_at`, which is the second
/// input; without a second one, it is in `out`.
pub(crate) fn ordered_sum(
    call: &mut CudaCall<'_>,
    parts: usize,
    own_at: Option<usize>,
    scale: f64,
) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let own = ins.get(1).map_or(out.address, |own| own.address);
    if out.is_empty() {
        return Ok(());
    }
    let dtype = call.float(&ins)?;
    let widest = dtype.size().max(out.dtype.size());
    let width = width(widest, out.len(), [out.address, ins[0].address, own]);
    let unrolled = if parts <= MOST_UNROLLED { parts } else { 0 };
    let source = call.source(TEXT).with("A", name(dtype.accumulator())).with("T", name(dtype));
    let source = source
        .with("O", name(out.dtype))
        .with("WIDTH", width.to_string())
        .with("PARTS", unrolled.to_string());
    let args = Args::new().address(out.address).address(ins[0].address).address(own);
    let args = args.size(out.len()).size(parts).size(own_at.unwrap_or(parts)).f64(scale);
    call.launch(source, [out.len().div_ceil(256 * width), 1, 1], 256, args)
}
