//! Probability distributions with PyTorch's names: sampling, log-probabilities, entropies and divergences. Everything
//! has gradients, except samples that come from any other method than `rsample`.
//!
//! | file | contents |
//! |---|---|
//! | this one | [`Distribution`], [`kl_divergence`] |
//! | `shapes` | parameters in their common shape and within their bounds |
//! | `normal` | [`Normal`] |
//! | `bernoulli` | [`Bernoulli`] |
//! | `categorical` | [`Categorical`] |
//! | `uniform` | [`Uniform`] |
//! | `independent` | [`Independent`] |
//!
//! Parameters are not checked, because reading their values would mean waiting for the device: a negative scale gives
//! NaN.

mod bernoulli;
mod categorical;
mod independent;
mod normal;
mod shapes;
mod uniform;

pub use bernoulli::Bernoulli;
pub use categorical::Categorical;
pub use independent::Independent;
pub use normal::Normal;
pub use uniform::Uniform;

use plimsoll_tensor::{Result, Tensor};

/// A distribution, or a batch of distributions: one for each element of the parameters. Like
/// `torch.distributions.Distribution`.
///
/// ```
/// use plimsoll::distributions::{Categorical, Distribution};
/// use plimsoll::{Device, Result, Tensor};
/// /// The loss of REINFORCE: rewarded actions become more likely, and entropy is encouraged.
/// fn policy_loss(policy: &impl Distribution, actions: &Tensor, rewards: &Tensor) -> Result<Tensor> {
///     (-(policy.log_prob(actions)? * rewards)?.mean()?)? - (policy.entropy()?.mean()? * 0.01)?
/// }
/// let logits = Tensor::zeros(&[4, 3], &Device::cpu())?.requires_grad_(true)?;
/// let policy = Categorical::from_logits(&logits)?;
/// let actions = policy.sample(&[])?;
/// policy_loss(&policy, &actions, &Tensor::ones(&[4], &Device::cpu())?)?.backward()?;
/// assert_eq!(logits.grad().unwrap().shape(), [4, 3]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub trait Distribution {
    /// The shape of one sample.
    fn batch_shape(&self) -> &[usize];

    /// Draws samples, `[…sample_shape, …batch_shape]`, from the device's random numbers. They have no gradient.
    ///
    /// # Errors
    /// If memory runs out.
    fn sample(&self, sample_shape: &[usize]) -> Result<Tensor>;

    /// The logarithm of the probability of each value, or of its density. `value` is broadcast with the batch.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    fn log_prob(&self, value: &Tensor) -> Result<Tensor>;

    /// The entropy of each distribution of the batch, in nats.
    ///
    /// # Errors
    /// If memory runs out.
    fn entropy(&self) -> Result<Tensor>;
}

/// A distribution whose divergence from another one of its kind is known. [`kl_divergence`] has an example.
pub trait Divergence: Distribution {
    /// The Kullback-Leibler divergence of this distribution from `other`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    fn divergence(&self, other: &Self) -> Result<Tensor>;
}

macro_rules! divergences {
    ($($distribution:ident),*) => {$(
        impl Divergence for $distribution {
            #[track_caller]
            fn divergence(&self, other: &$distribution) -> Result<Tensor> {
                self.kl_divergence(other)
            }
        }
    )*};
}
divergences!(Bernoulli, Categorical, Normal);

/// The Kullback-Leibler divergence of `p` from `q`, two distributions of one kind. Like `torch.distributions.kl_divergence`.
///
/// ```
/// use plimsoll::distributions::{Uniform, kl_divergence};
/// use plimsoll::{DType, Device, Tensor};
/// let number = |x: f64| Tensor::full(&[], x, DType::F32, &Device::cpu());
/// let (half, whole) = (Uniform::new(number(0.0)?, number(0.5)?)?, Uniform::new(number(0.0)?, number(1.0)?)?);
/// assert_eq!(kl_divergence(&half, &whole)?.item::<f32>()?, 2.0f32.ln());
/// assert_eq!(kl_divergence(&whole, &half)?.item::<f32>()?, f32::INFINITY);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// If the shapes do not broadcast, or memory runs out.
#[track_caller]
pub fn kl_divergence<D: Divergence>(p: &D, q: &D) -> Result<Tensor> {
    p.divergence(q)
}
