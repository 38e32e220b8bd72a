//! Attention by tiles with tensor cores, as FlashAttention-2: scores never leave the multiprocessor and are not kept.
//!
//! For bfloat16 and float16 on GPUs from Ampere on, without a mask and without dropout; `scaled_dot_product` handles the other
//! cases. The backward pass consists of two launches, one over queries and one over keys, so that every sum has a fixed order. On
//! Hopper, the kernels of `flash_wgmma` run instead, with the same arguments and the same scratch memory.

use plimsoll_cuda::{Args, Launch, Source, Step};

use super::flash_pass::{Pass, Tiled};
use super::flash_wgmma;
use super::scaled_dot_product::{AttentionParams, Heads, Sizes};
use crate::cuda::elementwise::activation;
use crate::cuda::{CudaCall, Placed};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::layout::Layout;

const TEXT: &str = include_str!("flash.cu");

/// Elements in 16 bytes, the amount that a thread copies at a time.
const ALIGNED: usize = 8;

/// With at least this many blocks the device stays full. With fewer, the blocks with the most work start first.
const MANY: usize = 2048;

/// Whether the kernels support these sizes. The scale must be positive: a negative one would turn the largest score into the
/// smallest.
pub(crate) fn takes(sizes: &Sizes, dtype: DType, scale: f64, facts: DeviceFacts) -> bool {
    let &Sizes { batch, heads, queries, keys, dim, value_dim, .. } = sizes;
    matches!(dtype, DType::BF16 | DType::F16)
        && facts.capability.is_some_and(|capability| capability >= (8, 0))
        && (scale as f32).is_normal()
        && scale > 0.0
        && dim == value_dim
        && dim.is_multiple_of(16)
        && (16..=128).contains(&dim)
        && batch * heads * queries * keys > 0
}

/// Whether every row of an operand begins at a multiple of 16 bytes. The operand begins `begin` elements into the storage and has
/// these strides.
pub(crate) fn is_aligned(layout: &Layout, begin: usize, strides: [usize; 3]) -> bool {
    (layout.offset() + begin).is_multiple_of(ALIGNED)
        && strides.iter().all(|stride| stride.is_multiple_of(ALIGNED))
}

/// The tiling of a block: it owns `tiles` of 16 rows for each warp, and loops over the other operand's rows, `step` at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    tiles: usize,
    warps: usize,
    step: usize,
    /// Whether a block's own rows stay in registers.
    keeps: bool,
}

impl Tiling {
    /// A tiling that fits a thread's registers.
    fn of(pass: Pass, dim: usize) -> Tiling {
        let (tiles, warps, step, keeps) = match (pass, dim <= 64) {
            (Pass::Forward, true) => (2, 4, 64, true),
            (Pass::Forward, false) => (1, 8, 64, true),
            (_, true) => (1, 4, 32, true),
            (_, false) => (1, 4, 32, false),
        };
        Tiling { tiles, warps, step, keeps }
    }

    /// Rows of a block.
    fn rows(self) -> usize {
        self.tiles * 16 * self.warps
    }

    /// Shared memory of a block, for its own rows and two steps of the other operand's rows.
    fn shared_bytes(self, pass: Pass, dim: usize) -> usize {
        let row = (dim + 8) * 2;
        match pass {
            Pass::Forward => self.rows().max(4 * self.step) * row,
            Pass::Queries => (2 * self.rows() + 4 * self.step) * row,
            Pass::Keys => (2 * self.rows() + 4 * self.step) * row + 2 * self.step * 8,
        }
    }
}

/// The number of query rows per head with numbers in scratch memory, rounded up to complete blocks.
fn padded(sizes: &Sizes) -> usize {
    sizes.queries.next_multiple_of(Tiling::of(Pass::Queries, sizes.dim).rows())
}

/// Bytes of scratch memory of the backward pass: two numbers for each query.
pub(crate) fn scratch(sizes: &Sizes) -> u64 {
    (sizes.batch * sizes.heads * padded(sizes) * 8) as u64
}

/// The columns of a packed tensor, and the number of parts into which [`AttentionParams::backward_by_tiles`] splits the sum over
/// its gradient's rows: one part for every 64 rows of each batch. `None` if the kernels do not compute parts of this
/// sum.
fn sums(sizes: &Sizes, facts: DeviceFacts) -> Option<(usize, usize)> {
    let &Sizes { batch, heads, kv_heads, keys, dim, .. } = sizes;
    let parts = batch * keys.div_ceil(flash_wgmma::GROUP_ROWS);
    flash_wgmma::takes(sizes, facts).then_some(((heads + 2 * kv_heads) * dim, parts))
}

/// Bytes of scratch memory for those parts.
pub(crate) fn sums_scratch(sizes: &Sizes, facts: DeviceFacts) -> Option<u64> {
    sums(sizes, facts).map(|(cols, parts)| (cols * parts * 4) as u64)
}

/// The kernel's `Shape`.
fn words(sizes: &Sizes, spread: bool, operands: [Heads; 7]) -> Vec<u64> {
    let &Sizes { batch, heads, kv_heads, queries, keys, .. } = sizes;
    let sizes = [batch, heads, kv_heads, queries, keys, usize::from(spread)];
    sizes.into_iter().chain(operands.into_iter().flat_map(|x| x.strides)).map(|n| n as u64).collect()
}

