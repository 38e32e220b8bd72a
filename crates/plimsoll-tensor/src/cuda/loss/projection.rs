//! A projection to classes, such as a vocabulary, and its loss. The logits are never all in memory at once.

use plimsoll_cuda::{Args, Launch, Step};

use super::few_classes::{self, FewClasses};
use crate::cuda::matmul::product::{Operand, product};
use crate::cuda::{CudaCall, Placed, fault, flag, threads_for, typed};
use crate::dtype::DType;
use crate::error::Result;

const CROSS_ENTROPY: &str = include_str!("projection.cu");
const BULK: &str = include_str!("projection_bulk.cu");

/// The smallest row, in bytes, that keeps the threads of a block busy if the block processes one row after the other.
const LEAST_BULK: usize = 32 << 10;
/// Bytes of shared memory for two rows, on Hopper and newer GPUs whose compute capability ends in 0.
const BULK_SHARED_BYTES: usize = 226 << 10;
/// The number of blocks that process one row after the other: the multiprocessors of a large GPU.
const BULK_BLOCKS: usize = 132;

/// A projection to classes whose logits are never all in memory at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projected {
    pub(crate) rows: usize,
    pub(crate) dim: usize,
    pub(crate) classes: usize,
    /// The target value that is ignored.
    pub(crate) ignored: i64,
    /// Whether the loss is the mean (otherwise the sum).
    pub(crate) mean: bool,
    /// The fraction of each target that is spread over all classes.
    pub(crate) smoothing: f64,
    /// Whether there is a bias. It follows the targets; class weights come last.
    pub(crate) bias: bool,
}

/// The number of rows of a part is a multiple of this, the tile size of a product.
const TILE: usize = 128;

impl Projected {
    /// The maximum number of bytes for the logits of some rows: for 16-bit floats, 5.5 times the size of the input. (The hidden
    /// layer of a transformer's MLP has four times that size, in addition to other saved tensors.) The weight's gradient is read
    /// and written once for each part, which would cost noticeable time with 16-bit floats, whose products are fast. A product
    /// with few columns also needs many rows to keep a GPU busy.
    fn logits_bytes(&self, dtype: DType) -> usize {
        let (least, half_inputs) = if dtype.size() == 2 { (128 << 20, 11) } else { (64 << 20, 4) };
        least.max(half_inputs * self.rows * self.dim * dtype.size() / 2)
    }

    /// The number of rows whose logits are in memory at a time.
    fn chunk(&self, dtype: DType) -> usize {
        let row = (self.stride(dtype) * dtype.size()).max(1);
        let most = self.logits_bytes(dtype) / row;
        let tiles = most / TILE * TILE;
        let most = if tiles > 0 { tiles } else { most.max(1) }.min(self.rows.max(1));
        // Makes parts of about equal size.
        self.rows.div_ceil(self.rows.div_ceil(most).max(1)).next_multiple_of(TILE).min(most)
    }

    /// The shared memory in bytes and the threads of the kernel for a row. It keeps the row in shared memory if two rows fit into
    /// a multiprocessor.
    fn row_kernel(&self, call: &CudaCall<'_>, dtype: DType) -> (u32, u32) {
        let row = self.stride(dtype) * dtype.size();
        let most_bytes = match call.facts.capability {
            Some((9, 0) | (10, _)) => 112 << 10,
            Some((8, 0)) => 80 << 10,
            _ => 32 << 10,
        };
        let threads = threads_for(self.classes);
        if row <= most_bytes { (u32::try_from(row).unwrap_or(0), threads) } else { (0, threads) }
    }

    /// Queues the losses of this many rows, and the gradients of their logits.
    fn of_rows(&self, call: &mut CudaCall<'_>, dtype: DType, count: usize, args: Args) {
        let row = self.stride(dtype) * dtype.size();
        let has_bulk = matches!(call.facts.capability, Some((9 | 10, 0)));
        let (source, blocks, shared_bytes, block, args) =
            if has_bulk && row >= LEAST_BULK && 2 * row <= BULK_SHARED_BYTES {
                let source = typed(call, BULK, dtype);
                (source, count.min(BULK_BLOCKS), u32::try_from(2 * row).unwrap_or(0), 1024, args.size(count))
            } else {
                let (kept_bytes, threads) = self.row_kernel(call, dtype);
                let source = typed(call, CROSS_ENTROPY, dtype).with("PASS", "1");
                let source = source.with("KEEP", flag(kept_bytes > 0)).with("THREADS", threads.to_string());
                (source, count, kept_bytes, threads, args)
            };
        if let Ok(blocks) = u32::try_from(blocks) {
            call.push(Step::Launch(Launch { source, grid: [blocks, 1, 1], block, shared_bytes, args }));
        }
    }

    /// Elements from one row of logits to the next. Rows begin at multiples of 16 bytes, which fast products require.
    fn stride(&self, dtype: DType) -> usize {
        self.classes.next_multiple_of(16 / dtype.size())
    }

