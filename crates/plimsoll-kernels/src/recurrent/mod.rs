//! The steps of one recurrent layer in one direction: RNN, LSTM and GRU, forward and backward.
//!
//! | file | what it has |
//! |---|---|
//! | `steps` | what a step computes, sizes, what both passes read |
//! | `forward` | the pass forward |
//! | `backward` | the pass backward |
//! | `rows` | the rows of a step, cut for the threads |

mod backward;
mod forward;
mod rows;
pub(crate) mod steps;

pub use backward::{Gradients, Kept, backward, backward_scratch_len};
pub use forward::{forward, forward_scratch_len};
pub use steps::{Cell, Start, Steps};
