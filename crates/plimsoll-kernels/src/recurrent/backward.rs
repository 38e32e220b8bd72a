//! The backward pass over all steps.

use super::super::number::Float;
use super::super::parallel::{Pieces, for_each_cut};
use super::super::simd::vectorize;
use super::rows::Step;
use super::steps::{Cell, Start, Steps};
use crate::matmul::{MatmulShape, MatrixStrides, Product};

/// The saved results of the forward pass.
#[derive(Clone, Copy)]
pub struct Kept<'a, T> {
    pub y: &'a [T],
    pub gates: &'a [T],
    pub extra: &'a [T],
}

/// The outputs of the backward pass. `dh` and `dc` have the gradients of the last state before the call, and those of
/// the first state after it.
pub struct Gradients<'a, T> {
    pub gates: &'a mut [T],
    pub dh: &'a mut [T],
    pub dc: &'a mut [T],
    /// The gradient of the state's part of a GRU's value, or of an LSTM's projected output, at each step; otherwise
    /// empty.
    pub extra: &'a mut [T],
}

/// Scratch memory for [`backward`], in elements.
pub fn backward_scratch_len(steps: &Steps) -> usize {
    match steps.cell {
        Cell::Gru => 2 * steps.batch * steps.hidden,
        _ if steps.projected => steps.batch * steps.hidden,
        _ => 0,
    }
}

