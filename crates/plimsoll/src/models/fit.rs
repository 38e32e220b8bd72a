//! Finds how many layers must recompute activations for a model's training to fit a limit.

use plimsoll_tensor::{Device, Error, Result, SimConfig};

/// The smallest number of layers, out of `layers`, that must recompute so that `train` reserves no more than `limit_bytes`;
/// `None` if even all of them are not enough. `train` takes some training steps with the given number of recomputing layers, on a
/// simulated device, which makes the same requests as a real one. Two steps reach the peak, because the first creates the
/// optimizer's state.
///
/// ```
/// use plimsoll::models::{Gpt2, Gpt2Config, layers_to_recompute};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{DType, SimConfig, Tensor};
/// let small = Gpt2Config { n_layer: 4, n_embd: 64, n_head: 4, vocab_size: 128, ..Gpt2Config::small() };
/// let train = |layers, device: &plimsoll::Device| {
///     let config = Gpt2Config { recompute_mlp: layers, ..small.clone() };
///     let model = Gpt2::new(&Scope::new(device, 1), config)?;
///     let tokens = Tensor::full(&[16, 1024], 0.0, DType::I64, device)?;
///     model.loss(&tokens, &tokens)?.backward()
/// };
/// let gpu = SimConfig::like("H200")?;
/// assert_eq!(layers_to_recompute(4, 1 << 30, &gpu, train)?, Some(0));
/// assert_eq!(layers_to_recompute(4, 1 << 20, &gpu, train)?, None);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// The errors of `train`, except out of memory on the simulated device, which only means that it does not fit.
pub fn layers_to_recompute(
    layers: usize,
    limit_bytes: u64,
    gpu: &SimConfig,
    train: impl Fn(usize, &Device) -> Result<()>,
) -> Result<Option<usize>> {
    let fits = |recomputed: usize| {
        let device = Device::sim(gpu.clone());
        match train(recomputed, &device) {
            Ok(()) => Ok(device.max_memory_reserved() <= limit_bytes),
            Err(Error::OutOfMemory(_)) => Ok(false),
            Err(error) => Err(error),
        }
    };
    let (mut fewest, mut enough) = (0, layers);
    if !fits(enough)? {
        return Ok(None);
    }
    while fewest < enough {
        let middle = usize::midpoint(fewest, enough);
        if fits(middle)? {
            enough = middle;
        } else {
            fewest = middle + 1;
        }
    }
    Ok(Some(enough))
}
