//! Rotary position embedding. It saves the tables of angles, which all layers share, and not its input.

use smallvec::smallvec;

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::rotary::{Pairs, Places, rotate};
use crate::cuda::{self, CudaCall};
use crate::device::Device;
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::want_float;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

const NAME: &str = "apply_rotary";

/// Which pairs of elements of a row a rotary embedding rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotary {
    /// Element `i` with element `i + dim / 2`: as in GPT-NeoX, and in `transformers`' Llama.
    Halves,
    /// Element `2 i` with element `2 i + 1`: as in GPT-J, and in Llama's original code.
    Interleaved,
}

/// `x, cos, sin -> out`; a `sign` of -1 rotates backwards.
#[derive(Clone, Copy, Debug)]
struct Rotate {
    form: Rotary,
    sign: f64,
}

/// Whether the elements of each row are adjacent in memory.
fn rows_are_dense(layout: &Layout) -> bool {
    match (layout.shape(), layout.strides()) {
        ([.., cols], [.., stride]) => *cols < 2 || *stride == 1,
        _ => false,
    }
}

impl Kernel for Rotate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::attention::rotary::rotate(call, self.form == Rotary::Halves, self.sign)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, cos, sin], [out]) = call.split();
        let pairs = match self.form {
            Rotary::Halves => Pairs::Halves,
            Rotary::Interleaved => Pairs::Neighbours,
        };
        let [lead @ .., cols] = x.shape() else { unreachable!("inferred") };
        let sizes = [lead.iter().product(), *cols, cos.shape()[1]];
        let places = |strides: &'_ [usize]| strides.len() - 1;
        let (of_x, of_out) = (x.strides(), out.strides());
        let from = Places { shape: lead, strides: &of_x[..places(of_x)] };
        let to = Places { shape: lead, strides: &of_out[..places(of_out)] };
        by_float!(x.dtype(), T => {
            let tables = [cos.elements::<T>(), sin.elements()];
            rotate((pairs, self.sign), sizes, (x.elements(), from), tables, (out.elements(), to));
        });
        Ok(())
    }
}

