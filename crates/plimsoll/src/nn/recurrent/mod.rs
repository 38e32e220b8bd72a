//! Recurrent layers, as in PyTorch: [`RNN`], [`LSTM`] and [`GRU`], and a single step of each.
//!
//! | file | contents |
//! |---|---|
//! | this one | [`RNN`], [`LSTM`] and [`GRU`] |
//! | `options` | their options |
//! | `packed` | sequences of unequal lengths: [`PackedSequence`] |
//! | `pass` | one layer in one direction |
//! | `stack` | the code that the three share: layers, directions, dropout between layers, states |
//! | `cells` | [`RNNCell`], [`LSTMCell`] and [`GRUCell`] |
//!
//! Each layer and direction is one call to [`Tensor::recurrent`].

mod cells;
mod direction;
mod options;
mod packed;
mod pass;
mod stack;

pub use cells::{GRUCell, LSTMCell, RNNCell};
pub use options::{Nonlinearity, RecurrentOptions};
pub use packed::PackedSequence;

use plimsoll_tensor::{Cell, Error, Result, Tensor};

use self::stack::Stack;
use super::{Module, Scope};

/// Defines the `forward` methods of a layer whose only state is its output.
macro_rules! runs {
    ($(#[$run:meta])* $layer:ident) => {
        impl $layer {
            $(#[$run])*
            ///
            /// # Errors
            /// If the sizes or types do not match, a sequence has no steps, or memory runs out.
            #[track_caller]
            pub fn forward<'a>(&self, input: &Tensor, h0: impl Into<Option<&'a Tensor>>) -> Result<(Tensor, Tensor)> {
                let (y, h, _) = self.stack.run(input, h0.into(), None)?;
                Ok((y, h))
            }

            /// Like `forward`, for sequences of different lengths; states are in the original order of the sequences.
            ///
            /// # Errors
            /// The same errors as `forward`.
            #[track_caller]
            pub fn forward_packed<'a>(
                &self,
                input: &PackedSequence,
                h0: impl Into<Option<&'a Tensor>>,
            ) -> Result<(PackedSequence, Tensor)> {
                let (y, h, _) = self.stack.run_packed(input, h0.into(), None)?;
                Ok((y, h))
            }
        }

        impl Module for $layer {
            /// The output at every step, starting from a zero state.
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                Ok(self.forward(input, None)?.0)
            }

            stack::members_of_stack!();
        }
    };
}

/// A simple recurrent network. Like `torch.nn.RNN`.
///
/// ```
/// use plimsoll::nn::{Nonlinearity, RNN, RecurrentOptions, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let rnn = RNN::new(&Scope::new(&device, 1), 4, 8, Nonlinearity::Tanh, RecurrentOptions::default())?;
/// let (y, h) = rnn.forward(&Tensor::randn(&[10, 3, 4], &device)?, None)?; // steps, batch, inputs
/// assert_eq!((y.shape(), h.shape()), (&[10, 3, 8][..], &[1, 3, 8][..]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RNN {
    stack: Stack,
}

impl RNN {
    /// A network that reads `input_size` numbers per step and has a state of `hidden_size` numbers.
    ///
    /// # Errors
    /// If a size or the number of layers is 0, a probability is outside 0 to 1, the path is already in use
    /// ([`Scope::parameter`]), or memory runs out.
    pub fn new(
        scope: &Scope,
        input_size: usize,
        hidden_size: usize,
        nonlinearity: Nonlinearity,
        options: RecurrentOptions,
    ) -> Result<RNN> {
        Ok(RNN { stack: Stack::new(scope, nonlinearity.cell(), input_size, hidden_size, options)? })
    }
}

runs! {
    /// Returns the output at every step, `[…, directions · hidden_size]`, and the last state of each layer and direction,
    /// `[layers · directions, batch, hidden_size]`. Starts from `h0`, which has the shape of the last state, or from
    /// zeros. The batch dimension is optional in the input: `[steps, input_size]`. Like `torch.nn.RNN.forward`.
    RNN
}

