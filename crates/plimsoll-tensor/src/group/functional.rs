//! Collectives with derivatives, for tensor-parallel layers: all-gather and reduce-scatter, each of which is the
//! derivative of the other. Like `torch.distributed._functional_collectives`.

use smallvec::smallvec;

use super::{ProcessGroup, ReduceOp};
use crate::dispatch::Tensors;
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::label::{Category, Span, intern};
use crate::tensor::{Grads, Tensor};

/// What a collective does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Concatenates the tensors of all ranks along a dimension.
    Gather(usize),
    /// Adds the tensors of all ranks, and keeps this rank's part of a dimension.
    Scatter(usize),
}

impl Step {
    fn backward(self) -> Step {
        match self {
            Step::Gather(dim) => Step::Scatter(dim),
            Step::Scatter(dim) => Step::Gather(dim),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Step::Gather(_) => "all_gather_tensor",
            Step::Scatter(_) => "reduce_scatter",
        }
    }

    /// Runs the collective without recording it.
    fn run(self, group: &ProcessGroup, x: &Tensor) -> Result<Tensor> {
        match self {
            _ if group.size() == 1 => Ok(x.detach()),
            Step::Gather(dim) => {
                let whole = {
                    let shape = [&[group.size()], x.shape()].concat();
                    Tensor::empty(&shape, x.dtype(), x.device())?
                };
                group.all_gather_into_tensor(&whole, &x.contiguous()?)?;
                let mut shape = x.shape().to_vec();
                shape[dim] *= group.size();
                if is_first(x, dim) {
                    whole.view(&shape[..])
                } else {
                    whole.movedim(&[0], &[dim as isize])?.reshape(&shape[..])
                }
            }
            Step::Scatter(dim) => {
                let mut shape = x.shape().to_vec();
                shape[dim] /= group.size();
                let parts = if is_first(x, dim) {
                    x.contiguous()?
                } else {
                    let mut split = x.shape().to_vec();
                    split[dim] = group.size();
                    split.insert(dim + 1, shape[dim]);
                    x.reshape(&split[..])?.movedim(&[dim as isize], &[0])?.contiguous()?
                };
                let sum = Tensor::empty(&shape, x.dtype(), x.device())?;
                group.reduce_scatter_tensor(&sum, &parts, ReduceOp::Sum)?;
                Ok(sum)
            }
        }
    }
}

/// Whether the parts of a dimension are contiguous in memory, so that no copy is needed.
fn is_first(x: &Tensor, dim: usize) -> bool {
    x.shape()[..dim].iter().all(|len| *len == 1)
}

/// A collective with its derivative.
struct Region {
    step: Step,
    group: ProcessGroup,
}

impl Function for Region {
    fn name(&self) -> &'static str {
        self.step.name()
    }

    fn forward(&self, ins: &[&Tensor], _: &mut Save) -> Result<Tensors> {
        Ok(vec![self.step.run(&self.group, ins[0])?].into())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let _owner = Span::of(Category::Gradient, intern(self.name()));
        // Called as a function, so that it is recorded for a second derivative.
        let step = self.step.backward();
        let grad = apply(Region { step, group: self.group.clone() }, &[grad])?;
        Ok(smallvec![Some(grad[0].clone())])
    }
}

impl ProcessGroup {
    /// Concatenates the tensors of all ranks along a dimension, in rank order. Its derivative is
    /// [`ProcessGroup::reduce_scatter`]. Like Megatron's `gather_from_sequence_parallel_region`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, ProcessGroup, Tensor};
    /// let alone = ProcessGroup::threads(1).remove(0);
    /// let x = Tensor::ones(&[2, 3], &Device::cpu())?;
    /// assert_eq!(alone.all_gather_tensor(&x, 0)?.shape(), [2, 3]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such dimension, or memory runs out; or [`Error::Distributed`].
    pub fn all_gather_tensor(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        self.region(Step::Gather(dim), x)
    }

    /// Adds the tensors of all ranks, and keeps this rank's part of a dimension. 16-bit floats are added in 32 bits. Its derivative
    /// is [`ProcessGroup::all_gather_tensor`]. Like Megatron's `reduce_scatter_to_sequence_parallel_region`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, ProcessGroup, Tensor};
    /// let alone = ProcessGroup::threads(1).remove(0);
    /// let x = Tensor::ones(&[2, 3], &Device::cpu())?.requires_grad_(true)?;
    /// alone.reduce_scatter(&x, 1)?.sum()?.backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0; 6]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such dimension, the number of ranks does not divide it, the type is not a floating-point type, or
    /// memory runs out; or [`Error::Distributed`].
    pub fn reduce_scatter(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        self.region(Step::Scatter(dim), x)
    }

    fn region(&self, step: Step, x: &Tensor) -> Result<Tensor> {
        let (Step::Gather(dim) | Step::Scatter(dim)) = step;
        let len = x.shape().get(dim).copied();
        let divides = |len: usize| step != Step::Scatter(dim) || len.is_multiple_of(self.size());
        if !len.is_some_and(divides) {
            let message = format!(
                "dimension {dim} of {:?} on {} ranks: it must exist, and divide into equal parts",
                x.shape(),
                self.size()
            );
            return Err(Error::shape(step.name(), message));
        }
        let outs = apply(Region { step, group: self.clone() }, &[x])?;
        Ok(outs[0].clone())
    }
}