impl AttentionParams<'_> {
    /// The kernel of a pass. It depends on sizes, types and the device's compute capability.
    fn kernel(&self, call: &CudaCall<'_>, pass: Pass, row_sum: bool) -> Tiled {
        let flag = |on: bool| if on { "1" } else { "0" };
        let dim = self.shape.dim;
        let given = |source: Source| {
            source
                .with("HALF", flag(self.dtype == DType::F16))
                .with("D", dim.to_string())
                .with("CAUSAL", flag(self.causal))
                .with("PASS", (pass as u8).to_string())
        };
        if flash_wgmma::takes(&self.shape, call.facts) {
            return flash_wgmma::tiled(pass, dim, |text| {
                given(call.source(text)).with("SUMS", flag(row_sum))
            });
        }
        let tiling = Tiling::of(pass, dim);
        let source = given(call.source(TEXT))
            .with("MT", tiling.tiles.to_string())
            .with("WARPS", tiling.warps.to_string())
            .with("N", tiling.step.to_string())
            .with("KEEP", flag(tiling.keeps));
        let shared_bytes = tiling.shared_bytes(pass, dim);
        Tiled { source, rows: tiling.rows(), threads: tiling.warps * 32, shared_bytes }
    }

    /// Queues one of the kernels over blocks of `rows` rows of each of `pairs` heads.
    fn tiled(
        &self,
        call: &mut CudaCall<'_>,
        (pass, row_sum): (Pass, bool),
        (pairs, rows): (usize, usize),
        operands: [Heads; 7],
        args: Args,
    ) -> Result<()> {
        let kernel = self.kernel(call, pass, row_sum);
        let blocks = pairs * rows.div_ceil(kernel.rows);
        let Ok(grid) = u32::try_from(blocks) else {
            return Err(Error::argument(call.op(), format!("too large for one launch: {blocks} blocks")));
        };
        let args = args.f32(self.scale as f32).words(&words(&self.shape, blocks < MANY, operands));
        let shared_bytes = u32::try_from(kernel.shared_bytes).unwrap_or(u32::MAX);
        let block = u32::try_from(kernel.threads).unwrap_or(u32::MAX);
        call.push(Step::Launch(Launch {
            source: kernel.source,
            grid: [grid, 1, 1],
            block,
            shared_bytes,
            args,
        }));
        Ok(())
    }

    /// Computes the output and the log-sum-exp of each row.
    pub(super) fn forward_by_tiles(
        &self,
        call: &mut CudaCall<'_>,
        [q, k, v]: [Heads; 3],
        out: Heads,
        log_sums: Placed<'_>,
    ) -> Result<()> {
        let Sizes { batch, heads, queries, .. } = self.shape;
        let args = Args::new().address(out.address).address(log_sums.address);
        let args = [q, k, v].iter().fold(args, |args, x| args.address(x.address));
        self.tiled(
            call,
            (Pass::Forward, false),
            (batch * heads, queries),
            [q, k, v, out, out, out, out],
            args,
        )
    }

    /// Computes the gradients of queries, keys and values, and writes all three. Returns whether it also wrote `row_sum`, the sum
    /// over the rows of the packed tensor that the three form.
    pub(super) fn backward_by_tiles(
        &self,
        call: &mut CudaCall<'_>,
        [q, k, v]: [Heads; 3],
        [out, grad]: [Heads; 2],
        log_sums: Placed<'_>,
        ([to_q, to_k, to_v], row_sum): ([Heads; 3], Option<Placed<'_>>),
    ) -> Result<bool> {
        let Sizes { batch, heads, kv_heads, queries, keys, .. } = self.shape;
        let numbers = call.scratch_address();
        let parts_at = numbers + scratch(&self.shape);
        let sums = sums(&self.shape, call.facts);
        // Only kernels that compute parts of the sum have this argument.
        let with_sums = |args: Args| if sums.is_some() { args.address(parts_at) } else { args };
        let sums = sums.zip(row_sum);
        let args = Args::new().address(to_q.address).address(numbers);
        let args = [q, k, v, out, grad].iter().fold(args, |args, x| args.address(x.address));
        let args = with_sums(args.address(log_sums.address).size(padded(&self.shape)));
        let operands = [q, k, v, out, grad, to_q, to_q];
        self.tiled(call, (Pass::Queries, sums.is_some()), (batch * heads, queries), operands, args)?;
        let args = Args::new().address(to_k.address).address(to_v.address).address(numbers);
        let args = [q, k, v, grad].iter().fold(args, |args, x| args.address(x.address));
        let args = with_sums(args.size(padded(&self.shape)));
        let operands = [q, k, v, out, grad, to_k, to_v];
        self.tiled(call, (Pass::Keys, sums.is_some()), (batch * kv_heads, keys), operands, args)?;
        let Some(((cols, parts), to)) = sums else { return Ok(false) };
        activation::add_parts(call, to, (parts_at, parts), cols, self.dtype)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_of_each_kernel_fit_a_multiprocessor_of_hopper_and_one_that_of_an_rtx() {
        for pass in [Pass::Forward, Pass::Queries, Pass::Keys] {
            for dim in (16..=128).step_by(16) {
                let tiling = Tiling::of(pass, dim);
                let bytes = tiling.shared_bytes(pass, dim);
                assert!(bytes <= 99 << 10, "{pass:?} {dim}: {bytes}");
                // The pass over keys reads complete steps of the numbers that the pass over queries wrote.
                assert!(tiling.rows().is_multiple_of(tiling.step));
            }
        }
    }
}
