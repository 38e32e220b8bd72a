//! Attention by blocks of scores: cuBLASLt computes the matrix products, and a kernel the work between them.
//!
//! Only the scores of some heads and queries exist at a time: as many rows as fit into [`SCORES_BYTES`], and at least one.
//! So scratch memory does not grow with the square of the sequence length.

use plimsoll_cuda::{Args, Source};

use crate::cuda::matmul::product::{Operand, product};
use crate::cuda::random::draw;
use crate::cuda::{CudaCall, Placed, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;
use crate::random::RandomStream;

const TEXT: &str = include_str!("scaled_dot_product.cu");

/// Bytes of scores that exist at a time.
const SCORES_BYTES: usize = 16 << 20;

/// The sizes of attention: `queries × dim` against `keys × dim` and `keys × value_dim`, for each head of each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    /// The number of key and value heads. Each is shared by `heads / kv_heads` query heads.
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) dim: usize,
    pub(crate) value_dim: usize,
}

/// The first row of an operand, and its strides along batch, head and row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) address: u64,
    pub(crate) strides: [usize; 3],
}

/// An attention to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionParams<'a> {
    pub(crate) shape: Sizes,
    pub(crate) dtype: DType,
    pub(crate) scale: f64,
    pub(crate) causal: bool,
    /// The mask, with its strides along batch, heads, queries and keys.
    pub(crate) mask: Option<(Placed<'a>, [usize; 4])>,
    pub(crate) dropout: Option<(f64, RandomStream)>,
    /// Whether the kernels of `flash` support it.
    pub(crate) by_tiles: bool,
}

/// The numbers of heads and queries whose scores exist at a time. Heads that share keys are processed one by one, since their
/// gradients are summed.
fn chunk(shape: &Sizes, dtype: DType) -> (usize, usize) {
    let rows = (SCORES_BYTES / (shape.keys * dtype.accumulator().size()).max(1)).max(1);
    let queries = shape.queries.min(rows).max(1);
    let heads = if shape.heads == shape.kv_heads { (rows / queries).clamp(1, shape.heads.max(1)) } else { 1 };
    // Makes parts of about equal size.
    (shape.heads.div_ceil(shape.heads.div_ceil(heads).max(1)).max(1), queries)
}

/// Bytes of scratch memory for `matrices` matrices of scores, plus as many in the operands' type if that differs.
pub(crate) fn scratch(shape: &Sizes, dtype: DType, matrices: usize) -> u64 {
    let (heads, queries) = chunk(shape, dtype);
    let scores = heads * queries * shape.keys;
    let wide = (scores * dtype.accumulator().size()).next_multiple_of(512);
    let narrow = if dtype == dtype.accumulator() { 0 } else { (scores * dtype.size()).next_multiple_of(512) };
    (matrices * (wide + narrow)) as u64
}

/// A part of the work: some heads and queries of a batch.
#[derive(Clone, Copy)]
struct Part {
    batch: usize,
    first_head: usize,
    heads: usize,
    first_query: usize,
    queries: usize,
}

