//! Max pooling. It keeps, of each window, only where the largest value was: one byte per output where
//! the window has up to 256 places, four otherwise. (PyTorch keeps eight, and the input.)

use smallvec::smallvec;

use super::want_float;
use crate::autograd::{Backward, Grads, Saved, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::op::{Op, Pool2dShape};
use crate::tensor::Tensor;

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

impl Tensor {
    /// The largest value of each window of `[batch, channels, h, w]`. As
    /// `torch.nn.functional.max_pool2d`: of equal values the first counts, not a number wins.
    ///
    /// # Errors
    /// Sizes that do not fit together; out of memory.
    pub fn max_pool2d(&self, options: MaxPool2dOptions) -> Result<Tensor> {
        want_float("max_pool2d", self)?;
        let (shape, [batch, channels]) = pool_shape(self, options)?;
        let out_shape = [batch, channels, shape.out_h(), shape.out_w()];
        let x = self.detach().contiguous()?;
        let outs = [(out_shape.as_slice(), DType::F32), (out_shape.as_slice(), index_dtype(&shape))];
        let (out, index) = dispatch::run_two(&Op::MaxPool2d(shape), &[x.data()], outs)?;
        Ok(link(out, &[self], |_, _| MaxPool2dBack {
            shape,
            x_shape: self.shape().into(),
            index: Saved::of(&index),
        }))
    }
}

fn index_dtype(shape: &Pool2dShape) -> DType {
    if shape.kernel[0] * shape.kernel[1] <= 256 { DType::U8 } else { DType::I32 }
}

/// The sizes, with batch and channels apart.
fn pool_shape(x: &Tensor, options: MaxPool2dOptions) -> Result<(Pool2dShape, [usize; 2])> {
    let misfit = |why: &str| Error::shape("max_pool2d", format!("{why}: input {:?}, {options:?}", x.shape()));
    let &[batch, channels, in_h, in_w] = x.shape() else {
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
    let planes = batch * channels;
    Ok((Pool2dShape { planes, in_h, in_w, kernel, stride, padding }, [batch, channels]))
}

struct MaxPool2dBack {
    shape: Pool2dShape,
    x_shape: Dims,
    index: Saved,
}

impl Backward for MaxPool2dBack {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None]) };
        let (grad, index) = (grad.contiguous()?, self.index.get("max_pool2d")?);
        let op = Op::MaxPool2dBackward(self.shape);
        let result = dispatch::run(&op, &[grad.data(), index.data()], &self.x_shape, DType::F32)?;
        Ok(smallvec![Some(Tensor::from_data(result))])
    }
}
