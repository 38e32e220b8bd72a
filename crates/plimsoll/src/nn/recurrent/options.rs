//! How a recurrent layer is made.

use plimsoll_tensor::Cell;

/// What a plain RNN applies to the sum of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nonlinearity {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

impl Nonlinearity {
    pub(super) fn cell(self) -> Cell {
        match self {
            Nonlinearity::Tanh => Cell::Tanh,
            Nonlinearity::Relu => Cell::Relu,
        }
    }
}

/// How a recurrent layer is made. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentOptions {
    /// Layers, each of which reads the output of the one before.
    pub num_layers: usize,
    /// Whether there are biases.
    pub bias: bool,
    /// Whether sequences are `[batch, steps, …]`, and not `[steps, batch, …]`.
    pub batch_first: bool,
    /// The probability of dropping an element between layers while training.
    pub dropout: f64,
    /// Whether each layer also reads from the last step to the first.
    pub bidirectional: bool,
    /// Where it is not 0, the size to which an LSTM's state is projected at every step (`weight_hr`).
    pub proj_size: usize,
}

impl Default for RecurrentOptions {
    fn default() -> Self {
        RecurrentOptions {
            num_layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            proj_size: 0,
        }
    }
}
