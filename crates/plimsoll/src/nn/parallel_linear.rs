//! Fully connected layers that are divided among ranks, like Megatron's `ColumnParallelLinear` and `RowParallelLinear`.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::tensor_parallel::{Cut, TensorParallel};
use super::{Init, Module, Parameter, Scope};
use crate::members;

/// A [`Linear`](super::Linear) layer whose outputs are divided equally among the ranks of [`Scope::tensor_parallel`].
/// The input has this rank's tokens, `[…, tokens / ranks, inputs]`; the output has all tokens, `[…, tokens, outputs /
/// ranks]`. Without `tensor_parallel` it is a plain `Linear`. Like Megatron's, with sequence parallelism and without
/// gathering the output.
///
/// ```
/// use plimsoll::nn::{ColumnParallelLinear, Module, RowParallelLinear, Scope};
/// use plimsoll::{Device, ProcessGroup, Result, Tensor};
/// let mlp = |scope: &Scope, x: &Tensor| -> Result<Tensor> {
///     let up = ColumnParallelLinear::new(&scope.at("up"), 4, 16)?;
///     let down = RowParallelLinear::new(&scope.at("down"), 16, 4)?;
///     down.forward(&up.forward(x)?.relu()?)
/// };
/// let x = Tensor::ones(&[2, 4], &Device::cpu())?; // two tokens
/// let whole = mlp(&Scope::new(&Device::cpu(), 1), &x)?.to_vec::<f32>()?;
/// let ranks = ProcessGroup::threads(2);
/// let parts: Vec<Vec<f32>> = std::thread::scope(|scope| {
///     let each = ranks.iter().map(|rank| {
///         let (mlp, own) = (&mlp, x.narrow(0, rank.rank(), 1));
///         scope.spawn(move || mlp(&Scope::new(&Device::cpu(), 1).tensor_parallel(rank), &own?)?.to_vec::<f32>())
///     });
///     let each: Vec<_> = each.collect();
///     each.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_>>()
/// })?;
/// assert!(parts.concat().iter().zip(&whole).all(|(part, whole)| (part - whole).abs() < 1e-6));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColumnParallelLinear {
    label: LabelId,
    weight: Parameter,
    bias: Option<Parameter>,
    region: Option<TensorParallel>,
}

impl ColumnParallelLinear {
    /// A layer with a bias that has `inputs` and `outputs` features over all ranks. Together, the ranks' initial values
    /// are those of a `Linear` at this place.
    ///
    /// # Errors
    /// If the number of ranks does not divide `outputs`, a path is already in use ([`Scope::parameter`]), or memory
    /// runs out.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<ColumnParallelLinear> {
        let init = Init::default_for(inputs);
        ColumnParallelLinear::with_init(scope, inputs, outputs, init, Some(init))
    }

    /// Like `new`, with these initial values for the weight and, if there is one, the bias.
    pub(crate) fn with_init(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<ColumnParallelLinear> {
        let weight = scope.part("weight", &[outputs, inputs], Cut::Whole(0), weight)?;
        let bias = bias.map(|init| scope.part("bias", &[outputs], Cut::Whole(0), init)).transpose()?;
        Ok(ColumnParallelLinear { label: scope.label(), weight, bias, region: scope.region() })
    }

    /// This rank's part of the weight, `[outputs / ranks, inputs]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// This rank's part of the bias, `[outputs / ranks]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// The product with the tokens of all ranks; several layers may share these tokens.
    #[track_caller]
    pub(crate) fn forward_gathered(&self, x: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        x.linear(&self.weight, self.bias.as_deref())
    }
}

impl Module for ColumnParallelLinear {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.region {
            None => self.forward_gathered(x),
            Some(region) => {
                let _owner = Span::layer(self.label);
                self.forward_gathered(&region.gather(x)?)
            }
        }
    }
}

/// A [`Linear`](super::Linear) layer whose inputs are divided equally among the ranks of [`Scope::tensor_parallel`].
/// The input has all tokens, `[…, tokens, inputs / ranks]`; the output has this rank's tokens, `[…, tokens / ranks,
/// outputs]`. Without `tensor_parallel` it is a plain `Linear`. Like Megatron's, with sequence parallelism and an input
/// that is already divided. For an example, see [`ColumnParallelLinear`].
#[derive(Clone, Debug)]
pub struct RowParallelLinear {
    label: LabelId,
    weight: Parameter,
    bias: Option<Parameter>,
    region: Option<TensorParallel>,
}

impl RowParallelLinear {
    /// A layer that has `inputs` and `outputs` features over all ranks, and a bias, which each rank has in full.
    ///
    /// # Errors
    /// If the number of ranks does not divide `inputs`, a path is already in use ([`Scope::parameter`]), or memory runs
    /// out.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<RowParallelLinear> {
        let init = Init::default_for(inputs);
        RowParallelLinear::with_init(scope, inputs, outputs, init, Some(init))
    }

    /// Like `new`, with these initial values for the weight and, if there is one, the bias.
    pub(crate) fn with_init(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<RowParallelLinear> {
        let weight = scope.part("weight", &[outputs, inputs], Cut::Whole(1), weight)?;
        let bias = bias.map(|init| scope.parameter("bias", &[outputs], init)).transpose()?;
        Ok(RowParallelLinear { label: scope.label(), weight, bias, region: scope.region() })
    }

    /// The label of the layer's allocations.
    pub(crate) fn label(&self) -> LabelId {
        self.label
    }

    /// This rank's part of the weight, `[outputs, inputs / ranks]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Completes this rank's product with the weight: adds the other ranks' products and the bias.
    pub(crate) fn finish(&self, product: Tensor) -> Result<Tensor> {
        let sum = match &self.region {
            None => product,
            Some(region) => region.scatter(&product)?,
        };
        match &self.bias {
            Some(bias) => sum.add(bias),
            None => Ok(sum),
        }
    }
}

impl Module for RowParallelLinear {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        match &self.region {
            None => x.linear(&self.weight, self.bias.as_deref()),
            Some(_) => self.finish(x.linear(&self.weight, None)?),
        }
    }
}
