//! What works on rows: softmax, layer normalization, losses.

use plimsoll_cuda::{Args, Source};

use super::product::{Operand, product};
use super::{CudaCall, Placed, blocks_for, fault, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;

const SOFTMAX: &str = include_str!("kernels/softmax.cu");
const LAYER_NORM: &str = include_str!("kernels/layer_norm.cu");
const NLL: &str = include_str!("kernels/nll.cu");
const CROSS_ENTROPY: &str = include_str!("kernels/cross_entropy.cu");

/// A text with the types that its rows are of and are computed in.
fn typed(call: &CudaCall<'_>, text: &'static str, dtype: DType) -> Source {
    call.source(text).with("A", name(dtype.accumulator())).with("T", name(dtype))
}

fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// Softmax or its logarithm of contiguous rows; from two inputs, the gradient and the output, its derivative.
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

/// `x[, weight[, bias]] -> out, mean, rstd`.
pub(crate) fn layer_norm(call: &mut CudaCall<'_>, eps: f64) -> Result<()> {
    let ins = call.ins.clone();
    let dtype = call.float(&ins)?;
    let [out, mean, rstd] = call.outs[..] else { return call.missing() };
    let at = |i: usize| ins.get(i).map_or(0, |x| x.address);
    let source = typed(call, LAYER_NORM, dtype).with("PASS", "0");
    let args = Args::new().address(out.address).address(mean.address).address(rstd.address);
    let args = args.address(at(0)).address(at(1)).address(at(2)).size(out.cols()).f64(eps);
    call.launch(source, [if out.is_empty() { 0 } else { out.rows() }, 1, 1], threads_for(out.cols()), args)
}

/// `grad, x, mean, rstd[, weight] -> grad of x`.
pub(crate) fn layer_norm_backward(call: &mut CudaCall<'_>) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let dtype = call.float(&ins[..2])?;
    let source = typed(call, LAYER_NORM, dtype).with("PASS", "1");
    let args = ins[..4].iter().fold(Args::new().address(out.address), |args, x| args.address(x.address));
    let args = args.address(ins.get(4).map_or(0, |weight| weight.address)).size(out.cols());
    call.launch(source, [if out.is_empty() { 0 } else { out.rows() }, 1, 1], threads_for(out.cols()), args)
}

/// Into how many parts the rows of a sum over rows are cut.
fn row_parts(rows: usize, cols: usize) -> usize {
    if rows < 512 { 1 } else { rows.div_ceil(256).min(512usize.div_ceil(cols.div_ceil(32).max(1))) }
}

/// Bytes of scratch for the gradient of a layer normalization's weight.
pub(crate) fn scale_scratch(rows: usize, cols: usize, dtype: DType) -> u64 {
    match row_parts(rows, cols) {
        1 => 0,
        parts => (parts * cols * dtype.accumulator().size()) as u64,
    }
}

/// `grad, x, mean, rstd -> grad of the weight`.
pub(crate) fn layer_norm_backward_scale(call: &mut CudaCall<'_>) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let dtype = call.float(&ins[..2])?;
    let (rows, cols) = (ins[1].rows(), ins[1].cols());
    let parts = row_parts(rows, cols);
    let part = rows.div_ceil(parts).max(1);
    let accumulator = dtype.accumulator();
    let (to, to_type) = if parts == 1 { (out.address, dtype) } else { (call.scratch_address(), accumulator) };
    let source = typed(call, LAYER_NORM, dtype).with("PASS", "2").with("TO", name(to_type));
    let args = ins.iter().fold(Args::new().address(to), |args, x| args.address(x.address));
    let args = args.size(rows).size(cols).size(part);
    call.launch(source, [cols.div_ceil(32), parts, 1], 256, args)?;
    if parts == 1 {
        return Ok(());
    }
    let layout = crate::layout::Layout::contiguous(&[parts, cols]);
    let partial = Placed { address: to, dtype: to_type, layout: &layout };
    super::reduce::sum_whole(call, partial, out)
}

/// `log_probabilities, target -> loss`, times a scale.
pub(crate) fn nll(call: &mut CudaCall<'_>, scale: f64) -> Result<()> {
    let ([x, target], out) = (both(call)?, call.outs[0]);
    let source = typed(call, NLL, call.float(&[x])?).with("TARGET", name(target.dtype)).with("BACKWARD", "0");
    let args = Args::new().address(out.address).address(x.address).address(target.address);
    let args = args.size(target.len()).size(x.cols()).f64(scale).fault(fault::TARGET);
    call.launch(source, [1; 3], 512, args)
}

/// `grad, target -> grad of log_probabilities`, times a scale.
pub(crate) fn nll_backward(call: &mut CudaCall<'_>, scale: f64) -> Result<()> {
    let ([grad, target], out) = (both(call)?, call.outs[0]);
    let source =
        typed(call, NLL, call.float(&[out])?).with("TARGET", name(target.dtype)).with("BACKWARD", "1");
    let args = Args::new().address(out.address).address(grad.address).address(target.address);
    let args = args.size(target.len()).size(out.cols()).f64(scale).fault(fault::TARGET);
    call.launch(source, [blocks_for(out.len(), 256, 4), 1, 1], 256, args)
}

fn both<'a>(call: &CudaCall<'a>) -> Result<[Placed<'a>; 2]> {
    match call.ins[..] {
        [a, b] => Ok([a, b]),
        _ => call.missing(),
    }
}

