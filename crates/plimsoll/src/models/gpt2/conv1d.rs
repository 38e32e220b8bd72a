//! The products of GPT-2's blocks: [`Conv1D`].

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use crate::members;
use crate::nn::{Cut, Init, Module, Parameter, Scope};

/// A matrix product with a weight of shape `[inputs, outputs]`, like `transformers`' `Conv1D`.
#[derive(Clone, Debug)]
pub(super) struct Conv1D {
    pub(super) label: LabelId,
    pub(super) weight: Parameter,
    pub(super) bias: Parameter,
}

impl Conv1D {
    /// Each tensor-parallel rank has some of the outputs: the same part of each of `blocks` equal blocks.
    pub(super) fn columns(scope: &Scope, inputs: usize, outputs: usize, blocks: usize) -> Result<Conv1D> {
        let weight = scope.part("weight", &[inputs, outputs], Cut::Blocks(1, blocks), Init::Normal(0.02))?;
        let bias = scope.part("bias", &[outputs], Cut::Blocks(0, blocks), Init::Zeros)?;
        Ok(Conv1D { label: scope.label(), weight, bias })
    }

    /// Tensor-parallel ranks have some of the inputs, so their products must be added.
    pub(super) fn rows(scope: &Scope, inputs: usize, outputs: usize, std: f64) -> Result<Conv1D> {
        let weight = scope.part("weight", &[inputs, outputs], Cut::Whole(0), Init::Normal(std))?;
        Ok(Conv1D { label: scope.label(), weight, bias: scope.parameter("bias", &[outputs], Init::Zeros)? })
    }
}

impl Module for Conv1D {
    members!(weight, bias);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        x.linear_in_out(&self.weight, &self.bias)
    }
}
