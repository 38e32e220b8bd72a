//! Data loading: from files, or synthetic digits, to batches in host memory.
//!
//! As in `torch.utils.data`, a [`Dataset`] declares the fields of a sample and writes sample `i` into a
//! batch; a [`DataLoader`] shuffles, batches, and runs worker threads; an [`Epoch`] yields [`HostBatch`]es.
//! Nothing here depends on tensors, and only [`HostField::to_device`] depends on devices.
//!
//! Images: [`MnistDir`] and [`CifarDir`] read those files, [`ImageFolder`] reads a folder for each class, and [`Digits`] draws
//! MNIST-like digits without a download. All have the fields `images` (f32, `[C, H, W]`, normalised) and `labels` (i64).
//! [`Augmented`] changes images at random. [`Arrays`] is a data set of arrays in memory, from NPY files for example
//! ([`HostArray::read_npy`]).
//!
//! A language model's text is a [`Text`] (a token for each character), a file that a `Tokenizer` reads (with the
//! feature `tokenizers`), or a file of [`Tokens`]. A model trains on any of them as [`Blocks`], with the fields `x` and `y` (i64,
//! `[T]`).
//!
//! A simulated device needs shapes and byte counts, not values: [`DataLoader::shapes_only`] yields the same
//! batches without reading or allocating any.
//!
//! Read `dataset.rs` (the trait) first, then `sampler.rs`, `loader.rs`, and `epoch.rs` (the threads).

mod arrays;
mod augment;
mod batch;
mod blocks;
mod cifar;
mod collate;
mod concat;
mod dataset;
mod digits;
mod epoch;
mod error;
mod folder;
mod grey;
mod host;
mod host_field;
mod idx;
mod indexed;
mod iterable;
mod loader;
mod mnist;
mod npy;
mod panicked;
mod picture;
mod pinned;
mod random;
mod rgb;
mod sampler;
mod state;
mod text;
#[cfg(feature = "tokenizers")]
mod tokenizer;
mod tokens;
mod workers;

pub use arrays::Arrays;
pub use augment::{Augment, Augmented};
pub use batch::HostBatch;
pub use blocks::Blocks;
pub use cifar::CifarDir;
pub use collate::Pad;
pub use concat::ConcatDataset;
pub use dataset::{Dataset, Field, Sample, Shapes, Split, Subset};
pub use digits::Digits;
pub use epoch::Epoch;
pub use error::{DataError, ImageError, NpyError, SamplerError, TextError};
pub use folder::{Damaged, ImageFolder, ImageOptions};
pub use host::{HostArray, HostElement, HostValues};
pub use host_field::HostField;
pub use iterable::{IterableDataset, IterableLoader, SampleIterator};
pub use loader::DataLoader;
pub use mnist::{MnistDir, Pair};
pub use picture::Fit;
pub use pinned::{PinnedBatch, PinnedEpoch};
pub use rgb::Normalize;
pub use sampler::{
    BatchSampler, DistributedSampler, Order, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
    WeightedRandomSampler,
};
pub use state::LoaderState;
pub use text::{Text, TextSplit, Vocabulary};
#[cfg(feature = "tokenizers")]
pub use tokenizer::{SpecialTokens, Tokenizer};
pub use tokens::{TokenWidth, Tokens};
pub use workers::WorkerInfo;
