//! A folder of CIFAR-10's binary files, and the data set in it.
//!
//! Each file is a sequence of records: a label and 3,072 pixels, red before green before blue, row by row
//! (<https://www.cs.toronto.edu/~kriz/cifar.html>, "binary version"). [`CifarDir::open`] reads only the files' lengths;
//! [`CifarDir::load`] reads the pixels.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dataset::check_index;
use super::error::ImageError;
use super::{DataError, Dataset, Field, Normalize, Sample, Shapes, Split, rgb};

const SIDE: usize = 32;
const PIXELS: usize = 3 * SIDE * SIDE;
const RECORD: usize = 1 + PIXELS;
const CLASSES: u8 = 10;

/// A folder with CIFAR-10's `data_batch_1.bin` to `data_batch_5.bin`, or some of them, and `test_batch.bin`. Without
/// `test_batch.bin`, the images are split by [`Split::nine_to_one`].
///
/// Its samples are `images` (f32, `[3, 32, 32]`, by [`Normalize::CIFAR10`]) and `labels` (i64).
///
/// ```no_run
/// # use plimsoll::data::{CifarDir, DataLoader};
/// let split = CifarDir::open("data/cifar-10-batches-bin".as_ref())?.load()?;
/// let loader = DataLoader::new(split.train, 128)?.shuffle(1).workers(2);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CifarDir {
    train: Vec<(PathBuf, usize)>,
    test: Vec<(PathBuf, usize)>,
}

impl CifarDir {
    /// Finds the files and counts their images.
    ///
    /// # Errors
    /// If there is no file of training images, or a file is empty or not a whole number of images long.
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        let names = (1..=5).map(|number| format!("data_batch_{number}.bin"));
        let train: Vec<_> = names.map(|name| dir.join(name)).filter(|path| path.is_file()).collect();
        let test: Vec<_> =
            Some(dir.join("test_batch.bin")).into_iter().filter(|path| path.is_file()).collect();
        if train.is_empty() {
            return Err(ImageError::NoCifar { dir: dir.to_owned() }.into());
        }
        Ok(Self { train: counted(train)?, test: counted(test)? })
    }

    /// The classes' names, by label.
    #[must_use]
    pub const fn classes() -> [&'static str; CLASSES as usize] {
        ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    }

    /// Reads all pixels and labels.
    ///
    /// # Errors
    /// If a file cannot be read, or a label is not 0 to 9.
    pub fn load(&self) -> Result<Split, DataError> {
        let load = |files: &[(PathBuf, usize)]| Ok(Arc::new(Cifar::load(files)?) as Arc<dyn Dataset>);
        self.split(load)
    }

    /// The same split without values. Reads no further data.
    ///
    /// # Errors
    /// None at present; it returns a `Result` like [`load`](Self::load).
    pub fn shapes(&self) -> Result<Split, DataError> {
        let count = |files: &[(PathBuf, usize)]| files.iter().map(|(_, count)| count).sum();
        self.split(|files| Ok(Arc::new(Shapes { len: count(files), fields: rgb::fields(SIDE, SIDE) })))
    }

    fn split(
        &self,
        part: impl Fn(&[(PathBuf, usize)]) -> Result<Arc<dyn Dataset>, DataError>,
    ) -> Result<Split, DataError> {
        match &*self.test {
            [] => Split::nine_to_one(part(&self.train)?),
            test => Ok(Split { train: part(&self.train)?, test: part(test)? }),
        }
    }
}

/// Each file with its number of images.
fn counted(paths: Vec<PathBuf>) -> Result<Vec<(PathBuf, usize)>, DataError> {
    let count = |path: PathBuf| {
        let failed = |source| DataError::Io { path: path.clone(), doing: "open", source };
        let bytes = fs::metadata(&path).map_err(failed)?.len();
        if bytes == 0 || bytes % RECORD as u64 != 0 {
            return Err(ImageError::CifarLength { path, bytes, record: RECORD }.into());
        }
        Ok((path, (bytes / RECORD as u64) as usize))
    };
    paths.into_iter().map(count).collect()
}

/// The records in memory, in the files' format.
struct Cifar {
    records: Vec<u8>,
}

impl Cifar {
    fn load(files: &[(PathBuf, usize)]) -> Result<Self, DataError> {
        let mut records = Vec::new();
        for (path, count) in files {
            let failed = |source| DataError::Io { path: path.clone(), doing: "read", source };
            let bytes = fs::read(path).map_err(failed)?;
            // The file may have changed since its length was read.
            if bytes.len() != count * RECORD {
                let (path, bytes) = (path.clone(), bytes.len() as u64);
                return Err(ImageError::CifarLength { path, bytes, record: RECORD }.into());
            }
            let labels = bytes.iter().step_by(RECORD);
            if let Some((index, &label)) = labels.enumerate().find(|(_, label)| **label >= CLASSES) {
                return Err(DataError::Label { path: path.clone(), index, label });
            }
            records.extend(bytes);
        }
        Ok(Self { records })
    }
}

impl Dataset for Cifar {
    fn len(&self) -> usize {
        self.records.len() / RECORD
    }

    fn fields(&self) -> Vec<Field> {
        rgb::fields(SIDE, SIDE)
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.len())?;
        let record = &self.records[index * RECORD..][..RECORD];
        let pixel = |channel: usize, position: usize| record[1 + channel * SIDE * SIDE + position];
        rgb::write(&Normalize::CIFAR10, pixel, usize::from(record[0]), out)
    }

    fn resident_bytes(&self) -> u64 {
        self.records.len() as u64
    }
}

#[cfg(test)]
#[path = "cifar_tests.rs"]
mod tests;
