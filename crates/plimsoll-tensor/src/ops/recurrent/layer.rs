//! One layer of a recurrent network in one direction: RNN, LSTM or GRU over whole sequences.
//!
//! The inputs of all steps are projected in one product, and the gradients of the input and the weights are also
//! computed in one product each. The layer saves the output, the values of the gates (which overwrite the projected
//! inputs) and, for an LSTM or a GRU, one more number per element of the state.

pub use crate::cpu::kernels::recurrent::Cell;

use smallvec::{SmallVec, smallvec};

use super::composed;
use super::parameters::{Layer, NAME, rows};
use super::steps::{Backward, Forward};
use crate::autograd::{GradOptions, enable_grad, grad, is_grad_enabled};
use crate::dispatch::{Tensors, call};
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::operator::Autocast;
use crate::ops::want_float;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// One layer in one direction.
///
/// ```
/// use plimsoll_tensor::{Cell, Device, RecurrentLayer, RecurrentState, Tensor};
/// let device = Device::cpu();
/// let (w_ih, w_hh) = (Tensor::randn(&[32, 4], &device)?, Tensor::randn(&[32, 8], &device)?);
/// let layer = RecurrentLayer { cell: Cell::Lstm, weights: [&w_ih, &w_hh], biases: None, projection: None,
///     batch_first: false, reverse: false };
/// let zeros = Tensor::zeros(&[3, 8], &device)?;
/// let x = Tensor::randn(&[10, 3, 4], &device)?; // steps, batch, inputs
/// let (y, last) = x.recurrent(layer, &RecurrentState { h: zeros.clone(), c: Some(zeros) })?;
/// assert_eq!((y.shape(), last.h.shape()), (&[10, 3, 8][..], &[3, 8][..]));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RecurrentLayer<'a> {
    /// The kind of cell: RNN, LSTM or GRU.
    pub cell: Cell,
    /// The weights of the inputs, `[gates · hidden, inputs]`, and of the state, `[gates · hidden, state]`.
    pub weights: [&'a Tensor; 2],
    /// The biases of the inputs and of the state, `[gates · hidden]` each.
    pub biases: Option<[&'a Tensor; 2]>,
    /// `[state, hidden]`: if given, it projects an LSTM's output to the state; otherwise the output is the state.
    pub projection: Option<&'a Tensor>,
    /// Whether sequences are `[batch, steps, …]` instead of `[steps, batch, …]`.
    pub batch_first: bool,
    /// Whether to run from the last step to the first.
    pub reverse: bool,
}

/// The state before the first step or after the last one.
#[derive(Clone, Debug)]
pub struct RecurrentState {
    /// `[batch, hidden]`, or the size of the projection's output.
    pub h: Tensor,
    /// The cell state of an LSTM, `[batch, hidden]`.
    pub c: Option<Tensor>,
}

impl Function for Layer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let (x, states, weights) = (ins[0], &ins[1..self.weight()], &ins[self.weight()..]);
        let [of_input, of_state] = self.biases(weights);
        let projected = x.linear(weights[0], of_input.copied())?;
        let mut given: SmallVec<[&Tensor; 6]> = smallvec![&projected];
        given.extend(states.iter().copied());
        given.push(weights[1]);
        given.extend(of_state.into_iter().chain(self.projection(weights)).copied());
        let outs = call(Forward { layer: *self }, &given)?;
        ins.iter()
            .chain(&outs.iter().collect::<SmallVec<[&Tensor; 3]>>())
            .try_for_each(|tensor| save.tensor(tensor))?;
        let mut results: Tensors = smallvec![outs[0].clone(), self.last(&outs[0])?];
        if self.cell == Cell::Lstm {
            // A copy, so that a program that keeps the state does not keep the memory of all steps.
            results.push(self.last(&outs[2])?.contiguous()?);
        }
        Ok(results)
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let count = self.inputs();
        if (0..=self.states()).all(|i| at.grad(i).is_none()) {
            return Ok(smallvec![None; count]);
        }
        if is_grad_enabled() {
            return self.composed(at);
        }
        let saved = |i: usize| at.saved(i);
        let (x, h0, weight) = (saved(0)?, saved(1)?, self.weight());
        let y = saved(count)?;
        let grad_of =
            |i: usize, like: &Tensor| at.grad(i).map_or_else(|| like.zeros_like(), |grad| Ok(grad.clone()));
        let (dy, dh) = (grad_of(0, &y)?, grad_of(1, &h0)?);
        let (w_ih, w_hh) = (saved(weight)?, saved(weight + 1)?);
        let mut given: SmallVec<[Tensor; 10]> = smallvec![dy, dh, y.clone(), h0.clone(), w_hh];
        if self.cell == Cell::Lstm {
            let c0 = saved(2)?;
            given.extend([grad_of(2, &c0)?, c0]);
        }
        if self.cell.gates() > 1 {
            given.extend([saved(count + 1)?, saved(count + 2)?]);
        }
        if self.projected {
            given.push(saved(count - 1)?);
        }
        let outs = call(Backward { layer: *self }, &given.iter().collect::<SmallVec<[&Tensor; 10]>>())?;
        drop(given);
        let mut results: Grads = smallvec![None; count];
        let flat = rows(&outs[0])?;
        let biases = if self.biases { weight + 2..weight + 4 } else { 0..0 };
        let wants = |i: usize| i < count && at.wants(i);
        if wants(0) {
            results[0] = Some(flat.matmul(&w_ih)?.reshape(x.shape())?);
        }
        results[1] = wants(1).then(|| outs[1].clone());
        if self.cell == Cell::Lstm {
            results[2] = wants(2).then(|| outs[2].clone());
        }
        if wants(weight) {
            results[weight] = Some(flat.t()?.matmul(&rows(&x)?)?);
        }
        let hidden = h0.shape()[1];
        // The state's part of a GRU's new value passes through the reset gate, so its gradient differs from that of the
        // input's part.
        let of_state = if self.cell == Cell::Gru { Some(rows(&outs[2])?) } else { None };
        if wants(weight + 1) {
            let earlier = rows(&self.earlier(&h0, &y)?)?;
            results[weight + 1] = Some(match &of_state {
                None => flat.t()?.matmul(&earlier)?,
                Some(value) => {
                    let gates = flat.narrow(1, 0, 2 * hidden)?.t()?.matmul(&earlier)?;
                    Tensor::cat(&[&gates, &value.t()?.matmul(&earlier)?], 0)?
                }
            });
        }
        if biases.clone().any(wants) {
            let sum = flat.sum_dims(&[0])?;
            if wants(weight + 3) {
                results[weight + 3] = Some(match &of_state {
                    None => sum.clone(),
                    Some(value) => Tensor::cat(&[&sum.narrow(0, 0, 2 * hidden)?, &value.sum_dims(&[0])?], 0)?,
                });
            }
            results[weight + 2] = wants(weight + 2).then_some(sum);
        }
        if self.projected && wants(count - 1) {
            // Recomputes the outputs that were projected, from the gates and the cell state.
            let (gates, memory) = (saved(count + 1)?, saved(count + 2)?);
            let hidden = memory.shape()[2];
            let outputs = gates.narrow(2, 3 * hidden, hidden)?.mul(&memory.tanh()?)?;
            results[count - 1] = Some(rows(&outs[3])?.t()?.matmul(&rows(&outputs)?)?);
        }
        Ok(results)
    }
}

