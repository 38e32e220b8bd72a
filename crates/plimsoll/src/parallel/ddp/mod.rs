//! Data-parallel training: [`DistributedDataParallel`].
//!
//! `bucket.rs` has the buckets that hold the gradients, and `reducer.rs` does the work during a backward pass. This
//! file has the public interface.

mod bucket;
mod reducer;

use std::fmt;
use std::sync::{Arc, Mutex};

use plimsoll_tensor::{Error, HookHandle, ProcessGroup, Result, Tensor};

use self::reducer::{Reducer, Shared, arrived, locked};
use super::agree::{same_model, same_values};
use super::{Reproducible, norm};
use crate::nn::Module;

const NAME: &str = "DistributedDataParallel";

/// How gradients are exchanged. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpOptions {
    /// The bytes of gradients at which a bucket is full. Like `bucket_cap_mb`.
    pub bucket_cap_bytes: u64,
    /// The bytes of gradients at which the first bucket is full. Its default is smaller, so that its exchange starts early.
    pub first_bucket_bytes: u64,
    /// Whether a backward pass may skip parameters that get a gradient in another pass or on another rank. The gradient
    /// of such a parameter counts as zero, and all buckets are exchanged at the end of the pass.
    pub find_unused_parameters: bool,
    /// Whether rank 0's buffers, such as the running statistics of batch normalization, are copied to all ranks after each
    /// backward pass.
    pub broadcast_buffers: bool,
    /// Requests bit-identical results on any number of ranks.
    pub reproducible: Option<Reproducible>,
}

impl Default for DdpOptions {
    fn default() -> DdpOptions {
        DdpOptions {
            bucket_cap_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            find_unused_parameters: false,
            broadcast_buffers: true,
            reproducible: None,
        }
    }
}

/// Averages the gradients of a model over all ranks in each backward pass. Like
/// `torch.nn.parallel.DistributedDataParallel`. Use the model as before: hooks on its parameters do the work until this
/// is dropped.
///
/// Each rank trains on its part of the batch, with a loss that is the mean over that part. If all parts have the same size, the
/// averaged gradients are those of the full batch. Ranks start with the same values and step their own optimizers, so their
/// parameters stay equal, bit for bit, even if each rank draws its own dropout masks. The bits depend neither on the sizes of
/// buckets nor on how ranks are connected.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// use plimsoll::parallel::{DdpOptions, DistributedDataParallel};
/// use plimsoll::{Device, ProcessGroup, Result, Tensor};
/// let train = |group: &ProcessGroup| -> Result<Vec<f32>> {
///     let device = Device::cpu();
///     let model = Linear::new(&Scope::new(&device, 1), 4, 2)?;
///     let _ddp = DistributedDataParallel::new(&model, group, DdpOptions::default())?;
///     let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
///     for step in 0..3 {
///         let x = Tensor::full(&[8, 4], (step + group.rank()) as f64, plimsoll::DType::F32, &device)?; // this rank's part
///         sgd.zero_grad();
///         model.forward(&x)?.square()?.mean()?.backward()?; // gradients are means over all ranks when this returns
///         sgd.step()?;
///     }
///     model.parameters()[0].to_vec()
/// };
/// let ranks = ProcessGroup::threads(2); // processes: `dist::init_from_env`
/// let weights: Vec<Vec<f32>> = std::thread::scope(|scope| {
///     let each: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| train(rank))).collect();
///     each.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_>>()
/// })?;
/// assert_eq!(weights[0], weights[1]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// Memory: the buckets hold the gradients and have the same total size. They stay allocated when gradients are dropped.
/// While a bucket is exchanged, the received parts need as much memory again.
pub struct DistributedDataParallel {
    reducer: Shared,
    hooks: Vec<HookHandle>,
}

/// A bucket of gradients. The buckets are created in the first backward pass.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::parallel::{DdpOptions, DistributedDataParallel};
/// use plimsoll::{Device, ProcessGroup, Tensor};
/// let model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
/// let group = ProcessGroup::threads(1).remove(0);
/// let ddp = DistributedDataParallel::new(&model, &group, DdpOptions::default())?;
/// assert!(ddp.buckets().is_empty());
/// model.forward(&Tensor::ones(&[1, 4], &Device::cpu())?)?.sum()?.backward()?;
/// assert_eq!(ddp.buckets()[0].parameters.len(), 2);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The names of the parameters whose gradients it holds, in the order in which the gradients arrived.
    pub parameters: Vec<String>,
    /// Bytes of its buffer.
    pub bytes: u64,
}

