//! Recurrent layers: a product with the state and one kernel a step.

use plimsoll_cuda::{Args, Source};

use super::product::{Operand, product};
use super::{CudaCall, Placed, elementwise, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("kernels/recurrent.cu");

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

    fn source(&self, call: &CudaCall<'_>, dtype: DType, backward: bool) -> Source {
        call.source(TEXT)
            .with("A", name(dtype.accumulator()))
            .with("T", name(dtype))
            .with("CELL", (self.cell as u8).to_string())
            .with("BACKWARD", if backward { "1" } else { "0" })
    }

    fn sizes(&self, args: Args, past_row: usize) -> Args {
        args.size(past_row).size(self.row()).size(self.batch).size(self.hidden)
    }

    fn grid(&self) -> [usize; 3] {
        [(self.batch * self.hidden).div_ceil(256), 1, 1]
    }
}

/// The state before a step: the layer's start, or rows of the step before; with the distance between rows.
struct Past {
    h: u64,
    c: u64,
    row: usize,
}

/// `h0[, c0], weight[, bias] -> y[, gates, extra]`, of projected inputs that are changed in place.
pub(crate) fn forward(call: &mut CudaCall<'_>, steps: Steps) -> Result<()> {
    let (ins, outs, scratch) = (call.ins.clone(), call.outs.clone(), call.scratch_address());
    let lstm = steps.cell == CellKind::Lstm;
    let (y, gates, extra) = (outs[0], outs.get(1).copied(), outs.get(2).copied());
    let (h0, c0, rest) = (ins[0], lstm.then(|| ins[1]), &ins[1 + usize::from(lstm)..]);
    let [weight, bias @ ..] = rest else { return call.missing() };
    let (dtype, hidden, width) = (y.dtype, steps.hidden, steps.width());
    let wide = Operand::rows(scratch, dtype.accumulator(), width);
    for i in 0..steps.time {
        let time = steps.at(i);
        let past = match i.checked_sub(1).map(|before| steps.at(before)) {
            Some(before) => Past {
                h: steps.rows(y, before, hidden),
                c: extra.map_or(0, |extra| steps.rows(extra, before, hidden)),
                row: steps.row(),
            },
            None => Past { h: h0.address, c: c0.map_or(0, |c0| c0.address), row: 1 },
        };
        let state = Operand { address: past.h, dtype, strides: [0, past.row * hidden, 1] };
        let to_weight = Operand::rows(weight.address, dtype, hidden).transposed();
        product(call, [1, steps.batch, width, hidden], state, to_weight, wide, None, 0.0)?;
        let args = Args::new().address(steps.rows(y, time, hidden));
        let args = args.address(gates.map_or(0, |gates| steps.rows(gates, time, width)));
        let args = args.address(extra.map_or(0, |extra| steps.rows(extra, time, hidden))).address(scratch);
        let args = args.address(bias.first().map_or(0, |bias| bias.address)).address(past.h).address(past.c);
        let source = steps.source(call, dtype, false);
        call.launch(source, steps.grid(), 256, steps.sizes(args, past.row))?;
    }
    Ok(())
}

/// `dy, last dh, y, h0, weight[, last dc][, c0 after it][, gates, extra] -> gates, dh[, dc][, extra]`, as the operator lays them out.
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
    elementwise::copy(call, ins[1], dh)?;
    if let (Some(last_c), Some(dc)) = (last_c, dc) {
        elementwise::copy(call, last_c, dc)?;
    }
    let (dtype, hidden, width) = (y.dtype, steps.hidden, steps.width());
    let of = |x: Option<Placed<'_>>, time: usize, width: usize| x.map_or(0, |x| steps.rows(x, time, width));
    let whole = |x: Option<Placed<'_>>| x.map_or(0, |x| x.address);
    for i in (0..steps.time).rev() {
        let time = steps.at(i);
        let past = match i.checked_sub(1).map(|before| steps.at(before)) {
            Some(before) => {
                Past { h: steps.rows(y, before, hidden), c: of(extra, before, hidden), row: steps.row() }
            }
            None => Past { h: h0.address, c: whole(c0), row: 1 },
        };
        let args =
            Args::new().address(steps.rows(to_gates, time, width)).address(dh.address).address(whole(dc));
        let args = args.address(of(to_extra, time, hidden)).address(steps.rows(dy, time, hidden));
        let args = args.address(steps.rows(y, time, hidden)).address(of(gates, time, width));
        let args = args.address(of(extra, time, hidden)).address(past.h).address(past.c);
        let source = steps.source(call, dtype, true);
        call.launch(source, steps.grid(), 256, steps.sizes(args, past.row))?;
        let grads = steps.operand(steps.rows(to_gates, time, width), dtype, width);
        let to_weight = Operand::rows(weight.address, dtype, hidden);
        let to = Operand::rows(dh.address, dtype, hidden);
        let Some(to_extra) = to_extra else {
            product(call, [1, steps.batch, hidden, width], grads, to_weight, to, None, 0.0)?;
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
