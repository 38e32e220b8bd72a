//! The data room: from files, or from drawings made by code, to batches in host memory.
//!
//! It speaks `torch.utils.data`: a [`Dataset`] says what a sample looks like and writes sample `i` where it is
//! told; a [`DataLoader`] shuffles, batches, and runs worker threads; an [`Epoch`] hands out [`HostBatch`]es.
//! Nothing here knows of devices or tensors; whoever owns a device copies a batch there.
//!
//! Two data sets live here: [`MnistDir`] reads MNIST's files, and [`Digits`] draws MNIST-like digits with no
//! download. Both have the fields `images` (f32, `[1, H, W]`, normalised) and `labels` (i64).
//!
//! A simulated device needs shapes and byte counts, not values: [`DataLoader::shapes_only`] yields the same
//! batches without reading or allocating any.
//!
//! Where to start reading: `dataset.rs` (the seam), then `loader.rs`, then `epoch.rs` (the threads).

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
