//! Losses and their gradients.
//!
//! | file | contents |
//! |---|---|
//! | `cross_entropy` | cross entropy of logits, and negative log likelihood, of tensors of any rank |
//! | `projection` | a projection to classes whose logits are never all in memory at once, and its loss |
//! | `few_classes` | matrix products for the last few classes of a projection |
//! | `nll` | the negative log likelihood of rows |
//! | `pair_loss` | elementwise losses of an input and a target |

pub(crate) mod cross_entropy;
mod few_classes;
pub(crate) mod nll;
pub(crate) mod pair_loss;
pub(crate) mod projection;
