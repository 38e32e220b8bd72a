//! The options of a recurrent layer.

use plimsoll_tensor::Cell;

/// The activation function of a plain RNN.
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

/// The options of a recurrent layer. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentOptions {
    /// The number of layers; each reads the output of the one before.
    pub num_layers: usize,
    /// Whether there are biases.
    pub bias: bool,
    /// Whether sequences are `[batch, steps, …]` instead of `[steps, batch, …]`.
    pub batch_first: bool,
    /// Dropout probability between layers while training.
    pub dropout: f64,
    /// Whether each layer also reads the sequence backwards.
    pub bidirectional: bool,
    /// If not 0, the size to which an LSTM's state is projected at every step (`weight_hr`).
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
