//! Recurrent layers: each step is one product with the state and one kernel.

use plimsoll_cuda::{Args, Source};
use plimsoll_kernels::recurrent::{Cell, Steps};

use crate::cuda::elementwise::expression;
use crate::cuda::matmul::product::{Operand, product};
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("steps.cu");

/// The address of one step's rows in a tensor.
fn rows(steps: &Steps, x: Placed<'_>, time: usize, width: usize) -> u64 {
    x.address + (steps.row(time, 0) * width * x.dtype.size()) as u64
}

fn operand(steps: &Steps, address: u64, dtype: DType, width: usize) -> Operand {
    Operand { address, dtype, strides: [0, steps.row_stride() * width, 1] }
}

fn source(steps: &Steps, call: &CudaCall<'_>, dtype: DType, pass: Pass) -> Source {
    call.source(TEXT)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("CELL", (steps.cell as u8).to_string())
        .with("PASS", (pass as u8).to_string())
        .with("PROJECTED", if steps.projected { "1" } else { "0" })
}

fn sizes(steps: &Steps, args: Args, past_row: usize) -> Args {
    args.size(past_row).size(steps.row_stride()).size(steps.batch).size(steps.hidden)
}

fn grid(steps: &Steps, width: usize) -> [usize; 3] {
    [(steps.batch * width).div_ceil(256), 1, 1]
}

/// The pass that a launch computes.
#[derive(Clone, Copy)]
enum Pass {
    /// A step forward.
    Forward,
    /// A step backward.
    Backward,
    /// The gradient of a step's projected output.
    OfProjected,
}

/// The state before a step: the layer's initial state, or rows of the previous step. `row` is the row stride.
struct PreviousState {
    h: u64,
    c: u64,
    row: usize,
}

/// `h0[, c0], weight[, bias][, projection] -> y[, gates, extra]`, with the projected inputs changed in place.
pub(crate) fn forward(call: &mut CudaCall<'_>, steps: &Steps) -> Result<()> {
    let (ins, outs, scratch) = (call.ins.clone(), call.outs.clone(), call.scratch_address());
    let lstm = steps.cell == Cell::Lstm;
    let (y, gates, extra) = (outs[0], outs.get(1).copied(), outs.get(2).copied());
    let (h0, c0, rest) = (ins[0], lstm.then(|| ins[1]), &ins[1 + usize::from(lstm)..]);
    let [weight, rest @ ..] = rest else { return call.missing() };
    let (bias, projection) = match (steps.projected, rest) {
        (true, [bias @ .., projection]) => (bias.first(), Some(*projection)),
        (_, bias) => (bias.first(), None),
    };
    let (dtype, hidden, state, width) = (y.dtype, steps.hidden, steps.state, steps.width());
    let wide = Operand::rows(scratch, dtype.accumulator(), width);
    // The output of a step before its projection is stored after the state's part of the gates.
    let outputs = scratch + (steps.batch * width * dtype.accumulator().size()) as u64;
    for i in 0..steps.time {
        let (time, before) = steps.at(i);
        let past = match before {
            Some(before) => PreviousState {
                h: rows(steps, y, before, state),
                c: extra.map_or(0, |extra| rows(steps, extra, before, hidden)),
                row: steps.row_stride(),
            },
            None => PreviousState { h: h0.address, c: c0.map_or(0, |c0| c0.address), row: 1 },
        };
        let before = Operand { address: past.h, dtype, strides: [0, past.row * state, 1] };
        let to_weight = Operand::rows(weight.address, dtype, state).transposed();
        product(call, [1, steps.batch, width, state], before, to_weight, wide, None, 0.0)?;
        let to = rows(steps, y, time, state);
        let args = Args::new().address(if steps.projected { outputs } else { to });
        let args = args.address(gates.map_or(0, |gates| rows(steps, gates, time, width)));
        let args = args.address(extra.map_or(0, |extra| rows(steps, extra, time, hidden))).address(scratch);
        let args = args.address(bias.map_or(0, |bias| bias.address)).address(past.h).address(past.c);
        let source = source(steps, call, dtype, Pass::Forward);
        call.launch(source, grid(steps, hidden), 256, sizes(steps, args, past.row))?;
        if let Some(projection) = projection {
            let outputs = Operand::rows(outputs, dtype, hidden);
            let projection = Operand::rows(projection.address, dtype, hidden).transposed();
            let to = operand(steps, to, dtype, state);
            product(call, [1, steps.batch, state, hidden], outputs, projection, to, None, 0.0)?;
        }
    }
    Ok(())
}