impl AttentionParams<'_> {
    fn parts(&self) -> Vec<Part> {
        let Sizes { batch, heads, queries, keys, .. } = self.shape;
        if keys == 0 {
            return Vec::new();
        }
        let (some_heads, some_queries) = chunk(&self.shape, self.dtype);
        let mut parts = Vec::new();
        for batch in 0..batch {
            for first_head in (0..heads).step_by(some_heads) {
                for first_query in (0..queries).step_by(some_queries) {
                    let (heads, queries) =
                        (some_heads.min(heads - first_head), some_queries.min(queries - first_query));
                    parts.push(Part { batch, first_head, heads, first_query, queries });
                }
            }
        }
        parts
    }

    /// A part's matrices of an operand that has the shape of the queries.
    fn of_queries(&self, x: Heads, part: &Part) -> Operand {
        let at = part.batch * x.strides[0] + part.first_head * x.strides[1] + part.first_query * x.strides[2];
        self.operand(x, at)
    }

    /// A part's matrices of an operand that has the shape of the keys.
    fn of_keys(&self, x: Heads, part: &Part) -> Operand {
        let head = part.first_head * self.shape.kv_heads / self.shape.heads.max(1);
        self.operand(x, part.batch * x.strides[0] + head * x.strides[1])
    }

    fn operand(&self, x: Heads, at: usize) -> Operand {
        let address = x.address + (at * self.dtype.size()) as u64;
        Operand { address, dtype: self.dtype, strides: [x.strides[1], x.strides[2], 1] }
    }

    fn scores(&self, address: u64, dtype: DType, part: &Part) -> Operand {
        let keys = self.shape.keys;
        Operand { address, dtype, strides: [part.queries * keys, keys, 1] }
    }

    fn source(&self, call: &CudaCall<'_>, backward: bool) -> Source {
        let (kind, mask) = match self.mask {
            None => ("0", "u8"),
            Some((mask, _)) if mask.dtype == DType::Bool => ("2", "boolean"),
            Some((mask, _)) => ("1", name(mask.dtype)),
        };
        call.source(TEXT)
            .with("A", name(self.dtype.accumulator()))
            .with("T", name(self.dtype))
            .with("MASK", kind)
            .with("M", mask)
            .with("BACKWARD", if backward { "1" } else { "0" })
    }

    /// The kernel's `Rows`.
    fn rows(&self, part: &Part) -> [u64; 15] {
        let Sizes { heads, queries, keys, .. } = self.shape;
        let mask = self.mask.map_or([0; 4], |(_, strides)| strides);
        let (threshold, stream) = match self.dropout {
            None => ((0, 1.0), RandomStream { seed: 0, stream: 0 }),
            Some((p, stream)) => (draw::threshold(p), stream),
        };
        let sizes = [heads, queries, keys, part.batch, part.first_head, part.first_query, part.queries];
        let mut words = [0; 15];
        words.iter_mut().zip(sizes).for_each(|(word, size)| *word = size as u64);
        words[7] = u64::from(self.causal);
        words[8..12].iter_mut().zip(mask).for_each(|(word, stride)| *word = stride as u64);
        words[12..].copy_from_slice(&[
            stream.stream,
            stream.seed,
            u64::from(threshold.0) | u64::from(threshold.1.to_bits()) << 32,
        ]);
        words
    }

    fn mask_address(&self) -> u64 {
        self.mask.map_or(0, |(mask, _)| mask.address)
    }

    /// The addresses in scratch memory of the scores and of their conversion to the operands' type.
    fn buffers(&self, call: &CudaCall<'_>, nth: usize) -> (u64, u64) {
        let (heads, queries) = chunk(&self.shape, self.dtype);
        let scores = heads * queries * self.shape.keys;
        let each = scratch(&self.shape, self.dtype, 1);
        let wide = call.scratch_address() + nth as u64 * each;
        let narrow = if self.dtype == self.dtype.accumulator() {
            wide
        } else {
            wide + (scores * self.dtype.accumulator().size()).next_multiple_of(512) as u64
        };
        (wide, narrow)
    }

    /// Computes the output and the log-sum-exp of each row.
    pub(crate) fn forward(
        &self,
        call: &mut CudaCall<'_>,
        [q, k, v]: [Heads; 3],
        out: (Placed<'_>, Heads),
        log_sums: Placed<'_>,
    ) -> Result<()> {
        if self.by_tiles {
            return self.forward_by_tiles(call, [q, k, v], out.1, log_sums);
        }
        let Sizes { keys, dim, value_dim, .. } = self.shape;
        let (wide, narrow) = self.buffers(call, 0);
        let accumulator = self.dtype.accumulator();
        if keys == 0 {
            crate::cuda::elementwise::expression::fill(call, 0.0, out.0)?;
            return crate::cuda::elementwise::expression::fill(call, f64::NEG_INFINITY, log_sums);
        }
        for part in self.parts() {
            let Part { heads, queries, .. } = part;
            let s = self.scores(wide, accumulator, &part);
            let p = self.scores(narrow, self.dtype, &part);
            let of_k = self.of_keys(k, &part).transposed();
            product(call, [heads, queries, keys, dim], self.of_queries(q, &part), of_k, s, None, 0.0)?;
            let source = self.source(call, false);
            let args = Args::new().address(narrow).address(wide).address(log_sums.address);
            let args = args.address(self.mask_address()).f64(self.scale).words(&self.rows(&part));
            call.launch(source, [heads * queries, 1, 1], threads_for(keys), args)?;
            let to = self.of_queries(out.1, &part);
            product(call, [heads, queries, value_dim, keys], p, self.of_keys(v, &part), to, None, 0.0)?;
        }
        Ok(())
    }

    /// Computes the gradients of queries, keys and values, and writes all three. Returns whether it also wrote `row_sum`, the sum
    /// over the rows of the packed tensor that the three form.
    pub(crate) fn backward(
        &self,
        call: &mut CudaCall<'_>,
        [q, k, v]: [Heads; 3],
        [out, grad]: [Heads; 2],
        log_sums: Placed<'_>,
        ([to_q, to_k, to_v], row_sum): ([Heads; 3], Option<Placed<'_>>),
    ) -> Result<bool> {
        if self.by_tiles {
            let to = ([to_q, to_k, to_v], row_sum);
            return self.backward_by_tiles(call, [q, k, v], [out, grad], log_sums, to);
        }
        let Sizes { heads: all_heads, kv_heads, keys, dim, value_dim, .. } = self.shape;
        let accumulator = self.dtype.accumulator();
        let ((s_wide, p_narrow), (dp_wide, ds_narrow)) = (self.buffers(call, 0), self.buffers(call, 1));
        if keys == 0 || self.shape.queries == 0 {
            let outs = call.outs.clone();
            return outs
                .into_iter()
                .try_for_each(|out| crate::cuda::elementwise::expression::fill(call, 0.0, out))
                .map(|()| true);
        }
        for part in self.parts() {
            let Part { heads, queries, first_head, first_query, .. } = part;
            let (s, dp) = (self.scores(s_wide, accumulator, &part), self.scores(dp_wide, accumulator, &part));
            let (p, ds) =
                (self.scores(p_narrow, self.dtype, &part), self.scores(ds_narrow, self.dtype, &part));
            let (of_q, of_grad) = (self.of_queries(q, &part), self.of_queries(grad, &part));
            let (of_k, of_v) = (self.of_keys(k, &part), self.of_keys(v, &part));
            product(call, [heads, queries, keys, dim], of_q, of_k.transposed(), s, None, 0.0)?;
            product(call, [heads, queries, keys, value_dim], of_grad, of_v.transposed(), dp, None, 0.0)?;
            let source = self.source(call, true);
            let strides = [out.strides, grad.strides].concat();
            let mut words: Vec<u64> = strides.into_iter().map(|n| n as u64).collect();
            words.push(value_dim as u64);
            let args = Args::new().address(p_narrow).address(ds_narrow).address(s_wide).address(dp_wide);
            let args = args.address(log_sums.address).address(self.mask_address()).address(out.address);
            let args = args.address(grad.address).f64(self.scale).words(&words).words(&self.rows(&part));
            call.launch(source, [heads * queries, 1, 1], threads_for(keys), args)?;
            // The first part overwrites the gradients; later queries, and heads that share keys, add to them.
            let group = all_heads / kv_heads.max(1);
            let is_first = first_query == 0 && first_head % group.max(1) == 0;
            let keep = if is_first { 0.0 } else { 1.0 };
            let to_v = self.of_keys(to_v, &part);
            product(call, [heads, keys, value_dim, queries], p.transposed(), of_grad, to_v, None, keep)?;
            let to_q = self.of_queries(to_q, &part);
            product(call, [heads, queries, dim, keys], ds, of_k, to_q, None, 0.0)?;
            let to_k = self.of_keys(to_k, &part);
            product(call, [heads, keys, dim, queries], ds.transposed(), of_q, to_k, None, keep)?;
        }
        Ok(false)
    }
}
