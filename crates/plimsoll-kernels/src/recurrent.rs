//! The steps of one recurrent layer in one direction: RNN, LSTM and GRU, forward and backward.
//!
//! The product of the inputs with their weight is done before, for all steps at once; what is left here is one product with
//! the state and one pass over its elements a step. Gates lie side by side in a row, in PyTorch's order.

use super::matmul::{MatmulShape, MatrixStrides, Product};
use super::number::Float;
use super::simd::vectorize;

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `max(x + h, 0)`.
    Relu,
    /// `tanh(x + h)`.
    Tanh,
    /// Long short-term memory: gates for input, forgetting, value and output.
    Lstm,
    /// Gated recurrent unit: gates for reset, update and value.
    Gru,
}

impl Cell {
    /// Rows of a weight for each element of the state.
    pub fn gates(self) -> usize {
        match self {
            Cell::Relu | Cell::Tanh => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }
}

/// Sizes, and in which order steps lie and are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub time: usize,
    pub batch: usize,
    pub hidden: usize,
    /// Sequences are `[batch, time, …]`, not `[time, batch, …]`.
    pub batch_first: bool,
    /// From the last step to the first.
    pub reverse: bool,
}

impl Steps {
    /// The step that is taken as number `i`, and the one before it.
    fn at(&self, i: usize) -> (usize, Option<usize>) {
        let place = |i: usize| if self.reverse { self.time - 1 - i } else { i };
        (place(i), i.checked_sub(1).map(place))
    }

    /// The row of a sequence.
    fn row(&self, time: usize, batch: usize) -> usize {
        if self.batch_first { batch * self.time + time } else { time * self.batch + batch }
    }

    /// Strides of a step's matrix whose rows have `width` elements.
    fn strides(&self, width: usize) -> MatrixStrides {
        let rows = if self.batch_first { self.time } else { 1 };
        MatrixStrides { batch: 0, row: rows * width, col: 1 }
    }
}

/// What both passes read.
#[derive(Clone, Copy)]
pub struct Start<'a, T> {
    pub h0: &'a [T],
    /// The memory of an LSTM; else empty.
    pub c0: &'a [T],
    /// `[gates · hidden, hidden]`.
    pub weight: &'a [T],
    pub bias: Option<&'a [T]>,
}

#[inline(always)]
fn sigmoid<T: Float>(x: T) -> T {
    T::of(1.0) / (T::of(1.0) + (-x).exp())
}

/// Scratch of [`forward`], in elements.
pub fn forward_scratch_len(cell: Cell, steps: &Steps) -> usize {
    steps.batch * steps.hidden * cell.gates()
}