/// Runs all steps backward. `dy` is the gradient of the output of every step.
pub fn backward<T: Float + Product>(
    steps: &Steps,
    start: Start<'_, T>,
    (dy, kept): (&[T], Kept<'_, T>),
    to: Gradients<'_, T>,
    scratch: &mut [T],
) {
    let (batch, hidden, state, width) = (steps.batch, steps.hidden, steps.state, steps.width());
    let Gradients { gates: all_gates, dh: all_dh, dc: all_dc, extra: all_extra } = to;
    for i in (0..steps.time).rev() {
        let step = Step::of(steps, i, width);
        let (time, before) = (step.time, step.before);
        let row = |batch: usize| steps.row(time, batch);
        let y = |batch: usize| [&kept.y[row(batch) * state..][..state], &dy[row(batch) * state..][..state]];
        let gates = |batch: usize| &kept.gates[row(batch) * width..][..width];
        let extra = |batch: usize| &kept.extra[row(batch) * hidden..][..hidden];
        match steps.cell {
            Cell::Relu | Cell::Tanh => {
                let cut = (step.cut(all_gates, width).0, Pieces::of(&mut *all_dh, step.rows * state));
                for_each_cut(step.chunks(), cut, |chunk, (to_gates, dh)| {
                    for (batch, dh) in step.batches(chunk).zip(dh.chunks_exact(state.max(1))) {
                        plain(steps.cell, y(batch), dh, step.row((&mut *to_gates, &[]), batch, width).1);
                    }
                });
            }
            Cell::Lstm => {
                let d = scratch.get_mut(..batch * hidden).filter(|_| steps.projected);
                let d = d.map(|d| {
                    // The gradient of the projected output: saved for the projection's gradient, and propagated to the
                    // outputs.
                    let all = (step.cut(all_extra, state).0, Pieces::of(&mut *all_dh, step.rows * state));
                    for_each_cut(step.chunks(), all, |chunk, (kept, dh)| {
                        for (batch, dh) in step.batches(chunk).zip(dh.chunks_exact(state)) {
                            let kept = step.row((&mut *kept, &[]), batch, state).1;
                            let sums = dh.iter().zip(y(batch)[1]);
                            kept.iter_mut().zip(sums).for_each(|(to, (&dh, &dy))| *to = dh + dy);
                        }
                    });
                    let from = (&all_extra[row(0) * state..], steps.strides(state));
                    let weight =
                        (start.projection.unwrap_or_default(), MatrixStrides::row_major(state, hidden));
                    let shape = MatmulShape { batch: 1, m: batch, k: state, n: hidden };
                    T::matmul(&shape, from, weight, None, (&mut *d, MatrixStrides::row_major(batch, hidden)));
                    &*d
                });
                let dh = &*all_dh;
                let cut = (step.cut(all_gates, width).0, Pieces::of(&mut *all_dc, step.rows * hidden));
                for_each_cut(step.chunks(), cut, |chunk, (to_gates, dc)| {
                    for (batch, dc) in step.batches(chunk).zip(dc.chunks_exact_mut(hidden.max(1))) {
                        let gradients = match d {
                            Some(d) => [&d[batch * hidden..][..hidden], &[]],
                            None => [&dh[batch * hidden..][..hidden], y(batch)[1]],
                        };
                        let past = match before {
                            Some(before) => &kept.extra[steps.row(before, batch) * hidden..][..hidden],
                            None => &start.c0[batch * hidden..][..hidden],
                        };
                        let to_gates = step.row((&mut *to_gates, &[]), batch, width).1;
                        lstm(gradients, [gates(batch), extra(batch), past], dc, to_gates);
                    }
                });
            }
            Cell::Gru => {
                let dh = Pieces::of(&mut *all_dh, step.rows * hidden);
                let cut = (step.cut(all_gates, width).0, step.cut(all_extra, hidden).0, dh);
                for_each_cut(step.chunks(), cut, |chunk, (to_gates, to_state, dh)| {
                    for (batch, dh) in step.batches(chunk).zip(dh.chunks_exact_mut(hidden.max(1))) {
                        let past = match before {
                            Some(before) => &kept.y[steps.row(before, batch) * hidden..][..hidden],
                            None => &start.h0[batch * hidden..][..hidden],
                        };
                        let to_gates = step.row((&mut *to_gates, &[]), batch, width).1;
                        let to_state = step.row((&mut *to_state, &[]), batch, hidden).1;
                        gru([gates(batch), extra(batch), past, y(batch)[1]], [dh, to_gates, to_state]);
                    }
                });
            }
        }
        let at = steps.row(time, 0);
        let weight = |first: usize| (&start.weight[first * state..], MatrixStrides::row_major(width, state));
        let out = MatrixStrides::row_major(batch, state);
        let product = |k: usize| MatmulShape { batch: 1, m: batch, k, n: state };
        let grads = (&all_gates[at * width..], steps.strides(width));
        if steps.cell != Cell::Gru {
            T::matmul(&product(width), grads, weight(0), None, (&mut *all_dh, out));
            continue;
        }
        let (a, b) = scratch[..2 * batch * hidden].split_at_mut(batch * hidden);
        T::matmul(&product(2 * hidden), grads, weight(0), None, (&mut *a, out));
        let states = (&all_extra[at * hidden..], steps.strides(hidden));
        T::matmul(&product(hidden), states, weight(2 * hidden), None, (&mut *b, out));
        all_dh.iter_mut().zip(a).zip(b).for_each(|((dh, a), b)| *dh += *a + *b);
    }
}

/// `x (1 - x)`: the derivative of a sigmoid with this value.
#[inline(always)]
fn slope<T: Float>(x: T) -> T {
    x * (T::of(1.0) - x)
}

fn plain<T: Float>(cell: Cell, [y, dy]: [&[T]; 2], dh: &[T], to: &mut [T]) {
    let (y, dy, dh) = (&y[..to.len()], &dy[..to.len()], &dh[..to.len()]);
    vectorize(
        #[inline(always)]
        || {
            for j in 0..to.len() {
                let d = dh[j] + dy[j];
                to[j] = match cell {
                    Cell::Tanh => d * (T::of(1.0) - y[j] * y[j]),
                    _ if y[j] > T::default() => d,
                    _ => T::default(),
                };
            }
        },
    );
}

/// One LSTM step. The gradient of the output is the sum of two; the second may be empty.
fn lstm<T: Float>(d: [&[T]; 2], [gates, memory, past]: [&[T]; 3], dc: &mut [T], to: &mut [T]) {
    let hidden = dc.len();
    let (one, [dh, dy]) = (T::of(1.0), d);
    let (memory, past, dh) = (&memory[..hidden], &past[..hidden], &dh[..hidden]);
    let both = !dy.is_empty();
    vectorize(
        #[inline(always)]
        || {
            for j in 0..hidden {
                let gate = |k: usize| gates[k * hidden + j];
                let (i, f, g, o) = (gate(0), gate(1), gate(2), gate(3));
                let (d, c) = (if both { dh[j] + dy[j] } else { dh[j] }, memory[j].tanh());
                let to_c = dc[j] + d * o * (one - c * c);
                dc[j] = to_c * f;
                to[j] = to_c * g * slope(i);
                to[hidden + j] = to_c * past[j] * slope(f);
                to[2 * hidden + j] = to_c * i * (one - g * g);
                to[3 * hidden + j] = d * c * slope(o);
            }
        },
    );
}

fn gru<T: Float>([gates, of_state, past, dy]: [&[T]; 4], [dh, to, to_state]: [&mut [T]; 3]) {
    let (hidden, one) = (dh.len(), T::of(1.0));
    let (of_state, past, dy) = (&of_state[..hidden], &past[..hidden], &dy[..hidden]);
    vectorize(
        #[inline(always)]
        || {
            for j in 0..hidden {
                let (r, z, n) = (gates[j], gates[hidden + j], gates[2 * hidden + j]);
                let d = dh[j] + dy[j];
                let to_n = d * (one - z) * (one - n * n);
                to[j] = to_n * of_state[j] * slope(r);
                to[hidden + j] = d * (past[j] - n) * slope(z);
                to[2 * hidden + j] = to_n;
                to_state[j] = to_n * r;
                dh[j] = d * z;
            }
        },
    );
}
