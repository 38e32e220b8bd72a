//! Batches of distributions as distributions of vectors.

use plimsoll_tensor::{Error, Result, Tensor};

use super::{Distribution, Divergence};

/// Takes the last dimensions of a batch as one event: their log-probabilities, entropies and divergences are added. Like
/// `torch.distributions.Independent`. Samples with a gradient are those of the elements: `points.base().rsample(…)`.
///
/// ```
/// use plimsoll::distributions::{Distribution, Independent, Normal};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let (loc, scale) = (Tensor::zeros(&[4, 3], &device)?, Tensor::ones(&[4, 3], &device)?);
/// let points = Independent::new(Normal::new(loc, scale)?, 1)?;
/// let drawn = points.sample(&[2])?;
/// assert_eq!((points.batch_shape(), drawn.shape()), (&[4][..], &[2, 4, 3][..]));
/// assert_eq!(points.log_prob(&drawn)?.shape(), [2, 4]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Independent<D> {
    base: D,
    event_dims: usize,
}

impl<D: Distribution> Independent<D> {
    /// Takes the last `event_dims` dimensions of the batch as one event; `reinterpreted_batch_ndims` in PyTorch.
    ///
    /// # Errors
    /// If the batch has fewer dimensions.
    pub fn new(base: D, event_dims: usize) -> Result<Independent<D>> {
        let batch = base.batch_shape();
        if event_dims > batch.len() {
            let message = format!("a batch {batch:?} has fewer than {event_dims} dimensions");
            return Err(Error::argument("independent", message));
        }
        Ok(Independent { base, event_dims })
    }

    /// The distribution of the elements.
    pub fn base(&self) -> &D {
        &self.base
    }

    #[track_caller]
    fn summed(&self, x: Tensor) -> Result<Tensor> {
        if self.event_dims == 0 {
            return Ok(x);
        }
        x.sum_dims(&(1..=self.event_dims as isize).map(|dim| -dim).collect::<Vec<_>>())
    }
}

impl<D: Distribution> Distribution for Independent<D> {
    /// Without the dimensions of an event, which samples have too.
    fn batch_shape(&self) -> &[usize] {
        let batch = self.base.batch_shape();
        &batch[..batch.len() - self.event_dims]
    }

    #[track_caller]
    fn sample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        self.base.sample(sample_shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &Tensor) -> Result<Tensor> {
        self.summed(self.base.log_prob(value)?)
    }

    #[track_caller]
    fn entropy(&self) -> Result<Tensor> {
        self.summed(self.base.entropy()?)
    }
}

impl<D: Divergence> Divergence for Independent<D> {
    #[track_caller]
    fn divergence(&self, other: &Independent<D>) -> Result<Tensor> {
        if self.event_dims != other.event_dims {
            let message = format!("events of {} and {} dimensions differ", self.event_dims, other.event_dims);
            return Err(Error::argument("kl_divergence", message));
        }
        self.summed(self.base.divergence(&other.base)?)
    }
}
