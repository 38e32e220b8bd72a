//! Clipping of the gradients of parameters, in place.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Error, Result, Tensor, op};

use crate::nn::check_whole;

fn gradients(parameters: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().filter_map(Tensor::grad).collect()
}

/// Scales the gradients of all parameters so that their total norm is at most `max_norm`. Returns the norm before scaling, as a
/// tensor, or `None` if there are no gradients. The gradients are scaled in place, without a copy. Like
/// `torch.nn.utils.clip_grad_norm_`, whose `norm_type` is 2.
///
/// ```
/// use plimsoll::optim::clip_grad_norm_;
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[4], &Device::cpu())?.requires_grad_(true)?;
/// w.square()?.sum()?.backward()?; // the gradient is 2 everywhere
/// let norm = clip_grad_norm_(&[w.clone()], 1.0, 2.0)?.unwrap();
/// assert_eq!(norm.item::<f32>()?, 4.0);
/// assert!(w.grad().unwrap().to_vec::<f32>()?.iter().all(|x| (x - 0.5).abs() < 1e-6));
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// A bound that is negative or NaN; gradients on two devices; rows or other parts of parameters that several ranks have.
#[track_caller]
pub fn clip_grad_norm_(parameters: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Option<Tensor>> {
    let _entry = Entry::here();
    if parameters.iter().any(Tensor::is_shard) {
        let message =
            "each rank would get the norm of its own rows: call `FullyShardedDataParallel::clip_grad_norm_`";
        return Err(Error::argument("clip_grad_norm_", message));
    }
    check_whole("clip_grad_norm_", parameters.iter())?;
    op::clip_norm_(&gradients(parameters), max_norm, norm_type)
}

/// Clamps every element of the parameters' gradients to `-clip_value..=clip_value`, in place. Like
/// `torch.nn.utils.clip_grad_value_`.
///
/// # Errors
/// A bound that is negative or NaN; gradients on two devices.
pub fn clip_grad_value_(parameters: &[Tensor], clip_value: f64) -> Result<()> {
    op::clip_value_(&gradients(parameters), clip_value)
}
