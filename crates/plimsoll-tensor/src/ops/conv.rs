//! Two-dimensional convolution of images in the layout `[batch, channels, height, width]`.

use smallvec::smallvec;

use super::want_float;
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Conv2dShape, Op};
use crate::tensor::Tensor;

/// Stride and zero padding of a convolution, as `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
    /// Zeros put on both sides.
    pub padding: [usize; 2],
}

impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv2dOptions { stride: [1, 1], padding: [0, 0] }
    }
}

impl Tensor {
    /// Cross-correlation of `[batch, in, h, w]` with the filters `[out, in, kh, kw]`, plus `[out]`. As
    /// `torch.nn.functional.conv2d`.
    ///
    /// # Errors
    /// Sizes that do not fit together; windows larger than the padded image; out of memory.
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: Conv2dOptions) -> Result<Tensor> {
        for tensor in [Some(self), Some(weight), bias].into_iter().flatten() {
            want_float("conv2d", tensor)?;
        }
        let shape = conv_shape(self, weight, bias, options)?;
        let (x, w) = (self.detach().contiguous()?, weight.detach().contiguous()?);
        let b = bias.map(|b| b.detach().contiguous()).transpose()?;
        let mut ins = vec![x.data(), w.data()];
        ins.extend(b.as_ref().map(Tensor::data));
        let out_shape = [shape.batch, shape.out_channels, shape.out_h(), shape.out_w()];
        let out = dispatch::run(&Op::Conv2d(shape), &ins, &out_shape, DType::F32)?;
        let mut inputs = vec![self, weight];
        inputs.extend(bias);
        Ok(link(out, &inputs, |_, wanted| Conv2dBack {
            shape,
            x: wanted[1].then(|| Saved::new(&x)),
            weight: wanted[0].then(|| Saved::new(&w)),
        }))
    }
}

fn conv_shape(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, options: Conv2dOptions) -> Result<Conv2dShape> {
    let misfit = |why: &str| {
        let bias = bias.map_or_else(String::new, |b| format!(" and bias {:?}", b.shape()));
        Error::shape(
            "conv2d",
            format!("{why}: input {:?}, weight {:?}{bias}, {options:?}", x.shape(), w.shape()),
        )
    };
    let (&[batch, in_channels, in_h, in_w], &[out_channels, w_channels, kernel_h, kernel_w]) =
        (x.shape(), w.shape())
    else {
        return Err(misfit("needs an input [batch, in, h, w] and a weight [out, in, kh, kw]"));
    };
    if w_channels != in_channels {
        return Err(misfit("the weight's channels are not the input's"));
    }
    if bias.is_some_and(|b| b.shape() != [out_channels]) {
        return Err(misfit("the bias is not one number per output channel"));
    }
    let Conv2dOptions { stride, padding } = options;
    let fits = |size: usize, kernel: usize, padding: usize| {
        let padded = padding.checked_mul(2).and_then(|both| size.checked_add(both));
        kernel > 0 && padded.is_some_and(|padded| padded >= kernel)
    };
    if stride.contains(&0) || !fits(in_h, kernel_h, padding[0]) || !fits(in_w, kernel_w, padding[1]) {
        return Err(misfit("the window must be inside the padded image and move by at least 1"));
    }
    Ok(Conv2dShape { batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, stride, padding })
}

struct Conv2dBack {
    shape: Conv2dShape,
    x: Option<Saved>,
    weight: Option<Saved>,
}

impl Backward for Conv2dBack {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn backward(&self, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None; wanted.len()]) };
        let grad = grad.contiguous()?;
        let s = self.shape;
        let run = |op: Op, other: &Saved, shape: [usize; 4]| {
            let other = other.get("conv2d")?;
            dispatch::run(&op, &[grad.data(), other.data()], &shape, DType::F32).map(Tensor::from_data)
        };
        let to_x = |w: &Saved| run(Op::Conv2dBackwardInput(s), w, [s.batch, s.in_channels, s.in_h, s.in_w]);
        let w_shape = [s.out_channels, s.in_channels, s.kernel_h, s.kernel_w];
        let to_w = |x: &Saved| run(Op::Conv2dBackwardWeight(s), x, w_shape);
        let mut results: Grads =
            smallvec![self.weight.as_ref().map(to_x).transpose()?, self.x.as_ref().map(to_w).transpose()?];
        if let Some(&bias) = wanted.get(2) {
            results.push(bias.then(|| grad.sum_dims(&[0, 2, 3])).transpose()?);
        }
        Ok(results)
    }
}
