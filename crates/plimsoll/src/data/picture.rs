//! An image file as colour pixels of a given size.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::imageops::{FilterType, crop_imm, resize};
use image::{ImageReader, RgbImage};

use super::DataError;
use super::error::ImageError;

/// How an image of any other size is converted to a square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The shorter side is resized to the square's side, then the centre is cropped. As torchvision:
    /// `Resize(side), CenterCrop(side)`.
    Crop,
    /// The shorter side is resized to a number of pixels, then the centre is cropped: 256 with a side of 224 is the preprocessing
    /// that torchvision's pretrained models are evaluated with. Must be at least the side.
    CropFrom(usize),
    /// Rows and columns are resized separately, so the proportions change. As torchvision: `Resize((side, side))`.
    Stretch,
}

/// The pixels of a file, row by row: red, green and blue of each pixel. Resizing is bilinear with antialiasing, as in PIL and
/// torchvision.
///
/// # Errors
/// If the file cannot be read or decoded; each names it.
pub(super) fn picture(path: &Path, side: usize, fit: Fit) -> Result<Vec<u8>, DataError> {
    let bytes =
        fs::read(path).map_err(|source| DataError::Io { path: path.to_owned(), doing: "read", source })?;
    let damaged = |message: String| DataError::from(ImageError::Damaged { path: path.to_owned(), message });
    if cut_short(&bytes) {
        return Err(damaged(format!("the JPEG data end early, after {} bytes", bytes.len())));
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let reader = reader.map_err(|error| damaged(error.to_string()))?;
    let image = reader.decode().map_err(|error| damaged(error.to_string()))?.into_rgb8();
    Ok(fitted(&image, side, fit).into_raw())
}

fn fitted(image: &RgbImage, side: usize, fit: Fit) -> RgbImage {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let shorter = match fit {
        Fit::Stretch => return resized(image, side, side),
        Fit::Crop => side,
        Fit::CropFrom(shorter) => shorter.max(side),
    };
    // torchvision rounds the longer side down.
    let longer = |long: usize, short: usize| (shorter * long / short).max(shorter);
    let (width, height) =
        if width <= height { (shorter, longer(height, width)) } else { (longer(width, height), shorter) };
    let whole = resized(image, width, height);
    let (left, top) = (centre(width - side), centre(height - side));
    crop_imm(&whole, left, top, side as u32, side as u32).to_image()
}

fn resized(image: &RgbImage, width: usize, height: usize) -> RgbImage {
    if (image.width() as usize, image.height() as usize) == (width, height) {
        return image.clone();
    }
    resize(image, width as u32, height as u32, FilterType::Triangle)
}

/// Half of the remaining pixels, with ties rounded to even as in Python's `round`, which torchvision uses.
const fn centre(rest: usize) -> u32 {
    let half = rest / 2;
    (if rest % 2 == 1 && half % 2 == 1 { half + 1 } else { half }) as u32
}

/// Whether a JPEG file is truncated before the end of its last scan. The decoder would fill the missing part with
/// grey.
fn cut_short(bytes: &[u8]) -> bool {
    let last = |marker: u8| bytes.windows(2).rposition(|two| two == [0xff, marker]);
    // In a scan, the byte ff is always followed by 0 or a marker. An embedded thumbnail ends before the last scan starts.
    bytes.starts_with(&[0xff, 0xd8]) && last(0xd9) < last(0xda)
}
