//! The matrix products of Llama's blocks, each in a slot, and the MLP.

use plimsoll_tensor::checkpoint::recompute_output;
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use crate::members;
use crate::nn::{
    ColumnParallelLinear, Init, Module, RowParallelLinear, Scope, Slot, TensorParallel, gathered,
};

pub(super) fn columns(
    scope: &Scope,
    inputs: usize,
    outputs: usize,
    bias: bool,
) -> Result<Slot<ColumnParallelLinear>> {
    let bias = bias.then_some(Init::Zeros);
    Ok(ColumnParallelLinear::with_init(scope, inputs, outputs, Init::Normal(0.02), bias)?.into())
}

pub(super) fn rows(
    scope: &Scope,
    inputs: usize,
    outputs: usize,
    bias: bool,
) -> Result<Slot<RowParallelLinear>> {
    let bias = bias.then_some(Init::Zeros);
    Ok(RowParallelLinear::with_init(scope, inputs, outputs, Init::Normal(0.02), bias)?.into())
}

/// The product with the tokens of all ranks.
pub(super) fn of_gathered(
    layer: &Slot<ColumnParallelLinear>,
    x: &Tensor,
    region: Option<&TensorParallel>,
) -> Result<Tensor> {
    match (layer.plain(), region) {
        (Some(layer), _) => layer.forward_gathered(x),
        (None, None) => layer.forward(x),
        (None, Some(_)) => layer.want_plain("llama")?.forward_gathered(x),
    }
}

#[derive(Clone, Debug)]
pub(super) struct Mlp {
    label: LabelId,
    gate_proj: Slot<ColumnParallelLinear>,
    up_proj: Slot<ColumnParallelLinear>,
    down_proj: Slot<RowParallelLinear>,
    region: Option<TensorParallel>,
}

impl Mlp {
    pub(super) fn new(scope: &Scope, [width, inner]: [usize; 2], bias: bool) -> Result<Mlp> {
        Ok(Mlp {
            label: scope.label(),
            region: scope.region(),
            gate_proj: columns(&scope.at("gate_proj"), width, inner, bias)?,
            up_proj: columns(&scope.at("up_proj"), width, inner, bias)?,
            down_proj: rows(&scope.at("down_proj"), inner, width, bias)?,
        })
    }
}

impl Mlp {
    /// Takes the normalized stream by value, so that it is dropped as soon as it has been read.
    pub(super) fn forward_of(&self, x: Tensor, recompute: bool) -> Result<Tensor> {
        let x = gathered(self.region.as_ref(), self.label, x)?;
        let project = |layer: &Slot<ColumnParallelLinear>| match recompute {
            true => {
                let (layer, region) = (layer.clone(), self.region.clone());
                recompute_output(move |x| of_gathered(&layer, &x[0], region.as_ref()), &[&x])
            }
            false => of_gathered(layer, &x, self.region.as_ref()),
        };
        let (gate, up) = (project(&self.gate_proj)?, project(&self.up_proj)?);
        drop(x);
        let down_proj = match (self.down_proj.plain(), &self.region) {
            (Some(down_proj), _) => down_proj,
            (None, Some(_)) => self.down_proj.want_plain("llama")?,
            (None, None) => return self.down_proj.forward(&gate.swiglu(&up)?),
        };
        let _owner = Span::layer(down_proj.label());
        down_proj.finish(gate.swiglu_linear(&up, down_proj.weight())?)
    }
}

impl Module for Mlp {
    members!(gate_proj, up_proj, down_proj);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_of(x.clone(), false)
    }
}
