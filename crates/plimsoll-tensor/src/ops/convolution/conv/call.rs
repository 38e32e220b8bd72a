//! The convolution methods of tensors.

use smallvec::{SmallVec, smallvec};

use super::format::suggested;
use super::options::{
    Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvTranspose1dOptions, ConvTranspose2dOptions,
    ConvTranspose3dOptions, ConvTransposeOptions,
};
use super::passes::{Convolution, Pass};
use super::sizes::{self, ConvOperands};
use crate::caller::Entry;
use crate::cpu::kernels::conv::{ConvShape, Format};
use crate::dispatch::call_one;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tf32;

impl Tensor {
    /// Cross-correlation of `[batch, in, length]` with the filters `[out, in / groups, kernel]`, plus a bias `[out]`.
    /// If the input has no batch dimension, neither does the output. Like `torch.nn.functional.conv1d`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv1d<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: Conv1dOptions,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.convolution(weight, bias, options)
    }

    /// Cross-correlation of `[batch, in, h, w]` with the filters `[out, in / groups, kh, kw]`, plus a bias `[out]`. If
    /// the input has no batch dimension, neither does the output. Channels-last images or filters give channels-last
    /// results. Like `torch.nn.functional.conv2d`.
    ///
    /// # Errors
    /// If the sizes are incompatible, the windows are larger than the padded image, a stride or dilation is 0, the
    /// groups do not divide the channels, or memory runs out.
    #[track_caller]
    pub fn conv2d<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: Conv2dOptions,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.convolution(weight, bias, options)
    }

    /// Cross-correlation of `[batch, in, d, h, w]` with the filters `[out, in / groups, kd, kh, kw]`, plus a bias `[out]`. Like
    /// `torch.nn.functional.conv3d`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv3d<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: Conv3dOptions,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.convolution(weight, bias, options)
    }

    /// Like [`Tensor::conv_transpose2d`] with one spatial dimension.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose1d<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: ConvTranspose1dOptions,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.convolution_transposed(weight, bias, options)
    }

    /// Transposed convolution of `[batch, in, h, w]`: the derivative of [`Tensor::conv2d`] with the same weight. The weight is
    /// `[in, out / groups, kh, kw]`, the bias `[out]`. Like `torch.nn.functional.conv_transpose2d`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv2d`]; also if the output padding is not smaller than the stride or dilation, or
    /// the padding leaves no output.
    #[track_caller]
    pub fn conv_transpose2d<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: ConvTranspose2dOptions,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.convolution_transposed(weight, bias, options)
    }

    /// Like [`Tensor::conv_transpose2d`] with three spatial dimensions.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose3d<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: ConvTranspose3dOptions,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.convolution_transposed(weight, bias, options)
    }

    /// [`Tensor::conv1d`], [`Tensor::conv2d`] and [`Tensor::conv3d`] in one method: `N` is 1, 2 or 3.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv2d`].
    #[track_caller]
    pub fn convolution<'a, const N: usize>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: ConvOptions<N>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        const { assert!(0 < N && N <= 3, "a convolution has one to three spatial dimensions") };
        self.batched::<N>(|x| {
            let shape = sizes::forward(&given(Pass::Forward, N, x, weight, bias), &options)?;
            run(Pass::Forward, shape, x, weight, bias)
        })
    }

    /// [`Tensor::conv_transpose1d`], [`Tensor::conv_transpose2d`] and [`Tensor::conv_transpose3d`] in one method: `N` is 1, 2
    /// or 3.
    ///
    /// # Errors
    /// The same errors as [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn convolution_transposed<'a, const N: usize>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        options: ConvTransposeOptions<N>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        const { assert!(0 < N && N <= 3, "a convolution has one to three spatial dimensions") };
        self.batched::<N>(|x| {
            let shape = sizes::transposed(&given(Pass::Transposed, N, x, weight, bias), &options)?;
            run(Pass::Transposed, shape, x, weight, bias)
        })
    }

    /// Calls `f` on a batch of images. A single image becomes a batch of one, and the batch dimension is removed from
    /// the result.
    #[track_caller]
    fn batched<const N: usize>(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self.rank() == N + 1 {
            true => f(&self.unsqueeze(0)?)?.squeeze(0),
            false => f(self),
        }
    }
}

fn given<'a>(
    pass: Pass,
    rank: usize,
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
) -> ConvOperands<'a> {
    let may_be_empty = x.shape().first() == Some(&0) || x.dtype().is_float() && x.dtype().size() == 2;
    let (input, weight, bias) = (x.shape(), weight.shape(), bias.map(Tensor::shape));
    ConvOperands { op: pass.name(rank), input, weight, bias, may_be_empty }
}

/// As in PyTorch, results are channels-last if the images or filters are.
#[track_caller]
fn run(pass: Pass, shape: ConvShape, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let filters = suggested(weight);
    let images = if suggested(x) == Format::ChannelsLast { Format::ChannelsLast } else { filters };
    let mut ins: SmallVec<[&Tensor; 3]> = smallvec![x, weight];
    ins.extend(bias);
    call_one(Convolution { pass, shape, images, filters, tf32: tf32::is_allowed_in_convolutions() }, &ins)
}