/// Takes all steps. `gates` has the projected inputs, and each gate's value afterwards; it is `y` itself for a plain RNN, which
/// then is empty. `extra` gets an LSTM's memory, or the state's part of a GRU's value.
pub fn forward<T: Float + Product>(
    cell: Cell,
    steps: &Steps,
    start: Start<'_, T>,
    (y, gates, extra): (&mut [T], &mut [T], &mut [T]),
    scratch: &mut [T],
) {
    let (hidden, width) = (steps.hidden, steps.hidden * cell.gates());
    let of_state = &mut scratch[..steps.batch * width];
    let shape = MatmulShape { batch: 1, m: steps.batch, k: hidden, n: width };
    let to_weight = (start.weight, MatrixStrides::row_major(width, hidden).transposed());
    let plain = gates.is_empty();
    for i in 0..steps.time {
        let (time, before) = steps.at(i);
        let state = match before {
            Some(time) => (&y[steps.row(time, 0) * hidden..], steps.strides(hidden)),
            None => (start.h0, MatrixStrides::row_major(steps.batch, hidden)),
        };
        let to = (&mut of_state[..], MatrixStrides::row_major(steps.batch, width));
        T::matmul(&shape, state, to_weight, start.bias, to);
        for batch in 0..steps.batch {
            let row = steps.row(time, batch);
            let h = &of_state[batch * width..][..width];
            if plain {
                let out = &mut y[row * hidden..][..hidden];
                vectorize(
                    #[inline(always)]
                    || {
                        for (y, &h) in out.iter_mut().zip(h) {
                            let x = *y + h;
                            *y = if cell == Cell::Tanh {
                                x.tanh()
                            } else if x > T::default() {
                                x
                            } else {
                                // Not a number stays so, as in PyTorch.
                                x * T::default()
                            };
                        }
                    },
                );
                continue;
            }
            let gates = &mut gates[row * width..][..width];
            // The row before lies outside of this one.
            let past = before.map(|time| steps.row(time, batch) * hidden);
            if cell == Cell::Lstm {
                let (out, memory) = (&mut y[row * hidden..][..hidden], row * hidden);
                let extra = &mut *extra;
                vectorize(
                    #[inline(always)]
                    || {
                        for j in 0..hidden {
                            let gate = |k: usize| gates[k * hidden + j] + h[k * hidden + j];
                            let (i, f) = (sigmoid(gate(0)), sigmoid(gate(1)));
                            let (g, o) = (gate(2).tanh(), sigmoid(gate(3)));
                            let c = past.map_or_else(|| start.c0[batch * hidden + j], |past| extra[past + j]);
                            let c = f * c + i * g;
                            extra[memory + j] = c;
                            out[j] = o * c.tanh();
                            [i, f, g, o].into_iter().enumerate().for_each(|(k, x)| gates[k * hidden + j] = x);
                        }
                    },
                );
            } else {
                let (y, extra) = (&mut *y, &mut extra[row * hidden..][..hidden]);
                vectorize(
                    #[inline(always)]
                    || {
                        for j in 0..hidden {
                            let gate = |k: usize| gates[k * hidden + j] + h[k * hidden + j];
                            let (r, z) = (sigmoid(gate(0)), sigmoid(gate(1)));
                            let of_state = h[2 * hidden + j];
                            let n = (gates[2 * hidden + j] + r * of_state).tanh();
                            let before =
                                past.map_or_else(|| start.h0[batch * hidden + j], |past| y[past + j]);
                            extra[j] = of_state;
                            y[row * hidden + j] = n + z * (before - n);
                            [r, z, n].into_iter().enumerate().for_each(|(k, x)| gates[k * hidden + j] = x);
                        }
                    },
                );
            }
        }
    }
}

/// What the forward pass left.
#[derive(Clone, Copy)]
pub struct Kept<'a, T> {
    pub y: &'a [T],
    pub gates: &'a [T],
    pub extra: &'a [T],
}

/// What the backward pass writes. `dh` and `dc` have the gradients of the last state, and those of the first afterwards.
pub struct Gradients<'a, T> {
    pub gates: &'a mut [T],
    pub dh: &'a mut [T],
    pub dc: &'a mut [T],
    /// Of the state's part of a GRU's value; else empty.
    pub extra: &'a mut [T],
}

/// Scratch of [`backward`], in elements.
pub fn backward_scratch_len(cell: Cell, steps: &Steps) -> usize {
    if cell == Cell::Gru { 2 * steps.batch * steps.hidden } else { 0 }
}

