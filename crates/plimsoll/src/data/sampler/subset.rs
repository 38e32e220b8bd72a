//! Some samples in random order: a training part, for example.

use std::sync::Arc;

use super::super::DataError;
use super::{Order, Sampler, shuffled};

/// The given samples, each once, in an order that depends on the seed and the epoch's number. In PyTorch: `SubsetRandomSampler`.
///
/// ```
/// # use plimsoll::data::{Sampler, SubsetRandomSampler};
/// let sampler = SubsetRandomSampler::new(vec![10, 20, 30], 7);
/// let mut order = sampler.order(0)?.to_vec();
/// order.sort_unstable();
/// assert_eq!(order, [10, 20, 30]);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SubsetRandomSampler {
    indices: Arc<[usize]>,
    seed: u64,
}

impl SubsetRandomSampler {
    /// A sampler of these samples. An epoch fails if the data set does not have one of them.
    #[must_use]
    pub fn new(indices: Vec<usize>, seed: u64) -> Self {
        Self { indices: indices.into(), seed }
    }
}

impl Sampler for SubsetRandomSampler {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn order(&self, epoch: u64) -> Result<Order, DataError> {
        let places = shuffled(self.seed, epoch, self.indices.len())?;
        Ok(Order::list(places.into_iter().map(|place| self.indices[place]).collect()))
    }
}
