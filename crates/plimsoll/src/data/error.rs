//! Errors of data sets and loaders, with their figures as fields.
//!
//! Bad files, empty folders and a user's failing [`Dataset`](super::Dataset) are expected, so they are values
//! of one enum. Each message says what is wrong, where, and, if known, what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use plimsoll_tensor::DType;

mod image;
mod npy;
mod sampler;
mod text;

pub use image::ImageError;
pub use npy::NpyError;
pub use sampler::SamplerError;
pub use text::TextError;

/// Why data could not be opened, read, or batched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An error of the operating system or the gzip decoder.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The verb: `open`, `read`.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },

    /// The file does not start with two zero bytes, as every IDX file does.
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

    /// An IDX file whose elements are not unsigned bytes.
    #[error(
        "{} holds {name} elements (code {code:#04x} at byte 2); \
         only u8 (0x08) is supported",
        path.display()
    )]
    ElementType {
        /// The file.
        path: PathBuf,
        /// The type code of the header.
        code: u8,
        /// The meaning of that code.
        name: &'static str,
    },

    /// The file ends within its header.
    #[error(
        "{} is cut short: its header takes {expected_bytes} bytes, but the file has {found_bytes}; \
         download it again",
        path.display()
    )]
    HeaderCut {
        /// The file.
        path: PathBuf,
        /// Size of the header (after decompression), bytes.
        expected_bytes: u64,
        /// Bytes found, at most `expected_bytes`.
        found_bytes: u64,
    },

    /// The size in the header exceeds what a file of this length can hold, so nothing was read.
    #[error(
        "{} promises {dims:?} bytes, but a file of its length holds {at_most_bytes} at most; \
         it is damaged, or not an IDX file",
        path.display()
    )]
    Impossible {
        /// The file.
        path: PathBuf,
        /// The dimensions of the header.
        dims: Vec<usize>,
        /// The maximum for a file of this length, decompressed.
        at_most_bytes: u64,
    },

    /// The size in the header exceeds the reader's limit.
    #[error("{} holds {expected_bytes} bytes; the limit is {limit_bytes}; split the file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size according to the header.
        expected_bytes: u64,
        /// The reader's limit.
        limit_bytes: u64,
    },

    /// The body is shorter than the header says.
    #[error(
        "{} is cut short: its header promises {expected_bytes} bytes of values, but it has \
         {found_bytes}; download it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes of values according to the header.
        expected_bytes: u64,
        /// Bytes of values found.
        found_bytes: u64,
    },

    /// The body is longer than the header says.
    #[error(
        "{} is too long: its header promises {expected_bytes} bytes of values, but it has at least \
         {found_bytes}",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Bytes of values according to the header.
        expected_bytes: u64,
        /// Bytes read before stopping; the file may have more.
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
        /// The expected number of dimensions.
        expected: usize,
        /// Its dimensions.
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
        /// The existing file.
        found: PathBuf,
        /// The missing file.
        missing: PathBuf,
    },

    /// Two files of a pair disagree.
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

    /// A label that is not a digit.
    #[error("{}: label {index} is {label}; labels are 0 to 9", path.display())]
    Label {
        /// The label file.
        path: PathBuf,
        /// The index of the label, from 0.
        index: usize,
        /// Its value.
        label: u8,
    },

    /// Fewer images than a training and a test part need.
    #[error("{} has {found} images; at least {needed} are needed", path.display())]
    TooFew {
        /// The image file.
        path: PathBuf,
        /// The number of images in the file.
        found: usize,
        /// The number of images needed.
        needed: usize,
    },

    /// A sample past the end of the data set.
    #[error("sample {index} of a data set of {len}")]
    OutOfRange {
        /// The requested sample.
        index: usize,
        /// The number of samples.
        len: usize,
    },

    /// A subset outside its data set.
    #[error("samples {start}..{end} are not a range of a data set of {len}")]
    BadSubset {
        /// The first sample of the subset.
        start: usize,
        /// One past the last.
        end: usize,
        /// The number of samples.
        len: usize,
    },

    /// Data sets with different fields cannot form one data set.
    #[error("data set {part} has the fields {found:?}, but the first has {first:?}")]
    OtherFields {
        /// The data set, from 0.
        part: usize,
        /// Its fields.
        found: Vec<String>,
        /// The fields of the first data set.
        first: Vec<String>,
    },

    /// A batch or a sample has no field of this name.
    #[error("no field `{name}`; the data set declares {declared:?}")]
    NoField {
        /// The requested name.
        name: String,
        /// The existing names.
        declared: Vec<&'static str>,
    },

    /// A field was read with the wrong type.
    #[error("field `{name}` is {declared:?}, not {asked:?}")]
    FieldType {
        /// The field.
        name: &'static str,
        /// Its type.
        declared: DType,
        /// The requested type.
        asked: DType,
    },

    /// A value was requested from a data set or batch that has only shapes.
    #[error("this data has shapes only; load the values, or use the loader's shapes_only()")]
    ShapesOnly,

    /// The batch size is 0.
    #[error("the batch size is 0; give at least 1")]
    BatchSize,

    /// The host is out of memory for a buffer of the loader.
    #[error("no host memory for {what}: {bytes} bytes are needed; {remedy}")]
    OutOfHostMemory {
        /// The buffer.
        what: String,
        /// Its size in bytes; `u64::MAX` on overflow.
        bytes: u64,
        /// A suggestion.
        remedy: &'static str,
    },

    /// A sample of a batch failed; the cause is the source.
    #[error("batch {batch}, sample {index}: {source}")]
    Sample {
        /// The batch, from 0 in its epoch.
        batch: usize,
        /// The sample's index in the data set.
        index: usize,
        /// The data set's error.
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
        /// The worker, from 0.
        worker: usize,
        /// The system's error.
        source: io::Error,
    },

    /// The thread that pins batches could not start.
    #[error(
        "cannot start the thread that pins batches: {source}; take the epoch's batches without `pin_memory`"
    )]
    PinThread {
        /// The system's error.
        source: io::Error,
    },

    /// A batch could not be copied to pinned memory.
    #[error("batch {batch} cannot be pinned: {source}")]
    Pin {
        /// The batch, from 0 in its epoch.
        batch: usize,
        /// The error.
        source: Box<plimsoll_tensor::Error>,
    },

    /// An error of a text or a token file.
    #[error(transparent)]
    Text(#[from] TextError),

    /// The function that runs when a worker thread starts has failed.
    #[error("data worker {worker} could not start its work: {source}")]
    WorkerInit {
        /// The worker, from 0.
        worker: usize,
        /// The function's error, or its panic.
        source: Box<DataError>,
    },

    /// A sample whose shape differs from the batch's.
    #[error(
        "a sample's `{name}` has shape {found:?}, not {declared:?}; give the loader a collate function that makes a \
         batch of them, such as Pad"
    )]
    SampleShape {
        /// The field.
        name: &'static str,
        /// The shape that the data set declares, or the first sample's.
        declared: Vec<usize>,
        /// This sample's.
        found: Vec<usize>,
    },

    /// An error of a sampler, or a saved position that does not fit.
    #[error(transparent)]
    Sampler(#[from] SamplerError),

    /// An array whose first dimension is not the number of samples.
    #[error("`{name}` has shape {shape:?}; its first dimension must be {samples}, the number of samples")]
    Samples {
        /// The array.
        name: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// The first array's number of samples.
        samples: usize,
    },

    /// An error of an image folder or a CIFAR file.
    #[error(transparent)]
    Image(#[from] ImageError),

    /// An error of an NPY file.
    #[error(transparent)]
    Npy(#[from] NpyError),

    /// An error of a user's own data set.
    #[error(transparent)]
    Custom(Box<dyn Error + Send + Sync>),
}
