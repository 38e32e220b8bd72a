//! The steps of one recurrent layer in one direction: RNN, LSTM and GRU, forward and backward.
//!
//! | file | contents |
//! |---|---|
//! | `steps` | cells, sizes, and the inputs of both passes |
//! | `forward` | the pass forward |
//! | `backward` | the pass backward |
//! | `rows` | the rows of a step, divided among threads |

mod backward;
mod forward;
mod rows;
pub(crate) mod steps;

pub use backward::{Gradients, Kept, backward, backward_scratch_len};
pub use forward::{forward, forward_scratch_len};
pub use steps::{Cell, Start, Steps};
