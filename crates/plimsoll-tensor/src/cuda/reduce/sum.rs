//! Sums over any dimensions, and argmax along one.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Dims;

const SUM: &str = include_str!("sum.cu");
const ARGMAX: &str = include_str!("argmax.cu");

/// The number of parts into which a sum is split: without parts, few results with many terms would leave most
/// of a device idle.
pub(in crate::cuda) fn parts(results: usize, terms: usize) -> usize {
    let blocks = results.div_ceil(128).max(1);
    if terms < 512 || blocks >= 512 { 1 } else { terms.div_ceil(256).min(1024 / blocks).clamp(1, 256) }
}

/// How many neighbouring results a thread computes at once: as many as have terms in 16 bytes, if the terms are
/// contiguous and aligned.
pub(in crate::cuda) fn neighbours(
    results: usize,
    (address, dtype): (u64, DType),
    strides: &[usize],
) -> usize {
    let count = 16 / dtype.size();
    let fits = dtype.size() > 1
        && results.is_multiple_of(count)
        && address.is_multiple_of(16)
        && strides.iter().all(|stride| stride.is_multiple_of(count));
    if fits { count } else { 1 }
}

/// Bytes of scratch memory for a sum. They depend only on sizes.
pub(crate) fn sum_scratch(results: usize, terms: usize, dtype: DType) -> u64 {
    match parts(results, terms) {
        1 => 0,
        parts => (parts * results * dtype.accumulator().size()) as u64,
    }
}

/// The kept and the reduced dimensions of an input, each merged into as few as possible.
pub(in crate::cuda) fn split(x: &Placed<'_>, marks: &[bool]) -> (Space, Space) {
    let strides = [Dims::from_slice(x.layout.strides())];
    let chosen = |reduced: bool| {
        let dims = (0..x.shape().len()).filter(|&dim| marks[dim] == reduced && x.shape()[dim] != 1);
        let mut dims: SmallVec<[usize; 6]> = dims.collect();
        if reduced {
            // Terms are in memory order.
            dims.sort_by_key(|&dim| std::cmp::Reverse(x.layout.strides()[dim]));
        }
        Space::collapsed(x.shape(), &strides, &dims)
    };
    (chosen(false), chosen(true))
}

/// The sum of an input over the marked dimensions, times `scale`. The output is row-major.
pub(crate) fn sum(
    call: &mut CudaCall<'_>,
    x: Placed<'_>,
    out: Placed<'_>,
    marks: &[bool],
    scale: f64,
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    if x.is_empty() {
        // An empty sum is 0, and its mean is NaN.
        return crate::cuda::elementwise::expression::fill(call, 0.0 * scale, out);
    }
    let results = out.len();
    let terms = x.len() / results;
    let (kept, reduced) = split(&x, marks);
    let accumulator = name(out.dtype.accumulator());
    let count = parts(results, terms);
    let (to, dtype) =
        if count == 1 { (out.address, out.dtype) } else { (call.scratch_address(), out.dtype.accumulator()) };
    let part = terms.div_ceil(count);
    let scale_now = if count == 1 { scale } else { 1.0 };
    launch(
        call,
        (x.address, x.dtype),
        (to, dtype),
        accumulator,
        (&kept, &reduced),
        [results, terms, part],
        scale_now,
    )?;
    if count == 1 {
        return Ok(());
    }
    let line = |size: usize, stride: usize| Space {
        size: Dims::from_slice(&[size]),
        strides: std::iter::once(Dims::from_slice(&[stride])).collect(),
    };
    let (kept, reduced) = (line(results, 1), line(terms.div_ceil(part), results));
    let sizes = [results, terms.div_ceil(part), terms.div_ceil(part)];
    launch(call, (to, dtype), (out.address, out.dtype), accumulator, (&kept, &reduced), sizes, scale)
}

fn launch(
    call: &mut CudaCall<'_>,
    (x, x_type): (u64, DType),
    (out, out_type): (u64, DType),
    accumulator: &'static str,
    (kept, reduced): (&Space, &Space),
    [results, terms, part]: [usize; 3],
    scale: f64,
) -> Result<()> {
    let last = |space: &Space| space.strides[0].last().copied().unwrap_or(0);
    // Neighbouring threads read neighbouring elements.
    let columns = results >= 32 && (last(reduced) != 1 || terms < 32);
    let vector = match columns && kept.rank() == 1 && last(kept) == 1 {
        true => neighbours(results, (x, x_type), &reduced.strides[0]),
        false => 1,
    };
    let source = call
        .source(SUM)
        .with("A", accumulator)
        .with("T", name(x_type))
        .with("TO", name(out_type))
        .with("KEPT", kept.rank().to_string())
        .with("REDUCED", reduced.rank().to_string())
        .with("COLUMNS", if columns { "1" } else { "0" })
        .with("VEC", vector.to_string());
    let mut words: SmallVec<[u64; 24]> = SmallVec::from_slice(&[results as u64, terms as u64, part as u64]);
    words.extend(kept.words().into_iter().chain(reduced.words()));
    let args = Args::new().address(out).address(x).f64(scale).words(&words);
    let blocks = if columns { results.div_ceil(32 * vector) } else { results };
    call.launch(source, [blocks, terms.div_ceil(part), 1], 256, args)
}

/// The index of the largest element along a dimension.
pub(crate) fn argmax(call: &mut CudaCall<'_>, x: Placed<'_>, out: Placed<'_>, dim: usize) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let strides = [Dims::from_slice(x.layout.strides())];
    let dims: SmallVec<[usize; 6]> =
        (0..x.shape().len()).filter(|&d| d != dim && x.shape()[d] != 1).collect();
    let kept = Space::collapsed(x.shape(), &strides, &dims);
    let source = call
        .source(ARGMAX)
        .with("A", name(x.dtype.accumulator()))
        .with("T", name(x.dtype))
        .with("KEPT", kept.rank().to_string());
    let mut words: SmallVec<[u64; 24]> =
        SmallVec::from_slice(&[x.shape()[dim] as u64, x.layout.strides()[dim] as u64]);
    words.extend(kept.words());
    let args = Args::new().address(out.address).address(x.address).size(out.len()).words(&words);
    call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
}
