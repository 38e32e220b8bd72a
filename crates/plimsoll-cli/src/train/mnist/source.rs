//! The images: MNIST's files from a folder, or generated digits.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::{Dataset, Digits, MnistDir, Split};

use crate::exit::{Exit, Failure};

/// The training and test images, and their name.
pub(super) struct Source {
    /// A description of the images' origin, for people.
    pub(super) name: String,
    /// The two parts.
    pub(super) split: Split,
    /// Rows and columns of an image.
    pub(super) size: [usize; 2],
}

/// The parts of a data set to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// Pixels and labels.
    Values,
    /// Only the number and the size of the images.
    Shapes,
}

/// The smallest image that the network's convolutions and poolings can process.
const SMALLEST: usize = 12;

/// MNIST's files in `dir`. Pixels are read only if `want` requests them.
pub(super) fn read(dir: &Path, want: Want) -> Result<Source, Failure> {
    let files = MnistDir::open(dir)?;
    let split = if want == Want::Values { files.load()? } else { files.shapes()? };
    let size @ [rows, columns] = size_of(split.train.as_ref());
    if rows < SMALLEST || columns < SMALLEST {
        let message = format!(
            "{}: images of {rows} × {columns}; this network needs at least {SMALLEST} × {SMALLEST}",
            dir.display()
        );
        return Err(Failure::new(Exit::Unreadable, message));
    }
    Ok(Source { name: dir.display().to_string(), size, split })
}

/// `count` generated digits, nine tenths of them for training.
pub(super) fn drawn(seed: u64, count: usize) -> Result<Source, Failure> {
    let split = Split::nine_to_one(Arc::new(Digits::new(seed, count)))?;
    Ok(Source { name: "generated digits".to_owned(), size: size_of(split.train.as_ref()), split })
}

fn size_of(data: &dyn Dataset) -> [usize; 2] {
    let fields = data.fields();
    // Both data sets declare `images` first, as [1, rows, columns].
    match fields.first().map(|images| images.shape.as_slice()) {
        Some(&[_, rows, columns]) => [rows, columns],
        other => unreachable!("images of shape {other:?}"),
    }
}
