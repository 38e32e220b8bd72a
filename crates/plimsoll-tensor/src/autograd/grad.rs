//! The functions that compute gradients: `backward` accumulates them in the leaves, `grad` returns them.

use super::callbacks::with_callbacks;
use super::engine::Pass;
use crate::caller::Entry;
use crate::error::{Error, Result};
use crate::tensor::{Edge, Keep, Tensor};

/// Options of a backward pass from one tensor.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The initial gradient. `None` means 1 and requires a scalar.
    pub gradient: Option<Tensor>,
    /// Keep the graph and its saved tensors for another backward pass.
    pub retain_graph: bool,
    /// Record the backward pass itself, so that gradients can be differentiated. The graph is kept.
    pub create_graph: bool,
}

/// Options of a backward pass from several tensors.
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// The initial gradient of each root. An empty list, or `None` for a root, means 1 and requires a scalar.
    pub gradients: Vec<Option<Tensor>>,
    /// Keep the graph and its saved tensors for another backward pass.
    pub retain_graph: bool,
    /// Record the backward pass itself, so that gradients can be differentiated. The graph is kept.
    pub create_graph: bool,
    /// Whether to allow inputs that no root depends on. Their gradients are `None`.
    pub allow_unused: bool,
}

impl Tensor {
    /// Computes the gradients of this scalar with respect to every leaf that requires one, and frees the graph as it goes. Like
    /// `Tensor.backward()`.
    ///
    /// # Errors
    /// If the tensor is not a scalar or requires no gradient, the graph is already freed, a saved tensor was changed in
    /// place, or memory runs out.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.backward_with(BackwardOptions::default())
    }

    /// Like [`Tensor::backward`], with an initial gradient, or keeping the graph for another pass.
    ///
    /// # Errors
    /// The same errors as [`Tensor::backward`], or if an initial gradient has a different shape.
    #[track_caller]
    pub fn backward_with(&self, options: BackwardOptions) -> Result<()> {
        let BackwardOptions { gradient, retain_graph, create_graph } = options;
        let options =
            GradOptions { gradients: vec![gradient], retain_graph, create_graph, allow_unused: false };
        backward(&[self], options)
    }
}

/// One backward pass from several tensors; it accumulates into the leaves. Like `torch.autograd.backward`.
///
/// # Errors
/// The same errors as [`Tensor::backward`], for each root.
#[track_caller]
pub fn backward(roots: &[&Tensor], options: GradOptions) -> Result<()> {
    run(roots, None, options).map(drop)
}

/// Returns the gradients of `inputs`, which need not be leaves. No leaf's `grad` changes. Like `torch.autograd.grad`.
///
/// ```
/// use plimsoll_tensor::autograd::{GradOptions, grad};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::from_slice(&[3.0f32], &[1], &Device::cpu())?.requires_grad_(true)?;
/// let cube = x.square()?.mul(&x)?;
/// let create = GradOptions { create_graph: true, ..GradOptions::default() };
/// let first = grad(&[&cube], &[&x], create)?.remove(0).unwrap(); // 3x²
/// let second = grad(&[&first], &[&x], GradOptions::default())?.remove(0).unwrap(); // 6x
/// assert_eq!((first.item::<f32>()?, second.item::<f32>()?), (27.0, 18.0));
/// assert!(x.grad().is_none());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`Tensor::backward`], for each root; also if an input requires no gradient, or if no root depends
/// on an input, unless `allow_unused` is set.
#[track_caller]
pub fn grad(roots: &[&Tensor], inputs: &[&Tensor], options: GradOptions) -> Result<Vec<Option<Tensor>>> {
    let target = |(i, input): (usize, &&Tensor)| {
        let message = || {
            format!("input {i} does not require a gradient: mark it with `requires_grad_` before it is used")
        };
        input.edge().ok_or_else(|| Error::autograd("grad", message()))
    };
    let targets: Vec<Edge> = inputs.iter().enumerate().map(target).collect::<Result<_>>()?;
    let allow_unused = options.allow_unused;
    let found = run(roots, Some(&targets), options)?;
    match found.iter().position(Option::is_none) {
        Some(i) if !allow_unused => Err(Error::autograd(
            "grad",
            format!("input {i} was not used to compute the roots; set `allow_unused` if that is intended"),
        )),
        _ => Ok(found),
    }
}

#[track_caller]
fn run(roots: &[&Tensor], targets: Option<&[Edge]>, options: GradOptions) -> Result<Vec<Option<Tensor>>> {
    let _entry = Entry::here();
    let GradOptions { mut gradients, retain_graph, create_graph, .. } = options;
    if gradients.is_empty() {
        gradients.resize(roots.len(), None);
    }
    if gradients.len() != roots.len() {
        let message = format!("{} initial gradients for {} roots", gradients.len(), roots.len());
        return Err(Error::autograd("backward", message));
    }
    let start = |(root, gradient): (&&Tensor, Option<Tensor>)| {
        let Some(edge) = root.edge() else {
            let message = "this tensor does not require a gradient: nothing it was made from requires one, or it was made \
                           without recording";
            return Err(Error::autograd("backward", message));
        };
        Ok((edge, starting_gradient(root, gradient, create_graph)?))
    };
    let starts = roots.iter().zip(gradients).map(start).collect::<Result<_>>()?;
    let keep = if retain_graph || create_graph { Keep::Retain } else { Keep::Free };
    with_callbacks(|| Pass::run(starts, targets, keep, create_graph))
}

fn starting_gradient(root: &Tensor, given: Option<Tensor>, create_graph: bool) -> Result<Tensor> {
    match given {
        None if root.numel() == 1 => root.ones_like(),
        None => Err(Error::autograd(
            "backward",
            format!("{:?} is not a scalar: reduce it first, or give an initial gradient", root.shape()),
        )),
        Some(grad) if grad.shape() == root.shape() && grad.dtype() == root.dtype() => {
            Ok(if create_graph { grad } else { grad.detach() })
        }
        Some(grad) => Err(Error::shape(
            "backward",
            format!("a gradient of {:?} for a tensor of {:?}", grad.shape(), root.shape()),
        )),
    }
}
