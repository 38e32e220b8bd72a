//! Writes or adds elements at an index.

use plimsoll_cuda::{Args, Step};
use smallvec::SmallVec;

use super::index::word;
use crate::cuda::elementwise::expression;
use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed, fault, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Dims, Layout};

const TEXT: &str = include_str!("scatter.cu");

/// The change to an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Replaces the element with the source's.
    Replace,
    /// Adds the source's element.
    Add,
    /// Sets the element to this value.
    Set(f64),
    /// Takes the larger of both.
    Larger,
    /// Takes the smaller of both.
    Smaller,
    /// Multiplies the element by the source's.
    Multiply,
}

/// An index along a dimension, with its shape and its strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) dim: usize,
    pub(crate) shape: &'a [usize],
    pub(crate) index: Placed<'a>,
    pub(crate) strides: &'a [usize],
}

/// The tensor to which values are added.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base<'a> {
    /// Zeros.
    Zeros,
    /// A copy of another tensor.
    Of(Placed<'a>),
    /// The current values of the output.
    Own,
}

/// Bytes of scratch memory for adding 16-bit floats in a wider type.
pub(crate) fn scratch(out: &[usize], dtype: DType) -> u64 {
    match dtype {
        DType::F16 | DType::BF16 => (out.iter().product::<usize>() * 4) as u64,
        _ => 0,
    }
}

/// Scatters `src` into `out`, which already holds its initial values. The source has the shape of the
/// index.
pub(crate) fn scatter(
    call: &mut CudaCall<'_>,
    change: Change,
    at: At<'_>,
    src: Option<Placed<'_>>,
    out: Placed<'_>,
) -> Result<()> {
    let nowhere = Dims::from_elem(0, at.shape.len());
    let src_strides = src.map_or(&nowhere[..], |src| src.layout.strides());
    let all = [out.layout.strides(), at.strides, src_strides].map(Dims::from_slice);
    let others: SmallVec<[usize; 6]> =
        (0..at.shape.len()).filter(|&dim| dim != at.dim && at.shape[dim] != 1).collect();
    let space = Space::collapsed(at.shape, &all, &others);
    let count = at.shape[at.dim];
    let lines: usize =
        at.shape.iter().enumerate().filter(|&(dim, _)| dim != at.dim).map(|(_, &n)| n).product();
    if count == 0 || lines == 0 {
        return Ok(());
    }
    let src_type = src.map_or(out.dtype, |src| src.dtype);
    let (to, from) = match change {
        Change::Replace => (word(out.dtype), word(src_type)),
        _ => (name(out.dtype), name(src_type)),
    };
    let (kind, value) = match change {
        Change::Replace => ("0", 0.0),
        Change::Add => ("1", 0.0),
        Change::Set(value) => ("2", value),
        Change::Larger => ("3", 0.0),
        Change::Smaller => ("4", 0.0),
        Change::Multiply => ("5", 0.0),
    };
    let source = call
        .source(TEXT)
        .with("A", name(out.dtype.accumulator()))
        .with("T", to)
        .with("S", from)
        .with("I", name(at.index.dtype))
        .with("RANK", space.rank().to_string())
        .with("CHANGE", kind);
    let step = |strides: &[usize]| strides.get(at.dim).copied().unwrap_or(0);
    let args = Args::new().address(out.address).address(at.index.address);
    let args = args.address(src.map_or(0, |src| src.address)).size(lines).size(count);
    let args = args.size(out.shape()[at.dim]).size(step(out.layout.strides())).size(step(at.strides));
    let args = args.size(step(src_strides)).f64(value).words(&space.words()).fault(fault::INDEX);
    call.launch(source, [lines.div_ceil(256), 1, 1], 256, args)
}

/// Like [`scatter`], but adds 16-bit floats in `float32` in scratch memory and rounds them once.
pub(crate) fn scatter_add(
    call: &mut CudaCall<'_>,
    at: At<'_>,
    src: Placed<'_>,
    before: Base<'_>,
    out: Placed<'_>,
) -> Result<()> {
    let layout = Layout::contiguous(out.shape());
    let wide = Placed { address: call.scratch_address(), dtype: DType::F32, layout: &layout };
    let is_short = matches!(out.dtype, DType::F16 | DType::BF16);
    let to = if is_short { wide } else { out };
    match before {
        Base::Of(before) => expression::copy(call, before, to)?,
        Base::Own if is_short => expression::copy(call, out, to)?,
        Base::Own => {}
        Base::Zeros => {
            call.push(Step::Clear { address: to.address, bytes: (to.len() * to.dtype.size()) as u64 });
        }
    }
    scatter(call, Change::Add, at, Some(src), to)?;
    if is_short { expression::copy(call, to, out) } else { Ok(()) }
}
