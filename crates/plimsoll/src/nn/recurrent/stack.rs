//! Layers of one kind on top of each other, in one direction or two; `pass.rs` has one layer in one direction.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Cell, Error, RecurrentState, Result, Tensor};

use super::super::{Mode, Scope};
use super::direction::Direction;
use super::options::RecurrentOptions;
use super::packed::{Order, PackedSequence};
use super::pass;

/// Defines `members` and `members_mut` for a module with a field `stack`, whose parameters it lists as its own.
macro_rules! members_of_stack {
    () => {
        fn members<'a>(&'a self, list: &mut crate::nn::Members<'a>) {
            list.add("mode", &self.stack.mode);
            self.stack.directions.iter().for_each(|direction| direction.members(list));
        }

        fn members_mut<'a>(&'a mut self, list: &mut crate::nn::MembersMut<'a>) {
            self.stack.directions.iter_mut().for_each(|direction| direction.members_mut(list));
        }
    };
}
pub(super) use members_of_stack;

/// All layers and directions, in PyTorch's order: both directions of a layer before the next layer.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    label: LabelId,
    cell: Cell,
    sizes: [usize; 2],
    options: RecurrentOptions,
    pub(super) mode: Mode,
    pub(super) directions: Vec<Direction>,
}

fn name(cell: Cell) -> &'static str {
    match cell {
        Cell::Relu | Cell::Tanh => "rnn",
        Cell::Lstm => "lstm",
        Cell::Gru => "gru",
    }
}

impl Stack {
    pub(super) fn new(
        scope: &Scope,
        cell: Cell,
        inputs: usize,
        hidden: usize,
        options: RecurrentOptions,
    ) -> Result<Stack> {
        let fail = |message: String| Err(Error::Argument { op: name(cell), message });
        if inputs == 0 || hidden == 0 || options.num_layers == 0 {
            return fail(format!(
                "{} layers, {inputs} inputs and a hidden state of {hidden}: all must be above 0",
                options.num_layers
            ));
        }
        if !(0.0..=1.0).contains(&options.dropout) {
            return fail(format!("a dropout of {} is not a probability: use 0 to 1", options.dropout));
        }
        if options.proj_size > 0 && (cell != Cell::Lstm || options.proj_size >= hidden) {
            return fail(format!(
                "a proj_size of {}: only an LSTM can have one, and it must be less than its hidden size, {hidden}",
                options.proj_size
            ));
        }
        let state = if options.proj_size > 0 { options.proj_size } else { hidden };
        let both = if options.bidirectional { 2 } else { 1 };
        let mut directions = Vec::new();
        for layer in 0..options.num_layers {
            let inputs = if layer == 0 { inputs } else { both * state };
            for reverse in 0..both {
                let suffix = format!("_l{layer}{}", if reverse == 1 { "_reverse" } else { "" });
                let sizes = [inputs, hidden];
                directions.push(Direction::new(scope, cell, sizes, options.bias, options.proj_size, suffix)?);
            }
        }
        let sizes = [inputs, hidden];
        Ok(Stack { label: scope.label(), cell, sizes, options, mode: Mode::default(), directions })
    }

    /// Returns the output at every step, the last hidden states, and an LSTM's last cell states.
    #[track_caller]
    pub(super) fn run(
        &self,
        input: &Tensor,
        h0: Option<&Tensor>,
        c0: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let _owner = Span::layer(self.label);
        let shape_error = |message: String| Err(Error::Shape { op: name(self.cell), message });
        let batched = input.rank() == 3;
        let ([inputs, hidden], batch_first) = (self.sizes, self.options.batch_first && batched);
        if !matches!(input.rank(), 2 | 3) || input.shape().last() != Some(&inputs) {
            let lead = if self.options.batch_first { "[batch, steps" } else { "[steps, batch" };
            let message =
                format!("an input {:?}: needs {lead}, {inputs}] or [steps, {inputs}]", input.shape());
            return shape_error(message);
        }
        let batch = if batched { input.shape()[usize::from(!batch_first)] } else { 1 };
        let wanted = |size: usize| match batched {
            true => vec![self.directions.len(), batch, size],
            false => vec![self.directions.len(), size],
        };
        self.check_states([h0, c0], wanted)?;
        let zeros = |size: usize| zeros(&[batch, size], input);
        let first = |given: Option<&Tensor>, i: usize, size: usize| match given {
            Some(given) if batched => given.select(0, i as isize),
            Some(given) => given.narrow(0, i, 1),
            None => zeros(size),
        };
        let state = |i: usize| {
            let c = (self.cell == Cell::Lstm).then(|| first(c0, i, hidden)).transpose()?;
            Ok(RecurrentState { h: first(h0, i, self.state_size())?, c })
        };
        let x = if batched { input.clone() } else { input.unsqueeze(1)? };
        let pass = |x: &Tensor, direction: &Direction, reverse: bool, state: &RecurrentState| {
            pass::steps(self.cell, direction, x, state, batch_first, reverse)
        };
        let (x, last_h, last_c) = self.layers(x, state, pass)?;
        let together = |states: Vec<Tensor>| {
            let states: Vec<&Tensor> = states.iter().collect();
            if batched { Tensor::stack(&states, 0) } else { Tensor::cat(&states, 0) }
        };
        let y = if batched { x } else { x.squeeze(1)? };
        let c = (self.cell == Cell::Lstm).then(|| together(last_c)).transpose()?;
        Ok((y, together(last_h)?, c))
    }

