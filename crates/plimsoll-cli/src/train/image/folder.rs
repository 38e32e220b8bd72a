//! The images of a folder, split for training and testing: [`Images`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::data::{Augment, Augmented, Damaged, DataError, ImageError, ImageFolder, ImageOptions, Split};

use super::super::task::{CHECKSUM_START, checksum};
use crate::exit::{Exit, Failure};

/// The training and test images.
pub(super) struct Images {
    /// The folder.
    pub(super) name: String,
    /// The classes' names, by label.
    pub(super) classes: Vec<String>,
    /// The two parts. Training images are augmented randomly.
    pub(super) split: Split,
    /// Damaged images that were left out.
    pub(super) skipped: usize,
    /// Files that are neither JPEG nor PNG.
    pub(super) others: usize,
    /// The training folder's files and their labels.
    files: Vec<(PathBuf, usize)>,
    root: PathBuf,
}

/// The maximum number of classes that are listed by name.
const LISTED: usize = 8;

impl Images {
    /// Finds the images.
    pub(super) fn open(
        folder: &Path,
        val: Option<&Path>,
        side: usize,
        skip_damaged: bool,
        augment: Augment,
        seed: u64,
    ) -> Result<Images, Failure> {
        let damaged = if skip_damaged { Damaged::Skip } else { Damaged::Error };
        let options = ImageOptions { side, damaged, ..ImageOptions::default() };
        let (train, split) = match val {
            None => ImageFolder::open_parts(folder, options, seed)?,
            Some(val) => apart(folder, val, options)?,
        };
        let classes = train.classes().to_vec();
        if let [only] = &classes[..] {
            let message = format!(
                "{} has one class only, `{only}`; a classifier needs two. Is --data the folder above the classes?",
                folder.display()
            );
            return Err(Failure::new(Exit::Unreadable, message));
        }
        if split.train.is_empty() {
            let message =
                format!("{} has no image left to train on: add images, or give --val", folder.display());
            return Err(Failure::new(Exit::Unreadable, message));
        }
        let changed = Arc::new(Augmented::new(split.train, augment));
        Ok(Images {
            name: folder.display().to_string(),
            classes,
            split: Split { train: changed, test: split.test },
            skipped: train.skipped().len(),
            others: train.other_files(),
            files: train.files().to_vec(),
            root: folder.to_owned(),
        })
    }

    /// `900 images of photos in 2 classes (cat, dog), testing on 100`.
    pub(super) fn announcement(&self) -> String {
        let listed = self.classes.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if self.classes.len() > LISTED { ", …" } else { "" };
        let mut text = format!(
            "{} images of {} in {} classes ({listed}{more}), testing on {}",
            self.split.train.len(),
            self.name,
            self.classes.len(),
            self.split.test.len()
        );
        for (count, what) in [(self.skipped, "damaged images skipped"), (self.others, "other files ignored")]
        {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }

    /// A checksum of the classes and of the files' names, lengths and labels; no image is read.
    pub(super) fn checksum(&self) -> u64 {
        let mut sum = CHECKSUM_START;
        for class in &self.classes {
            sum = checksum(sum, class.bytes().chain([0]));
        }
        for (path, label) in &self.files {
            let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned();
            let bytes = fs::metadata(path).map_or(0, |file| file.len());
            sum = checksum(sum, name.bytes().chain([0]).chain((*label as u64 ^ bytes << 20).to_le_bytes()));
        }
        sum
    }
}

/// Two separate folders with the same classes.
fn apart(train: &Path, test: &Path, options: ImageOptions) -> Result<(ImageFolder, Split), DataError> {
    let (left, right) = (ImageFolder::open(train, options)?, ImageFolder::open(test, options)?);
    let lacks = |of: &ImageFolder, class: &String| !of.classes().contains(class);
    let only = left.classes().iter().find(|class| lacks(&right, class));
    if let Some(class) = only.or_else(|| right.classes().iter().find(|class| lacks(&left, class))) {
        let (train, test, class) = (train.to_owned(), test.to_owned(), class.clone());
        return Err(ImageError::Classes { train, test, class }.into());
    }
    let split = Split { train: Arc::new(left.clone()), test: Arc::new(right) };
    Ok((left, split))
}
