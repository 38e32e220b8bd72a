//! The parameters of one layer in one direction: [`Direction`].

use plimsoll_tensor::{Cell, RecurrentLayer, Result};

use super::super::{Init, Members, MembersMut, Parameter, Scope};

/// The parameters of one layer in one direction.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    /// The suffix in PyTorch's names: `_l0`, `_l0_reverse`.
    pub(super) suffix: String,
    pub(super) weights: [Parameter; 2],
    pub(super) biases: Option<[Parameter; 2]>,
    /// `weight_hr`: projects an LSTM's state to a smaller size.
    pub(super) projection: Option<Parameter>,
}

impl Direction {
    pub(super) fn new(
        scope: &Scope,
        cell: Cell,
        [inputs, hidden]: [usize; 2],
        bias: bool,
        proj_size: usize,
        suffix: String,
    ) -> Result<Direction> {
        let (init, wide) = (Init::default_for(hidden), cell.gates() * hidden);
        let state = if proj_size > 0 { proj_size } else { hidden };
        let make = |name: &str, shape: &[usize]| scope.parameter(&format!("{name}{suffix}"), shape, init);
        let weights = [make("weight_ih", &[wide, inputs])?, make("weight_hh", &[wide, state])?];
        let biases = match bias {
            true => Some([make("bias_ih", &[wide])?, make("bias_hh", &[wide])?]),
            false => None,
        };
        let project = || make("weight_hr", &[proj_size, hidden]);
        let projection = (proj_size > 0).then(project).transpose()?;
        Ok(Direction { suffix, weights, biases, projection })
    }

    /// Lists the parameters under PyTorch's names.
    pub(super) fn members<'a>(&'a self, list: &mut Members<'a>) {
        let weights = ["weight_ih", "weight_hh"].into_iter().zip(&self.weights);
        let biases = self.biases.iter().flat_map(|biases| ["bias_ih", "bias_hh"].into_iter().zip(biases));
        let projection = self.projection.iter().map(|it| ("weight_hr", it));
        let all = weights.chain(biases).chain(projection);
        all.for_each(|(name, it)| list.add(format!("{name}{}", self.suffix), it));
    }

    pub(super) fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        let weights = ["weight_ih", "weight_hh"].into_iter().zip(&mut self.weights);
        let biases = self.biases.iter_mut().flat_map(|biases| ["bias_ih", "bias_hh"].into_iter().zip(biases));
        let projection = self.projection.iter_mut().map(|it| ("weight_hr", it));
        let all = weights.chain(biases).chain(projection);
        all.for_each(|(name, it)| list.add(format!("{name}{}", self.suffix), it));
    }

    pub(super) fn layer(&self, cell: Cell, batch_first: bool, reverse: bool) -> RecurrentLayer<'_> {
        let weights = [self.weights[0].tensor(), self.weights[1].tensor()];
        let biases = self.biases.as_ref().map(|[a, b]| [a.tensor(), b.tensor()]);
        let projection = self.projection.as_deref();
        RecurrentLayer { cell, weights, biases, projection, batch_first, reverse }
    }
}