impl DistributedDataParallel {
    /// Registers the hooks. All ranks must call this with the same model: names, shapes and types are compared. Values are
    /// compared as well, and tensors that differ get rank 0's values.
    ///
    /// # Errors
    /// If no parameter of the model requires a gradient, a rank has a different model, or [`DdpOptions::reproducible`]
    /// does not fit the model, the ranks or the other options; or [`Error::Distributed`].
    pub fn new(
        module: &dyn Module,
        group: &ProcessGroup,
        options: DdpOptions,
    ) -> Result<DistributedDataParallel> {
        let all = module.named_parameters();
        if let Some((name, _)) = all.iter().find(|(_, parameter)| parameter.is_lent()) {
            let message = format!("{name} is sharded already: `fully_shard` averages its gradient");
            return Err(Error::argument(NAME, message));
        }
        let buffers: Vec<(String, Tensor)> = module.named_buffers();
        let parameters: Vec<_> =
            all.iter().filter(|(_, parameter)| parameter.requires_grad()).cloned().collect();
        if parameters.is_empty() {
            let message = "no parameter of the model requires a gradient, so there is nothing to exchange";
            return Err(Error::autograd(NAME, message));
        }
        if let Some(reproducible) = options.reproducible {
            reproducible.check_model(module, group)?;
            if options.find_unused_parameters {
                let message = "`reproducible` needs a gradient of each parameter in each pass: unset `find_unused_parameters`";
                return Err(Error::argument(NAME, message));
            }
        }
        let tensors: Vec<&(String, Tensor)> = all.iter().chain(&buffers).collect();
        same_model(NAME, &tensors, group)?;
        same_values(&tensors, group)?;
        let leaves: Vec<Tensor> = parameters.iter().map(|(_, parameter)| parameter.clone()).collect();
        let buffers = buffers.into_iter().map(|(_, buffer)| buffer).collect();
        let reducer = Arc::new(Mutex::new(Reducer::new(group.clone(), options, parameters, buffers)));
        let mut ddp = DistributedDataParallel { reducer, hooks: Vec::new() };
        for (i, leaf) in leaves.iter().enumerate() {
            let reducer = Arc::downgrade(&ddp.reducer);
            let hook = move |_: &Tensor| reducer.upgrade().map_or(Ok(()), |reducer| arrived(&reducer, i));
            ddp.hooks.push(leaf.register_post_accumulate_grad_hook(hook)?);
        }
        Ok(ddp)
    }

    /// Runs `f` without exchanging gradients, for gradient accumulation. Backward passes in `f` only add to this rank's
    /// gradients; the next pass after `f` exchanges the sum. Like `DistributedDataParallel.no_sync`.
    pub fn no_sync<T>(&self, f: impl FnOnce() -> T) -> T {
        /// Restores the setting when dropped, even if `f` panics.
        struct Restore<'a>(&'a Shared, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                locked(self.0).syncs = self.1;
            }
        }
        let before = std::mem::replace(&mut locked(&self.reducer).syncs, false);
        let _restore = Restore(&self.reducer, before);
        f()
    }

    /// Sets whether the next backward passes exchange gradients.
    pub(in crate::parallel) fn set_syncs(&self, syncs: bool) {
        locked(&self.reducer).syncs = syncs;
    }

    /// Scales all gradients so that their total norm is at most `max_norm`. Returns the norm before scaling, as a scalar tensor,
    /// or `None` if there are no gradients. Its bits equal those of [`FullyShardedDataParallel::clip_grad_norm_`],
    /// because both sum the squares of each row in 64 bits, and then sum the rows in the order of parameters. If
    /// tensor-parallel ranks share the model's layers ([`Scope::tensor_parallel`](crate::nn::Scope::tensor_parallel)),
    /// all ranks must call this: the norm is that of the whole model. On an asynchronous device, this does not wait.
    ///
    /// [`FullyShardedDataParallel::clip_grad_norm_`]: super::FullyShardedDataParallel::clip_grad_norm_
    ///
    /// # Errors
    /// If the bound is negative or NaN, or memory runs out; for tensor-parallel ranks, also [`Error::Distributed`].
    pub fn clip_grad_norm_(&self, max_norm: f64) -> Result<Option<Tensor>> {
        let parameters = locked(&self.reducer).parameters.clone();
        norm::clip(parameters.iter().map(|(_, parameter)| parameter), max_norm)
    }

    /// The buckets, in the order in which they are exchanged. There are none before the first backward pass.
    pub fn buckets(&self) -> Vec<Bucket> {
        let reducer = locked(&self.reducer);
        let seen = |bucket| Bucket { parameters: reducer.names(bucket), bytes: bucket.bytes() };
        reducer.buckets.iter().map(seen).collect()
    }
}

impl Drop for DistributedDataParallel {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
    }
}

impl fmt::Debug for DistributedDataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reducer = locked(&self.reducer);
        let (rank, size) = (reducer.group.rank(), reducer.group.size());
        write!(f, "DistributedDataParallel(rank {rank} of {size}, {} buckets)", reducer.buckets.len())
    }
}
