//! Margins around images and sequences as a layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{PadMode, Result, Tensor};

use super::{Module, Scope};

/// Margins along the last dimensions. As `torch.nn.ZeroPad2d`, `ConstantPad1d`, `ReflectionPad2d`, `ReplicationPad3d`, `CircularPad1d` and their
/// kin: the mode says which, the number of margins how many dimensions.
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
    /// Margins before and after, from the last dimension on, as [`Tensor::pad`] takes them.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope, pads: &[isize], mode: PadMode) -> Result<Pad> {
        Ok(Pad { label: scope.label(), pads: pads.to_vec(), mode })
    }
}

impl Module for Pad {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.pad(&self.pads, self.mode)
    }
}
