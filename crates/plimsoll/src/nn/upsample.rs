//! Resizing of images as a layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{InterpolateMode, ResizeTo, Result, Tensor};

use super::{Module, Scope};

/// Resamples `[batch, channels, …]` to a size, or by a scale factor. Like `torch.nn.Upsample`.
///
/// ```
/// use plimsoll::nn::{Module, Scope, Upsample};
/// use plimsoll::{Device, InterpolateMode, Tensor};
/// let device = Device::cpu();
/// let up = Upsample::scale(&Scope::new(&device, 1), 2.0)?.mode(InterpolateMode::Linear { align_corners: true });
/// assert_eq!(up.forward(&Tensor::ones(&[1, 3, 4, 5], &device)?)?.shape(), [1, 3, 8, 10]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Upsample {
    label: LabelId,
    sizes: Vec<usize>,
    scale: f64,
    mode: InterpolateMode,
}

impl Upsample {
    /// A layer that multiplies the size by this factor, with nearest-neighbour interpolation.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn scale(scope: &Scope, scale_factor: f64) -> Result<Upsample> {
        let mode = InterpolateMode::Nearest;
        Ok(Upsample { label: scope.label(), sizes: Vec::new(), scale: scale_factor, mode })
    }

    /// A layer that resizes to these sizes, with nearest-neighbour interpolation.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn size(scope: &Scope, sizes: &[usize]) -> Result<Upsample> {
        let mode = InterpolateMode::Nearest;
        Ok(Upsample { label: scope.label(), sizes: sizes.to_vec(), scale: 1.0, mode })
    }

    /// Returns the layer with another interpolation mode.
    pub fn mode(mut self, mode: InterpolateMode) -> Upsample {
        self.mode = mode;
        self
    }
}

impl Module for Upsample {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        let scale = [self.scale];
        let to = match self.sizes.is_empty() {
            true => ResizeTo::Scale(&scale),
            false => ResizeTo::Size(&self.sizes),
        };
        input.interpolate(to, self.mode)
    }
}
