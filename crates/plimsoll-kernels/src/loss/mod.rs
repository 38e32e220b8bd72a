//! Losses and their gradients.
//!
//! | file | contents |
//! |---|---|
//! | `nll` | negative log likelihood, mean squared error, and the reduction of losses |
//! | `cross_entropy` | cross entropy of logits |
//! | `linear_cross_entropy` | cross entropy of a projection, a few rows at a time |
//! | `pair_loss` | losses of an input and a target of equal shape |

pub mod cross_entropy;
pub mod linear_cross_entropy;
pub(crate) mod nll;
pub mod pair_loss;

pub use nll::{BadTarget, IGNORED, Reduction, mse_loss, mse_loss_backward, nll_loss, nll_loss_backward};
