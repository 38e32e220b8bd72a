//! Optimizers, and the norms of gradients.
//!
//! | file | contents |
//! |---|---|
//! | `step` | the rules that step all parameters at once |
//! | `one_by_one` | the rules that step one parameter at a time |
//! | `clip` | many gradients together: norms, limits |
//! | `foreach_copy` | copies of many tensors in one launch |

pub(crate) mod clip;
pub(crate) mod foreach_copy;
pub(crate) mod one_by_one;
pub(crate) mod step;
