//! Sharded training is bit-identical to data-parallel training, no matter what is sharded. Each rank uses its share of
//! memory, to the byte on simulated ranks too. A run can be resumed with any number of ranks.

mod bits;
mod hybrid;
mod lanes;
mod memory;
mod refusals;
mod saving;
mod saving_async;

use std::thread;

use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{Linear, Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::parallel::{
    DdpOptions, DeviceMesh, DistributedDataParallel, FullyShardOptions, FullyShardedDataParallel,
    Reproducible, Shard, fully_shard,
};
use plimsoll::{DType, Device, Error, ProcessGroup, Result, Tensor, members};

const SHARDED: [Shard; 3] = [Shard::OptimizerState, Shard::Gradients, Shard::Parameters];

/// Runs `f` on each rank of a group of threads.
fn on_ranks<T: Send>(size: usize, f: impl Fn(&ProcessGroup) -> T + Sync) -> Vec<T> {
    let ranks = ProcessGroup::threads(size);
    thread::scope(|scope| {
        let f = &f;
        let running: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || f(&rank))).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn options(shard: Shard) -> FullyShardOptions {
    FullyShardOptions { shard, ..FullyShardOptions::default() }
}

/// A GPT-2 model whose matrices are large enough to be divided. Its output layer is tied to its embedding.
fn config() -> Gpt2Config {
    Gpt2Config {
        vocab_size: 200,
        n_positions: 16,
        n_embd: 128,
        n_layer: 3,
        n_head: 4,
        dropout: 0.0,
        ..Gpt2Config::small()
    }
}

/// The features that a training run uses in addition to plain steps.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    accumulates: bool,
    clips: bool,
    freezes: bool,
    is_bfloat16: bool,
    is_checkpointed: bool,
    drops: bool,
    /// Bit-identical on any number of ranks.
    lanes: Option<Reproducible>,
    /// The first dimension of the mesh, if there are two.
    replicate: Option<usize>,
}

/// How a training run divides its work.
enum Way {
    Ddp(DistributedDataParallel),
    Sharded(FullyShardedDataParallel),
}

/// Training on at most 4 ranks on the CPU. `None` means data parallel.
struct Training {
    device: Device,
    model: Gpt2,
    way: Way,
    adamw: AdamW,
    case: Case,
}

impl Training {
    fn new(group: &ProcessGroup, shard: Option<Shard>, case: Case, seed: u64) -> Result<Training> {
        let device = Device::cpu_with(Default::default());
        device.manual_seed(100 + group.rank() as u64);
        let config = Gpt2Config {
            gradient_checkpointing: case.is_checkpointed,
            dropout: if case.drops { 0.1 } else { 0.0 },
            recompute_mlp: if case.is_checkpointed { 0 } else { 1 },
            ..config()
        };
        let mut model = Gpt2::new(&Scope::new(&device, seed), config)?;
        if case.is_bfloat16 {
            model.bfloat16()?;
        }
        for (name, parameter) in model.named_parameters() {
            let is_frozen = case.freezes && (name.contains("h.1.") || name.contains("wpe"));
            parameter.requires_grad_(!is_frozen)?;
        }
        let (way, parameters) = match shard {
            None => {
                let options = DdpOptions { reproducible: case.lanes, ..DdpOptions::default() };
                let ddp = DistributedDataParallel::new(&model, group, options)?;
                (Way::Ddp(ddp), model.parameters())
            }
            Some(shard) => {
                let options = FullyShardOptions { reproducible: case.lanes, ..options(shard) };
                let sharded = match case.replicate {
                    None => fully_shard(&mut model, group, options)?,
                    Some(replicate) => {
                        let dims = [("replicate", replicate), ("shard", group.size() / replicate)];
                        fully_shard(&mut model, &DeviceMesh::new(group, &dims)?, options)?
                    }
                };
                let rows = sharded.parameters();
                (Way::Sharded(sharded), rows)
            }
        };
        let mut adamw = AdamW::new(parameters, AdamWOptions { lr: 0.01, ..AdamWOptions::default() });
        if case.is_bfloat16 {
            adamw = adamw.with_master_weights();
        }
        Ok(Training { device, model, way, adamw, case })
    }

    /// The loss of this rank's part of a batch.
    fn loss(&self, group: &ProcessGroup, seed: usize) -> Result<Tensor> {
        self.loss_of(group.rank(), seed)
    }

    /// The loss of a part of a batch.
    fn loss_of(&self, part: usize, seed: usize) -> Result<Tensor> {
        let token = |i: usize| ((i * 31 + seed * 17 + part * 7) % 200) as i64;
        let tokens: Vec<i64> = (0..2 * 17).map(token).collect();
        let all = Tensor::from_slice(&tokens, &[2, 17], &self.device)?;
        self.model.loss(&all.narrow(1, 0, 16)?, &all.narrow(1, 1, 16)?)
    }

    fn step(&mut self, group: &ProcessGroup, step: usize) -> Result<u32> {
        self.adamw.zero_grad();
        if self.case.accumulates {
            let first = || self.loss(group, 1000 + step)?.mul_scalar(0.5)?.backward();
            match &self.way {
                Way::Ddp(ddp) => ddp.no_sync(first)?,
                Way::Sharded(sharded) => {
                    sharded.set_requires_gradient_sync(false);
                    first()?;
                    sharded.set_requires_gradient_sync(true);
                }
            }
        }
        let loss = self.loss(group, step)?;
        loss.backward()?;
        self.update()?;
        Ok(loss.to_dtype(DType::F32)?.item::<f32>()?.to_bits())
    }

    /// Clips the gradients, and steps the optimizer.
    fn update(&mut self) -> Result<()> {
        if self.case.clips {
            let norm = match &self.way {
                Way::Ddp(ddp) => ddp.clip_grad_norm_(0.1)?,
                Way::Sharded(sharded) => sharded.clip_grad_norm_(0.1)?,
            };
            assert!(norm.unwrap().item::<f32>()? > 0.1);
        }
        self.adamw.step()
    }

    fn steps(&mut self, group: &ProcessGroup, steps: std::ops::Range<usize>) {
        for step in steps {
            self.step(group, step).unwrap();
        }
    }

    /// All whole parameters.
    fn values(&self) -> Result<Vec<Vec<u8>>> {
        self.model.parameters().iter().map(|parameter| parameter.to_bytes()).collect()
    }
}

/// Losses and parameters of three steps.
fn train(group: &ProcessGroup, shard: Option<Shard>, case: Case) -> (Vec<u32>, Vec<Vec<u8>>) {
    let run = || {
        let mut training = Training::new(group, shard, case, 1)?;
        let losses = (0..3).map(|step| training.step(group, step)).collect::<Result<_>>()?;
        Ok::<_, Error>((losses, training.values()?))
    };
    run().unwrap()
}

struct Net {
    first: Linear,
    extra: Linear,
    second: Linear,
}

impl Module for Net {
    members!(first, extra, second);
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let scope = Scope::new(device, 1);
        Ok(Net {
            first: Linear::new(&scope.at("first"), 128, 256)?,
            extra: Linear::new(&scope.at("extra"), 256, 256)?,
            second: Linear::new(&scope.at("second"), 256, 4)?,
        })
    }

    fn loss(&self, group: &ProcessGroup, with_extra: bool) -> Result<Tensor> {
        let x = Tensor::full(
            &[4, 128],
            0.1 * (1 + group.rank()) as f64,
            DType::F32,
            self.first.weight().device(),
        )?;
        let x = self.first.forward(&x)?.tanh()?;
        let x = if with_extra { self.extra.forward(&x)?.tanh()? } else { x };
        self.second.forward(&x)?.square()?.mean()
    }
}
