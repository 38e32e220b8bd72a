//! Recurrent layers.
//!
//! | file | contents |
//! |---|---|
//! | `steps` | the steps of a layer in one direction, forward and backward |

pub(crate) mod steps;

pub(crate) use steps::{backward, forward};
