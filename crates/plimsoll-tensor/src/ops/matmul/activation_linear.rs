//! Linear layers fused with an activation before or after them. These save one tensor fewer than the two separate
//! operations.
//!
//! As separate operations, an activation saves its input, and the linear layer after it saves the activation's output,
//! which has the same size. [`Tensor::activation_linear`] saves only the input and recomputes the output in the
//! backward pass, in one pass over the elements. [`Tensor::linear_activation`] saves only the layer's input and
//! projects again; with ReLU, it saves the output instead, which the next layer saves too, and recomputes nothing.

use smallvec::{SmallVec, smallvec};

use crate::autograd::is_grad_enabled;
use crate::dispatch::Tensors;
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::layout::Dims;
use crate::operator::Autocast;
use crate::ops::elementwise::activation_backward;
use crate::ops::elementwise::activations::Silu;
use crate::ops::elementwise::functions::{Gelu, GeluTanh, Relu};
use crate::ops::elementwise::gradient_in_place::gradient_in_place;
use crate::ops::reduce::sum::sum_of_rows;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// An activation before or after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x · Φ(x)`.
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `x / (1 + e^-x)`.
    Silu,
}

impl Activation {
    /// Computes the activation.
    ///
    /// # Errors
    /// Errors of the method of the same name.
    #[track_caller]
    pub fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Silu => x.silu(),
        }
    }

    /// In one pass, overwrites the input `x` with the activation's values, and the output's gradient with the input's.
    /// If `sum` is set, the sum of the gradient's rows is attached to it.
    #[track_caller]
    fn in_one_pass(self, grad: &Tensor, x: &Tensor, sum: bool) -> Result<()> {
        match self {
            Activation::Relu => activation_backward::run(Relu {}, grad, x, sum),
            Activation::Gelu => activation_backward::run(Gelu {}, grad, x, sum),
            Activation::GeluTanh => activation_backward::run(GeluTanh {}, grad, x, sum),
            Activation::Silu => activation_backward::run(Silu {}, grad, x, sum),
        }
    }

    /// The gradient of the input `x` from the gradient of the output, in place if nothing else uses the latter.
    #[track_caller]
    fn gradient(self, grad: Tensor, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Relu => gradient_in_place(Relu {}, grad, x),
            Activation::Gelu => gradient_in_place(Gelu {}, grad, x),
            Activation::GeluTanh => gradient_in_place(GeluTanh {}, grad, x),
            Activation::Silu => gradient_in_place(Silu {}, grad, x),
        }
    }
}

/// Reshapes a tensor into a matrix of its rows.
#[track_caller]
fn rows(x: &Tensor) -> Result<Tensor> {
    let width = x.shape()[x.rank() - 1];
    let count: usize = x.shape()[..x.rank() - 1].iter().product();
    x.reshape([count, width].as_slice())
}

/// The gradient of a layer's input.
#[track_caller]
fn to_input(grad: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let mut shape = Dims::from_slice(grad.shape());
    shape[grad.rank() - 1] = weight.shape()[1];
    rows(grad)?.matmul(weight)?.reshape(shape.as_slice())
}

/// The gradient of a layer's weight, computed from the layer's input. It has the weight's layout, so that a weight that is a
/// transposed view needs no copy.
#[track_caller]
fn to_weight(grad: &Tensor, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (grad, x) = (rows(grad)?, rows(x)?);
    match weight.strides()[0] == 1 && weight.strides()[1] != 1 {
        true => x.t()?.matmul(&grad)?.t(),
        false => grad.t()?.matmul(&x),
    }
}

/// The gradients of a layer's input, weight and bias; `x` returns the layer's input.
#[track_caller]
fn of_linear(
    at: &FunctionBackward<'_>,
    grad: &Tensor,
    weight: &Tensor,
    x: impl FnOnce() -> Result<Tensor>,
) -> Result<[Option<Tensor>; 3]> {
    // The tensor that `x` computes is dropped before the equally large gradient of the input is allocated.
    let to_weight = at.wants(1).then(|| to_weight(grad, weight, &x()?)).transpose()?;
    let to_bias = at.wants(2).then(|| sum_of_rows(grad)).transpose()?;
    Ok([at.wants(0).then(|| to_input(grad, weight)).transpose()?, to_weight, to_bias])
}

fn only(count: usize, grads: [Option<Tensor>; 3]) -> Grads {
    grads.into_iter().take(count).collect()
}

/// `x, weight[, bias] -> linear(activation(x))`.
#[derive(Clone, Copy, Debug)]
struct ActivationThenLinear {
    activation: Activation,
    bias: bool,
}

impl ActivationThenLinear {
    /// The gradients, if nothing else uses `x`: the activation is recomputed in the memory of `x`, together with its
    /// gradient. `None` if that is not possible.
    #[track_caller]
    fn in_place(
        &self,
        at: &FunctionBackward<'_>,
        grad: &Tensor,
        (x, weight): (&Tensor, &Tensor),
    ) -> Result<Option<[Option<Tensor>; 3]>> {
        if is_grad_enabled() || !at.wants(0) || !at.wants(1) || !at.owns(0, x) {
            return Ok(None);
        }
        if !activation_backward::takes(grad, x) {
            return Ok(None);
        }
        let to_x = to_input(grad, weight)?;
        self.activation.in_one_pass(&to_x, x, at.wants_row_sum(0))?;
        let to_bias = at.wants(2).then(|| sum_of_rows(grad)).transpose()?;
        Ok(Some([Some(to_x), Some(to_weight(grad, weight, x)?), to_bias]))
    }
}

