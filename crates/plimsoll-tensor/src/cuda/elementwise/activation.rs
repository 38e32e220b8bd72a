//! The gradient of an activation function, and its recomputed values, in one pass over the rows.

use plimsoll_cuda::Args;

use crate::cuda::reduce::sum::neighbours;
use crate::cuda::{CudaCall, Placed, flag, typed};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("activation_backward.cu");

/// The maximum number of threads per block; four such blocks share a multiprocessor.
const THREADS: usize = 384;
/// The number of threads that keeps a large GPU busy.
const ALL_THREADS: usize = 132 * 4 * THREADS;
/// The minimum number of rows per block, to limit the number of partial sums.
const LEAST_ROWS: usize = 8;

/// The threads per block and blocks per row, with `vector` elements per thread.
fn across(cols: usize, vector: usize) -> (usize, usize) {
    let packs = cols.div_ceil(vector);
    let threads = packs.next_multiple_of(32).clamp(32, THREADS);
    (threads, packs.div_ceil(threads))
}

/// The number of parts into which the rows are split. It depends only on sizes, so that sums have the same order on
/// every device.
fn parts(rows: usize, cols: usize, dtype: DType) -> usize {
    let (threads, blocks) = across(cols, 16 / dtype.size());
    (ALL_THREADS / (threads * blocks.max(1))).min(rows.div_ceil(LEAST_ROWS)).clamp(1, 1 << 15)
}

fn sizes(shape: &[usize]) -> (usize, usize) {
    let (cols, rows) = shape.split_last().map_or((1, 1), |(&cols, rows)| (cols, rows.iter().product()));
    (rows, cols)
}

/// Bytes of scratch memory for the partial sums.
pub(crate) fn scratch(shape: &[usize], dtype: DType) -> u64 {
    let (rows, cols) = sizes(shape);
    (parts(rows, cols, dtype) * cols * dtype.accumulator().size()) as u64
}

/// `() -> grad, x[, sum]`, from expressions in which `a` is the gradient and `b` is `x`.
pub(crate) fn backward(call: &mut CudaCall<'_>, gradient: &str, value: &str, sum: bool) -> Result<()> {
    let outs = call.outs.clone();
    let [grad, x, rest @ ..] = &outs[..] else { return call.missing() };
    let dtype = call.float(&[*grad, *x])?;
    let (rows, cols) = sizes(grad.shape());
    if let (true, Some(sum)) = (grad.is_empty(), rest.first()) {
        return super::expression::fill(call, 0.0, *sum);
    }
    if grad.is_empty() {
        return Ok(());
    }
    let fits = |x: &Placed<'_>| neighbours(cols, (x.address, x.dtype), &[cols]);
    let vector = fits(grad).min(fits(x));
    let (threads, blocks) = across(cols, vector);
    let parts = parts(rows, cols, dtype);
    let part = rows.div_ceil(parts);
    let parts = rows.div_ceil(part);
    let source = typed(call, TEXT, dtype)
        .with("PASS", "0")
        .with("GRADIENT", format!("({gradient})"))
        .with("VALUE", format!("({value})"))
        .with("SUMS", flag(sum))
        .with("VEC", vector.to_string())
        .with("THREADS", threads.to_string())
        .with("QUICK", flag(dtype.size() == 2));
    let args = Args::new().address(grad.address).address(x.address).address(call.scratch_address());
    let args = args.size(rows).size(cols).size(part);
    call.launch(source, [blocks, parts, 1], u32::try_from(threads).unwrap_or(32), args)?;
    let Some(to) = rest.first() else { return Ok(()) };
    add_parts(call, *to, (call.scratch_address(), parts), cols, dtype)
}

/// Adds this many partial sums of `cols` numbers in a fixed order. `dtype` is the type of the numbers before summing.
pub(in crate::cuda) fn add_parts(
    call: &mut CudaCall<'_>,
    to: Placed<'_>,
    (at, parts): (u64, usize),
    cols: usize,
    dtype: DType,
) -> Result<()> {
    let source = typed(call, TEXT, dtype).with("PASS", "1");
    let args = Args::new().address(to.address).address(at).size(parts).size(cols);
    call.launch(source, [cols.div_ceil(32), 1, 1], 1024, args)
}
