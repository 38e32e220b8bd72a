//! The sample format of colour images: a field of normalised pixels and a field of labels.

use plimsoll_tensor::DType;

use super::{DataError, Field, Sample};

/// Name of the field of pixels, f32 of shape `[3, H, W]`.
const IMAGES: &str = "images";
/// Name of the field of classes, i64 of shape `[]`.
const LABELS: &str = "labels";

/// The mean to subtract from each channel's pixels (which are in `0..=1`), and the standard deviation to divide by. As
/// torchvision: `Normalize`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    /// Of red, green and blue.
    pub mean: [f32; 3],
    /// Of red, green and blue.
    pub std: [f32; 3],
}

impl Normalize {
    /// Mean and deviation of ImageNet's training images, as for torchvision's pretrained models.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
    /// Mean and deviation of CIFAR-10's training images.
    pub const CIFAR10: Self = Self { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] };
    /// No normalisation: pixels stay in `0..=1`.
    pub const NONE: Self = Self { mean: [0.0; 3], std: [1.0; 3] };

    /// Uses the same order of operations as torchvision's `ToTensor` and `Normalize`, so that the last bit agrees.
    fn pixel(&self, channel: usize, pixel: u8) -> f32 {
        (f32::from(pixel) / 255.0 - self.mean[channel]) / self.std[channel]
    }
}

/// The fields of a data set of colour images.
pub(super) fn fields(rows: usize, columns: usize) -> Vec<Field> {
    vec![
        Field { name: IMAGES, dtype: DType::F32, shape: vec![3, rows, columns] },
        Field { name: LABELS, dtype: DType::I64, shape: vec![] },
    ]
}

/// Writes an image and its label into their slots. `pixel(channel, position)` is a pixel, row by row.
pub(super) fn write(
    normalize: &Normalize,
    pixel: impl Fn(usize, usize) -> u8,
    label: usize,
    out: &mut Sample<'_>,
) -> Result<(), DataError> {
    let images = out.slot::<f32>(IMAGES)?;
    let each = (images.len() / 3).max(1);
    for (channel, image) in images.chunks_exact_mut(each).enumerate() {
        for (position, to) in image.iter_mut().enumerate() {
            *to = normalize.pixel(channel, pixel(channel, position));
        }
    }
    out.slot::<i64>(LABELS)?[0] = label as i64;
    Ok(())
}
