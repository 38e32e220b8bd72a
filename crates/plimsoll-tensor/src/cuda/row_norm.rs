//! Normalizations of rows beside that of `rows`: by the root mean square, and of a sum that is written too; rotary embedding.

use plimsoll_cuda::{Args, Source};
use smallvec::SmallVec;

use super::space::Space;
use super::{CudaCall, Placed, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Dims;

const ROW_NORM: &str = include_str!("kernels/row_norm.cu");
const ROTARY: &str = include_str!("kernels/rotary.cu");

fn source(call: &CudaCall<'_>, dtype: DType, mean: bool, pass: &'static str) -> Source {
    call.source(ROW_NORM)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("MEAN", if mean { "1" } else { "0" })
        .with("PASS", pass)
}

fn address(x: Option<Placed<'_>>) -> u64 {
    x.map_or(0, |x| x.address)
}

fn rows(x: &Placed<'_>) -> usize {
    if x.is_empty() { 0 } else { x.rows() }
}

/// `x[, residual][, weight[, bias]] -> out, rstd[, mean][, sum]`.
pub(crate) fn forward(call: &mut CudaCall<'_>, mean: bool, residual: bool, eps: f64) -> Result<()> {
    let (ins, outs) = (call.ins.clone(), call.outs.clone());
    let dtype = call.float(&ins)?;
    let scale = 1 + usize::from(residual);
    let of_mean = mean.then(|| outs[2]);
    let sum = residual.then(|| outs[2 + usize::from(mean)]);
    let args = Args::new().address(outs[0].address).address(outs[1].address).address(address(of_mean));
    let args = args.address(address(sum)).address(ins[0].address).address(address(residual.then(|| ins[1])));
    let args = args.address(address(ins.get(scale).copied())).address(address(ins.get(scale + 1).copied()));
    let source = source(call, dtype, mean, "0");
    let (blocks, cols) = (rows(&ins[0]), ins[0].cols());
    call.launch(source, [blocks, 1, 1], threads_for(cols), args.size(cols).f64(eps))
}

/// `grad, x, rstd[, mean][, along][, weight] -> grad of x`, or of the scale.
pub(crate) fn backward(call: &mut CudaCall<'_>, mean: bool, along: bool, of_scale: bool) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let dtype = call.float(&ins[..2])?;
    let [grad, x, rstd, rest @ ..] = &ins[..] else { return call.missing() };
    let (of_mean, rest) = rest.split_at(usize::from(mean));
    let (along, weight) = rest.split_at(usize::from(along));
    let args = Args::new().address(out.address).address(grad.address).address(x.address);
    let args = args.address(rstd.address).address(address(of_mean.first().copied()));
    let cols = x.cols();
    if of_scale {
        let source = source(call, dtype, mean, "2");
        let args = args.size(rows(x)).size(cols);
        return call.launch(source, [cols.div_ceil(32), 1, 1], 256, args);
    }
    let args = args.address(address(along.first().copied())).address(address(weight.first().copied()));
    let source = source(call, dtype, mean, "1");
    call.launch(source, [rows(x), 1, 1], threads_for(cols), args.size(cols))
}

/// `x, cos, sin -> out`: pairs of halves or of neighbours turned by `sign` times their angles.
pub(crate) fn rotate(call: &mut CudaCall<'_>, halves: bool, sign: f64) -> Result<()> {
    let ([x, cos, sin], out) =
        (<[Placed<'_>; 3]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    if out.is_empty() {
        return Ok(());
    }
    if cos.dtype != sin.dtype {
        return call.missing();
    }
    let (shape, last) = (x.shape(), x.shape().len() - 1);
    let strides = [Dims::from_slice(out.layout.strides()), Dims::from_slice(x.layout.strides())];
    let leading: SmallVec<[usize; 6]> = (0..last).filter(|&dim| shape[dim] != 1).collect();
    let space = Space::collapsed(shape, &strides, &leading);
    let half = cos.shape()[1];
    let source = call
        .source(ROTARY)
        .with("A", name(x.dtype.accumulator()))
        .with("T", name(x.dtype))
        .with("C", name(cos.dtype))
        .with("RANK", space.rank().to_string())
        .with("HALVES", if halves { "1" } else { "0" });
    let (count, cols) = (x.rows(), x.cols());
    let args = Args::new().address(out.address).address(x.address).address(cos.address).address(sin.address);
    let args = args.size(count).size(cols).size(half).size(cos.shape()[0].max(1)).f64(sign);
    let blocks = (count * (cols - half)).div_ceil(256);
    call.launch(source, [blocks, 1, 1], 256, args.words(&space.words()))
}
