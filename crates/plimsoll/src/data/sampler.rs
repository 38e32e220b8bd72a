//! Samplers: they choose which samples an epoch has, and in which order.
//!
//! As in `torch.utils.data`, except that an epoch's order depends only on the sampler and the epoch's number, and can be read at
//! any position. So each worker finds its batches by itself, and a resumed run continues where it stopped without reading the
//! earlier samples.

mod batch;
mod distributed;
mod subset;
mod weighted;

use std::fmt;

pub use batch::BatchSampler;
pub(super) use batch::{Batches, Replica};
pub use distributed::DistributedSampler;
pub use subset::SubsetRandomSampler;
pub use weighted::WeightedRandomSampler;

use super::DataError;
use super::random::{Purpose, Stream};

/// Chooses which samples an epoch has, and in which order. In PyTorch: `torch.utils.data.Sampler`.
///
/// ```
/// # use plimsoll::data::{DataError, Order, Sampler};
/// /// The samples backwards.
/// struct Backwards(usize);
///
/// impl Sampler for Backwards {
///     fn len(&self) -> usize {
///         self.0
///     }
///     fn order(&self, _epoch: u64) -> Result<Order, DataError> {
///         let last = self.0 - 1;
///         Ok(Order::computed(self.0, move |position| last - position))
///     }
/// }
/// assert_eq!(Backwards(3).order(0)?.to_vec(), [2, 1, 0]);
/// # Ok::<(), DataError>(())
/// ```
pub trait Sampler: Send + Sync {
    /// The number of samples of an epoch.
    fn len(&self) -> usize;

    /// The order of an epoch: as many samples as [`len`](Self::len). The same epoch always has the same order.
    ///
    /// # Errors
    /// If host memory runs out.
    fn order(&self, epoch: u64) -> Result<Order, DataError>;

    /// Whether an epoch has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The samples of one epoch, by position.
pub struct Order {
    len: usize,
    index: Index,
}

enum Index {
    Same,
    List(Vec<usize>),
    Computed(Box<dyn Fn(usize) -> usize + Send + Sync>),
}

impl Order {
    /// Samples 0 to `len - 1`.
    #[must_use]
    pub const fn sequential(len: usize) -> Self {
        Self { len, index: Index::Same }
    }

    /// These samples.
    #[must_use]
    pub const fn list(indices: Vec<usize>) -> Self {
        Self { len: indices.len(), index: Index::List(indices) }
    }

    /// `len` samples; `index` maps a position to a sample. Takes no memory.
    #[must_use]
    pub fn computed(len: usize, index: impl Fn(usize) -> usize + Send + Sync + 'static) -> Self {
        Self { len, index: Index::Computed(Box::new(index)) }
    }

    /// The number of samples.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no samples.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sample at a position below [`len`](Self::len).
    ///
    /// # Panics
    /// If `position` is not below the length.
    #[must_use]
    pub fn index(&self, position: usize) -> usize {
        assert!(position < self.len, "position {position} is not in an order of {} samples", self.len);
        match &self.index {
            Index::Same => position,
            Index::List(indices) => indices[position],
            Index::Computed(index) => index(position),
        }
    }

    /// All samples.
    #[must_use]
    pub fn to_vec(&self) -> Vec<usize> {
        (0..self.len).map(|position| self.index(position)).collect()
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Order of {} samples", self.len)
    }
}

/// The data set's own order.
#[derive(Clone, Copy, Debug)]
pub struct SequentialSampler {
    len: usize,
}

impl SequentialSampler {
    /// A sampler for a data set of `len` samples.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self { len }
    }
}

impl Sampler for SequentialSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn order(&self, _: u64) -> Result<Order, DataError> {
        Ok(Order::sequential(self.len))
    }
}

/// A random order: each sample once, or drawn with replacement.
///
/// ```
/// # use plimsoll::data::{RandomSampler, Sampler};
/// let mut once = RandomSampler::new(5, 7).order(0)?.to_vec();
/// once.sort_unstable();
/// assert_eq!(once, [0, 1, 2, 3, 4]);
/// assert_eq!(RandomSampler::new(5, 7).with_replacement(1_000).order(0)?.len(), 1_000);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomSampler {
    len: usize,
    seed: u64,
    draws: Option<usize>,
}

impl RandomSampler {
    /// Each of `len` samples once, in an order that depends on this seed and the epoch's number.
    #[must_use]
    pub const fn new(len: usize, seed: u64) -> Self {
        Self { len, seed, draws: None }
    }

    /// Draws this many samples in an epoch, each from all of the data set. It uses no memory, even for a large data
    /// set. In PyTorch: `replacement=True, num_samples=draws`. If the data set is empty, no samples are drawn.
    #[must_use]
    pub const fn with_replacement(self, draws: usize) -> Self {
        Self { draws: Some(draws), ..self }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> usize {
        if self.len == 0 { 0 } else { self.draws.unwrap_or(self.len) }
    }

    fn order(&self, epoch: u64) -> Result<Order, DataError> {
        let Self { len, seed, draws } = *self;
        if draws.is_none() {
            return shuffled(seed, epoch, len).map(Order::list);
        }
        let draw = move |position| Stream::at(seed, Purpose::Draws, epoch, position as u64).below(len);
        Ok(Order::computed(self.len(), draw))
    }
}

/// Each sample once, in random order.
fn shuffled(seed: u64, epoch: u64, len: usize) -> Result<Vec<usize>, DataError> {
    let mut order: Vec<usize> = Vec::new();
    order.try_reserve_exact(len).map_err(|_| DataError::OutOfHostMemory {
        what: format!("the shuffled order of {len} samples"),
        bytes: (len as u64).saturating_mul(size_of::<usize>() as u64),
        remedy: "try a subset, the data set's own order, or samples drawn with replacement",
    })?;
    order.extend(0..len);
    Stream::new(seed, Purpose::EpochOrder, epoch).shuffle(&mut order);
    Ok(order)
}

#[cfg(test)]
#[path = "sampler/tests.rs"]
mod tests;
