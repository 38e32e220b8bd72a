//! Probability distributions with PyTorch's names: sampling, log-probabilities, entropies and divergences. Everything
//! has gradients except samples; of these, only those of [`Normal::rsample`] have them.
//!
//! | file | contents |
//! |---|---|
//! | this one | [`Distribution`] |
//! | `shapes` | parameters in their common shape and within their bounds |
//! | `normal` | [`Normal`] |
//! | `bernoulli` | [`Bernoulli`] |
//! | `categorical` | [`Categorical`] |
//!
//! Parameters are not checked, because reading their values would mean waiting for the device: a negative scale gives
//! NaN.

mod bernoulli;
mod categorical;
mod normal;
mod shapes;

pub use bernoulli::Bernoulli;
pub use categorical::Categorical;
pub use normal::Normal;

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
