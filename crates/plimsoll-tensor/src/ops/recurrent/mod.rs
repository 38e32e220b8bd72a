//! One layer of a recurrent network in one direction: RNN, LSTM or GRU over whole sequences.
//!
//! | file | contents |
//! |---|---|
//! | `layer` | the method of [`Tensor`](crate::Tensor), and the differentiable function behind it |
//! | `parameters` | the parameters that the function and the operators share |
//! | `steps` | the two operators: all steps forward, and all steps backward |
//! | `composed` | the same composed of tensor operations, for second derivatives |

mod composed;
mod layer;
mod parameters;
mod steps;

pub(crate) use layer::cases;
pub use layer::{Cell, RecurrentLayer, RecurrentState};

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[("recurrent", cases)];
