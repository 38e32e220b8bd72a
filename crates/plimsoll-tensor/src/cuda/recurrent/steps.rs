//! Recurrent layers: a product with the state and one kernel a step.

use plimsoll_cuda::{Args, Source};

use crate::cuda::elementwise::expression;
use crate::cuda::matmul::product::{Operand, product};
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("steps.cu");

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellKind {
    /// `relu(x + W h)`.
    Relu,
    /// `tanh(x + W h)`.
    Tanh,
    /// Four gates and a memory.
    Lstm,
    /// Three gates.
    Gru,
}

/// A layer in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) cell: CellKind,
    pub(crate) gates: usize,
    pub(crate) time: usize,
    pub(crate) batch: usize,
    pub(crate) hidden: usize,
    /// Elements of the state: those of `hidden`, or fewer where an LSTM projects its output.
    pub(crate) state: usize,
    /// Whether it does.
    pub(crate) projected: bool,
    pub(crate) batch_first: bool,
    pub(crate) reverse: bool,
}

impl Steps {
    fn width(&self) -> usize {
        self.gates * self.hidden
    }

    /// Rows between neighbours of the batch.
    fn row(&self) -> usize {
        if self.batch_first { self.time } else { 1 }
    }

    /// The time of the i-th step.
    fn at(&self, i: usize) -> usize {
        if self.reverse { self.time - 1 - i } else { i }
    }

    /// Where the rows of a step of a tensor begin.
    fn rows(&self, x: Placed<'_>, time: usize, width: usize) -> u64 {
        let first = if self.batch_first { time } else { time * self.batch };
        x.address + (first * width * x.dtype.size()) as u64
    }

    fn operand(&self, address: u64, dtype: DType, width: usize) -> Operand {
        Operand { address, dtype, strides: [0, self.row() * width, 1] }
    }

    fn source(&self, call: &CudaCall<'_>, dtype: DType, pass: Pass) -> Source {
        call.source(TEXT)
            .with("A", name(dtype.accumulator()))
            .with("T", name(dtype))
            .with("CELL", (self.cell as u8).to_string())
            .with("PASS", (pass as u8).to_string())
            .with("PROJECTED", if self.projected { "1" } else { "0" })
    }

    fn sizes(&self, args: Args, past_row: usize) -> Args {
        args.size(past_row).size(self.row()).size(self.batch).size(self.hidden)
    }

    fn grid(&self, width: usize) -> [usize; 3] {
        [(self.batch * width).div_ceil(256), 1, 1]
    }
}

/// What a launch does.
#[derive(Clone, Copy)]
enum Pass {
    /// A step forward.
    Forward,
    /// A step backward.
    Backward,
    /// The gradient of what a step's output is projected to.
    OfProjected,
}

/// The state before a step: the layer's start, or rows of the step before; with the distance between rows.
struct PreviousState {
    h: u64,
    c: u64,
    row: usize,
}

/// `h0[, c0], weight[, bias][, projection] -> y[, gates, extra]`, of projected inputs that are changed in place.
pub(crate) fn forward(call: &mut CudaCall<'_>, steps: Steps) -> Result<()> {
    let (ins, outs, scratch) = (call.ins.clone(), call.outs.clone(), call.scratch_address());
    let lstm = steps.cell == CellKind::Lstm;
    let (y, gates, extra) = (outs[0], outs.get(1).copied(), outs.get(2).copied());
    let (h0, c0, rest) = (ins[0], lstm.then(|| ins[1]), &ins[1 + usize::from(lstm)..]);
    let [weight, rest @ ..] = rest else { return call.missing() };
    let (bias, projection) = match (steps.projected, rest) {
        (true, [bias @ .., projection]) => (bias.first(), Some(*projection)),
        (_, bias) => (bias.first(), None),
    };
    let (dtype, hidden, state, width) = (y.dtype, steps.hidden, steps.state, steps.width());
    let wide = Operand::rows(scratch, dtype.accumulator(), width);
    // What a step gives before its projection, behind the state's part of the gates.
    let outputs = scratch + (steps.batch * width * dtype.accumulator().size()) as u64;
    for i in 0..steps.time {
        let time = steps.at(i);
        let past = match i.checked_sub(1).map(|before| steps.at(before)) {
            Some(before) => PreviousState {
                h: steps.rows(y, before, state),
                c: extra.map_or(0, |extra| steps.rows(extra, before, hidden)),
                row: steps.row(),
            },
            None => PreviousState { h: h0.address, c: c0.map_or(0, |c0| c0.address), row: 1 },
        };
        let before = Operand { address: past.h, dtype, strides: [0, past.row * state, 1] };
        let to_weight = Operand::rows(weight.address, dtype, state).transposed();
        product(call, [1, steps.batch, width, state], before, to_weight, wide, None, 0.0)?;
        let to = steps.rows(y, time, state);
        let args = Args::new().address(if steps.projected { outputs } else { to });
        let args = args.address(gates.map_or(0, |gates| steps.rows(gates, time, width)));
        let args = args.address(extra.map_or(0, |extra| steps.rows(extra, time, hidden))).address(scratch);
        let args = args.address(bias.map_or(0, |bias| bias.address)).address(past.h).address(past.c);
        let source = steps.source(call, dtype, Pass::Forward);
        call.launch(source, steps.grid(hidden), 256, steps.sizes(args, past.row))?;
        if let Some(projection) = projection {
            let outputs = Operand::rows(outputs, dtype, hidden);
            let projection = Operand::rows(projection.address, dtype, hidden).transposed();
            let to = steps.operand(to, dtype, state);
            product(call, [1, steps.batch, state, hidden], outputs, projection, to, None, 0.0)?;
        }
    }
    Ok(())
}

