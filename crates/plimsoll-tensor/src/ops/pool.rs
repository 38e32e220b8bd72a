//! Max pooling. It keeps, of each window, only where the largest value was: one byte per output where
//! the window has up to 256 places, four otherwise. (PyTorch keeps eight, and the input.)

use smallvec::smallvec;

use super::{elementwise, want_number};
use crate::cpu::kernels::number::{by_float, by_number};
use crate::cpu::kernels::pool::{Pool2dShape, max_pool2d, max_pool2d_backward, max_pool2d_pick};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// Window, stride and padding of a pooling layer, as `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool2dOptions {
    /// Size of the window.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
    /// Places outside the image, never the largest; at most half the window.
    pub padding: [usize; 2],
}

impl MaxPool2dOptions {
    /// Square windows side by side, without padding: `nn.MaxPool2d(size)`.
    pub fn square(size: usize) -> MaxPool2dOptions {
        MaxPool2dOptions { kernel: [size; 2], stride: [size; 2], padding: [0; 2] }
    }
}

/// `x -> out, index`: the largest value of each window and its place in it.
#[derive(Clone, Copy, Debug)]
struct MaxPool2d(MaxPool2dOptions);

/// The sizes for an input that fits.
fn pool_shape(x: &[usize], options: MaxPool2dOptions) -> Result<Pool2dShape> {
    let misfit = |why: &str| Error::shape("max_pool2d", format!("{why}: input {x:?}, {options:?}"));
    let &[batch, channels, in_h, in_w] = x else {
        return Err(misfit("needs an input [batch, channels, h, w]"));
    };
    let MaxPool2dOptions { kernel, stride, padding } = options;
    let fits = |size: usize, i: usize| {
        kernel[i] > 0
            && stride[i] > 0
            && padding[i] <= kernel[i] / 2
            && size.saturating_add(2 * padding[i]) >= kernel[i]
    };
    if !fits(in_h, 0) || !fits(in_w, 1) {
        return Err(misfit(
            "the window must be inside the padded image, move by at least 1, and be padded by at most half",
        ));
    }
    Ok(Pool2dShape { planes: batch * channels, in_h, in_w, kernel, stride, padding })
}

/// All types but short floats as they are: the place in a window is a byte, and must stay one.
fn value_type(dtype: DType) -> DType {
    if dtype.is_float() { dtype.accumulator() } else { dtype }
}

impl Kernel for MaxPool2d {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out, index]) = call.split();
        let shape = pool_shape(x.shape(), self.0)?;
        by_number!(x.dtype(), T => match index.dtype() {
            DType::U8 => max_pool2d::<T, u8>(&shape, x.elements(), out.elements(), index.elements()),
            _ => max_pool2d::<T, i32>(&shape, x.elements(), out.elements(), index.elements()),
        });
        Ok(())
    }
}

impl Operator for MaxPool2d {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = elementwise::inputs("max_pool2d", ins)?;
        want_number("max_pool2d", x.dtype)?;
        let shape = pool_shape(x.shape(), self.0)?;
        let out = [x.shape()[0], x.shape()[1], shape.out_h(), shape.out_w()];
        let index = if self.0.kernel[0] * self.0.kernel[1] <= 256 { DType::U8 } else { DType::I32 };
        Ok(smallvec![Output::new(&out, x.dtype), Output::new(&out, index)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming((outs[0].layout.len() * self.0.kernel[0] * self.0.kernel[1]) as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let op = MaxPool2dBackward { shape: pool_shape(at.shape(0), self.0)?, x: at.shape(0).into() };
        Ok(smallvec![Some(call_one(op, &[grad, &at.output(1)?])?)])
    }
}

/// `grad, index -> grad of x`.
#[derive(Clone, Debug)]
struct MaxPool2dBackward {
    shape: Pool2dShape,
    x: Dims,
}

impl Kernel for MaxPool2dBackward {
    fn name(&self) -> &'static str {
        "max_pool2d_backward"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, index], [out]) = call.split();
        by_float!(out.dtype(), T => {
            let (grad, out) = (grad.elements::<T>(), out.elements());
            match index.dtype() {
                DType::U8 => max_pool2d_backward::<T, u8>(&self.shape, grad, index.elements(), out),
                _ => max_pool2d_backward::<T, i32>(&self.shape, grad, index.elements(), out),
            }
        });
        Ok(())
    }
}

impl Operator for MaxPool2dBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, _] = elementwise::inputs("max_pool2d_backward", ins)?;
        Ok(smallvec![Output::new(&self.x, grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let pick = MaxPool2dPick { shape: self.shape };
        Ok(smallvec![Some(call_one(pick, &[grad, &at.input(1)?])?), None])
    }
}

/// `x, index -> out`: of each window the value at a place: what max pooling does to a derivative's derivative.
#[derive(Clone, Debug)]
struct MaxPool2dPick {
    shape: Pool2dShape,
}

impl Kernel for MaxPool2dPick {
    fn name(&self) -> &'static str {
        "max_pool2d_pick"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        value_type(dtype)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, index], [out]) = call.split();
        by_float!(x.dtype(), T => match index.dtype() {
            DType::U8 => max_pool2d_pick::<T, u8>(&self.shape, x.elements(), index.elements(), out.elements()),
            _ => max_pool2d_pick::<T, i32>(&self.shape, x.elements(), index.elements(), out.elements()),
        });
        Ok(())
    }
}

impl Operator for MaxPool2dPick {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, index] = elementwise::inputs("max_pool2d_pick", ins)?;
        Ok(smallvec![Output::new(index.shape(), x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let op = MaxPool2dBackward { shape: self.shape, x: at.shape(0).into() };
        Ok(smallvec![Some(call_one(op, &[grad, &at.input(1)?])?), None])
    }
}

impl Tensor {
    /// The largest value of each window of `[batch, channels, h, w]`. As
    /// `torch.nn.functional.max_pool2d`: of equal values the first counts, not a number wins.
    ///
    /// # Errors
    /// Sizes that do not fit together; out of memory.
    pub fn max_pool2d(&self, options: MaxPool2dOptions) -> Result<Tensor> {
        Ok(call(MaxPool2d(options), &[self])?.remove(0))
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        // Pairs of a 4 x 4 image, two planes; the places are 0 to 3 in each window.
        let window = |i: usize| [0, 1, 4, 5].map(|at| ins[0][i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2 + at]);
        let largest = |w: &[f64; 4]| (0..4).fold(0, |best, i| if w[i] > w[best] { i } else { best });
        let windows: Vec<[f64; 4]> = (0..8).map(window).collect();
        let places = windows.iter().map(|w| largest(w) as f64).collect();
        vec![windows.iter().map(|w| w[largest(w)]).collect(), places]
    };
    let overlapping = MaxPool2dOptions { kernel: [3, 2], stride: [2, 1], padding: [1, 1] };
    let case = |shape: &[usize], options: MaxPool2dOptions| {
        let name = format!("max_pool2d {shape:?}, {options:?}");
        Case::new(name, &[shape], move |ins| call(MaxPool2d(options), ins)).over(Domain::Apart)
    };
    vec![case(&[1, 2, 4, 4], MaxPool2dOptions::square(2)).expect(naive), case(&[2, 1, 5, 4], overlapping)]
}
