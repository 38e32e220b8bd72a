//! Optimizers, and the norms of gradients.
//!
//! | file | what it has |
//! |---|---|
//! | `step` | the rules that step all parameters at once |
//! | `optim` | the rules that step one parameter at a time |
//! | `clip` | many gradients together: norms, limits |

pub(crate) mod clip;
pub(crate) mod optim;
pub(crate) mod step;
