//! One layer of a recurrent network in one direction: RNN, LSTM or GRU over whole sequences.
//!
//! | file | what it has |
//! |---|---|
//! | `layer` | the method of [`Tensor`](crate::Tensor), and the function with a derivative of its own behind it |
//! | `parameters` | what the function and the operators know of a layer |
//! | `steps` | the two operators: all steps forward, all steps back |
//! | `composed` | the same from operations on tensors, for a derivative of the derivative |

mod composed;
mod layer;
mod parameters;
mod steps;

pub(crate) use layer::cases;
pub use layer::{Cell, RecurrentLayer, RecurrentState};

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[("recurrent", cases)];