/// `dy, last dh, y, h0, weight[, last dc][, c0 after it][, gates, extra][, projection] -> gates, dh[, dc][, extra]`, as the operator
/// lays them out.
pub(crate) fn backward(call: &mut CudaCall<'_>, steps: Steps) -> Result<()> {
    let (ins, outs) = (call.ins.clone(), call.outs.clone());
    let lstm = steps.cell == CellKind::Lstm;
    let plain = matches!(steps.cell, CellKind::Relu | CellKind::Tanh);
    let (dy, y, h0, weight) = (ins[0], ins[2], ins[3], ins[4]);
    let (last_c, c0) = (lstm.then(|| ins[5]), lstm.then(|| ins[6]));
    let first = if lstm { 7 } else { 5 };
    let (gates, extra) = ((!plain).then(|| ins[first]), (!plain).then(|| ins[first + 1]));
    let (to_gates, dh) = (outs[0], outs[1]);
    let dc = lstm.then(|| outs[2]);
    let to_extra = (steps.cell == CellKind::Gru).then(|| outs[2]);
    let projection = steps.projected.then(|| (ins[9], outs[3]));
    expression::copy(call, ins[1], dh)?;
    if let (Some(last_c), Some(dc)) = (last_c, dc) {
        expression::copy(call, last_c, dc)?;
    }
    let (dtype, hidden, state, width) = (y.dtype, steps.hidden, steps.state, steps.width());
    let of = |x: Option<Placed<'_>>, time: usize, width: usize| x.map_or(0, |x| steps.rows(x, time, width));
    let whole = |x: Option<Placed<'_>>| x.map_or(0, |x| x.address);
    for i in (0..steps.time).rev() {
        let time = steps.at(i);
        let past = match i.checked_sub(1).map(|before| steps.at(before)) {
            Some(before) => PreviousState {
                h: steps.rows(y, before, state),
                c: of(extra, before, hidden),
                row: steps.row(),
            },
            None => PreviousState { h: h0.address, c: whole(c0), row: 1 },
        };
        let of_output = match projection {
            None => dh.address,
            Some((projection, kept)) => {
                // Kept for the projection's own gradient, and taken back to what was projected.
                let (kept, scratch) = (steps.rows(kept, time, state), call.scratch_address());
                let args = Args::new().address(kept).address(dh.address).address(steps.rows(dy, time, state));
                let source = steps.source(call, dtype, Pass::OfProjected);
                let args = args.size(steps.row()).size(steps.batch).size(state);
                call.launch(source, steps.grid(state), 256, args)?;
                let projection = Operand::rows(projection.address, dtype, hidden);
                let to = Operand::rows(scratch, dtype, hidden);
                let kept = steps.operand(kept, dtype, state);
                product(call, [1, steps.batch, hidden, state], kept, projection, to, None, 0.0)?;
                scratch
            }
        };
        let args =
            Args::new().address(steps.rows(to_gates, time, width)).address(of_output).address(whole(dc));
        let args = args.address(of(to_extra, time, hidden)).address(steps.rows(dy, time, state));
        let args = args.address(steps.rows(y, time, state)).address(of(gates, time, width));
        let args = args.address(of(extra, time, hidden)).address(past.h).address(past.c);
        let source = steps.source(call, dtype, Pass::Backward);
        call.launch(source, steps.grid(hidden), 256, steps.sizes(args, past.row))?;
        let grads = steps.operand(steps.rows(to_gates, time, width), dtype, width);
        let to_weight = Operand::rows(weight.address, dtype, state);
        let to = Operand::rows(dh.address, dtype, state);
        let Some(to_extra) = to_extra else {
            product(call, [1, steps.batch, state, width], grads, to_weight, to, None, 0.0)?;
            continue;
        };
        product(call, [1, steps.batch, hidden, 2 * hidden], grads, to_weight, to, None, 1.0)?;
        let states = steps.operand(steps.rows(to_extra, time, hidden), dtype, hidden);
        let third = weight.address + (2 * hidden * hidden * dtype.size()) as u64;
        let third = Operand::rows(third, dtype, hidden);
        product(call, [1, steps.batch, hidden, hidden], states, third, to, None, 1.0)?;
    }
    Ok(())
}