impl Layer {
    /// The gradients, composed of recorded tensor operations.
    fn composed(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let count = self.inputs();
        let ins: Vec<Tensor> = (0..count).map(|i| at.saved(i)).collect::<Result<_>>()?;
        let outs = enable_grad(|| composed::layer(self, &ins))?;
        let (outs, gradients): (Vec<&Tensor>, Vec<Option<Tensor>>) = outs
            .iter()
            .enumerate()
            .filter_map(|(i, out)| at.grad(i).map(|grad| (out, Some(grad.clone()))))
            .unzip();
        let wanted: Vec<&Tensor> = (0..count).filter(|&i| at.wants(i)).map(|i| &ins[i]).collect();
        let options =
            GradOptions { gradients, create_graph: true, allow_unused: true, ..GradOptions::default() };
        let mut found = grad(&outs, &wanted, options)?.into_iter();
        Ok((0..count).map(|i| if at.wants(i) { found.next().flatten() } else { None }).collect())
    }
}

impl Tensor {
    /// Runs one recurrent layer over sequences `[steps, batch, inputs]` (`[batch, steps, inputs]` with `batch_first`). Returns
    /// its output at every step, and the final state.
    ///
    /// # Errors
    /// If the sizes or dtypes are incompatible, a sequence has no steps, or memory runs out.
    #[track_caller]
    pub fn recurrent(
        &self,
        layer: RecurrentLayer<'_>,
        state: &RecurrentState,
    ) -> Result<(Tensor, RecurrentState)> {
        let op = Layer {
            cell: layer.cell,
            batch_first: layer.batch_first,
            reverse: layer.reverse,
            biases: layer.biases.is_some(),
            projected: layer.projection.is_some(),
        };
        if op.projected && op.cell != Cell::Lstm {
            return Err(Error::argument(NAME, "only an LSTM can have a projection"));
        }
        if (op.cell == Cell::Lstm) != state.c.is_some() {
            return Err(Error::argument(NAME, "only an LSTM has a cell state `c`"));
        }
        want_float(NAME, self.dtype())?;
        self.fits(&op, &layer, state)?;
        let mut ins: SmallVec<[&Tensor; 8]> = smallvec![self, &state.h];
        ins.extend(&state.c);
        ins.extend(layer.weights);
        ins.extend(layer.biases.into_iter().flatten());
        ins.extend(layer.projection);
        let mut outs = apply(op, &ins)?.into_iter();
        let mut next = || outs.next().unwrap_or_else(|| unreachable!("as many as states and one"));
        let (y, h) = (next(), next());
        Ok((y, RecurrentState { h, c: (op.cell == Cell::Lstm).then(next) }))
    }

