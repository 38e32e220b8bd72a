//! A folder of images, one subfolder for each class: torchvision's `ImageFolder`.
//!
//! This file finds the images of each class; `picture.rs` decodes and resizes them. The loader's workers decode files as they
//! read them; only the paths are kept in memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dataset::check_index;
use super::error::ImageError;
use super::picture::{Fit, picture};
use super::{DataError, Dataset, Field, Normalize, Sample, Split, rgb};

/// The file endings of an [`ImageFolder`]'s images: JPEG and PNG. Other files are left out, and counted.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// How images become samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageOptions {
    /// Rows and columns of every sample.
    pub side: usize,
    /// How an image of a different size is resized to this size.
    pub fit: Fit,
    /// How pixel values are normalised.
    pub normalize: Normalize,
    /// The treatment of a file that cannot be decoded.
    pub damaged: Damaged,
}

impl Default for ImageOptions {
    /// Images of 224 × 224 (the shorter side is resized and the centre is cropped), ImageNet's mean and deviation, and
    /// an error for a damaged file.
    fn default() -> Self {
        Self { side: 224, fit: Fit::Crop, normalize: Normalize::IMAGENET, damaged: Damaged::Error }
    }
}

/// The treatment of a file that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Reading the file is an error.
    Error,
    /// Leave the file out. Every file is decoded once when the folder is opened, to find them.
    Skip,
}

/// A folder of images, one subfolder for each class.
///
/// Classes are the subfolders' names, sorted; an image's label is its class's position. Images in nested folders are found as
/// well. Grey images become colour images, and transparency is dropped, as PIL's `convert("RGB")` does. The fields are
/// `images` (f32, `[3, side, side]`) and `labels` (i64).
///
/// ```no_run
/// # use std::sync::Arc;
/// # use plimsoll::data::{DataLoader, ImageFolder, ImageOptions};
/// let images = ImageFolder::open("data/photos/train".as_ref(), ImageOptions::default())?;
/// println!("{:?}", images.classes());
/// let loader = DataLoader::new(Arc::new(images), 32)?.shuffle(1).workers(2);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Arc<[String]>,
    files: Arc<[(PathBuf, usize)]>,
    others: usize,
    skipped: Arc<[PathBuf]>,
    options: ImageOptions,
}

impl ImageFolder {
    /// Finds the images.
    ///
    /// # Errors
    /// If the folder cannot be read, has no subfolder, or a subfolder has no image; if `options.side` is 0.
    pub fn open(dir: &Path, options: ImageOptions) -> Result<Self, DataError> {
        if options.side == 0 {
            return Err(ImageError::NoSide.into());
        }
        let (folders, _) = entries(dir)?;
        if folders.is_empty() {
            return Err(ImageError::NoClasses { dir: dir.to_owned() }.into());
        }
        let (mut classes, mut files, mut others) = (Vec::new(), Vec::new(), 0);
        let mut skipped = Vec::new();
        for (label, folder) in folders.iter().enumerate() {
            let found = ClassFiles::below(folder)?;
            let (whole, broken) = match options.damaged {
                Damaged::Error => (found.images, Vec::new()),
                Damaged::Skip => {
                    found.images.into_iter().partition(|path| picture(path, 1, Fit::Stretch).is_ok())
                }
            };
            if whole.is_empty() {
                let (folder, others, damaged) = (folder.clone(), found.others, broken.len());
                return Err(ImageError::EmptyClass { folder, others, damaged }.into());
            }
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
            files.extend(whole.into_iter().map(|path| (path, label)));
            others += found.others;
            skipped.extend(broken);
        }
        Ok(Self { classes: classes.into(), files: files.into(), others, skipped: skipped.into(), options })
    }

    /// A training and a test part: the subfolders `train` and `val` (or `test`) of `dir`, which must have the same classes.
    /// Without these subfolders, a random tenth of the images in `dir`, chosen from `seed`, is the test part.
    ///
    /// # Errors
    /// The same errors as [`open`](Self::open); also if the parts have different classes.
    pub fn open_parts(dir: &Path, options: ImageOptions, seed: u64) -> Result<(Self, Split), DataError> {
        let part = |name: &str| Some(dir.join(name)).filter(|path| path.is_dir());
        let Some((train, test)) = part("train").zip(part("val").or_else(|| part("test"))) else {
            let whole = Self::open(dir, options)?;
            let len = whole.len();
            let split = Split::random(Arc::new(whole.clone()), len - len.div_ceil(10), seed)?;
            return Ok((whole, split));
        };
        let (left, right) = (Self::open(&train, options)?, Self::open(&test, options)?);
        if left.classes != right.classes {
            let of = |folder: &Self| folder.classes.iter().cloned().collect::<BTreeSet<String>>();
            let differing = of(&left).symmetric_difference(&of(&right)).next().cloned().unwrap_or_default();
            return Err(ImageError::Classes { train, test, class: differing }.into());
        }
        let split = Split { train: Arc::new(left.clone()), test: Arc::new(right) };
        Ok((left, split))
    }

    /// The classes' names, by label.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The files and their labels, in the order of the samples.
    #[must_use]
    pub fn files(&self) -> &[(PathBuf, usize)] {
        &self.files
    }

    /// The number of files whose names do not end like those of JPEG or PNG files.
    #[must_use]
    pub const fn other_files(&self) -> usize {
        self.others
    }

    /// The damaged files that were left out ([`Damaged::Skip`]).
    #[must_use]
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn fields(&self) -> Vec<Field> {
        rgb::fields(self.options.side, self.options.side)
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.len())?;
        let ImageOptions { side, fit, normalize, .. } = &self.options;
        let (path, label) = &self.files[index];
        let pixels = picture(path, *side, *fit)?;
        rgb::write(normalize, |channel, position| pixels[3 * position + channel], *label, out)
    }

    fn resident_bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|(path, _)| (size_of::<(PathBuf, usize)>() + path.as_os_str().len()) as u64)
            .sum()
    }
}

/// The files of a class.
struct ClassFiles {
    images: Vec<PathBuf>,
    others: usize,
}

impl ClassFiles {
    /// All files below a folder, in torchvision's order: folders sorted by path, files by name.
    fn below(folder: &Path) -> Result<Self, DataError> {
        let mut found = Self { images: Vec::new(), others: 0 };
        let mut to_visit = vec![folder.to_owned()];
        // Symbolic links may form a cycle.
        let mut visited = BTreeSet::new();
        let mut by_folder = Vec::new();
        while let Some(folder) = to_visit.pop() {
            let real = fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone());
            if !visited.insert(real) {
                continue;
            }
            let (folders, files) = entries(&folder)?;
            to_visit.extend(folders);
            by_folder.push((folder, files));
        }
        by_folder.sort_by(|(left, _), (right, _)| left.as_os_str().cmp(right.as_os_str()));
        for path in by_folder.into_iter().flat_map(|(_, files)| files) {
            let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
            match ending {
                Some(ending) if ENDINGS.contains(&&*ending) => found.images.push(path),
                _ => found.others += 1,
            }
        }
        Ok(found)
    }
}

/// The folders and the files in a folder, each sorted by name. Links are followed.
fn entries(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
    let failed = |source| DataError::Io { path: dir.to_owned(), doing: "read", source };
    let all = fs::read_dir(dir).map_err(failed)?.map(|entry| entry.map(|entry| entry.path()));
    let mut all = all.collect::<Result<Vec<PathBuf>, _>>().map_err(failed)?;
    all.sort();
    Ok(all.into_iter().partition(|path| path.is_dir()))
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
