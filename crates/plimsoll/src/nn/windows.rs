//! Windows of images as columns and back: [`Unfold`] and [`Fold`]; and [`Bilinear`].

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor, WindowOptions};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Makes a column of each window of an image: [`Tensor::im2col`]. Like `torch.nn.Unfold`.
#[derive(Clone, Debug)]
pub struct Unfold {
    label: LabelId,
    options: WindowOptions,
}

impl Unfold {
    /// The layer with these windows.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(scope: &Scope, options: WindowOptions) -> Result<Unfold> {
        Ok(Unfold { label: scope.label(), options })
    }
}

impl Module for Unfold {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.im2col(self.options)
    }
}

/// Sums columns into images: [`Tensor::col2im`]. Like `torch.nn.Fold`.
#[derive(Clone, Debug)]
pub struct Fold {
    label: LabelId,
    output_size: [usize; 2],
    options: WindowOptions,
}

impl Fold {
    /// The layer for images of this height and width.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(scope: &Scope, output_size: [usize; 2], options: WindowOptions) -> Result<Fold> {
        Ok(Fold { label: scope.label(), output_size, options })
    }
}

impl Module for Fold {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.col2im(self.output_size, self.options)
    }
}

/// `x · W · y + b` for each matrix `W` of the weight: [`Tensor::bilinear`]. Like `torch.nn.Bilinear`.
///
/// ```
/// use plimsoll::nn::{Bilinear, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let layer = Bilinear::new(&Scope::new(&device, 1), 3, 4, 5)?;
/// let (x, y) = (Tensor::ones(&[2, 3], &device)?, Tensor::ones(&[2, 4], &device)?);
/// assert_eq!(layer.forward(&x, &y)?.shape(), [2, 5]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bilinear {
    label: LabelId,
    weight: Parameter,
    bias: Parameter,
}

impl Bilinear {
    /// A layer from two vectors of these widths to this many outputs.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, first: usize, second: usize, outputs: usize) -> Result<Bilinear> {
        let init = Init::default_for(first);
        let weight = scope.parameter("weight", &[outputs, first, second], init)?;
        Ok(Bilinear { label: scope.label(), weight, bias: scope.parameter("bias", &[outputs], init)? })
    }

    /// The output for both vectors.
    ///
    /// # Errors
    /// The same errors as [`Tensor::bilinear`].
    #[track_caller]
    pub fn forward(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        x.bilinear(y, &self.weight, &self.bias)
    }
}

impl Module for Bilinear {
    members!(weight, bias);
}
