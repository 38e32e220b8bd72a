//! The images: MNIST's files from a folder, or digits drawn by code.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::{DataError, Dataset, Digits, MnistDir, Split};

/// What to train and test on, and what to call it.
pub(crate) struct Source {
    /// For people: where the images come from.
    pub(crate) name: String,
    /// The two parts.
    pub(crate) split: Split,
    /// Rows and columns of an image.
    pub(crate) size: [usize; 2],
}

/// MNIST's files in `dir`; the pixels are read only where they are wanted.
pub(crate) fn read(dir: &Path, want_values: bool) -> Result<Source, DataError> {
    let files = MnistDir::open(dir)?;
    let split = if want_values { files.load()? } else { files.shapes()? };
    Ok(Source { name: dir.display().to_string(), size: size_of(split.train.as_ref()), split })
}

/// `count` drawn digits, the first nine tenths to train on.
pub(crate) fn drawn(seed: u64, count: usize) -> Result<Source, DataError> {
    let digits = Arc::new(Digits::new(seed, count));
    let split = Split::at(digits, count / 10 * 9)?;
    Ok(Source { name: "digits drawn by code".to_owned(), size: size_of(split.train.as_ref()), split })
}

fn size_of(data: &dyn Dataset) -> [usize; 2] {
    let fields = data.fields();
    // Both data sets declare `images` first, as [1, rows, columns].
    match fields.first().map(|images| images.shape.as_slice()) {
        Some(&[_, rows, columns]) => [rows, columns],
        other => unreachable!("images of shape {other:?}"),
    }
}