    fn fits(&self, op: &Layer, layer: &RecurrentLayer<'_>, state: &RecurrentState) -> Result<()> {
        let fail = |message: String| Err(Error::shape(NAME, message));
        let (x, h) = (self.shape(), state.h.shape());
        let &[first, second, inputs] = x else {
            return fail(format!("an input {x:?}: needs three dimensions, steps, batch and inputs"));
        };
        let (steps, batch) = if op.batch_first { (second, first) } else { (first, second) };
        if steps == 0 {
            return fail(format!("an input {x:?}: a sequence needs at least one step"));
        }
        let &[_, state_size] = h else { return fail(format!("a state {h:?}: needs [batch, hidden]")) };
        let hidden = match layer.projection.map(Tensor::shape) {
            None => state_size,
            Some(&[size, hidden]) if size == state_size => hidden,
            Some(other) => {
                return fail(format!(
                    "a projection {other:?} for a state {h:?}: needs [{state_size}, hidden]"
                ));
            }
        };
        let wide = op.cell.gates() * hidden;
        let wanted = [vec![wide, inputs], vec![wide, state_size]];
        let weights = layer.weights.map(Tensor::shape);
        let biases = layer.biases.map(|biases| biases.map(Tensor::shape));
        let memory_fits = state.c.as_ref().is_none_or(|c| c.shape() == [batch, hidden]);
        if weights != [&wanted[0][..], &wanted[1]]
            || biases.is_some_and(|biases| biases != [&[wide][..]; 2])
            || !memory_fits
            || h[0] != batch
        {
            return fail(format!(
                "an input {x:?} with a state {h:?}, weights {weights:?} and biases {biases:?}: needs a state [{batch}, {state_size}], \
                 weights [{gates} · hidden, {inputs}] and [{gates} · hidden, {state_size}], and biases [{gates} · hidden]",
                gates = op.cell.gates()
            ));
        }
        Ok(())
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let layer = |cell: Cell, batch_first: bool, reverse: bool, biases: bool| {
        let op = Layer { cell, batch_first, reverse, biases, projected: false };
        let wide = cell.gates() * 2;
        let mut shapes: Vec<&[usize]> = vec![&[3, 3, 2], &[3, 2]];
        if cell == Cell::Lstm {
            shapes.push(&[3, 2]);
        }
        let (weight, bias) = ([wide, 2], [wide]);
        shapes.extend([&weight[..], &weight]);
        if biases {
            shapes.extend([&bias[..], &bias]);
        }
        let name = format!("{cell:?}, batch first {batch_first}, in reverse {reverse}, biases {biases}");
        Case::new(name, &shapes, move |ins| apply(op, ins))
    };
    let mut cases = Vec::new();
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        cases.extend([
            layer(cell, false, false, true),
            layer(cell, true, true, false),
            layer(cell, false, true, true),
        ]);
    }
    cases.push(layer(Cell::Relu, true, false, true).without_derivative());
    for (state, batch_first, reverse, biases) in
        [(1, false, false, true), (1, true, true, false), (2, false, true, true)]
    {
        let op = Layer { cell: Cell::Lstm, batch_first, reverse, biases, projected: true };
        let (first, weight, projection) = ([3, state], [8, state], [state, 2]);
        let mut shapes: Vec<&[usize]> = vec![&[3, 3, 2], &first, &[3, 2], &[8, 2], &weight];
        if biases {
            shapes.extend([&[8][..], &[8]]);
        }
        shapes.push(&projection);
        let name = format!(
            "LSTM with a projection to {state}, batch first {batch_first}, in reverse {reverse}, biases {biases}"
        );
        cases.push(Case::new(name, &shapes, move |ins| apply(op, ins)));
    }
    cases
}