    /// Splits the classes into parts for fast products: those up to a multiple of 16 bytes, and the few that remain.
    fn parts(&self, dtype: DType) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let most = self.classes / (16 / dtype.size()) * (16 / dtype.size());
        [(0, most), (most, self.classes - most)].into_iter().filter(|&(_, count)| count > 0)
    }

    /// Whether these are the last few classes, which have special kernels: a library's products cost several times as much.
    fn are_few(&self, count: usize, dtype: DType) -> bool {
        dtype.size() == 2 && count < 16 / dtype.size() && count < self.classes
    }

    /// The last few classes, if any, and the number of the first one.
    fn few(&self, dtype: DType, weight: u64) -> Option<(usize, FewClasses)> {
        let (first, count) = self.parts(dtype).find(|&(_, count)| self.are_few(count, dtype))?;
        let weight = weight + (first * self.dim * dtype.size()) as u64;
        Some((first, FewClasses { count, dim: self.dim, stride: self.stride(dtype), dtype, weight }))
    }

    /// Bytes of scratch memory, for the logits of a chunk, the loss of each row, the divisor of a mean, and partial sums of the
    /// gradient of the last few classes' weight.
    pub(crate) fn scratch(&self, dtype: DType) -> u64 {
        let chunk = self.chunk(dtype);
        let logits = (chunk * self.stride(dtype) * dtype.size()).next_multiple_of(512);
        let parts = self.rows.div_ceil(chunk.max(1)) * few_classes::parts(chunk);
        let sums = self.few(dtype, 0).map_or(0, |(_, few)| parts * few.count * self.dim);
        (logits + (self.rows + 1 + sums) * dtype.accumulator().size()) as u64
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
        let few = self.few(dtype, weight.address);
        let parts_at = total + dtype.accumulator().size() as u64;
        let mut parts = 0;
        let wanted = to_x.is_some() || to_weight.is_some() || to_bias.is_some();
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let at = |of: &Placed<'_>| of.address + (first * dim * size) as u64;
            let rows_of_x = Operand::rows(at(&x), dtype, dim);
            let w = |class: usize| Operand::rows(weight.address + (class * dim * size) as u64, dtype, dim);
            let l = |class: usize| Operand::rows(logits + (class * size) as u64, dtype, stride);
            for (class, some) in self.parts(dtype) {
                let (to, bias) = (l(class), bias.map(|bias| bias + (class * size) as u64));
                if let Some((_, few)) = few.filter(|(first, _)| *first == class) {
                    few.logits(call, count, [to.address, rows_of_x.address, bias.unwrap_or(0)])?;
                    continue;
                }
                product(call, [1, count, some, dim], rows_of_x, w(class).transposed(), to, bias, 0.0)?;
            }
            let args =
                Args::new().address(logits).address(losses + (first * dtype.accumulator().size()) as u64);
            let args = args.address(target.address + (first * 8) as u64).address(total);
            let args = args.address(class_weights).size(classes).size(stride).i64(ignored);
            let args = args.f64(smoothing).i64(mean).i64(i64::from(wanted));
            self.of_rows(call, dtype, count, args);
            if let Some((class, few)) = few.filter(|_| to_x.is_some() || to_weight.is_some()) {
                let of_part = (parts * few.count * dim * dtype.accumulator().size()) as u64;
                let sums = to_weight.map_or(0, |_| parts_at + of_part);
                let to_x = to_x.as_ref().map_or(0, at);
                few.gradients(call, count, [to_x, sums, l(class).address, rows_of_x.address])?;
                parts += few_classes::parts(count);
            }
            let many = self.parts(dtype).filter(|&(class, _)| few.is_none_or(|(first, _)| first != class));
            for (nth, (class, some)) in many.enumerate() {
                if let Some(to_x) = &to_x {
                    // Added after the last few classes, so that the product over most classes is rounded last.
                    let keep = if nth == 0 && few.is_none() { 0.0 } else { 1.0 };
                    let to = Operand::rows(at(to_x), dtype, dim);
                    product(call, [1, count, dim, some], l(class), w(class), to, None, keep)?;
                }
                if let Some(to_weight) = &to_weight {
                    let keep = if first == 0 { 0.0 } else { 1.0 };
                    let to = Operand::rows(to_weight.address + (class * dim * size) as u64, dtype, dim);
                    product(call, [1, some, dim, count], l(class).transposed(), rows_of_x, to, None, keep)?;
                }
            }
            if let Some(to_bias) = &to_bias {
                let args = Args::new().address(to_bias.address).address(logits).size(count).size(classes);
                let args = args.size(stride).i64(i64::from(first > 0));
                call.launch(source.clone().with("PASS", "3"), [classes.div_ceil(32), 1, 1], 1024, args)?;
            }
        }
        if let (Some((class, few)), Some(to_weight)) = (few, &to_weight)
            && rows > 0
        {
            few.weight(call, to_weight.address + (class * dim * size) as u64, parts_at, parts)?;
        }
        if rows == 0 {
            for to in [to_weight, to_bias].into_iter().flatten() {
                crate::cuda::elementwise::expression::fill(call, 0.0, to)?;
            }
        }
        // Under autocast the loss is wider than the logits.
        let source = typed(call, CROSS_ENTROPY, loss.dtype);
        let args = Args::new().address(loss.address).address(losses).address(total).size(rows).i64(mean);
        call.launch(source.with("PASS", "2"), [1; 3], 512, args)
    }
}
