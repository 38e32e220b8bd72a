//! Resampling of images to a different size.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("interpolate.cu");

/// The resampling of an image. `axes` has the sizes before and after, and the number of input positions per output
/// position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resampled {
    pub(crate) outer: usize,
    pub(crate) inner: usize,
    pub(crate) axes: [(usize, usize, f64); 3],
    /// 0 nearest, 1 nearest center, 2 linear, 3 linear with aligned corner centers.
    pub(crate) mode: u32,
}

/// `x -> out`, or `grad -> grad of x`.
pub(crate) fn interpolate(call: &mut CudaCall<'_>, shape: Resampled, backward: bool) -> Result<()> {
    let (from, to) = (call.ins[0], call.outs[0]);
    let bytes = from.dtype == DType::U8;
    let compute = if bytes { DType::F32 } else { from.dtype.accumulator() };
    let source = call
        .source(TEXT)
        .with("A", name(compute))
        .with("T", name(from.dtype))
        .with("BYTES", if bytes { "1" } else { "0" })
        .with("MODE", shape.mode.to_string())
        .with("BACKWARD", if backward { "1" } else { "0" });
    let mut words = vec![shape.outer as u64, shape.inner as u64];
    for (size, out, ratio) in shape.axes {
        words.extend([size as u64, out as u64, ratio.to_bits()]);
    }
    let args = Args::new().address(to.address).address(from.address).size(to.len()).words(&words);
    call.launch(source, [to.len().div_ceil(256), 1, 1], 256, args)
}
