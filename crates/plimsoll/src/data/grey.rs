//! The sample format of MNIST and the synthetic digits: a field of normalised pixels and a
//! field of labels.

use plimsoll_tensor::DType;

use super::{DataError, Field, Sample};

/// Name of the field of pixels, f32 of shape `[1, H, W]`.
const IMAGES: &str = "images";
/// Name of the field of classes, i64 of shape `[]`.
const LABELS: &str = "labels";

/// Mean and standard deviation of MNIST's training pixels, as in torchvision's examples.
const MEAN: f32 = 0.1307;
const DEVIATION: f32 = 0.3081;

/// The fields of a data set of grey images.
pub(super) fn fields(rows: usize, columns: usize) -> Vec<Field> {
    vec![
        Field { name: IMAGES, dtype: DType::F32, shape: vec![1, rows, columns] },
        Field { name: LABELS, dtype: DType::I64, shape: vec![] },
    ]
}

/// Writes an image and its label into their slots.
pub(super) fn write(pixels: &[u8], label: u8, out: &mut Sample<'_>) -> Result<(), DataError> {
    for (to, &pixel) in out.slot::<f32>(IMAGES)?.iter_mut().zip(pixels) {
        *to = normalised(pixel);
    }
    out.slot::<i64>(LABELS)?[0] = i64::from(label);
    Ok(())
}

/// Uses the same order of operations as torchvision's `ToTensor` and `Normalize`, so that the last bit agrees.
fn normalised(pixel: u8) -> f32 {
    (f32::from(pixel) / 255.0 - MEAN) / DEVIATION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn black_and_white_are_where_mnist_puts_them() {
        assert!((normalised(0) + 0.424_213).abs() < 1e-6);
        assert!((normalised(255) - 2.821_487).abs() < 1e-6);
    }
}
