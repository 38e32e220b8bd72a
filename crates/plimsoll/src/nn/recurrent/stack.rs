//! Layers of one kind on top of each other, in one direction or two.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Cell, Error, RecurrentLayer, RecurrentState, Result, Tensor};

use super::super::{Init, Mode, Parameter, Scope};
use super::options::RecurrentOptions;

/// Rows of a weight for each element of the state.
pub(super) fn gates(cell: Cell) -> usize {
    match cell {
        Cell::Relu | Cell::Tanh => 1,
        Cell::Lstm => 4,
        Cell::Gru => 3,
    }
}

/// The parameters of one layer in one direction.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    /// What PyTorch puts after the names: `_l0`, `_l0_reverse`.
    pub(super) suffix: String,
    pub(super) weights: [Parameter; 2],
    pub(super) biases: Option<[Parameter; 2]>,
}

impl Direction {
    pub(super) fn new(
        scope: &Scope,
        cell: Cell,
        [inputs, hidden]: [usize; 2],
        bias: bool,
        suffix: String,
    ) -> Result<Direction> {
        let (init, wide) = (Init::default_for(hidden), gates(cell) * hidden);
        let make = |name: &str, shape: &[usize]| scope.parameter(&format!("{name}{suffix}"), shape, init);
        let weights = [make("weight_ih", &[wide, inputs])?, make("weight_hh", &[wide, hidden])?];
        let biases = match bias {
            true => Some([make("bias_ih", &[wide])?, make("bias_hh", &[wide])?]),
            false => None,
        };
        Ok(Direction { suffix, weights, biases })
    }

    pub(super) fn layer(&self, cell: Cell, batch_first: bool, reverse: bool) -> RecurrentLayer<'_> {
        let weights = [self.weights[0].tensor(), self.weights[1].tensor()];
        let biases = self.biases.as_ref().map(|[a, b]| [a.tensor(), b.tensor()]);
        RecurrentLayer { cell, weights, biases, batch_first, reverse }
    }
}

/// The `members` and `members_mut` of a module with one field `stack`, whose parameters are its own.
macro_rules! members_of_stack {
    () => {
        fn members<'a>(&'a self, list: &mut crate::nn::Members<'a>) {
            list.add("mode", &self.stack.mode);
            for direction in &self.stack.directions {
                let weights = ["weight_ih", "weight_hh"].into_iter().zip(&direction.weights);
                let biases =
                    direction.biases.iter().flat_map(|biases| ["bias_ih", "bias_hh"].into_iter().zip(biases));
                weights
                    .chain(biases)
                    .for_each(|(name, it)| list.add(format!("{name}{}", direction.suffix), it));
            }
        }

        fn members_mut<'a>(&'a mut self, list: &mut crate::nn::MembersMut<'a>) {
            for direction in &mut self.stack.directions {
                let suffix = &direction.suffix;
                let weights = ["weight_ih", "weight_hh"].into_iter().zip(&mut direction.weights);
                let biases = direction
                    .biases
                    .iter_mut()
                    .flat_map(|biases| ["bias_ih", "bias_hh"].into_iter().zip(biases));
                weights.chain(biases).for_each(|(name, it)| list.add(format!("{name}{suffix}"), it));
            }
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
                "{} layers from {inputs} inputs to a state of {hidden}: none of them may be 0",
                options.num_layers
            ));
        }
        if !(0.0..=1.0).contains(&options.dropout) {
            return fail(format!("a dropout of {} is not a probability: use 0 to 1", options.dropout));
        }
        let both = if options.bidirectional { 2 } else { 1 };
        let mut directions = Vec::new();
        for layer in 0..options.num_layers {
            let inputs = if layer == 0 { inputs } else { both * hidden };
            for reverse in 0..both {
                let suffix = format!("_l{layer}{}", if reverse == 1 { "_reverse" } else { "" });
                directions.push(Direction::new(scope, cell, [inputs, hidden], options.bias, suffix)?);
            }
        }
        let sizes = [inputs, hidden];
        Ok(Stack { label: scope.label(), cell, sizes, options, mode: Mode::default(), directions })
    }

    /// The output at every step, the last states, and an LSTM's last memories.
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
        let wanted: &[usize] =
            if batched { &[self.directions.len(), batch, hidden] } else { &[self.directions.len(), hidden] };
        for state in [h0, c0].into_iter().flatten() {
            if state.shape() != wanted {
                return shape_error(format!("a first state {:?}: needs {wanted:?}", state.shape()));
            }
        }
        let zeros = match (h0, c0) {
            (Some(_), Some(_)) => None,
            _ => {
                let zeros = Tensor::zeros(&[batch, hidden], input.device())?;
                Some(if zeros.dtype() == input.dtype() { zeros } else { zeros.to_dtype(input.dtype())? })
            }
        };
        let first = |given: Option<&Tensor>, i: usize| -> Result<Tensor> {
            match (given, &zeros) {
                (Some(given), _) if batched => given.select(0, i as isize),
                (Some(given), _) => given.narrow(0, i, 1),
                (None, Some(zeros)) => Ok(zeros.clone()),
                (None, None) => unreachable!("zeros stand for what is not given"),
            }
        };
        let mut x = if batched { input.clone() } else { input.unsqueeze(1)? };
        let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
        let both = if self.options.bidirectional { 2 } else { 1 };
        for (layer, directions) in self.directions.chunks(both).enumerate() {
            if layer > 0 && self.options.dropout > 0.0 && self.mode.is_training() {
                x = x.dropout(self.options.dropout, true)?;
            }
            let mut outs = Vec::new();
            for (i, direction) in directions.iter().enumerate() {
                let number = layer * both + i;
                let c = (self.cell == Cell::Lstm).then(|| first(c0, number)).transpose()?;
                let state = RecurrentState { h: first(h0, number)?, c };
                let (y, last) = x.recurrent(direction.layer(self.cell, batch_first, i == 1), &state)?;
                outs.push(y);
                last_h.push(last.h);
                last_c.extend(last.c);
            }
            x = match outs.as_slice() {
                [forward, backward] => Tensor::cat(&[forward, backward], -1)?,
                _ => outs.remove(0),
            };
        }
        let together = |states: Vec<Tensor>| {
            let states: Vec<&Tensor> = states.iter().collect();
            if batched { Tensor::stack(&states, 0) } else { Tensor::cat(&states, 0) }
        };
        let y = if batched { x } else { x.squeeze(1)? };
        let c = (self.cell == Cell::Lstm).then(|| together(last_c)).transpose()?;
        Ok((y, together(last_h)?, c))
    }
}
