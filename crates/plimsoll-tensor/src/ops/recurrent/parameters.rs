//! What the function of a recurrent layer and its operators know of it.

use crate::cpu::kernels::recurrent::Cell;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) const NAME: &str = "recurrent";

/// `x, h0[, c0], w_ih, w_hh[, b_ih, b_hh] -> y, h[, c]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) cell: Cell,
    pub(super) batch_first: bool,
    pub(super) reverse: bool,
    pub(super) biases: bool,
}

impl Layer {
    pub(super) fn states(self) -> usize {
        1 + usize::from(self.cell == Cell::Lstm)
    }

    /// The number of the weight of the inputs; the others follow.
    pub(super) fn weight(self) -> usize {
        1 + self.states()
    }

    pub(super) fn inputs(self) -> usize {
        self.weight() + if self.biases { 4 } else { 2 }
    }

    pub(super) fn time(self) -> isize {
        isize::from(self.batch_first)
    }

    /// The last step that is taken of a sequence, `[batch, hidden]`; a view.
    pub(super) fn last(self, x: &Tensor) -> Result<Tensor> {
        x.select(self.time(), if self.reverse { 0 } else { -1 })
    }

    /// The states before each step, as a sequence.
    pub(super) fn earlier(self, first: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (time, steps) = (self.time(), y.shape()[self.time() as usize]);
        let first = first.unsqueeze(time)?;
        let rest = y.narrow(time, usize::from(self.reverse), steps - 1)?;
        if self.reverse { Tensor::cat(&[&rest, &first], time) } else { Tensor::cat(&[&first, &rest], time) }
    }
}

/// Rows of the last dimension.
pub(super) fn rows(x: &Tensor) -> Result<Tensor> {
    let width = x.shape()[x.rank() - 1];
    x.reshape(&[x.shape()[..x.rank() - 1].iter().product(), width])
}
