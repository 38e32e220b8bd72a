//! Losses and their gradients.
//!
//! | file | what it has |
//! |---|---|
//! | `cross_entropy` | cross entropy of logits, likelihoods of any position |
//! | `projection` | a projection to classes whose logits are never whole, and its loss |
//! | `few_classes` | products with the last few classes of a projection |
//! | `nll` | the negative log likelihood of rows |
//! | `pair_loss` | losses of each element and its target |

pub(crate) mod cross_entropy;
mod few_classes;
pub(crate) mod nll;
pub(crate) mod pair_loss;
pub(crate) mod projection;
