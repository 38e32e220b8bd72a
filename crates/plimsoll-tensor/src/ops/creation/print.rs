//! How a tensor is printed: [`Display`](std::fmt::Display), in the format of PyTorch's `print`.
//!
//! [`Tensor`]'s `Debug` (`tensor/mod.rs`) shows no values. Here, the values are copied to the host; of a large tensor, only the ones that
//! are shown. [`Format`] chooses one notation and one width for all of them, and `block` writes brackets and line breaks.

use std::fmt::{self, Write};

use crate::autograd::no_grad;
use crate::dtype::{DType, Element, by_dtype};
use crate::error::Result;
use crate::layout::Dims;
use crate::tensor::Tensor;

/// Tensors with more elements are abbreviated.
const THRESHOLD: usize = 1000;
/// Elements at each end of an abbreviated dimension.
const EDGE: usize = 3;
/// Columns of a line.
const COLUMNS: usize = 80;
const START: &str = "tensor(";

/// The tensor in the format of PyTorch's `print`: four digits, and `...` for the middle of tensors with more than 1000
/// elements. The device, the type and the operation follow unless they are `cpu`, `float32` (or `int64`, `bool`) and none.
/// On a device that computes no values, `...` stands for all of them. Unlike in PyTorch, types have no `torch.` in front, and sizes are
/// in brackets.
///
/// ```
/// use plimsoll_tensor::{DType, Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 0.5, -2.0, 1.0 / 3.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(x.to_string(), "tensor([[ 1.0000,  0.5000],\n        [-2.0000,  0.3333]])");
/// assert_eq!(x.to_dtype(DType::I32)?.to_string(), "tensor([[ 1,  0],\n        [-2,  0]], dtype=int32)");
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut notes = Vec::new();
        if !self.device().has_values() || self.device().name() != "cpu" {
            notes.push(format!("device='{}'", self.device().name()));
        }
        let mut text = START.to_owned();
        if !self.device().has_values() {
            text.push_str("...");
            notes.push(format!("size={:?}", self.shape()));
            notes.push("no values".to_owned());
        } else if self.numel() == 0 {
            text.push_str("[]");
            if self.rank() != 1 {
                notes.push(format!("size={:?}", self.shape()));
            }
        } else {
            match shown(self) {
                Ok(values) => block(&mut text, self.shape(), &values, START.len())?,
                Err(error) => {
                    text.push_str("...");
                    notes.push(format!("size={:?}", self.shape()));
                    notes.push(format!("not readable: {error}"));
                }
            }
        }
        let usual = self.dtype() == DType::F32
            || self.numel() > 0 && matches!(self.dtype(), DType::I64 | DType::Bool);
        if !usual {
            notes.push(format!("dtype={}", self.dtype()));
        }
        match self.made_by() {
            Some((node, _)) => notes.push(format!("grad_fn=<{}>", node.name())),
            None if self.requires_grad() => notes.push("requires_grad=True".to_owned()),
            None => {}
        }
        finish(&mut text, &notes);
        f.write_str(&text)
    }
}

/// Appends notes, on a new line if they do not fit.
fn finish(text: &mut String, notes: &[String]) {
    let mut column = text.rfind('\n').map_or(text.len() + 2, |at| text.len() - at + 1);
    for note in notes {
        let wide = column + note.len() + 2 > COLUMNS;
        let between = if wide { format!(",\n{:1$}", "", START.len()) } else { ", ".to_owned() };
        column = if wide { START.len() } else { column + 2 } + note.len();
        text.push_str(&between);
        text.push_str(note);
    }
    text.push(')');
}