/// Takes all steps back. `dy` is the gradient of the output of every step.
pub fn backward<T: Float + Product>(
    cell: Cell,
    steps: &Steps,
    start: Start<'_, T>,
    (dy, kept): (&[T], Kept<'_, T>),
    to: Gradients<'_, T>,
    scratch: &mut [T],
) {
    let (hidden, width) = (steps.hidden, steps.hidden * cell.gates());
    let Gradients { gates: all_gates, dh: all_dh, dc: all_dc, extra: all_extra } = to;
    let one = T::of(1.0);
    let slope = |x: T| x * (one - x);
    for i in (0..steps.time).rev() {
        let (time, before) = steps.at(i);
        for batch in 0..steps.batch {
            let row = steps.row(time, batch);
            let past = before.map(|time| steps.row(time, batch) * hidden);
            let gates = kept.gates.get(row * width..(row + 1) * width).unwrap_or(&[]);
            let to_gates = &mut all_gates[row * width..][..width];
            let (y, dy) = (&kept.y[row * hidden..][..hidden], &dy[row * hidden..][..hidden]);
            let dh = &mut all_dh[batch * hidden..][..hidden];
            match cell {
                Cell::Relu | Cell::Tanh => vectorize(
                    #[inline(always)]
                    || {
                        for j in 0..hidden {
                            let d = dh[j] + dy[j];
                            to_gates[j] = match cell {
                                Cell::Tanh => d * (one - y[j] * y[j]),
                                _ if y[j] > T::default() => d,
                                _ => T::default(),
                            };
                        }
                    },
                ),
                Cell::Lstm => {
                    let dc = &mut all_dc[batch * hidden..][..hidden];
                    let memory = &kept.extra[row * hidden..][..hidden];
                    let earlier = match past {
                        Some(past) => &kept.extra[past..][..hidden],
                        None => &start.c0[batch * hidden..][..hidden],
                    };
                    vectorize(
                        #[inline(always)]
                        || {
                            for j in 0..hidden {
                                let gate = |k: usize| gates[k * hidden + j];
                                let (i, f, g, o) = (gate(0), gate(1), gate(2), gate(3));
                                let (d, c) = (dh[j] + dy[j], memory[j].tanh());
                                let to_c = dc[j] + d * o * (one - c * c);
                                dc[j] = to_c * f;
                                to_gates[j] = to_c * g * slope(i);
                                to_gates[hidden + j] = to_c * earlier[j] * slope(f);
                                to_gates[2 * hidden + j] = to_c * i * (one - g * g);
                                to_gates[3 * hidden + j] = d * c * slope(o);
                            }
                        },
                    );
                }
                Cell::Gru => {
                    let of_state = &kept.extra[row * hidden..][..hidden];
                    let to_state = &mut all_extra[row * hidden..][..hidden];
                    let earlier = match past {
                        Some(past) => &kept.y[past..][..hidden],
                        None => &start.h0[batch * hidden..][..hidden],
                    };
                    vectorize(
                        #[inline(always)]
                        || {
                            for j in 0..hidden {
                                let (r, z, n) = (gates[j], gates[hidden + j], gates[2 * hidden + j]);
                                let d = dh[j] + dy[j];
                                let to_n = d * (one - z) * (one - n * n);
                                to_gates[j] = to_n * of_state[j] * slope(r);
                                to_gates[hidden + j] = d * (earlier[j] - n) * slope(z);
                                to_gates[2 * hidden + j] = to_n;
                                to_state[j] = to_n * r;
                                dh[j] = d * z;
                            }
                        },
                    );
                }
            }
        }
        let at = steps.row(time, 0);
        let weight =
            |first: usize| (&start.weight[first * hidden..], MatrixStrides::row_major(width, hidden));
        let out = MatrixStrides::row_major(steps.batch, hidden);
        let product = |k: usize| MatmulShape { batch: 1, m: steps.batch, k, n: hidden };
        let grads = (&all_gates[at * width..], steps.strides(width));
        if cell != Cell::Gru {
            T::matmul(&product(width), grads, weight(0), None, (&mut *all_dh, out));
            continue;
        }
        let (a, b) = scratch[..2 * steps.batch * hidden].split_at_mut(steps.batch * hidden);
        T::matmul(&product(2 * hidden), grads, weight(0), None, (&mut *a, out));
        let states = (&all_extra[at * hidden..], steps.strides(hidden));
        T::matmul(&product(hidden), states, weight(2 * hidden), None, (&mut *b, out));
        all_dh.iter_mut().zip(a).zip(b).for_each(|((dh, a), b)| *dh += *a + *b);
    }
}
