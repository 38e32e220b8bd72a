//! Code that the elementwise tables share: broadcasting and ordering their operands.

use super::real::Whole;
use crate::cpu::kernels::convert::AnyOperand;
use crate::cpu::kernels::elementwise::{Operand, apply};
use crate::dtype::{DType, Element, Stored, by_dtype, result_type};
use crate::error::{Error, Result};
use crate::layout::{Dims, Layout};
use crate::operator::Meta;
use crate::view::{In, Out};

/// Operands broadcast to the output's shape, with the dimensions in the output's memory order. In this order the output is
/// contiguous, so a kernel need not know whether it is channels-last.
pub(crate) struct Laid<const N: usize> {
    shape: Dims,
    strides: [Dims; N],
}

impl<const N: usize> Laid<N> {
    /// # Panics
    /// If the output has gaps, or an input does not broadcast to it.
    pub(crate) fn of(out: &Layout, ins: [&Layout; N]) -> Laid<N> {
        let expanded = |layout: &Layout| {
            if layout.shape() == out.shape() {
                return Dims::from_slice(layout.strides());
            }
            let wide = layout.expand(out.shape());
            let wide = wide.unwrap_or_else(|| unreachable!("{layout:?} does not broadcast to {out:?}"));
            Dims::from_slice(wide.strides())
        };
        let strides = ins.map(expanded);
        if out.is_contiguous() {
            return Laid { shape: out.shape().into(), strides };
        }
        let order = out.order();
        let ordered = |dims: &[usize]| order.iter().map(|&dim| dims[dim]).collect::<Dims>();
        Laid { shape: ordered(out.shape()), strides: strides.map(|strides| ordered(&strides)) }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The operands as the kernels take them.
    pub(crate) fn operands<'a, T: Stored, const M: usize>(&'a self, ins: [In<'a>; M]) -> [Operand<'a, T>; M] {
        std::array::from_fn(|i| Operand { data: ins[i].elements(), strides: &self.strides[i] })
    }
}

impl<const N: usize> Laid<N> {
    /// The operands, of any dtype.
    pub(crate) fn any<'a>(&'a self, ins: [In<'a>; N]) -> [AnyOperand<'a>; N] {
        std::array::from_fn(|i| AnyOperand {
            bytes: ins[i].bytes(),
            dtype: ins[i].dtype(),
            strides: &self.strides[i],
        })
    }
}

/// Evaluates an expression on elements of any dtype, in the compute type of `compute`. The expression is passed three times:
/// for `f32`, `f64` and integers.
pub(crate) fn evaluate<const N: usize>(
    laid: &Laid<N>,
    ins: [In<'_>; N],
    out: Out<'_>,
    compute: DType,
    f32: impl Fn([f32; N]) -> f32 + Sync,
    f64: impl Fn([f64; N]) -> f64 + Sync,
    whole: impl Fn([Whole; N]) -> Whole + Sync,
) {
    let converts = ins.iter().any(|x| x.dtype() != compute);
    let (ins, dtype) = (laid.any(ins), out.dtype());
    let out = (out.bytes(), dtype);
    match compute.accumulator() {
        DType::F32 => apply::<f32, N>(laid.shape(), ins, out, f32),
        DType::F64 => apply::<f64, N>(laid.shape(), ins, out, f64),
        // As in PyTorch, an input of a different dtype is converted first: -3 becomes 253 in `uint8`.
        _ if converts && compute != DType::I64 => {
            apply::<i64, N>(laid.shape(), ins, out, |values| whole(all_held(compute, values)).0);
        }
        _ => apply::<i64, N>(
            laid.shape(),
            ins,
            out,
            #[inline(always)]
            |values| whole(wholes(values)).0,
        ),
    }
}

// The next two are functions so that they are compiled once, not for each expression.

#[inline(always)]
fn wholes<const N: usize>(values: [i64; N]) -> [Whole; N] {
    std::array::from_fn(
        #[inline(always)]
        |k| Whole(values[k]),
    )
}

/// Like [`wholes`], with each value converted to a dtype.
fn all_held<const N: usize>(dtype: DType, values: [i64; N]) -> [Whole; N] {
    values.map(|value| Whole(held(dtype, value)))
}

/// Converts an integer to an integer dtype: it keeps the lowest bits.
#[inline(always)]
fn held(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        _ => value,
    }
}

/// The promoted dtype of these inputs.
pub(crate) fn common_type(ins: &[Meta<'_>]) -> DType {
    let types = ins.iter().map(|meta| (meta.dtype, meta.rank() > 0));
    result_type(types).unwrap_or(DType::F32)
}

/// The promoted dtype of a kernel's inputs.
pub(crate) fn common_type_of(ins: &[In<'_>]) -> DType {
    let types = ins.iter().map(|x| (x.dtype(), !x.shape().is_empty()));
    result_type(types).unwrap_or(DType::F32)
}

/// The inputs of an operator that takes `N`.
///
/// # Errors
/// If the number of inputs is wrong.
pub(crate) fn inputs<'a, const N: usize>(op: &'static str, ins: &[Meta<'a>]) -> Result<[Meta<'a>; N]> {
    <[Meta<'a>; N]>::try_from(ins)
        .map_err(|_| Error::argument(op, format!("needs {N} tensors, got {}", ins.len())))
}

pub(crate) fn equal_shapes(op: &'static str, ins: &[Meta<'_>]) -> Result<()> {
    let [first, rest @ ..] = ins else { return Ok(()) };
    match rest.iter().find(|other| other.shape() != first.shape()) {
        None => Ok(()),
        Some(other) => {
            let message = format!("{:?} and {:?}: the shapes must be equal", first.shape(), other.shape());
            Err(Error::shape(op, message))
        }
    }
}

/// The layout of an elementwise output of this shape: that of the first input that has the shape and repeats no elements,
/// without its gaps; row-major if there is none.
pub(crate) fn layout_for(shape: &[usize], ins: &[Meta<'_>]) -> Layout {
    let mut first = None;
    for meta in ins.iter().filter(|meta| meta.shape() == shape) {
        // If inputs differ, a row-major one decides, because that is cheaper to write.
        if meta.layout.is_contiguous() {
            return meta.layout.dense();
        }
        first.get_or_insert(meta.layout);
    }
    first.map_or_else(|| Layout::contiguous(shape), Layout::dense)
}

/// The strides of an input broadcast to a shape that it fits.
pub(crate) fn expanded(x: &In<'_>, shape: &[usize]) -> Dims {
    let wide = x.layout().expand(shape);
    wide.map(|wide| Dims::from_slice(wide.strides())).unwrap_or_else(|| unreachable!("inferred"))
}

/// A number converted to a dtype, as a word of its size.
pub(crate) fn word<W: bytemuck::Pod>(dtype: DType, value: f64) -> W {
    by_dtype!(dtype, T => bytemuck::pod_read_unaligned(bytemuck::bytes_of(&T::from_f64(value).to_stored())))
}

/// Fails unless a tensor of dtype `held` can hold results of dtype `result`.
pub(super) fn want_holds(op: &'static str, held: DType, result: DType) -> Result<()> {
    let holds = match result {
        DType::Bool => true,
        _ if result.is_float() => held.is_float(),
        _ => held != DType::Bool,
    };
    if holds {
        return Ok(());
    }
    let message =
        format!("the result has type {result}, which a tensor of {held} cannot hold: convert one first");
    Err(Error::argument(op, message))
}

/// Whether the layout covers every element between its first and last: then elements can be changed in any order.
pub(super) fn without_gaps(layout: &Layout) -> bool {
    layout.is_contiguous() || layout.end() - layout.offset() == layout.len()
}