    /// [`Stack::run`] over packed sequences; states are in the original order of the sequences.
    #[track_caller]
    pub(super) fn run_packed(
        &self,
        input: &PackedSequence,
        h0: Option<&Tensor>,
        c0: Option<&Tensor>,
    ) -> Result<(PackedSequence, Tensor, Option<Tensor>)> {
        let _owner = Span::layer(self.label);
        input.want_float(name(self.cell))?;
        let ([inputs, hidden], data, batch) = (self.sizes, input.data(), input.batch());
        if data.rank() != 2 || data.shape()[1] != inputs {
            let message = format!("packed rows {:?}: needs [rows, {inputs}]", data.shape());
            return Err(Error::Shape { op: name(self.cell), message });
        }
        self.check_states([h0, c0], |size| vec![self.directions.len(), batch, size])?;
        let sorted = |state: &Tensor| input.reorder(state, 1, Order::LongestFirst);
        let (h0, c0) = (h0.map(sorted).transpose()?, c0.map(sorted).transpose()?);
        let first = |given: &Option<Tensor>, i: usize, size: usize| match given {
            Some(given) => given.select(0, i as isize),
            None => zeros(&[batch, size], data),
        };
        let state = |i: usize| {
            let c = (self.cell == Cell::Lstm).then(|| first(&c0, i, hidden)).transpose()?;
            Ok(RecurrentState { h: first(&h0, i, self.state_size())?, c })
        };
        let equal_steps = input.equal_steps();
        let pass = |x: &Tensor, direction: &Direction, reverse: bool, state: &RecurrentState| {
            pass::packed(self.cell, direction, (x, &equal_steps), state, reverse)
        };
        let (y, last_h, last_c) = self.layers(data.clone(), state, pass)?;
        let together = |states: Vec<Tensor>| {
            let states = Tensor::stack(&states.iter().collect::<Vec<_>>(), 0)?;
            input.reorder(&states, 1, Order::AsGiven)
        };
        let c = (self.cell == Cell::Lstm).then(|| together(last_c)).transpose()?;
        Ok((input.with_data(y)?, together(last_h)?, c))
    }

    /// Runs all layers. Returns the last layer's output, and the last hidden and cell states of each layer and direction.
    fn layers(
        &self,
        mut x: Tensor,
        first: impl Fn(usize) -> Result<RecurrentState>,
        pass: impl Fn(&Tensor, &Direction, bool, &RecurrentState) -> Result<(Tensor, RecurrentState)>,
    ) -> Result<(Tensor, Vec<Tensor>, Vec<Tensor>)> {
        let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
        let both = if self.options.bidirectional { 2 } else { 1 };
        for (layer, directions) in self.directions.chunks(both).enumerate() {
            if layer > 0 && self.options.dropout > 0.0 && self.mode.is_training() {
                x = x.dropout(self.options.dropout, true)?;
            }
            let mut outs = Vec::new();
            for (i, direction) in directions.iter().enumerate() {
                let (y, last) = pass(&x, direction, i == 1, &first(layer * both + i)?)?;
                outs.push(y);
                last_h.push(last.h);
                last_c.extend(last.c);
            }
            x = match outs.as_slice() {
                [forward, backward] => Tensor::cat(&[forward, backward], -1)?,
                _ => outs.remove(0),
            };
        }
        Ok((x, last_h, last_c))
    }

    /// The size of a hidden state: the projection's size if there is one.
    fn state_size(&self) -> usize {
        if self.options.proj_size > 0 { self.options.proj_size } else { self.sizes[1] }
    }

    fn check_states(&self, [h, c]: [Option<&Tensor>; 2], wanted: impl Fn(usize) -> Vec<usize>) -> Result<()> {
        for (state, size) in [(h, self.state_size()), (c, self.sizes[1])] {
            let Some(state) = state else { continue };
            let wanted = wanted(size);
            if state.shape() != wanted {
                let message = format!("an initial state {:?}: needs {wanted:?}", state.shape());
                return Err(Error::Shape { op: name(self.cell), message });
            }
        }
        Ok(())
    }
}

/// Zeros of the type of `like`.
fn zeros(shape: &[usize], like: &Tensor) -> Result<Tensor> {
    Tensor::full(shape, 0.0, like.dtype(), like.device())
}
