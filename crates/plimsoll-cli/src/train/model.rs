//! The network of a job on its ranks: [`Model`]. Ranks share the work by parts of each batch, by rows of the
//! parameters, or by parts of the layers.

use plimsoll::nn::Scope;
use plimsoll::optim::{Optimizer, clip_grad_norm_};
use plimsoll::parallel::{DeviceMesh, FullyShardOptions, FullyShardedDataParallel, Shard, fully_shard};
use plimsoll::{Device, ProcessGroup, Tensor, no_grad};

use super::job::Job;
use super::saves::Tensors;
use super::stop::Stop;
use super::task::{Network, Sampled};

/// A network in training on one of several ranks, or alone.
pub(super) struct Model {
    pub(super) network: Box<dyn Network>,
    /// Averages gradients, if there are several ranks or lanes.
    pub(super) sharded: Option<FullyShardedDataParallel>,
    /// The tensors that the optimizer trains: this rank's rows or parts, or all parameters.
    pub(super) parameters: Vec<Tensor>,
    /// The number of elements of all parameters, before they are divided.
    pub(super) parameter_count: u64,
    /// The ranks that train on the parts of a batch. Ranks that share layers train on the same part.
    pub(super) data: ProcessGroup,
    /// Whether reading a parameter may gather it from all ranks.
    pub(super) gathers: bool,
    /// Whether each rank has a part of the layers.
    shares_layers: bool,
}

impl Model {
    /// Builds the network, with initial values, on the ranks of `group`.
    pub(super) fn new(job: &Job, device: &Device, group: &ProcessGroup) -> plimsoll::Result<Model> {
        let (size, shares_layers) = (group.size(), job.tensor > 1);
        // If a rank does not need all parameters, it never has all of them.
        let (is_sharded, scope) = (size > 1 && job.shard != Shard::Nothing, Scope::new(device, job.seed));
        let scope = if is_sharded { scope.deferred() } else { scope };
        let (mesh, scope) = if shares_layers {
            let mesh = DeviceMesh::new(group, &[("dp", size / job.tensor), ("tp", job.tensor)])?;
            let scope = scope.tensor_parallel(mesh.group("tp")?);
            (mesh.submesh("dp")?, scope)
        } else {
            let dims = [("replicate", job.replicate), ("shard", size / job.replicate.max(1))];
            (DeviceMesh::new(group, &dims)?, scope)
        };
        let mut network = job.task.network(&scope)?;
        if let Some(checkpointer) = job.techniques.checkpointer() {
            network.checkpoint_within(checkpointer);
        }
        let whole = network.module().parameters();
        let count = |shape: &[usize]| shape.iter().product::<usize>() as u64;
        let whole_count = whole.iter().map(|parameter| count(parameter.shape())).sum();
        let (shard, reproducible, data) = (job.shard, job.reproducible, mesh.world().clone());
        let options = FullyShardOptions { shard, reproducible, ..FullyShardOptions::default() };
        let sharded = match (size, reproducible) {
            (1, None) => None,
            _ => Some(fully_shard(network.module_mut(), &mesh, options)?),
        };
        let (parameters, parameter_count) = match &sharded {
            None => (whole, whole_count),
            Some(sharded) => {
                let counts = sharded.named_parameters().iter().map(|it| count(&it.full_shape));
                (sharded.parameters(), counts.sum())
            }
        };
        let gathers = sharded.is_some() && shard != Shard::Nothing;
        Ok(Model { network, sharded, parameters, parameter_count, data, gathers, shares_layers })
    }

    /// Whether no rank has all tensors, so that all ranks save together.
    pub(super) fn saves_together(&self) -> bool {
        self.gathers || self.shares_layers
    }

    /// Scales the gradients so that their norm is at most `norm`.
    pub(super) fn clip(&self, norm: f64) -> plimsoll::Result<()> {
        match &self.sharded {
            Some(sharded) => sharded.clip_grad_norm_(norm)?,
            None => clip_grad_norm_(&self.parameters, norm, 2.0)?,
        };
        Ok(())
    }

    /// The tensors that this rank saves.
    pub(super) fn tensors(&self, optimizer: &dyn Optimizer) -> plimsoll::Result<Tensors> {
        let module = self.network.module();
        Ok(match &self.sharded {
            Some(sharded) if self.saves_together() => {
                Tensors::Rows(Box::new(sharded.checkpoint(module, optimizer)?))
            }
            _ => Tensors::Whole(module.state_dict(), optimizer.state_dict()),
        })
    }

    /// A sample of rank 0 of `group`. If no rank has all parameters, all ranks generate the same sample; a signal to
    /// one rank must not end it early.
    pub(super) fn sample(
        &self,
        job: &Job,
        group: &ProcessGroup,
        device: &Device,
        stop: &Stop,
    ) -> plimsoll::Result<Option<Sampled>> {
        let is_shared = self.saves_together();
        if group.rank() > 0 && !is_shared {
            return Ok(None);
        }
        let never = Stop::default();
        // This makes the sample independent of how many random numbers training drew.
        device.manual_seed(job.seed);
        let stop = if is_shared { &never } else { stop };
        no_grad(|| job.techniques.autocast(|| self.network.sample(stop)))
    }
}
