//! What works on rows: softmax, losses, the projection to classes.

use plimsoll_cuda::{Args, Source};

use super::product::{Operand, product};
use super::{CudaCall, Placed, blocks_for, fault, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;

const SOFTMAX: &str = include_str!("kernels/softmax.cu");
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

/// `log_probabilities, target -> loss`, times a scale.
pub(crate) fn nll(call: &mut CudaCall<'_>, mean: bool) -> Result<()> {
    let ([x, target], out) = (both(call)?, call.outs[0]);
    let source = nll_text(call, call.float(&[x])?, target.dtype, mean).with("BACKWARD", "0");
    let args = Args::new().address(out.address).address(x.address).address(target.address);
    let args = args.size(target.len()).size(x.cols()).fault(fault::TARGET);
    call.launch(source, [1; 3], 512, args)
}

/// `grad, target -> grad of log_probabilities`.
pub(crate) fn nll_backward(call: &mut CudaCall<'_>, mean: bool) -> Result<()> {
    let ([grad, target], out) = (both(call)?, call.outs[0]);
    let source = nll_text(call, call.float(&[out])?, target.dtype, mean).with("BACKWARD", "1");
    let args = Args::new().address(out.address).address(grad.address).address(target.address);
    let args = args.size(target.len()).size(out.cols()).fault(fault::TARGET);
    call.launch(source, [blocks_for(out.len(), 256, 4), 1, 1], 256, args)
}

fn nll_text(call: &CudaCall<'_>, dtype: DType, target: DType, mean: bool) -> Source {
    typed(call, NLL, dtype).with("TARGET", name(target)).with("MEAN", flag(mean))
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

/// Bytes that the logits of some rows may take. The weight's gradient is read and written once for each of these parts, which
/// short floats, whose products are fast, would notice.
fn logits_bytes(dtype: DType) -> usize {
    if dtype.size() == 2 { 128 << 20 } else { 64 << 20 }
}

/// Rows of a part: a whole number of a product's tiles.
const TILE: usize = 128;

impl Projected {
    /// Rows whose logits are there at a time.
    fn chunk(&self, dtype: DType) -> usize {
        let row = (self.stride(dtype) * dtype.size()).max(1);
        let most = (logits_bytes(dtype) / row).clamp(1, self.rows.max(1));
        // Parts of about one size.
        self.rows.div_ceil(self.rows.div_ceil(most).max(1)).next_multiple_of(TILE).min(most)
    }

    /// Elements from a row of logits to the next: rows begin at multiples of 16 bytes, which fast products ask for.
    fn stride(&self, dtype: DType) -> usize {
        self.classes.next_multiple_of(16 / dtype.size())
    }

    /// Classes in parts of which each product is fast: those up to a multiple of 16 bytes, and the few that are left.
    fn parts(&self, dtype: DType) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let most = self.classes / (16 / dtype.size()) * (16 / dtype.size());
        [(0, most), (most, self.classes - most)].into_iter().filter(|&(_, count)| count > 0)
    }

    /// Bytes of scratch: logits of a chunk, the loss of each row, and what a mean divides by.
    pub(crate) fn scratch(&self, dtype: DType) -> u64 {
        let logits = (self.chunk(dtype) * self.stride(dtype) * dtype.size()).next_multiple_of(512);
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
        let stride = self.stride(dtype);
        let losses = logits + (chunk * stride * size).next_multiple_of(512) as u64;
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
            let rows_of_x = Operand::rows(at(&x), dtype, dim);
            let w = |class: usize| Operand::rows(weight.address + (class * dim * size) as u64, dtype, dim);
            let l = |class: usize| Operand::rows(logits + (class * size) as u64, dtype, stride);
            for (class, some) in self.parts(dtype) {
                let (to, bias) = (l(class), bias.map(|bias| bias + (class * size) as u64));
                product(call, [1, count, some, dim], rows_of_x, w(class).transposed(), to, bias, 0.0)?;
            }
            let args =
                Args::new().address(logits).address(losses + (first * dtype.accumulator().size()) as u64);
            let args = args.address(target.address + (first * 8) as u64).address(total);
            let args = args.address(class_weights).size(classes).size(stride).i64(ignored);
            let args = args.f64(smoothing).i64(mean).i64(i64::from(wanted));
            call.launch(source.clone().with("PASS", "1"), [count, 1, 1], threads_for(classes), args)?;
            if let Some(to_x) = &to_x {
                // The few classes first, so that the sum of the many is rounded last.
                for (nth, (class, some)) in self.parts(dtype).rev().enumerate() {
                    let (to, keep) = (Operand::rows(at(to_x), dtype, dim), if nth == 0 { 0.0 } else { 1.0 });
                    product(call, [1, count, dim, some], l(class), w(class), to, None, keep)?;
                }
            }
            if let Some(to_weight) = &to_weight {
                let keep = if first == 0 { 0.0 } else { 1.0 };
                for (class, some) in self.parts(dtype) {
                    let to = to_weight.address + (class * dim * size) as u64;
                    let to = Operand::rows(to, dtype, dim);
                    product(call, [1, some, dim, count], l(class).transposed(), rows_of_x, to, None, keep)?;
                }
            }
            if let Some(to_bias) = &to_bias {
                let args = Args::new().address(to_bias.address).address(logits).size(count).size(classes);
                let args = args.size(stride).i64(i64::from(first > 0));
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
