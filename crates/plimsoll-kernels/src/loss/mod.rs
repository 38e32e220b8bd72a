//! Losses and their gradients.
//!
//! | file | what it has |
//! |---|---|
//! | `nll` | negative log likelihood, squared error, and how losses are reduced |
//! | `cross_entropy` | of logits |
//! | `linear_cross_entropy` | of a projection, some rows at a time |
//! | `pair_loss` | losses of an input and a target of one shape |

pub mod cross_entropy;
pub mod linear_cross_entropy;
pub(crate) mod nll;
pub mod pair_loss;

pub use nll::{BadTarget, IGNORED, Reduction, mse_loss, mse_loss_backward, nll_loss, nll_loss_backward};
