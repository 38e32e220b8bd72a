//! Sorts rows, takes the first elements of sorted rows, and searches them. NaN counts as the largest; equal elements keep their
//! order.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Dims;

const MERGE: &str = include_str!("merge.cu");
const SEARCH: &str = include_str!("search.cu");
const TOPK: &str = include_str!("topk.cu");

/// The length and the number of rows along the last dimension.
fn rows(shape: &[usize]) -> (usize, usize) {
    let length = shape.last().copied().unwrap_or(1);
    (length, shape.iter().rev().skip(1).product())
}

/// Bytes of scratch memory of a sort, for the elements and positions of intermediate passes.
pub(crate) fn scratch(shape: &[usize], dtype: DType) -> u64 {
    let len: usize = shape.iter().product();
    match rows(shape).0 {
        0 | 1 => 0,
        _ => ((len * dtype.size()).next_multiple_of(512) + len * 8) as u64,
    }
}

/// The layout of the rows, and the stride along them.
fn lying(x: &Placed<'_>) -> (Space, usize) {
    let last = x.shape().len() - 1;
    let strides = [Dims::from_slice(x.layout.strides())];
    let leading: SmallVec<[usize; 6]> = (0..last).filter(|&dim| x.shape()[dim] != 1).collect();
    (Space::collapsed(x.shape(), &strides, &leading), x.layout.strides()[last])
}

/// `x -> elements, places`, along the last dimension.
pub(crate) fn sort(call: &mut CudaCall<'_>, descending: bool) -> Result<()> {
    let (x, [values, places]) =
        (call.ins[0], <[Placed<'_>; 2]>::try_from(&call.outs[..]).or_else(|_| call.missing())?);
    if x.is_empty() {
        return Ok(());
    }
    let (length, count) = rows(x.shape());
    let (space, along) = lying(&x);
    let source = call
        .source(MERGE)
        .with("K", name(x.dtype.accumulator()))
        .with("T", name(x.dtype))
        .with("DESCENDING", if descending { "1" } else { "0" })
        .with("KEPT", space.rank().to_string());
    let passes = length.next_power_of_two().trailing_zeros();
    let spare = call.scratch_address();
    let spare = (spare, spare + (x.len() * x.dtype.size()).next_multiple_of(512) as u64);
    let (mut from, mut to) = ((values.address, places.address), spare);
    if passes % 2 == 1 {
        std::mem::swap(&mut from, &mut to);
    }
    let grid = [x.len().div_ceil(256), 1, 1];
    let args = Args::new().address(from.0).address(from.1).address(x.address);
    let args = args.size(count).size(length).size(along).words(&space.words());
    call.launch(source.clone().with("PASS", "0"), grid, 256, args)?;
    for pass in 0..passes {
        let args = Args::new().address(to.0).address(to.1).address(from.0).address(from.1);
        let args = args.size(count).size(length).size(1 << pass);
        call.launch(source.clone().with("PASS", "1"), grid, 256, args)?;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(())
}

/// `x -> elements, places`: the first elements along the last dimension, in order.
pub(crate) fn topk(call: &mut CudaCall<'_>, descending: bool) -> Result<()> {
    let (x, [values, places]) =
        (call.ins[0], <[Placed<'_>; 2]>::try_from(&call.outs[..]).or_else(|_| call.missing())?);
    if values.is_empty() {
        return Ok(());
    }
    let (length, count) = rows(x.shape());
    let (space, along) = lying(&x);
    let source = call
        .source(TOPK)
        .with("K", name(x.dtype.accumulator()))
        .with("T", name(x.dtype))
        .with("DESCENDING", if descending { "1" } else { "0" })
        .with("KEPT", space.rank().to_string());
    let args = Args::new().address(values.address).address(places.address).address(x.address);
    let args = args.size(length).size(along).size(values.cols()).words(&space.words());
    call.launch(source, [count, 1, 1], 256, args)
}

/// `sorted, values -> places`: the positions before or after the elements that equal a value. There is one sorted row for all
/// values, or one for each row of values. All tensors are contiguous.
pub(crate) fn search(call: &mut CudaCall<'_>, right: bool) -> Result<()> {
    let ([sorted, values], out) =
        (<[Placed<'_>; 2]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    let source = call
        .source(SEARCH)
        .with("A", name(sorted.dtype.accumulator()))
        .with("T", name(sorted.dtype))
        .with("RIGHT", if right { "1" } else { "0" });
    let args = Args::new().address(out.address).address(sorted.address).address(values.address);
    let args = args.size(out.len()).size(sorted.cols()).size(values.cols().max(1));
    let args = args.i64(i64::from(sorted.shape().len() == 1));
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}
