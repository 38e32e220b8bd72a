//! Padding of images and sequences as a layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{PadMode, Result, Tensor};

use super::{Module, Scope};

/// Padding along the last dimensions. Like `torch.nn.ZeroPad2d`, `ConstantPad1d`, `ReflectionPad2d`, `ReplicationPad3d`,
/// `CircularPad1d` and so on: the mode selects the kind, the number of paddings the number of dimensions.
///
/// ```
/// use plimsoll::nn::{Module, Pad, Scope};
/// use plimsoll::{Device, PadMode, Tensor};
/// let device = Device::cpu();
/// // nn.ReflectionPad2d((1, 2, 0, 3)): left, right, top, bottom.
/// let pad = Pad::new(&Scope::new(&device, 1), &[1, 2, 0, 3], PadMode::Reflect)?;
/// assert_eq!(pad.forward(&Tensor::ones(&[2, 3, 4, 5], &device)?)?.shape(), [2, 3, 7, 8]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pad {
    label: LabelId,
    pads: Vec<isize>,
    mode: PadMode,
}

impl Pad {
    /// A layer with these paddings before and after each dimension, starting with the last, as [`Tensor::pad`] takes them.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(scope: &Scope, pads: &[isize], mode: PadMode) -> Result<Pad> {
        Ok(Pad { label: scope.label(), pads: pads.to_vec(), mode })
    }
}

impl Module for Pad {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.pad(&self.pads, self.mode)
    }
}
