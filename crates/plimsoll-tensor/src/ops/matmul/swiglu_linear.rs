//! The second half of a gated feed-forward layer: `(silu(gate) · up) · weightᵀ`. It saves both factors and not their product.

use smallvec::smallvec;

use crate::autograd::{GradOptions, enable_grad, grad, is_grad_enabled};
use crate::dispatch::Tensors;
use crate::error::Result;
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::operator::Autocast;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `gate, up, weight -> out`.
struct SwigluLinear;

/// Reshapes a tensor to a matrix of its rows.
#[track_caller]
fn rows(x: &Tensor) -> Result<Tensor> {
    let last = x.shape().last().copied().unwrap_or(1);
    x.reshape(&[x.shape()[..x.rank().max(1) - 1].iter().product(), last])
}

impl Function for SwigluLinear {
    fn name(&self) -> &'static str {
        "swiglu_linear"
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        ins.iter().try_for_each(|tensor| save.tensor(tensor))?;
        Ok(smallvec![ins[0].swiglu(ins[1])?.linear(ins[2], None)?])
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(gradient) = at.grad(0) else { return Ok(smallvec![None; 3]) };
        let recorded = is_grad_enabled();
        let own = |i: usize| -> Result<Tensor> {
            let saved = at.saved(i)?;
            if recorded { Ok(saved) } else { saved.detach().requires_grad_(true) }
        };
        let (gate, up, weight) = (own(0)?, own(1)?, at.saved(2)?);
        let product = enable_grad(|| gate.swiglu(&up))?;
        let kept = if recorded { product.clone() } else { product.detach() };
        let to_weight = at.wants(2).then(|| rows(gradient)?.t()?.matmul(&rows(&kept)?)).transpose()?;
        drop(kept);
        if !at.wants(0) && !at.wants(1) {
            return Ok(smallvec![None, None, to_weight]);
        }
        let to_product = rows(gradient)?.matmul(&weight)?.reshape(product.shape())?;
        let options = GradOptions {
            gradients: vec![Some(to_product)],
            create_graph: recorded,
            allow_unused: true,
            ..GradOptions::default()
        };
        let wanted: Vec<&Tensor> =
            [(0, &gate), (1, &up)].into_iter().filter(|&(i, _)| at.wants(i)).map(|(_, x)| x).collect();
        let mut found = grad(&[&product], &wanted, options)?.into_iter();
        let mut next = |i: usize| if at.wants(i) { found.next().flatten() } else { None };
        Ok(smallvec![next(0), next(1), to_weight])
    }
}

impl Tensor {
    /// `self.swiglu(up).linear(weight)`, which saves `self` and `up` for the backward pass and recomputes their product. It is
    /// the second half of a gated feed-forward layer, as in Llama.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn swiglu_linear(&self, up: impl AsRef<Tensor>, weight: impl AsRef<Tensor>) -> Result<Tensor> {
        let (up, weight) = (up.as_ref(), weight.as_ref());
        Ok(apply(SwigluLinear, &[self, up, weight])?.remove(0))
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        let product = |i: usize| ins[0][i] / (1.0 + (-ins[0][i]).exp()) * ins[1][i];
        let at =
            |row: usize, col: usize| (0..4).map(|j| product(row * 4 + j) * ins[2][col * 4 + j]).sum::<f64>();
        vec![(0..15).map(|i| at(i / 5, i % 5)).collect()]
    };
    vec![
        Case::new("swiglu_linear", &[&[3, 4], &[3, 4], &[5, 4]], |ins| {
            Ok(smallvec![ins[0].swiglu_linear(ins[1], ins[2])?])
        })
        .expect(naive),
    ]
}
