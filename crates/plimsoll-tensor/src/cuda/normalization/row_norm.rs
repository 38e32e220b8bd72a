//! Normalizations of rows, optionally after adding a residual (the sum is also written), and their gradients.

use plimsoll_cuda::{Args, Source};
use smallvec::SmallVec;

use crate::cuda::reduce::sum::{neighbours, sum_scratch};
use crate::cuda::{CudaCall, Placed, flag, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;

const ROW_NORM: &str = include_str!("row_norm.cu");

/// A block handles a row that is longer than this, a warp a shorter one.
const WARP_COLS: usize = 1024;

/// A block handles a row of at least this length if sums over rows are kept, which would take most of a warp's registers.
const SUMS_BY_BLOCK_COLS: usize = 512;

/// The threads of a block for a row of this many packs of 16 bytes.
fn block_threads(packs: usize) -> usize {
    packs.next_multiple_of(32).clamp(32, 1024)
}

/// How many blocks of this many threads share a multiprocessor if sums over rows are kept, with about 80 registers per thread.
fn sharing(threads: usize) -> usize {
    (768 / threads).clamp(1, 8)
}

/// The number of parts into which the sums for the gradients of weight and bias are split: as many as keep a large GPU busy. It
/// depends only on sizes, so that the order of a sum is the same on every device.
fn parts(rows: usize, cols: usize, dtype: DType) -> usize {
    let parts = match cols >= SUMS_BY_BLOCK_COLS {
        true => rows.min(132 * sharing(block_threads(cols.div_ceil(16 / dtype.size())))),
        false => rows.div_ceil(8).min(264),
    };
    parts.max(1)
}

/// Bytes of scratch memory for those parts, for two sums or three.
pub(crate) fn sums_scratch(rows: usize, cols: usize, dtype: DType, row_sum: bool) -> u64 {
    let sums = 2 + usize::from(row_sum);
    let parts = (parts(rows, cols, dtype) * sums * cols * dtype.accumulator().size()) as u64;
    // A separate pass sums rows that do not fit in registers.
    if row_sum { parts.max(sum_scratch(cols, rows, dtype)) } else { parts }
}

/// The division of a row: the elements in a pack of 16 bytes, the packs that each thread keeps in registers, and the threads per
/// row. `None` if the row length is not a multiple of a pack.
fn in_registers(cols: usize, all: &[Placed<'_>], warp_cols: usize) -> Option<(usize, usize, usize)> {
    let size = all.first()?.dtype.size();
    let together = 16 / size;
    let begins_well = |x: &Placed<'_>| x.address.is_multiple_of((together * x.dtype.size()) as u64);
    if cols == 0 || !cols.is_multiple_of(together) || !all.iter().all(begins_well) {
        return None;
    }
    let packs = cols / together;
    // A warp with 32 elements per thread, or a block with as few per thread as the row allows, since it needs many threads to
    // hide memory latency.
    let threads = if cols <= warp_cols { 32 } else { block_threads(packs) };
    let each = packs.div_ceil(threads);
    (each * together <= 64).then_some((together, each, threads))
}

/// The kernels of a pass over rows.
struct Pass {
    source: Source,
    /// The rows that a block handles at a time.
    at_a_time: usize,
    threads: u32,
    in_registers: bool,
}

/// The kernel of a pass over rows of these operands. Rows of up to `warp_cols` elements are handled by one warp each, `warps`
/// rows per block.
fn pass(
    call: &CudaCall<'_>,
    dtype: DType,
    number: &'static str,
    all: &[Placed<'_>],
    (warps, warp_cols): (usize, usize),
) -> Pass {
    let cols = all.first().map_or(0, Placed::cols);
    let found = in_registers(cols, all, warp_cols);
    let threads = found.map_or(threads_for(cols) as usize, |(.., threads)| threads);
    let (together, each) = found.map_or((1, 0), |(together, each, _)| (together, each));
    let warps = if threads == 32 && cols <= warp_cols { warps } else { 0 };
    let blocks = if warps == 0 { sharing(threads.max(1)) } else { 1 };
    let source = source(call, dtype, number)
        .with("VEC", together.to_string())
        .with("EACH", each.to_string())
        .with("WARPS", warps.to_string())
        .with("BLOCKS", blocks.to_string())
        .with("THREADS", (threads * warps.max(1)).to_string());
    let threads = u32::try_from(threads * warps.max(1)).unwrap_or(1024);
    Pass { source, at_a_time: warps.max(1), threads, in_registers: found.is_some() }
}

fn source(call: &CudaCall<'_>, dtype: DType, pass: &'static str) -> Source {
    call.source(ROW_NORM).with("A", name(dtype.accumulator())).with("T", name(dtype)).with("PASS", pass)
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
    let all: SmallVec<[Placed<'_>; 6]> = ins.iter().chain([&outs[0]]).copied().chain(sum).collect();
    let Pass { source, at_a_time, threads, .. } = pass(call, dtype, "0", &all, (4, WARP_COLS));
    let source = source.with("MEAN", flag(mean)).with("ADD", flag(residual)).with("SUMS", "0");
    let args = Args::new().address(outs[0].address).address(outs[1].address).address(address(of_mean));
    let args = args.address(address(sum)).address(ins[0].address).address(address(residual.then(|| ins[1])));
    let args = args.address(address(ins.get(scale).copied())).address(address(ins.get(scale + 1).copied()));
    let (rows, cols) = (rows(&ins[0]), ins[0].cols());
    let args = args.size(rows).size(cols).f64(eps);
    call.launch(source, [rows.div_ceil(at_a_time), 1, 1], threads, args)
}

/// `grad, x, rstd[, mean][, along][, weight] -> [grad of x][, of the weight][, of the bias][, sum of the rows of the first]`.
pub(crate) fn backward(
    call: &mut CudaCall<'_>,
    mean: bool,
    along: bool,
    wanted: [bool; 3],
    row_sum: bool,
) -> Result<()> {
    let ins = call.ins.clone();
    let dtype = call.float(&ins[..2])?;
    let [grad, x, rstd, rest @ ..] = &ins[..] else { return call.missing() };
    let (of_mean, rest) = rest.split_at(usize::from(mean));
    let (along, weight) = rest.split_at(usize::from(along));
    let mut outs = call.outs.clone().into_iter();
    let [to_x, to_weight, to_bias] = wanted.map(|wanted| if wanted { outs.next() } else { None });
    let to_rows = if row_sum { outs.next() } else { None };
    let (rows, cols) = (rows(x), x.cols());
    let sums = wanted[1] || wanted[2];
    let (scratch, parts) = (call.scratch_address(), parts(rows, cols, dtype));
    let of_row = [rstd.address, address(of_mean.first().copied())];
    let (mut parts_are_there, mut made) = (false, 2);
    if let Some(to_x) = to_x {
        let all: SmallVec<[Placed<'_>; 5]> =
            [to_x, *grad, *x].iter().chain(along).chain(weight).copied().collect();
        let kernel =
            pass(call, dtype, "1", &all, if sums { (8, SUMS_BY_BLOCK_COLS - 1) } else { (4, WARP_COLS) });
        parts_are_there = sums && kernel.in_registers;
        let source = kernel.source.with("MEAN", flag(mean)).with("ADD", flag(!along.is_empty()));
        made = if row_sum && parts_are_there { 3 } else { 2 };
        let source = source.with("SUMS", if parts_are_there { made } else { 0 }.to_string());
        let blocks = if parts_are_there { parts } else { rows.div_ceil(kernel.at_a_time) };
        let args =
            Args::new().address(to_x.address).address(scratch).address(grad.address).address(x.address);
        let args = of_row.into_iter().fold(args, Args::address);
        let args = [along, weight].iter().fold(args, |args, x| args.address(address(x.first().copied())));
        let blocks = if rows == 0 { 0 } else { blocks };
        call.launch(source, [blocks, 1, 1], kernel.threads, args.size(rows).size(cols))?;
        if let Some(to_rows) = to_rows.filter(|_| !parts_are_there) {
            let marks: SmallVec<[bool; 6]> =
                (1..=to_x.shape().len()).map(|d| d < to_x.shape().len()).collect();
            crate::cuda::reduce::sum::sum(call, to_x, to_rows, &marks, 1.0)?;
        }
    }
    if !sums {
        return Ok(());
    }
    let mean = flag(mean);
    let parts = if rows == 0 { 0 } else { parts };
    if !parts_are_there {
        let vector = [grad, x].map(|x| neighbours(cols, (x.address, x.dtype), &[cols]));
        let vector = vector[0].min(vector[1]);
        let source =
            source(call, dtype, "2").with("MEAN", mean).with("VEC", vector.to_string()).with("SUMS", "2");
        let args = Args::new().address(scratch).address(grad.address).address(x.address);
        let args = of_row.into_iter().fold(args, Args::address);
        let args = args.size(rows).size(cols).size(rows.div_ceil(parts.max(1)));
        call.launch(source.with("WARPS", "0"), [cols.div_ceil(32 * vector), parts, 1], 256, args)?;
    }
    let args = Args::new().address(address(to_weight)).address(address(to_bias));
    let args = args.address(address(to_rows.filter(|_| made == 3))).address(scratch).size(parts).size(cols);
    let source = source(call, dtype, "3").with("WARPS", "0").with("SUMS", made.to_string());
    call.launch(source, [cols.div_ceil(32), made, 1], 1024, args)
}
