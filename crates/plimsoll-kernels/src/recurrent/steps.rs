//! The steps of one recurrent layer in one direction: RNN, LSTM and GRU, forward and backward.
//!
//! The product of the inputs with their weight is computed beforehand, for all steps at once. Each step then needs one product
//! with the state, one pass over its elements, and the product of an LSTM's projection. The gates of a row are contiguous, in
//! PyTorch's order.

use crate::matmul::MatrixStrides;

/// The kind of recurrent cell.
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
    /// The number of gates: rows of the weight for each hidden element.
    pub fn gates(self) -> usize {
        match self {
            Cell::Relu | Cell::Tanh => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }
}

/// One layer in one direction: the cell, its sizes, and the order of the steps in memory and in execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub cell: Cell,
    pub time: usize,
    pub batch: usize,
    pub hidden: usize,
    /// The size of the state: `hidden`, unless an LSTM projects its output.
    pub state: usize,
    /// Whether an LSTM projects its output.
    pub projected: bool,
    /// Whether sequences are `[batch, time, …]` instead of `[time, batch, …]`.
    pub batch_first: bool,
    /// Whether steps run from the last to the first.
    pub reverse: bool,
}

impl Steps {
    /// The number of elements in a row of gates.
    pub fn width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// The `i`-th step in execution order, and the one executed before it.
    pub fn at(&self, i: usize) -> (usize, Option<usize>) {
        let place = |i: usize| if self.reverse { self.time - 1 - i } else { i };
        (place(i), i.checked_sub(1).map(place))
    }

    /// The row of a sequence.
    pub fn row(&self, time: usize, batch: usize) -> usize {
        if self.batch_first { batch * self.time + time } else { time * self.batch + batch }
    }

    /// The distance in rows from one sequence to the next, at the same step.
    pub fn row_stride(&self) -> usize {
        if self.batch_first { self.time } else { 1 }
    }

    /// The strides of a step's matrix whose rows have `width` elements.
    pub(super) fn strides(&self, width: usize) -> MatrixStrides {
        MatrixStrides { batch: 0, row: self.row_stride() * width, col: 1 }
    }
}

/// The inputs of both passes.
#[derive(Clone, Copy)]
pub struct Start<'a, T> {
    pub h0: &'a [T],
    /// The initial cell state of an LSTM; otherwise empty.
    pub c0: &'a [T],
    /// `[gates · hidden, state]`.
    pub weight: &'a [T],
    pub bias: Option<&'a [T]>,
    /// `[state, hidden]`, if an LSTM projects its output.
    pub projection: Option<&'a [T]>,
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
