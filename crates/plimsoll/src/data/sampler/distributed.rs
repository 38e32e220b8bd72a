//! Divides the samples among several processes.

use super::super::DataError;
use super::super::error::SamplerError;
use super::{Order, RandomSampler, Sampler};

/// One replica's part of the samples; all replicas together read the data set once. In PyTorch:
/// `torch.utils.data.DistributedSampler`. Replica r has every `replicas`th sample of the epoch's order, starting at r. All parts
/// have the same length: the first samples are repeated at the end or, with [`drop_last`](Self::drop_last), the last ones are
/// left out. The epoch number passed to [`DataLoader::epoch`](super::super::DataLoader::epoch) replaces PyTorch's
/// `set_epoch`: all replicas must pass the same one.
///
/// ```
/// # use plimsoll::data::{DistributedSampler, Sampler};
/// let part = |rank| DistributedSampler::new(5, 2, rank);
/// assert_eq!(part(0)?.order(0)?.to_vec(), [0, 2, 4]);
/// assert_eq!(part(1)?.order(0)?.to_vec(), [1, 3, 0]);
/// assert_eq!(part(1)?.drop_last().order(0)?.to_vec(), [1, 3]);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DistributedSampler {
    len: usize,
    replicas: usize,
    rank: usize,
    seed: Option<u64>,
    tail: Tail,
}

/// How to handle a last group of samples that is too small for all replicas.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Pad,
    Drop,
}

impl DistributedSampler {
    /// The part of replica `rank` of a data set of `len` samples, in its order.
    ///
    /// # Errors
    /// If `rank` is not below `replicas`.
    pub fn new(len: usize, replicas: usize, rank: usize) -> Result<Self, DataError> {
        if rank >= replicas {
            return Err(SamplerError::Rank { rank, replicas }.into());
        }
        Ok(Self { len, replicas, rank, seed: None, tail: Tail::Pad })
    }

    /// Divides a random order, which depends on this seed and the epoch's number. All replicas must use the same seed. PyTorch
    /// shuffles by default.
    #[must_use]
    pub const fn shuffle(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Leaves out a last group of samples that is too small for all replicas, instead of repeating samples.
    #[must_use]
    pub const fn drop_last(self) -> Self {
        Self { tail: Tail::Drop, ..self }
    }
}

impl Sampler for DistributedSampler {
    fn len(&self) -> usize {
        match self.tail {
            Tail::Pad => self.len.div_ceil(self.replicas),
            Tail::Drop => self.len / self.replicas,
        }
    }

    fn order(&self, epoch: u64) -> Result<Order, DataError> {
        let Self { len, replicas, rank, .. } = *self;
        let whole = match self.seed {
            Some(seed) => RandomSampler::new(len, seed).order(epoch)?,
            None => Order::sequential(len),
        };
        Ok(Order::computed(self.len(), move |position| whole.index((rank + position * replicas) % len)))
    }
}
