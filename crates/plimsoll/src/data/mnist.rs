//! A folder of MNIST files, and the data set in it.
//!
//! [`MnistDir::open`] reads only headers, which is enough for the counts and shapes of a simulated device;
//! [`MnistDir::load`] reads the pixels. The file format is in `idx.rs`, the sample format in
//! `grey.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dataset::check_index;
use super::idx::{Idx, IdxHeader};
use super::{DataError, Dataset, Field, Sample, Shapes, Split, grey};

/// A folder with MNIST files, whose headers have been read.
///
/// The folder must have `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or the same with `t10k`, or both pairs. Each
/// file may be plain or end in `.gz`; if both exist, the plain one is read. With both pairs, `train` is the training part and
/// `t10k` the test part. A single pair is split by [`Split::nine_to_one`].
///
/// ```no_run
/// # use plimsoll::data::{DataLoader, MnistDir};
/// let split = MnistDir::open("data/mnist".as_ref())?.load()?;
/// let loader = DataLoader::new(split.train, 64)?.shuffle(1).workers(2);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MnistDir {
    /// The training pair.
    pub train: Pair,
    /// The test pair; `None` if `train` is to be split.
    pub test: Option<Pair>,
}

/// A file of images and the file of their labels.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The images.
    pub images: PathBuf,
    /// The labels.
    pub labels: PathBuf,
    /// The number of images and of labels.
    pub count: usize,
    /// Height of an image in pixels.
    pub rows: usize,
    /// Width of an image in pixels.
    pub columns: usize,
}

impl MnistDir {
    /// Finds the files and reads their headers.
    ///
    /// # Errors
    /// If there is no pair, a file of a pair is missing or cannot be read, or headers disagree.
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        match (Pair::find(dir, "train")?, Pair::find(dir, "t10k")?) {
            (Some(train), Some(test)) => {
                train.check_same_shape(&test)?;
                train.check_at_least(1)?;
                test.check_at_least(1)?;
                Ok(Self { train, test: Some(test) })
            }
            (Some(only), None) | (None, Some(only)) => {
                only.check_at_least(2)?;
                Ok(Self { train: only, test: None })
            }
            (None, None) => Err(DataError::NoMnist { dir: dir.to_owned() }),
        }
    }

    /// Reads all pixels and labels.
    ///
    /// # Errors
    /// If a file is damaged, or a label is not 0 to 9.
    pub fn load(&self) -> Result<Split, DataError> {
        let train = Arc::new(self.train.load()?);
        self.split(train, |test| Ok(Arc::new(test.load()?)))
    }

    /// The same split without values. Reads no further data.
    ///
    /// # Errors
    /// None at present; it returns a `Result` like [`load`](Self::load).
    pub fn shapes(&self) -> Result<Split, DataError> {
        self.split(Arc::new(self.train.shapes()), |test| Ok(Arc::new(test.shapes())))
    }

    fn split(
        &self,
        train: Arc<dyn Dataset>,
        of: impl FnOnce(&Pair) -> Result<Arc<dyn Dataset>, DataError>,
    ) -> Result<Split, DataError> {
        match &self.test {
            Some(pair) => Ok(Split { train, test: of(pair)? }),
            None => Split::nine_to_one(train),
        }
    }
}

impl Pair {
    fn find(dir: &Path, part: &str) -> Result<Option<Self>, DataError> {
        let images = format!("{part}-images-idx3-ubyte");
        let labels = format!("{part}-labels-idx1-ubyte");
        match (existing(dir, &images), existing(dir, &labels)) {
            (Some(images), Some(labels)) => Self::open(images, labels).map(Some),
            (Some(found), None) => Err(DataError::MissingPartner { found, missing: dir.join(labels) }),
            (None, Some(found)) => Err(DataError::MissingPartner { found, missing: dir.join(images) }),
            (None, None) => Ok(None),
        }
    }

    fn open(images: PathBuf, labels: PathBuf) -> Result<Self, DataError> {
        let [count, rows, columns] = dims(&images, IdxHeader::read(&images)?)?;
        let [label_count] = dims(&labels, IdxHeader::read(&labels)?)?;
        if count != label_count {
            let (left, right) = (vec![count], vec![label_count]);
            return Err(DataError::Mismatch { left_path: images, left, right_path: labels, right });
        }
        Ok(Self { images, labels, count, rows, columns })
    }

    fn load(&self) -> Result<Mnist, DataError> {
        let images = Idx::read(&self.images)?;
        let labels = Idx::read(&self.labels)?;
        if let Some(index) = labels.bytes.iter().position(|&label| label > 9) {
            let path = self.labels.clone();
            return Err(DataError::Label { path, index, label: labels.bytes[index] });
        }
        // This opens the files a second time; they may have changed since the first.
        let [count, rows, columns] = dims(&self.images, images.header)?;
        let [label_count] = dims(&self.labels, labels.header)?;
        if (count, label_count, rows, columns) != (self.count, self.count, self.rows, self.columns) {
            return Err(DataError::Mismatch {
                left_path: self.images.clone(),
                left: vec![count, rows, columns],
                right_path: self.labels.clone(),
                right: vec![label_count],
            });
        }
        Ok(Mnist { pixels: images.bytes, labels: labels.bytes, rows, columns })
    }

    fn shapes(&self) -> Shapes {
        Shapes { len: self.count, fields: grey::fields(self.rows, self.columns) }
    }

    fn check_same_shape(&self, other: &Self) -> Result<(), DataError> {
        let (left, right) = (vec![self.rows, self.columns], vec![other.rows, other.columns]);
        if left == right {
            return Ok(());
        }
        Err(DataError::Mismatch {
            left_path: self.images.clone(),
            left,
            right_path: other.images.clone(),
            right,
        })
    }

    fn check_at_least(&self, needed: usize) -> Result<(), DataError> {
        if self.count >= needed {
            return Ok(());
        }
        Err(DataError::TooFew { path: self.images.clone(), found: self.count, needed })
    }
}

/// The file of this name, or of this name with `.gz`.
fn existing(dir: &Path, name: &str) -> Option<PathBuf> {
    [dir.join(name), dir.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file())
}

/// The header's dimensions, if there are as many as expected.
fn dims<const N: usize>(path: &Path, header: IdxHeader) -> Result<[usize; N], DataError> {
    let wrong = |found| DataError::Dimensions { path: path.to_owned(), expected: N, found };
    header.dims.try_into().map_err(wrong)
}

/// The images and labels of a pair, in memory as bytes: a quarter of the size of floats.
struct Mnist {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    rows: usize,
    columns: usize,
}

impl Dataset for Mnist {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn fields(&self) -> Vec<Field> {
        grey::fields(self.rows, self.columns)
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.len())?;
        let each = self.rows * self.columns;
        grey::write(&self.pixels[index * each..][..each], self.labels[index], out)
    }

    fn resident_bytes(&self) -> u64 {
        (self.pixels.len() + self.labels.len()) as u64
    }
}

#[cfg(test)]
#[path = "mnist_tests.rs"]
mod tests;
