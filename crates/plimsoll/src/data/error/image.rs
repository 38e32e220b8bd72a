//! Errors of image folders and CIFAR files.

use std::path::PathBuf;

/// Why images cannot be found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A folder without subfolders.
    #[error(
        "no classes in {}: put the images of each class in a subfolder with the class's name",
        dir.display()
    )]
    NoClasses {
        /// The folder.
        dir: PathBuf,
    },

    /// A class without images.
    #[error(
        "no images of class {}: it has no intact JPEG or PNG file, {damaged} damaged ones and {others} of other kinds; \
         add images or remove the folder",
        folder.display()
    )]
    EmptyClass {
        /// The class's folder.
        folder: PathBuf,
        /// The number of other files in the folder.
        others: usize,
        /// The number of damaged images that were skipped.
        damaged: usize,
    },

    /// The classes of the training and the test part differ.
    #[error(
        "class `{class}` is in only one of {} and {}; both need the same classes",
        train.display(), test.display()
    )]
    Classes {
        /// The training folder.
        train: PathBuf,
        /// The test folder.
        test: PathBuf,
        /// A class that is missing from one of them.
        class: String,
    },

    /// A file that cannot be decoded.
    #[error("cannot decode the image {}: {message}; remove it, or skip damaged images", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The decoder's message.
        message: String,
    },

    /// The requested image size is 0.
    #[error("images of 0 × 0 pixels; give a side of at least 1")]
    NoSide,

    /// The folder has no CIFAR-10 file.
    #[error(
        "no CIFAR-10 in {}: put data_batch_1.bin to data_batch_5.bin and test_batch.bin of the binary version there",
        dir.display()
    )]
    NoCifar {
        /// The folder searched.
        dir: PathBuf,
    },

    /// A CIFAR file that is not a whole number of images long.
    #[error(
        "{} has {bytes} bytes, which is not a whole number of images of {record} bytes; is it cut short, or not the \
         binary version?",
        path.display()
    )]
    CifarLength {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
        /// Bytes of an image and its label.
        record: usize,
    },
}