/// The values that are shown, as text of the same width, row-major.
fn shown(tensor: &Tensor) -> Result<Shown> {
    let abbreviated = tensor.numel() > THRESHOLD;
    let part = no_grad(|| match abbreviated {
        true => edges(&tensor.detach()),
        false => Ok(tensor.detach()),
    })?;
    let format = by_dtype!(part.dtype(), T => {
        let values: Vec<f64> = part.to_vec::<T>()?.into_iter().map(Element::to_f64).collect();
        match part.dtype() {
            DType::Bool => Format::whole(values.iter().map(|&x| if x == 0.0 { "False" } else { "True" }.to_owned())),
            // Large integers are not exact as 64-bit floats.
            DType::I64 => Format::whole(part.to_vec::<i64>()?.iter().map(i64::to_string)),
            dtype if dtype.is_float() => Format::float(&values),
            _ => Format::whole(values.iter().map(|x| format!("{x:.0}"))),
        }
    });
    Ok(Shown { abbreviated, format })
}

/// The first and last elements of each dimension.
fn edges(tensor: &Tensor) -> Result<Tensor> {
    (0..tensor.rank()).try_fold(tensor.clone(), |x, dim| {
        let (size, at) = (x.shape()[dim], dim as isize);
        match size > 2 * EDGE {
            true => Tensor::cat(&[x.narrow(at, 0, EDGE)?, x.narrow(at, size - EDGE, EDGE)?], at),
            false => Ok(x),
        }
    })
}

struct Shown {
    abbreviated: bool,
    format: Format,
}

/// Values as text, with the width that the line breaks are computed from.
struct Format {
    width: usize,
    texts: Vec<String>,
}

impl Format {
    fn whole(texts: impl Iterator<Item = String>) -> Format {
        let texts: Vec<String> = texts.collect();
        Format { width: texts.iter().map(String::len).max().unwrap_or(1), texts }
    }

    /// Whole numbers end with a point; others have four digits, or an exponent if one notation does not suit all.
    fn float(values: &[f64]) -> Format {
        let counted: Vec<f64> = values.iter().copied().filter(|x| x.is_finite() && *x != 0.0).collect();
        let sizes = || counted.iter().map(|x| x.abs());
        let (least, most) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
        let exponents = most / least > 1000.0 || most > 1e8 || least < 1e-4;
        let whole = counted.iter().all(|x| x.fract() == 0.0);
        let text = |x: f64| match x {
            _ if x.is_nan() => "nan".to_owned(),
            _ if x.is_infinite() => format!("{x}"),
            _ if exponents => exponential(x),
            _ if whole => format!("{x:.0}."),
            _ => format!("{x:.4}"),
        };
        let width = counted.iter().map(|&x| text(x).len()).max().unwrap_or(1);
        Format { width, texts: values.iter().map(|&x| text(x)).collect() }
    }
}

/// Four digits and an exponent of at least two digits, as in C.
fn exponential(x: f64) -> String {
    let text = format!("{x:.4e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Writes values in brackets; `indent` is the column of the first bracket.
fn block(text: &mut String, shape: &[usize], values: &Shown, indent: usize) -> fmt::Result {
    let shape: Dims = shape.into();
    let mut next = values.format.texts.iter();
    nested(text, &shape, values, &mut next, indent)
}

/// Writes one element, one row, or the blocks of the first dimension.
fn nested<'a>(
    text: &mut String,
    shape: &[usize],
    values: &Shown,
    next: &mut impl Iterator<Item = &'a String>,
    indent: usize,
) -> fmt::Result {
    let Some((&size, inner)) = shape.split_first() else {
        let value = next.next().map_or("", String::as_str);
        return write!(text, "{value:>0$}", values.format.width);
    };
    let cut = values.abbreviated && size > 2 * EDGE;
    let count = if cut { 2 * EDGE + 1 } else { size };
    let per_line = (COLUMNS.saturating_sub(indent) / (values.format.width + 2)).max(1);
    text.push('[');
    for i in 0..count {
        let breaks = if inner.is_empty() { usize::from(i % per_line == 0) } else { inner.len() };
        match (i, breaks) {
            (0, _) => {}
            (_, 0) => text.push_str(", "),
            _ => write!(text, ",{}{:2$}", "\n".repeat(breaks), "", indent + 1)?,
        }
        match cut && i == EDGE {
            true => text.push_str(if inner.is_empty() { " ..." } else { "..." }),
            false => nested(text, inner, values, next, indent + 1)?,
        }
    }
    text.push(']');
    Ok(())
}