impl Operator for Rotate {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, cos, sin] = operands::inputs(NAME, ins)?;
        want_float(NAME, x.dtype)?;
        for table in [&cos, &sin] {
            if ![x.dtype, x.dtype.accumulator()].contains(&table.dtype) {
                return Err(Error::DType { op: NAME, expected: x.dtype.name(), got: table.dtype });
            }
        }
        let fits = match (x.shape(), cos.shape()) {
            ([.., rows, cols], [positions, half]) => rows == positions && 2 * half <= *cols,
            _ => false,
        };
        if !fits || sin.shape() != cos.shape() {
            let message = format!(
                "input {:?} with tables {:?} and {:?}: needs […, rows, dim] and [rows, at most dim / 2] twice",
                x.shape(),
                cos.shape(),
                sin.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        let dense = x.layout.dense();
        let layout = if rows_are_dense(&dense) { dense } else { Layout::contiguous(x.shape()) };
        Ok(smallvec![Output::laid_out(layout, x.dtype)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input == 0 { rows_are_dense(layout) } else { layout.is_contiguous() }
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(1).and(Saves::input(2)).only_if(wanted[0])
    }

    /// The tables have no gradient.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0).filter(|_| at.wants(0)) else { return Ok(smallvec![None; 3]) };
        let back = Rotate { sign: -self.sign, ..*self };
        let tables = [at.input(1)?.detach(), at.input(2)?.detach()];
        Ok(smallvec![Some(call_one(back, &[grad, &tables[0], &tables[1]])?), None, None])
    }
}

impl Tensor {
    /// Rotates pairs of elements of each row of `[…, rows, dim]` by the angles of the row's position. The angles are given as
    /// tables of cosines and sines `[rows, dim / 2]` ([`Tensor::rotary_tables`]; use `narrow` for a part of the sequence).
    /// Elements beyond the tables' width are unchanged. The tables have no gradient.
    ///
    /// # Errors
    /// If the sizes or dtypes are incompatible, or memory runs out.
    #[track_caller]
    pub fn apply_rotary(
        &self,
        cos: impl AsRef<Tensor>,
        sin: impl AsRef<Tensor>,
        form: Rotary,
    ) -> Result<Tensor> {
        let (cos, sin) = (cos.as_ref(), sin.as_ref());
        call_one(Rotate { form, sign: 1.0 }, &[self, cos, sin])
    }

    /// Cosines and sines of the angles `position · base^(-2 i / dim)` for `rows` positions and `i` below `dim / 2`.
    ///
    /// # Errors
    /// If `dim` is odd, or memory runs out.
    #[track_caller]
    pub fn rotary_tables(rows: usize, dim: usize, base: f64, device: &Device) -> Result<(Tensor, Tensor)> {
        if !dim.is_multiple_of(2) {
            return Err(Error::argument("rotary_tables", format!("dim is {dim}; it must be even")));
        }
        let frequencies: Vec<f64> = (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect();
        Tensor::rotary_tables_of(rows, &frequencies, device)
    }

    /// Like [`Tensor::rotary_tables`], for given frequencies: the angles are `position · frequencies[i]`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// // Positions four times as close: a model for sequences four times as long.
    /// let (cos, _) = Tensor::rotary_tables_of(8, &[1.0 / 4.0, 0.1 / 4.0], &Device::cpu())?;
    /// let (original, _) = Tensor::rotary_tables(2, 4, 100.0, &Device::cpu())?;
    /// assert_eq!(cos.narrow(0, 4, 1)?.to_vec::<f32>()?, original.narrow(0, 1, 1)?.to_vec::<f32>()?);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn rotary_tables_of(rows: usize, frequencies: &[f64], device: &Device) -> Result<(Tensor, Tensor)> {
        let angles =
            || (0..rows).flat_map(|row| frequencies.iter().map(move |frequency| row as f64 * frequency));
        let table = |f: fn(f64) -> f64| -> Result<Tensor> {
            let values: Vec<f32> = angles().map(|angle| f(angle) as f32).collect();
            Tensor::from_slice(&values, &[rows, frequencies.len()], device)
        };
        Ok((table(libm::cos)?, table(libm::sin)?))
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |form: Rotary| {
        move |ins: &[Vec<f64>]| {
            let turned = |i: usize| {
                let (row, col, rest) = (i / 5 % 3, i % 5, i / 5 * 5);
                let (first, second, pair) = match form {
                    Rotary::Halves => (col % 2, col % 2 + 2, col % 2),
                    Rotary::Interleaved => (col / 2 * 2, col / 2 * 2 + 1, col / 2),
                };
                if col == 4 {
                    return ins[0][i];
                }
                let (a, b) = (ins[0][rest + first], ins[0][rest + second]);
                let (cos, sin) = (ins[1][row * 2 + pair], ins[2][row * 2 + pair]);
                if col == first { a * cos - b * sin } else { b * cos + a * sin }
            };
            vec![(0..ins[0].len()).map(turned).collect()]
        }
    };
    let case = |form: Rotary| {
        Case::new(format!("apply_rotary, {form:?}"), &[&[2, 3, 5], &[3, 2], &[3, 2]], move |ins| {
            let (cos, sin) = (ins[1].detach(), ins[2].detach());
            call(Rotate { form, sign: 1.0 }, &[ins[0], &cos, &sin])
        })
        .expect(naive(form))
        .without_derivative()
    };
    let form = Rotary::Halves;
    let tables = |device: &Device| Tensor::rotary_tables(3, 4, 100.0, device);
    let differentiable = Case::new("apply_rotary with tables", &[&[2, 3, 4]], move |ins| {
        let (cos, sin) = tables(ins[0].device())?;
        Ok(smallvec![ins[0].apply_rotary(&cos, &sin, form)?])
    });
    vec![case(Rotary::Halves), case(Rotary::Interleaved), differentiable]
}