/// A projection to classes whose logits are never whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projected {
    pub(crate) rows: usize,
    pub(crate) dim: usize,
    pub(crate) classes: usize,
    /// The target that does not count.
    pub(crate) ignored: i64,
    /// Whether the loss is the mean, or the sum.
    pub(crate) mean: bool,
    /// The share of each target that is spread over all classes.
    pub(crate) smoothing: f64,
    /// Whether a bias comes after the targets; weights of the classes come last.
    pub(crate) bias: bool,
}

/// Bytes that the logits of some rows may take.
const LOGITS_BYTES: usize = 128 << 20;

impl Projected {
    /// Rows whose logits are there at a time.
    fn chunk(&self, dtype: DType) -> usize {
        let row = (self.classes * dtype.size()).max(1);
        (LOGITS_BYTES / row).clamp(1, self.rows.max(1))
    }

    /// Bytes of scratch: logits of a chunk, the loss of each row, and what a mean divides by.
    pub(crate) fn scratch(&self, dtype: DType) -> u64 {
        let logits = (self.chunk(dtype) * self.classes * dtype.size()).next_multiple_of(512);
        (logits + (self.rows + 1) * dtype.accumulator().size()) as u64
    }

    /// `x, weight, target[, bias][, weights of classes] -> loss[, grad of x][, grad of weight][, grad of bias]`.
    pub(crate) fn run(
        &self,
        call: &mut CudaCall<'_>,
        loss: Placed<'_>,
        [to_x, to_weight, to_bias]: [Option<Placed<'_>>; 3],
    ) -> Result<()> {
        let Projected { rows, dim, classes, ignored, mean, smoothing, bias } = *self;
        let ins = call.ins.clone();
        let [x, weight, target, ref rest @ ..] = ins[..] else { return call.missing() };
        let (bias, class_weights) = rest.split_at(usize::from(bias));
        let bias = bias.first().map(|bias| bias.address);
        let class_weights = class_weights.first().map_or(0, |weights| weights.address);
        let dtype = call.float(&[x, weight])?;
        let (chunk, size) = (self.chunk(dtype), dtype.size());
        let logits = call.scratch_address();
        let losses = logits + (chunk * classes * size).next_multiple_of(512) as u64;
        let total = losses + (rows * dtype.accumulator().size()) as u64;
        let mean = i64::from(mean);
        let source = typed(call, CROSS_ENTROPY, dtype);
        let args = Args::new().address(total).address(target.address).address(class_weights);
        let args = args.size(rows).size(classes);
        call.launch(source.clone().with("PASS", "0"), [1; 3], 512, args.i64(ignored).fault(fault::TARGET))?;
        let wanted = to_x.is_some() || to_weight.is_some() || to_bias.is_some();
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let at = |of: &Placed<'_>| of.address + (first * dim * size) as u64;
            let (rows_of_x, w) =
                (Operand::rows(at(&x), dtype, dim), Operand::rows(weight.address, dtype, dim));
            let l = Operand::rows(logits, dtype, classes);
            product(call, [1, count, classes, dim], rows_of_x, w.transposed(), l, bias, 0.0)?;
            let args =
                Args::new().address(logits).address(losses + (first * dtype.accumulator().size()) as u64);
            let args = args.address(target.address + (first * 8) as u64).address(total);
            let args = args
                .address(class_weights)
                .size(classes)
                .i64(ignored)
                .f64(smoothing)
                .i64(mean)
                .i64(i64::from(wanted));
            call.launch(source.clone().with("PASS", "1"), [count, 1, 1], threads_for(classes), args)?;
            if let Some(to_x) = &to_x {
                product(
                    call,
                    [1, count, dim, classes],
                    l,
                    w,
                    Operand::rows(at(to_x), dtype, dim),
                    None,
                    0.0,
                )?;
            }
            if let Some(to_weight) = &to_weight {
                let to = Operand::rows(to_weight.address, dtype, dim);
                let keep = if first == 0 { 0.0 } else { 1.0 };
                product(call, [1, classes, dim, count], l.transposed(), rows_of_x, to, None, keep)?;
            }
            if let Some(to_bias) = &to_bias {
                let args = Args::new().address(to_bias.address).address(logits).size(count).size(classes);
                let args = args.i64(i64::from(first > 0));
                call.launch(source.clone().with("PASS", "3"), [classes.div_ceil(32), 1, 1], 1024, args)?;
            }
        }
        if rows == 0 {
            for to in [to_weight, to_bias].into_iter().flatten() {
                super::elementwise::fill(call, 0.0, to)?;
            }
        }
        // Under autocast the loss is wider than the logits.
        let source = typed(call, CROSS_ENTROPY, loss.dtype);
        let args = Args::new().address(loss.address).address(losses).address(total).size(rows).i64(mean);
        call.launch(source.with("PASS", "2"), [1; 3], 512, args)
    }
}
