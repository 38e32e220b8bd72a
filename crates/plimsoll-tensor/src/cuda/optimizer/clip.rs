//! Operations on many gradients together: norm clipping, value clipping, and unscaling with a check
//! for non-finite values.

use plimsoll_cuda::{Args, Source};

use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("clip.cu");

/// The number of blocks that share a tensor.
fn parts(len: usize) -> usize {
    len.div_ceil(4096).clamp(1, 256)
}

/// Bytes of scratch memory: a number for each block, and the factor.
pub(crate) fn scratch(lens: impl Iterator<Item = usize>) -> u64 {
    ((lens.map(parts).sum::<usize>() + 1) * 8) as u64
}

fn source(call: &CudaCall<'_>, dtype: DType, order: u32, pass: &'static str) -> Source {
    call.source(TEXT)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("ORDER", order.to_string())
        .with("PASS", pass)
}

/// Scales gradients in place so that their norm of an order is at most `most`. Also writes their
/// norm before that.
pub(crate) fn norm(call: &mut CudaCall<'_>, most: f64, order: f64) -> Result<()> {
    let (outs, scratch) = (call.outs.clone(), call.scratch_address());
    let Some((total, grads)) = outs.split_last() else { return call.missing() };
    let kind = match order {
        1.0 => 0,
        2.0 => 1,
        f64::INFINITY => 3,
        _ => 2,
    };
    let mut count = 0;
    for grad in grads {
        let source = source(call, grad.dtype, kind, "0");
        let args = Args::new().address(scratch + 8 * count as u64).address(grad.address).size(grad.len());
        call.launch(source, [parts(grad.len()), 1, 1], 256, args.f64(order))?;
        count += parts(grad.len());
    }
    let whole = source(call, DType::F32, kind, "1");
    let args = Args::new().address(total.address).address(scratch).size(count).f64(order).f64(most);
    call.launch(whole, [1; 3], 256, args)?;
    for grad in grads {
        let source = source(call, grad.dtype, kind, "2");
        let args = Args::new().address(grad.address).address(scratch + 8 * count as u64).size(grad.len());
        call.launch(source, [parts(grad.len()), 1, 1], 256, args)?;
    }
    Ok(())
}

/// Clamps gradients to `-bound..=bound`, in place.
pub(crate) fn values(call: &mut CudaCall<'_>, bound: f64) -> Result<()> {
    for grad in call.outs.clone() {
        let source = source(call, grad.dtype, 0, "3");
        let args = Args::new().address(grad.address).f64(bound).size(grad.len());
        call.launch(source, [parts(grad.len()), 1, 1], 256, args)?;
    }
    Ok(())
}

/// Multiplies gradients by a factor in place. Also writes 1 if any was not finite.
pub(crate) fn unscale(call: &mut CudaCall<'_>, factor: f64) -> Result<()> {
    let (outs, scratch) = (call.outs.clone(), call.scratch_address());
    let Some((found, grads)): Option<(&Placed<'_>, _)> = outs.split_last() else { return call.missing() };
    let mut count = 0;
    for grad in grads {
        let source = source(call, grad.dtype, 0, "4");
        let args = Args::new().address(scratch + 8 * count as u64).address(grad.address).size(grad.len());
        call.launch(source, [parts(grad.len()), 1, 1], 256, args.f64(factor))?;
        count += parts(grad.len());
    }
    let source = source(call, DType::F32, 0, "5");
    let args = Args::new().address(found.address).address(scratch).size(count);
    call.launch(source, [1; 3], 256, args)
}
