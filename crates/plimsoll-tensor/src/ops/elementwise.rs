//! What the elementwise tables share: how their operands are laid beside each other.

use crate::cpu::kernels::elementwise::Operand;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::layout::{Dims, Layout};
use crate::operator::Meta;
use crate::view::In;

/// Operands broadcast to the output's shape, with the dimensions in the order in which the output lies: there
/// it is contiguous, so that a kernel need not know that it is channels-last.
pub(crate) struct Laid<const N: usize> {
    shape: Dims,
    strides: [Dims; N],
}

impl<const N: usize> Laid<N> {
    /// # Panics
    /// When the output has gaps, or an input does not broadcast to it.
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
    pub(crate) fn operands<'a, T: Element, const M: usize>(
        &'a self,
        ins: [In<'a>; M],
    ) -> [Operand<'a, T>; M] {
        std::array::from_fn(|i| Operand { data: ins[i].elements(), strides: &self.strides[i] })
    }
}

/// The inputs of an operator that has `N`.
///
/// # Errors
/// Another number of inputs.
pub(crate) fn inputs<'a, const N: usize>(op: &'static str, ins: &[Meta<'a>]) -> Result<[Meta<'a>; N]> {
    <[Meta<'a>; N]>::try_from(ins)
        .map_err(|_| Error::argument(op, format!("needs {N} tensors, got {}", ins.len())))
}

pub(crate) fn equal_shapes(op: &'static str, ins: &[Meta<'_>]) -> Result<()> {
    let [first, rest @ ..] = ins else { return Ok(()) };
    match rest.iter().find(|other| other.shape() != first.shape()) {
        None => Ok(()),
        Some(other) => {
            let message =
                format!("{:?} against {:?}: the shapes must be equal", first.shape(), other.shape());
            Err(Error::shape(op, message))
        }
    }
}

/// The layout of an elementwise output of this shape: that of the first input that has the shape and does not
/// repeat, without its gaps; else row-major.
pub(crate) fn layout_for(shape: &[usize], ins: &[Meta<'_>]) -> Layout {
    let mut first = None;
    for meta in ins.iter().filter(|meta| meta.shape() == shape) {
        // Where they differ, a row-major one decides, as the cheaper to write.
        if meta.layout.is_contiguous() {
            return Layout::contiguous(shape);
        }
        first.get_or_insert(meta.layout);
    }
    first.map_or_else(|| Layout::contiguous(shape), Layout::dense)
}
