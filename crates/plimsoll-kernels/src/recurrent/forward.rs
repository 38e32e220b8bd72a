//! The forward pass over all steps.

use super::super::number::Float;
use super::super::parallel::{Pieces, for_each_cut};
use super::super::simd::vectorize;
use super::rows::Step;
use super::steps::{Cell, Start, Steps};
use crate::matmul::{MatmulShape, MatrixStrides, Product};

#[inline(always)]
fn sigmoid<T: Float>(x: T) -> T {
    T::of(1.0) / (T::of(1.0) + (-x).exp())
}

/// Scratch memory for [`forward`], in elements: the state's part of the gates, and outputs before projection.
pub fn forward_scratch_len(steps: &Steps) -> usize {
    let projected = if steps.projected { steps.hidden } else { 0 };
    steps.batch * (steps.width() + projected)
}

/// Runs all steps. `gates` has the projected inputs, and each gate's value afterwards. For a plain RNN, `gates` is also the
/// output, and `y` is empty. `extra` receives an LSTM's cell state, or the state's part of a GRU's value.
pub fn forward<T: Float + Product>(
    steps: &Steps,
    start: Start<'_, T>,
    (y, gates, extra): (&mut [T], &mut [T], &mut [T]),
    scratch: &mut [T],
) {
    let (hidden, width) = (steps.hidden, steps.width());
    let (of_state, outputs) = scratch[..forward_scratch_len(steps)].split_at_mut(steps.batch * width);
    let shape = MatmulShape { batch: 1, m: steps.batch, k: steps.state, n: width };
    let to_weight = (start.weight, MatrixStrides::row_major(width, steps.state).transposed());
    for i in 0..steps.time {
        let step = Step::of(steps, i, width);
        let state = match step.before {
            Some(time) => (&y[steps.row(time, 0) * steps.state..], steps.strides(steps.state)),
            None => (start.h0, MatrixStrides::row_major(steps.batch, steps.state)),
        };
        let to = (&mut *of_state, MatrixStrides::row_major(steps.batch, width));
        T::matmul(&shape, state, to_weight, start.bias, to);
        let of_state = &*of_state;
        let h = |batch: usize| &of_state[batch * width..][..width];
        match steps.cell {
            Cell::Relu | Cell::Tanh => {
                let (y, past) = step.cut(y, hidden);
                for_each_cut(step.chunks(), y, |chunk, y| {
                    for batch in step.batches(chunk) {
                        plain(steps.cell, h(batch), step.row((&mut *y, past), batch, hidden).1);
                    }
                });
            }
            Cell::Gru => {
                let ((y, past), (gates, _), (extra, _)) =
                    (step.cut(y, hidden), step.cut(gates, width), step.cut(extra, hidden));
                for_each_cut(step.chunks(), (y, gates, extra), |chunk, (y, gates, extra)| {
                    for batch in step.batches(chunk) {
                        let (before, y) = step.row((&mut *y, past), batch, hidden);
                        let gates = step.row((&mut *gates, &[]), batch, width).1;
                        let extra = step.row((&mut *extra, &[]), batch, hidden).1;
                        let before = before.unwrap_or_else(|| &start.h0[batch * hidden..][..hidden]);
                        gru(before, h(batch), [gates, extra, y]);
                    }
                });
            }
            Cell::Lstm => {
                let ((gates, _), (extra, past)) = (step.cut(gates, width), step.cut(extra, hidden));
                let outs = if steps.projected {
                    Pieces::of(outputs, step.rows * hidden)
                } else {
                    step.cut(y, hidden).0
                };
                for_each_cut(step.chunks(), (outs, gates, extra), |chunk, (outs, gates, extra)| {
                    for batch in step.batches(chunk) {
                        let out = match steps.projected {
                            true => &mut outs[batch % step.rows * hidden..][..hidden],
                            false => step.row((&mut *outs, &[]), batch, hidden).1,
                        };
                        let gates = step.row((&mut *gates, &[]), batch, width).1;
                        let (before, memory) = step.row((&mut *extra, past), batch, hidden);
                        let before = before.unwrap_or_else(|| &start.c0[batch * hidden..][..hidden]);
                        lstm(before, h(batch), [gates, memory, out]);
                    }
                });
                if let Some(projection) = start.projection {
                    let shape = MatmulShape { batch: 1, m: steps.batch, k: hidden, n: steps.state };
                    let outputs = (&*outputs, MatrixStrides::row_major(steps.batch, hidden));
                    let projection = (projection, MatrixStrides::row_major(steps.state, hidden).transposed());
                    let to = &mut y[steps.row(step.time, 0) * steps.state..];
                    T::matmul(&shape, outputs, projection, None, (to, steps.strides(steps.state)));
                }
            }
        }
    }
}

fn plain<T: Float>(cell: Cell, h: &[T], y: &mut [T]) {
    vectorize(
        #[inline(always)]
        || {
            for (y, &h) in y.iter_mut().zip(h) {
                let x = *y + h;
                *y = if cell == Cell::Tanh {
                    x.tanh()
                } else if x > T::default() {
                    x
                } else {
                    // NaN stays NaN, as in PyTorch.
                    x * T::default()
                };
            }
        },
    );
}

fn lstm<T: Float>(before: &[T], h: &[T], [gates, memory, out]: [&mut [T]; 3]) {
    let hidden = out.len();
    let (before, memory) = (&before[..hidden], &mut memory[..hidden]);
    vectorize(
        #[inline(always)]
        || {
            for j in 0..hidden {
                let gate = |k: usize| gates[k * hidden + j] + h[k * hidden + j];
                let (i, f) = (sigmoid(gate(0)), sigmoid(gate(1)));
                let (g, o) = (gate(2).tanh(), sigmoid(gate(3)));
                let c = f * before[j] + i * g;
                memory[j] = c;
                out[j] = o * c.tanh();
                [i, f, g, o].into_iter().enumerate().for_each(|(k, x)| gates[k * hidden + j] = x);
            }
        },
    );
}

fn gru<T: Float>(before: &[T], h: &[T], [gates, extra, y]: [&mut [T]; 3]) {
    let hidden = y.len();
    let (before, extra) = (&before[..hidden], &mut extra[..hidden]);
    vectorize(
        #[inline(always)]
        || {
            for j in 0..hidden {
                let gate = |k: usize| gates[k * hidden + j] + h[k * hidden + j];
                let (r, z) = (sigmoid(gate(0)), sigmoid(gate(1)));
                let of_state = h[2 * hidden + j];
                let n = (gates[2 * hidden + j] + r * of_state).tanh();
                extra[j] = of_state;
                y[j] = n + z * (before[j] - n);
                [r, z, n].into_iter().enumerate().for_each(|(k, x)| gates[k * hidden + j] = x);
            }
        },
    );
}