impl Function for ActivationThenLinear {
    fn name(&self) -> &'static str {
        "activation_linear"
    }

    fn bias(&self) -> Option<usize> {
        Some(2)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        save.tensor(ins[0])?;
        save.tensor(ins[1])?;
        Ok(smallvec![self.activation.of(ins[0])?.linear(ins[1], ins.get(2).copied())?])
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let count = 2 + usize::from(self.bias);
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; count]) };
        let (x, weight) = (at.saved(0)?, at.saved(1)?);
        if let Some(grads) = self.in_place(at, grad, (&x, &weight))? {
            return Ok(only(count, grads));
        }
        let [to_y, to_weight, to_bias] = of_linear(at, grad, &weight, || self.activation.of(&x))?;
        let to_x = to_y.map(|grad| self.activation.gradient(grad, &x)).transpose()?;
        Ok(only(count, [to_x, to_weight, to_bias]))
    }
}

/// `x, weight[, bias] -> activation(linear(x))`.
#[derive(Clone, Copy, Debug)]
struct LinearThenActivation {
    activation: Activation,
    bias: bool,
}

impl Function for LinearThenActivation {
    fn name(&self) -> &'static str {
        "linear_activation"
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        ins.iter().try_for_each(|tensor| save.tensor(tensor))?;
        let out = self.activation.of(&ins[0].linear(ins[1], ins.get(2).copied())?)?;
        if self.activation == Activation::Relu {
            save.tensor(&out)?;
        }
        Ok(smallvec![out])
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let count = 2 + usize::from(self.bias);
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; count]) };
        let (x, weight) = (at.saved(0)?, at.saved(1)?);
        let before = match self.activation {
            // The ReLU's output shows which elements it set to 0.
            Activation::Relu => at.saved(count)?,
            _ => {
                let bias = self.bias.then(|| at.saved(2)).transpose()?;
                x.linear(&weight, bias.as_ref())?
            }
        };
        let grad = self.activation.gradient(grad.clone(), &before)?;
        drop(before);
        Ok(only(count, of_linear(at, &grad, &weight, || Ok(x.clone()))?))
    }
}

#[track_caller]
fn inputs<'a>(
    name: &'static str,
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
) -> Result<SmallVec<[&'a Tensor; 3]>> {
    if x.rank() == 0 || weight.rank() != 2 {
        let message =
            format!("input {:?} with weight {:?}: needs […, in] and [out, in]", x.shape(), weight.shape());
        return Err(Error::shape(name, message));
    }
    let mut ins: SmallVec<[&Tensor; 3]> = smallvec![x, weight];
    ins.extend(bias);
    Ok(ins)
}

impl Tensor {
    /// `activation(self).linear(weight, bias)`, which saves `self` for the backward pass and recomputes the activation's
    /// output. When this follows a `linear`, as in a transformer's feed-forward block, one wide tensor is saved instead
    /// of two.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn activation_linear<'a>(
        &self,
        activation: Activation,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        let ins = inputs("activation_linear", self, weight, bias)?;
        Ok(apply(ActivationThenLinear { activation, bias: bias.is_some() }, &ins)?.remove(0))
    }

    /// `activation(self.linear(weight, bias))`, which saves only the linear layer's inputs and recomputes the activation's
    /// input. [`Activation::Relu`] saves its output instead and recomputes nothing.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn linear_activation<'a>(
        &self,
        activation: Activation,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        let ins = inputs("linear_activation", self, weight, bias)?;
        Ok(apply(LinearThenActivation { activation, bias: bias.is_some() }, &ins)?.remove(0))
    }

    /// [`Tensor::linear_activation`] with ReLU.
    ///
    /// # Errors
    /// The same errors as [`Tensor::linear_activation`].
    #[track_caller]
    pub fn linear_relu<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.linear_activation(Activation::Relu, weight, bias)
    }

    /// [`Tensor::linear_activation`] with GELU.
    ///
    /// # Errors
    /// The same errors as [`Tensor::linear_activation`].
    #[track_caller]
    pub fn linear_gelu<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.linear_activation(Activation::Gelu, weight, bias)
    }

    /// [`Tensor::linear_activation`] with SiLU.
    ///
    /// # Errors
    /// The same errors as [`Tensor::linear_activation`].
    #[track_caller]
    pub fn linear_silu<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        self.linear_activation(Activation::Silu, weight, bias)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let shapes: &[&[usize]] = &[&[2, 3, 4], &[5, 4], &[5]];
    let case = |activation: Activation, before: bool, shapes: &[&[usize]]| {
        Case::new(format!("{activation:?}, before a linear layer {before}, {shapes:?}"), shapes, move |ins| {
            let bias = ins.get(2).copied();
            Ok(smallvec![match before {
                true => ins[0].activation_linear(activation, ins[1], bias)?,
                false => ins[0].linear_activation(activation, ins[1], bias)?,
            }])
        })
    };
    let relu = case(Activation::Relu, true, shapes).over(Domain::Apart);
    let mut cases = vec![relu, case(Activation::Relu, false, shapes).without_derivative()];
    for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        cases.push(case(activation, true, &shapes[..2]));
        cases.push(case(activation, false, shapes));
    }
    cases
}
