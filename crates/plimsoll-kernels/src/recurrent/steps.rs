//! The steps of one recurrent layer in one direction: RNN, LSTM and GRU, forward and backward.
//!
//! The product of the inputs with their weight is done before, for all steps at once; what is left here is one product with
//! the state and one pass over its elements a step, and the product of an LSTM's projection. Gates lie side by side in a row, in
//! PyTorch's order.

use crate::matmul::MatrixStrides;

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

/// One layer in one direction: what a step computes, sizes, and in which order steps lie and are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub cell: Cell,
    pub time: usize,
    pub batch: usize,
    pub hidden: usize,
    /// Elements of the state: those of `hidden`, unless an LSTM projects its output.
    pub state: usize,
    /// Whether it does.
    pub projected: bool,
    /// Sequences are `[batch, time, …]`, not `[time, batch, …]`.
    pub batch_first: bool,
    /// From the last step to the first.
    pub reverse: bool,
}

impl Steps {
    /// Elements of a row of gates.
    pub fn width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// The step that is taken as number `i`, and the one before it.
    pub fn at(&self, i: usize) -> (usize, Option<usize>) {
        let place = |i: usize| if self.reverse { self.time - 1 - i } else { i };
        (place(i), i.checked_sub(1).map(place))
    }

    /// The row of a sequence.
    pub fn row(&self, time: usize, batch: usize) -> usize {
        if self.batch_first { batch * self.time + time } else { time * self.batch + batch }
    }

    /// Rows from one sequence to the next, at the same step.
    pub fn row_stride(&self) -> usize {
        if self.batch_first { self.time } else { 1 }
    }

    /// Strides of a step's matrix whose rows have `width` elements.
    pub(super) fn strides(&self, width: usize) -> MatrixStrides {
        MatrixStrides { batch: 0, row: self.row_stride() * width, col: 1 }
    }
}

/// What both passes read.
#[derive(Clone, Copy)]
pub struct Start<'a, T> {
    pub h0: &'a [T],
    /// The memory of an LSTM; else empty.
    pub c0: &'a [T],
    /// `[gates · hidden, state]`.
    pub weight: &'a [T],
    pub bias: Option<&'a [T]>,
    /// `[state, hidden]`, where an LSTM projects its output.
    pub projection: Option<&'a [T]>,
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
