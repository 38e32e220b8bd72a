//! Reductions that keep more than a sum: variances, norms, extremes with their indices, products.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use super::sum;
use crate::cuda::{CudaCall, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("fold.cu");

/// The kind of reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fold {
    /// The variance with this correction, or its square root.
    Variance { correction: f64, root: bool },
    /// The number of nonzero elements.
    Count,
    /// Whether no element is 0.
    All,
    /// The norm of order 1, 2, or any.
    Norm { order: f64 },
    /// The largest or smallest element or absolute value, and how many elements are equal to it.
    Extremes { largest: bool, magnitude: bool },
    /// The largest or smallest element and its first index; with one output, only the index.
    Place { largest: bool },
    /// The logarithm of the sum of the exponentials.
    LogSumExp,
    /// The product, and the product of the other elements if one is 0.
    Product,
}

/// Reduces an input over the marked dimensions. Outputs are row-major.
pub(crate) fn fold(call: &mut CudaCall<'_>, marks: &[bool], fold: Fold) -> Result<()> {
    let (x, outs) = (call.ins[0], call.outs.clone());
    let (out, more) = (outs[0], outs.get(1).copied());
    if out.is_empty() {
        return Ok(());
    }
    let terms: usize = x.shape().iter().zip(marks).filter(|(_, mark)| **mark).map(|(&n, _)| n).product();
    let (kept, reduced) = sum::split(&x, marks);
    let (kind, number) = kind(fold, x.dtype, terms, more.is_some());
    let (largest, magnitude) = match fold {
        Fold::Extremes { largest, magnitude } => (largest, magnitude),
        Fold::Place { largest } => (largest, false),
        _ => (true, false),
    };
    let flag = |on: bool| if on { "1" } else { "0" };
    let wide = terms >= 64;
    let source = call
        .source(TEXT)
        .with("A", name(x.dtype.accumulator()))
        .with("T", name(x.dtype))
        .with("TO", name(out.dtype))
        .with("MORE", name(more.map_or(DType::F32, |more| more.dtype)))
        .with("KIND", kind.to_string())
        .with("LARGEST", flag(largest))
        .with("MAGNITUDE", flag(magnitude))
        .with("WIDE", flag(wide))
        .with("KEPT", kept.rank().to_string())
        .with("REDUCED", reduced.rank().to_string());
    let mut words: SmallVec<[u64; 24]> = SmallVec::from_slice(&[out.len() as u64, terms as u64]);
    words.extend(kept.words().into_iter().chain(reduced.words()));
    let args = Args::new().address(out.address).address(more.map_or(0, |more| more.address));
    let args = args.address(x.address).f64(number).words(&words);
    let blocks = if wide { out.len() } else { out.len().div_ceil(256) };
    call.launch(source, [blocks, 1, 1], 256, args)
}

fn kind(fold: Fold, dtype: DType, terms: usize, both: bool) -> (u32, f64) {
    match fold {
        Fold::Variance { correction, root } => (u32::from(root), correction),
        Fold::Count => (2, 0.0),
        Fold::Norm { order: 1.0 } => (3, 1.0),
        Fold::Norm { order: 2.0 } => (4, 2.0),
        Fold::Norm { order } => (5, order),
        Fold::Extremes { .. } => (6, 0.0),
        Fold::Place { .. } if both => (7, 0.0),
        Fold::Place { .. } => (8, 0.0),
        Fold::LogSumExp => (9, 0.0),
        Fold::Product if dtype.is_float() => (10, 0.0),
        Fold::Product => (11, 0.0),
        Fold::All => (12, terms as f64),
    }
}
