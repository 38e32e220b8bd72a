//! Data loading: from files, or synthetic digits, to batches in host memory.
//!
//! As in `torch.utils.data`, a [`Dataset`] declares the fields of a sample and writes sample `i` into a
//! batch; a [`DataLoader`] shuffles, batches, and runs worker threads; an [`Epoch`] yields [`HostBatch`]es.
//! Nothing here depends on tensors, and only [`HostField::to_device`] on devices.
//!
//! Two data sets are included: [`MnistDir`] reads MNIST's files, and [`Digits`] draws MNIST-like digits without a
//! download. Both have the fields `images` (f32, `[1, H, W]`, normalised) and `labels` (i64).
//!
//! A language model's text is a [`Text`] (a token for each character) or a file of [`Tokens`]; both are trained on as
//! [`Blocks`], with the fields `x` and `y` (i64, `[T]`).
//!
//! A simulated device needs shapes and byte counts, not values: [`DataLoader::shapes_only`] yields the same
//! batches without reading or allocating any.
//!
//! Read `dataset.rs` (the trait) first, then `sampler.rs`, `loader.rs`, and `epoch.rs` (the threads).

mod batch;
mod blocks;
mod dataset;
mod digits;
mod epoch;
mod error;
mod grey;
mod host;
mod idx;
mod loader;
mod mnist;
mod random;
mod sampler;
mod text;
mod tokens;

pub use batch::{HostBatch, HostField};
pub use blocks::Blocks;
pub use dataset::{Dataset, Field, Sample, Shapes, Split, Subset};
pub use digits::Digits;
pub use epoch::Epoch;
pub use error::{DataError, TextError};
pub use host::{HostArray, HostElement, HostValues};
pub use loader::DataLoader;
pub use mnist::{MnistDir, Pair};
pub use sampler::{Order, RandomSampler, Sampler, SequentialSampler};
pub use text::{Text, TextSplit, Vocabulary};
pub use tokens::{TokenWidth, Tokens};