/// `dy, last dh, y, h0, weight[, last dc][, c0 after it][, gates, extra][, projection] -> gates, dh[, dc][, extra]`, in the
/// operator's layout.
pub(crate) fn backward(call: &mut CudaCall<'_>, steps: &Steps) -> Result<()> {
    let (ins, outs) = (call.ins.clone(), call.outs.clone());
    let lstm = steps.cell == Cell::Lstm;
    let plain = matches!(steps.cell, Cell::Relu | Cell::Tanh);
    let (dy, y, h0, weight) = (ins[0], ins[2], ins[3], ins[4]);
    let (last_c, c0) = (lstm.then(|| ins[5]), lstm.then(|| ins[6]));
    let first = if lstm { 7 } else { 5 };
    let (gates, extra) = ((!plain).then(|| ins[first]), (!plain).then(|| ins[first + 1]));
    let (to_gates, dh) = (outs[0], outs[1]);
    let dc = lstm.then(|| outs[2]);
    let to_extra = (steps.cell == Cell::Gru).then(|| outs[2]);
    let projection = steps.projected.then(|| (ins[9], outs[3]));
    expression::copy(call, ins[1], dh)?;
    if let (Some(last_c), Some(dc)) = (last_c, dc) {
        expression::copy(call, last_c, dc)?;
    }
    let (dtype, hidden, state, width) = (y.dtype, steps.hidden, steps.state, steps.width());
    let of = |x: Option<Placed<'_>>, time: usize, width: usize| x.map_or(0, |x| rows(steps, x, time, width));
    let whole = |x: Option<Placed<'_>>| x.map_or(0, |x| x.address);
    for i in (0..steps.time).rev() {
        let (time, before) = steps.at(i);
        let past = match before {
            Some(before) => PreviousState {
                h: rows(steps, y, before, state),
                c: of(extra, before, hidden),
                row: steps.row_stride(),
            },
            None => PreviousState { h: h0.address, c: whole(c0), row: 1 },
        };
        let of_output = match projection {
            None => dh.address,
            Some((projection, kept)) => {
                // Saved for the gradient of the projection's weight, and propagated to the output before the projection.
                let (kept, scratch) = (rows(steps, kept, time, state), call.scratch_address());
                let args =
                    Args::new().address(kept).address(dh.address).address(rows(steps, dy, time, state));
                let source = source(steps, call, dtype, Pass::OfProjected);
                let args = args.size(steps.row_stride()).size(steps.batch).size(state);
                call.launch(source, grid(steps, state), 256, args)?;
                let projection = Operand::rows(projection.address, dtype, hidden);
                let to = Operand::rows(scratch, dtype, hidden);
                let kept = operand(steps, kept, dtype, state);
                product(call, [1, steps.batch, hidden, state], kept, projection, to, None, 0.0)?;
                scratch
            }
        };
        let args =
            Args::new().address(rows(steps, to_gates, time, width)).address(of_output).address(whole(dc));
        let args = args.address(of(to_extra, time, hidden)).address(rows(steps, dy, time, state));
        let args = args.address(rows(steps, y, time, state)).address(of(gates, time, width));
        let args = args.address(of(extra, time, hidden)).address(past.h).address(past.c);
        let source = source(steps, call, dtype, Pass::Backward);
        call.launch(source, grid(steps, hidden), 256, sizes(steps, args, past.row))?;
        let grads = operand(steps, rows(steps, to_gates, time, width), dtype, width);
        let to_weight = Operand::rows(weight.address, dtype, state);
        let to = Operand::rows(dh.address, dtype, state);
        let Some(to_extra) = to_extra else {
            product(call, [1, steps.batch, state, width], grads, to_weight, to, None, 0.0)?;
            continue;
        };
        product(call, [1, steps.batch, hidden, 2 * hidden], grads, to_weight, to, None, 1.0)?;
        let states = operand(steps, rows(steps, to_extra, time, hidden), dtype, hidden);
        let third = weight.address + (2 * hidden * hidden * dtype.size()) as u64;
        let third = Operand::rows(third, dtype, hidden);
        product(call, [1, steps.batch, hidden, hidden], states, third, to, None, 1.0)?;
    }
    Ok(())
}
