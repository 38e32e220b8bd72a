//! Windows of images as columns, and columns added back into images: PyTorch's `unfold` and `fold`. Each is the derivative of
//! the other.

use crate::caller::Entry;
use crate::dispatch::Tensors;
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::ops::PadMode;
use crate::tensor::{Grads, Tensor};

/// The positions of the windows in an image. As the arguments of `torch.nn.Unfold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Distance between neighbouring elements of a window; at least 1.
    pub dilation: [usize; 2],
    /// Zeros on both sides of the image.
    pub padding: [usize; 2],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; 2],
}

impl WindowOptions {
    /// Windows of this size at every position.
    pub fn new(kernel: [usize; 2]) -> WindowOptions {
        WindowOptions { kernel, dilation: [1; 2], padding: [0; 2], stride: [1; 2] }
    }

    /// The number of windows in an image, vertically and horizontally.
    fn count(&self, op: &'static str, image: [usize; 2]) -> Result<[usize; 2]> {
        let mut count = [0; 2];
        for dim in 0..2 {
            let (kernel, dilation, stride) = (self.kernel[dim], self.dilation[dim], self.stride[dim]);
            if kernel == 0 || dilation == 0 || stride == 0 {
                let message =
                    format!("kernel {kernel}, dilation {dilation}, stride {stride}: needs 1 or more");
                return Err(Error::argument(op, message));
            }
            let (span, size) = (dilation * (kernel - 1) + 1, image[dim] + 2 * self.padding[dim]);
            if span > size {
                let message =
                    format!("windows of {span} do not fit in an image of {size}, including its padding");
                return Err(Error::shape(op, message));
            }
            count[dim] = (size - span) / stride + 1;
        }
        Ok(count)
    }
}

impl Tensor {
    /// The windows of images `[batch, channels, height, width]`, each as a column: `[batch, channels · kernel, windows]`. The
    /// batch is optional. Like `torch.nn.functional.unfold`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor, WindowOptions};
    /// let images = Tensor::ones(&[2, 3, 4, 5], &Device::cpu())?;
    /// let options = WindowOptions::new([2, 2]);
    /// let columns = images.im2col(options)?;
    /// assert_eq!(columns.shape(), [2, 12, 12]);
    /// assert_eq!(columns.col2im([4, 5], options)?.shape(), [2, 3, 4, 5]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the window is larger than the padded image, a size is 0, or memory runs out.
    #[track_caller]
    pub fn im2col(&self, options: WindowOptions) -> Result<Tensor> {
        let _entry = Entry::here();
        match *self.shape() {
            [_, _, h, w] => {
                options.count("im2col", [h, w])?;
                Ok(apply(Im2Col { options, image: [h, w] }, &[self])?.remove(0))
            }
            [_, _, _] => self.unsqueeze(0)?.im2col(options)?.squeeze(0),
            _ => Err(Error::shape(
                "im2col",
                format!("{:?}: needs [batch, channels, height, width]", self.shape()),
            )),
        }
    }

    /// Adds columns, as [`Tensor::im2col`] makes them, to their windows in images of this height and width. Like
    /// `torch.nn.functional.fold`.
    ///
    /// # Errors
    /// If the number of columns is not the number of windows, the number of rows is not a multiple of the window's
    /// elements, or memory runs out.
    #[track_caller]
    pub fn col2im(&self, output_size: [usize; 2], options: WindowOptions) -> Result<Tensor> {
        let _entry = Entry::here();
        let (rows, columns) = match *self.shape() {
            [_, rows, columns] => (rows, columns),
            [_, _] => return self.unsqueeze(0)?.col2im(output_size, options)?.squeeze(0),
            _ => {
                let message = format!("{:?}: needs [batch, channels · kernel, windows]", self.shape());
                return Err(Error::shape("col2im", message));
            }
        };
        let ([down, across], [kh, kw]) = (options.count("col2im", output_size)?, options.kernel);
        if columns != down * across || rows % (kh * kw) != 0 {
            let message = format!(
                "{rows} rows and {columns} columns: images of {output_size:?} have {} windows of {} elements per channel",
                down * across,
                kh * kw
            );
            return Err(Error::shape("col2im", message));
        }
        Ok(apply(Col2Im { options, image: output_size }, &[self])?.remove(0))
    }
}

/// `images -> columns`
struct Im2Col {
    options: WindowOptions,
    image: [usize; 2],
}

impl Function for Im2Col {
    fn name(&self) -> &'static str {
        "im2col"
    }

    fn forward(&self, ins: &[&Tensor], _: &mut Save) -> Result<Tensors> {
        let WindowOptions { kernel: [kh, kw], dilation: [dh, dw], padding: [ph, pw], stride: [sh, sw] } =
            self.options;
        let mut x = ins[0].clone();
        let (batch, channels) = (x.shape()[0], x.shape()[1]);
        if ph + pw > 0 {
            let [ph, pw] = [ph as isize, pw as isize];
            x = x.pad(&[pw, pw, ph, ph], PadMode::Constant(0.0))?;
        }
        let windows = x.unfold(2, dh * (kh - 1) + 1, sh)?.unfold(3, dw * (kw - 1) + 1, sw)?;
        let windows = windows.slice(-2, .., dh)?.slice(-1, .., dw)?;
        let places = windows.shape()[2] * windows.shape()[3];
        let columns = windows.permute(&[0, 1, 4, 5, 2, 3])?.contiguous()?;
        Ok(vec![columns.reshape(&[batch, channels * kh * kw, places])?].into())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        Ok(vec![at.grad(0).map(|grad| grad.col2im(self.image, self.options)).transpose()?].into())
    }
}

/// `columns -> images`
struct Col2Im {
    options: WindowOptions,
    image: [usize; 2],
}

impl Function for Col2Im {
    fn name(&self) -> &'static str {
        "col2im"
    }

    fn forward(&self, ins: &[&Tensor], _: &mut Save) -> Result<Tensors> {
        let WindowOptions { kernel: [kh, kw], dilation: [dh, dw], padding: [ph, pw], stride: [sh, sw] } =
            self.options;
        let (columns, [h, w]) = (ins[0], self.image);
        let [down, across] = self.options.count("col2im", self.image)?;
        let (batch, channels) = (columns.shape()[0], columns.shape()[1] / (kh * kw));
        let columns = columns.reshape(&[batch, channels, kh, kw, down, across])?;
        let shape = [batch, channels, h + 2 * ph, w + 2 * pw];
        let images = Tensor::full(&shape, 0.0, columns.dtype(), columns.device())?;
        let every = |image: &Tensor, dim: isize, first: usize, count: usize, step: usize| {
            image.slice(dim, first as isize..(first + (count - 1) * step + 1) as isize, step)
        };
        for i in 0..kh {
            for j in 0..kw {
                let place = every(&every(&images, 2, i * dh, down, sh)?, 3, j * dw, across, sw)?;
                place.add_(&columns.select(2, i as isize)?.select(2, j as isize)?)?;
            }
        }
        Ok(vec![images.narrow(2, ph, h)?.narrow(3, pw, w)?.contiguous()?].into())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        Ok(vec![at.grad(0).map(|grad| grad.im2col(self.options)).transpose()?].into())
    }
}
