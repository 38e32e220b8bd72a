//! All parameters as one vector, for second-order optimizers and for comparisons of models.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Error, Result, Tensor, no_grad};

/// The elements of all tensors, one after the other, with a graph. Like `torch.nn.utils.parameters_to_vector`.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, parameters_to_vector, vector_to_parameters};
/// use plimsoll::Device;
/// let fc = Linear::new(&Scope::new(&Device::cpu(), 1), 3, 2)?;
/// let vector = parameters_to_vector(&fc.parameters())?.detach();
/// assert_eq!(vector.shape(), [8]);
/// vector_to_parameters(&(vector * 0.0)?, &fc.parameters())?;
/// assert_eq!(fc.weight().to_vec::<f32>()?, [0.0; 6]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// If there are no tensors, their types or devices differ, or memory runs out.
#[track_caller]
pub fn parameters_to_vector(parameters: &[impl AsRef<Tensor>]) -> Result<Tensor> {
    let _entry = Entry::here();
    let flat = parameters.iter().map(|parameter| parameter.as_ref().ravel()).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&flat, 0)
}

/// Copies consecutive elements of a vector into the tensors, in place and without a graph. Like
/// `torch.nn.utils.vector_to_parameters`.
///
/// # Errors
/// If this is not a vector with as many elements as all tensors have. Nothing has changed then.
#[track_caller]
pub fn vector_to_parameters(vector: impl AsRef<Tensor>, parameters: &[impl AsRef<Tensor>]) -> Result<()> {
    let (_entry, vector) = (Entry::here(), vector.as_ref());
    let count: usize = parameters.iter().map(|parameter| parameter.as_ref().numel()).sum();
    if vector.shape() != [count] {
        let message = format!("{:?} for {count} elements: needs [{count}]", vector.shape());
        return Err(Error::shape("vector_to_parameters", message));
    }
    no_grad(|| {
        let mut start = 0;
        for parameter in parameters.iter().map(AsRef::as_ref) {
            let part = vector.narrow(0, start, parameter.numel())?;
            parameter.copy_(part.reshape(parameter.shape())?)?;
            start += parameter.numel();
        }
        Ok(())
    })
}
