//! Data loading: from files, or synthetic digits, to batches in host memory.
//!
//! As in `torch.utils.data`, a [`Dataset`] declares the fields of a sample and writes sample `i` into a
//! batch; a [`DataLoader`] shuffles, batches, and runs worker threads; an [`Epoch`] yields [`HostBatch`]es.
//! Nothing here depends on tensors, and only [`HostField::to_device`] on devices.
//!
//! Two data sets are included: [`MnistDir`] reads MNIST's files, and [`Digits`] draws MNIST-like digits without a
//! download. Both have the fields `images` (f32, `[1, H, W]`, normalised) and `labels` (i64).
//!
//! A simulated device needs shapes and byte counts, not values: [`DataLoader::shapes_only`] yields the same
//! batches without reading or allocating any.
//!
//! Read `dataset.rs` (the trait) first, then `loader.rs`, then `epoch.rs` (the threads).

mod batch;
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

pub use batch::{HostBatch, HostField};
pub use dataset::{Dataset, Field, Sample, Shapes, Split, Subset};
pub use digits::Digits;
pub use epoch::Epoch;
pub use error::DataError;
pub use host::{HostArray, HostElement, HostValues};
pub use loader::DataLoader;
pub use mnist::{MnistDir, Pair};