/// A gated recurrent unit network. Like `torch.nn.GRU`.
///
/// ```
/// use plimsoll::nn::{GRU, Module, RecurrentOptions, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let gru = GRU::new(&Scope::new(&device, 1), 4, 8, RecurrentOptions { num_layers: 2, ..RecurrentOptions::default() })?;
/// let names: Vec<String> = gru.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names[..4], ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GRU {
    stack: Stack,
}

impl GRU {
    /// A network that reads `input_size` numbers per step and has a state of `hidden_size` numbers.
    ///
    /// # Errors
    /// The same errors as [`RNN::new`].
    pub fn new(
        scope: &Scope,
        input_size: usize,
        hidden_size: usize,
        options: RecurrentOptions,
    ) -> Result<GRU> {
        Ok(GRU { stack: Stack::new(scope, Cell::Gru, input_size, hidden_size, options)? })
    }
}

runs! {
    /// Like [`RNN::forward`] and `torch.nn.GRU.forward`.
    GRU
}

/// A long short-term memory network. Like `torch.nn.LSTM`.
///
/// ```
/// use plimsoll::nn::{LSTM, RecurrentOptions, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let options = RecurrentOptions { bidirectional: true, batch_first: true, ..RecurrentOptions::default() };
/// let lstm = LSTM::new(&Scope::new(&device, 1), 4, 8, options)?;
/// let (y, (h, c)) = lstm.forward(&Tensor::randn(&[3, 10, 4], &device)?, None)?; // batch, steps, inputs
/// assert_eq!((y.shape(), h.shape(), c.shape()), (&[3, 10, 16][..], &[2, 3, 8][..], &[2, 3, 8][..]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LSTM {
    stack: Stack,
}

impl LSTM {
    /// A network that reads `input_size` numbers per step and has a state of `hidden_size` numbers.
    ///
    /// # Errors
    /// The same errors as [`RNN::new`].
    pub fn new(
        scope: &Scope,
        input_size: usize,
        hidden_size: usize,
        options: RecurrentOptions,
    ) -> Result<LSTM> {
        Ok(LSTM { stack: Stack::new(scope, Cell::Lstm, input_size, hidden_size, options)? })
    }

    /// Returns the output at every step, and the last hidden and cell state of each layer and direction. Starts from `(h0, c0)`,
    /// or from zeros. Otherwise like [`RNN::forward`] and `torch.nn.LSTM.forward`.
    ///
    /// # Errors
    /// The same errors as [`RNN::forward`].
    #[track_caller]
    pub fn forward<'a>(
        &self,
        input: &Tensor,
        state: impl Into<Option<(&'a Tensor, &'a Tensor)>>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let (h, c) = state.into().unzip();
        let (y, h, c) = self.stack.run(input, h, c)?;
        let c = c.ok_or_else(|| Error::Argument { op: "lstm", message: "no memory".to_owned() })?;
        Ok((y, (h, c)))
    }

    /// [`LSTM::forward`] for sequences of different lengths; states are in the original order of the sequences.
    ///
    /// # Errors
    /// The same errors as [`LSTM::forward`].
    #[track_caller]
    pub fn forward_packed<'a>(
        &self,
        input: &PackedSequence,
        state: impl Into<Option<(&'a Tensor, &'a Tensor)>>,
    ) -> Result<(PackedSequence, (Tensor, Tensor))> {
        let (h, c) = state.into().unzip();
        let (y, h, c) = self.stack.run_packed(input, h, c)?;
        let c = c.ok_or_else(|| Error::Argument { op: "lstm", message: "no memory".to_owned() })?;
        Ok((y, (h, c)))
    }
}

impl Module for LSTM {
    /// The output at every step, starting from a zero state.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(self.forward(input, None)?.0)
    }

    stack::members_of_stack!();
}
