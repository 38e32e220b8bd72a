//! What can go wrong with data, with the numbers as fields.
//!
//! Bad files, empty folders and a user's failing [`Dataset`](super::Dataset) are weather, so they are values
//! of one enum. Each message says what was wrong, where, and, where we know it, what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use plimsoll_tensor::DType;

/// Why data could not be opened, read, or batched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system, or the gzip decoder, refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The verb: `open`, `read`.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },

    /// The first two bytes are not the zeros that open every IDX file.
    #[error(
        "{} is not an IDX file: it starts with {found:02x?}, \
         not 00 00; is it another format?",
        path.display()
    )]
    NotIdx {
        /// The file.
        path: PathBuf,
        /// Its first two bytes (after decompression).
        found: [u8; 2],
    },

    /// An IDX file of elements other than unsigned bytes.
    #[error(
        "{} holds {name} elements (code {code:#04x} at byte 2); \
         only u8 (0x08) is read",
        path.display()
    )]
    ElementType {
        /// The file.
        path: PathBuf,
        /// The type code of the header.
        code: u8,
        /// What that code stands for.
        name: &'static str,
    },

    /// The file ends before its header does.
    #[error(
        "{} is cut short: its header takes {expected_bytes} bytes, {found_bytes} are there; \
         fetch it again",
        path.display()
    )]
    HeaderCut {
        /// The file.
        path: PathBuf,
        /// Bytes that the header takes (after decompression).
        expected_bytes: u64,
        /// Bytes found, at most `expected_bytes`.
        found_bytes: u64,
    },

    /// The header promises more than a file of this length can hold, so nothing was read.
    #[error(
        "{} promises {dims:?} bytes, but a file of its length holds {at_most_bytes} at most; \
         it is damaged or no IDX file",
        path.display()
    )]
    Impossible {
        /// The file.
        path: PathBuf,
        /// The dimensions of the header.
        dims: Vec<usize>,
        /// The most that a file of this length can hold, decompressed.
        at_most_bytes: u64,
    },

    /// The header promises more than the reader is willing to hold.
    #[error("{} holds {expected_bytes} bytes; the limit is {limit_bytes}; split the file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What the header promises.
        expected_bytes: u64,
        /// The reader's limit.
        limit_bytes: u64,
    },

    /// The body is shorter than the header promises.
    #[error(
        "{} is cut short: its header promises {expected_bytes} bytes of values, {found_bytes} \
         are there; fetch it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes of values by the header.
        expected_bytes: u64,
        /// Bytes of values found.
        found_bytes: u64,
    },

    /// The body is longer than the header promises.
    #[error(
        "{} is too long: its header promises {expected_bytes} bytes of values, at least \
         {found_bytes} are there",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Bytes of values by the header.
        expected_bytes: u64,
        /// Bytes seen before we stopped reading; the file may hold more.
        found_bytes: u64,
    },

    /// Images must have three dimensions, labels one.
    #[error(
        "{} has {} dimensions {found:?}; {expected} expected: are images and labels \
         swapped?",
        path.display(), found.len()
    )]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// How many dimensions it should have.
        expected: usize,
        /// The dimensions that it has.
        found: Vec<usize>,
    },

    /// The folder has no MNIST file.
    #[error(
        "no MNIST in {}: put train-images-idx3-ubyte and train-labels-idx1-ubyte there, or the \
         t10k pair, plain or .gz",
        dir.display()
    )]
    NoMnist {
        /// The folder searched.
        dir: PathBuf,
    },

    /// One file of a pair without the other.
    #[error(
        "{} has no partner: {} (or .gz) is missing from the same \
         folder",
        found.display(), missing.display()
    )]
    MissingPartner {
        /// The file that is there.
        found: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },

    /// Two files that belong together disagree.
    #[error(
        "{} has {left:?} but {} has {right:?}: these two do not belong \
         together",
        left_path.display(), right_path.display()
    )]
    Mismatch {
        /// One file.
        left_path: PathBuf,
        /// Its count, or its image shape.
        left: Vec<usize>,
        /// The other file.
        right_path: PathBuf,
        /// Its count, or its image shape.
        right: Vec<usize>,
    },

    /// A label that is no digit.
    #[error("{}: label {index} is {label}; labels are 0 to 9", path.display())]
    Label {
        /// The label file.
        path: PathBuf,
        /// Which label, from 0.
        index: usize,
        /// Its value.
        label: u8,
    },

    /// Fewer images than a training and a test part need.
    #[error("{} has {found} images; at least {needed} are needed", path.display())]
    TooFew {
        /// The image file.
        path: PathBuf,
        /// Images in it.
        found: usize,
        /// Images needed.
        needed: usize,
    },

    /// A sample past the end of the data set.
    #[error("sample {index} of a data set of {len}")]
    OutOfRange {
        /// The sample asked for.
        index: usize,
        /// Samples that there are.
        len: usize,
    },

    /// A subset that leaves its data set.
    #[error("samples {start}..{end} are not a range of a data set of {len}")]
    BadSubset {
        /// First sample asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// Samples that there are.
        len: usize,
    },

    /// A batch or a sample has no field of this name.
    #[error("no field `{name}`; the data set declares {declared:?}")]
    NoField {
        /// The name asked for.
        name: String,
        /// The names that there are.
        declared: Vec<&'static str>,
    },

    /// A field was asked for as another type than it is.
    #[error("field `{name}` is {declared:?}, not {asked:?}")]
    FieldType {
        /// The field.
        name: &'static str,
        /// Its type.
        declared: DType,
        /// The type asked for.
        asked: DType,
    },

    /// A value was asked of a data set, or a batch, that has shapes only.
    #[error("this data has shapes only; load the values, or use the loader's shapes_only()")]
    ShapesOnly,

    /// A batch of no samples.
    #[error("the batch size is 0; give at least 1")]
    BatchSize,

    /// The host has no room for a buffer of the loader.
    #[error("no host memory for {what}: {bytes} bytes are needed; {remedy}")]
    OutOfHostMemory {
        /// What could not be held.
        what: String,
        /// How many bytes it takes; `u64::MAX` if they are beyond counting.
        bytes: u64,
        /// What to try.
        remedy: &'static str,
    },

    /// A sample of a batch failed; the cause is the source.
    #[error("batch {batch}, sample {index}: {source}")]
    Sample {
        /// The batch, from 0 in its epoch.
        batch: usize,
        /// The sample's index in the data set.
        index: usize,
        /// What the data set said.
        source: Box<DataError>,
    },

    /// The data set panicked while a batch was made.
    #[error("batch {batch}: the data set panicked: {message}")]
    Panicked {
        /// The batch, from 0 in its epoch.
        batch: usize,
        /// The panic's message.
        message: String,
    },

    /// A worker thread could not start.
    #[error(
        "cannot start data worker {worker}: {source}; use fewer workers, or 0 to load in the caller's thread"
    )]
    Worker {
        /// Which worker, from 0.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },

    /// An error of a user's own data set.
    #[error(transparent)]
    Custom(Box<dyn Error + Send + Sync>),
}
