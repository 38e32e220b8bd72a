//! One step of a recurrent layer: [`RNNCell`], [`LSTMCell`] and [`GRUCell`].

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Cell, Error, RecurrentState, Result, Tensor};

use super::super::{Members, MembersMut, Module, Scope};
use super::direction::Direction;
use super::options::Nonlinearity;

/// One step from a state to the next.
#[derive(Clone, Debug)]
struct Step {
    label: LabelId,
    cell: Cell,
    hidden: usize,
    parts: Direction,
}

impl Step {
    fn new(scope: &Scope, cell: Cell, inputs: usize, hidden: usize, bias: bool) -> Result<Step> {
        if inputs == 0 || hidden == 0 {
            let message = format!("{inputs} inputs and a hidden state of {hidden}: both must be above 0");
            return Err(Error::Argument { op: "recurrent_cell", message });
        }
        let parts = Direction::new(scope, cell, [inputs, hidden], bias, 0, String::new())?;
        Ok(Step { label: scope.label(), cell, hidden, parts })
    }

    #[track_caller]
    fn run(&self, input: &Tensor, h: Option<&Tensor>, c: Option<&Tensor>) -> Result<RecurrentState> {
        let _owner = Span::layer(self.label);
        if !matches!(input.rank(), 1 | 2) {
            let message = format!("an input {:?}: needs [batch, inputs] or [inputs]", input.shape());
            return Err(Error::Shape { op: "recurrent_cell", message });
        }
        let batched = input.rank() == 2;
        let rows = |x: &Tensor| if batched { Ok(x.clone()) } else { x.unsqueeze(0) };
        let input = rows(input)?;
        let state = |given: Option<&Tensor>| match given {
            Some(given) => rows(given),
            None => Tensor::zeros(&[input.shape()[0], self.hidden], input.device())?.to_dtype(input.dtype()),
        };
        let c = (self.cell == Cell::Lstm).then(|| state(c)).transpose()?;
        let before = RecurrentState { h: state(h)?, c };
        let (_, after) = input.unsqueeze(0)?.recurrent(self.parts.layer(self.cell, false, false), &before)?;
        if batched {
            return Ok(after);
        }
        Ok(RecurrentState { h: after.h.squeeze(0)?, c: after.c.map(|c| c.squeeze(0)).transpose()? })
    }
}

macro_rules! cell {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(Step);

        impl Module for $name {
            fn members<'a>(&'a self, list: &mut Members<'a>) {
                self.0.parts.members(list);
            }

            fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
                self.0.parts.members_mut(list);
            }
        }
    };
}

cell! {
    /// One step of a plain RNN. Like `torch.nn.RNNCell`.
    RNNCell
}
cell! {
    /// One step of a gated recurrent unit. Like `torch.nn.GRUCell`.
    GRUCell
}
cell! {
    /// One step of a long short-term memory. Like `torch.nn.LSTMCell`.
    ///
    /// ```
    /// use plimsoll::nn::{LSTMCell, Scope};
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let cell = LSTMCell::new(&Scope::new(&device, 1), 4, 8, true)?;
    /// let x = Tensor::randn(&[3, 4], &device)?;
    /// let (h, c) = cell.forward(&x, None)?;
    /// let (h, _) = cell.forward(&x, (&h, &c))?;
    /// assert_eq!(h.shape(), [3, 8]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    LSTMCell
}

impl RNNCell {
    /// A cell from `input_size` inputs to a state of `hidden_size`.
    ///
    /// # Errors
    /// If a size is 0, the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(
        scope: &Scope,
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        nonlinearity: Nonlinearity,
    ) -> Result<RNNCell> {
        Step::new(scope, nonlinearity.cell(), input_size, hidden_size, bias).map(RNNCell)
    }

    /// Returns the state after this step, which starts from `h` or from zeros.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward<'a>(&self, input: &Tensor, h: impl Into<Option<&'a Tensor>>) -> Result<Tensor> {
        Ok(self.0.run(input, h.into(), None)?.h)
    }
}

impl GRUCell {
    /// A cell from `input_size` inputs to a state of `hidden_size`.
    ///
    /// # Errors
    /// The same errors as [`RNNCell::new`].
    pub fn new(scope: &Scope, input_size: usize, hidden_size: usize, bias: bool) -> Result<GRUCell> {
        Step::new(scope, Cell::Gru, input_size, hidden_size, bias).map(GRUCell)
    }

    /// Returns the state after this step, which starts from `h` or from zeros.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward<'a>(&self, input: &Tensor, h: impl Into<Option<&'a Tensor>>) -> Result<Tensor> {
        Ok(self.0.run(input, h.into(), None)?.h)
    }
}

impl LSTMCell {
    /// A cell from `input_size` inputs to a state of `hidden_size`.
    ///
    /// # Errors
    /// The same errors as [`RNNCell::new`].
    pub fn new(scope: &Scope, input_size: usize, hidden_size: usize, bias: bool) -> Result<LSTMCell> {
        Step::new(scope, Cell::Lstm, input_size, hidden_size, bias).map(LSTMCell)
    }

    /// Returns the hidden and the cell state after this step, which starts from `(h, c)` or from zeros.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward<'a>(
        &self,
        input: &Tensor,
        state: impl Into<Option<(&'a Tensor, &'a Tensor)>>,
    ) -> Result<(Tensor, Tensor)> {
        let (h, c) = state.into().unzip();
        let after = self.0.run(input, h, c)?;
        let c = after.c.unwrap_or_else(|| unreachable!("an LSTM has a memory"));
        Ok((after.h, c))
    }
}
