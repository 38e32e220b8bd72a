//! The parameters that a recurrent layer's function and operators share.

use crate::cpu::kernels::recurrent::Cell;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) const NAME: &str = "recurrent";

/// `x, h0[, c0], w_ih, w_hh[, b_ih, b_hh][, w_hr] -> y, h[, c]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) cell: Cell,
    pub(super) batch_first: bool,
    pub(super) reverse: bool,
    pub(super) biases: bool,
    /// Whether an LSTM's output is projected to make the state.
    pub(super) projected: bool,
}

impl Layer {
    pub(super) fn states(self) -> usize {
        1 + usize::from(self.cell == Cell::Lstm)
    }

    /// The index of the input weight; the other weights follow it.
    pub(super) fn weight(self) -> usize {
        1 + self.states()
    }

    pub(super) fn inputs(self) -> usize {
        self.weight() + if self.biases { 4 } else { 2 } + usize::from(self.projected)
    }

    /// The biases of the inputs and of the state, from the inputs after the states.
    pub(super) fn biases<T>(self, weights: &[T]) -> [Option<&T>; 2] {
        [2, 3].map(|i| weights.get(i).filter(|_| self.biases))
    }

    /// The projection, from the inputs after the states.
    pub(super) fn projection<T>(self, weights: &[T]) -> Option<&T> {
        weights.last().filter(|_| self.projected)
    }

    pub(super) fn time(self) -> isize {
        isize::from(self.batch_first)
    }

    /// The final step of a sequence, `[batch, hidden]`; a view.
    #[track_caller]
    pub(super) fn last(self, x: &Tensor) -> Result<Tensor> {
        x.select(self.time(), if self.reverse { 0 } else { -1 })
    }

    /// The states before each step, as a sequence.
    #[track_caller]
    pub(super) fn earlier(self, first: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (time, steps) = (self.time(), y.shape()[self.time() as usize]);
        let first = first.unsqueeze(time)?;
        let rest = y.narrow(time, usize::from(self.reverse), steps - 1)?;
        if self.reverse { Tensor::cat(&[&rest, &first], time) } else { Tensor::cat(&[&first, &rest], time) }
    }
}

/// Reshapes to rows of the last dimension.
#[track_caller]
pub(super) fn rows(x: &Tensor) -> Result<Tensor> {
    let width = x.shape()[x.rank() - 1];
    x.reshape(&[x.shape()[..x.rank() - 1].iter().product(), width])
}
