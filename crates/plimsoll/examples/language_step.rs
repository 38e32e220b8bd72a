//! Measures training steps of language models: time, loss and peaks. `cargo run --release --example language_step -- cuda:0 small
//! 8 1024 bf16`.
//!
//! Arguments: device (`cpu`, `cuda:N`, `sim:GPU`), model (GPT-2: `tiny`, `small`, `xl`; Llama: `llama-tiny`, `llama-350m`, `llama-7b`), batch
//! size, sequence length in tokens, `f32`, `bf16` (autocast) or `bf16-model` (parameters and residual stream in 16 bits, 32-bit
//! copies in the optimizer), and number of steps. Weights and tokens are random, dropout is 0, and the optimizer is AdamW.
//! Options:
//!
//! - `recompute=N`: the number of layers whose MLP recomputes its first products; or `peak=14.5e9`: the smallest number with which
//!   training reserves at most this many bytes;
//! - `budget=BYTES` or `budget=auto`: blocks are checkpointed so that they keep at most this many bytes, or as few as possible;
//! - `host=BYTES`: with `budget`, blocks may also wait in pinned host memory, at most this many bytes; without, `offload=BYTES`: saved tensors
//!   wait there as far as their copies are hidden, at most this many bytes;
//! - `--in-backward`: the optimizer steps in the backward pass; `--state-on-host`: its state waits in pinned host memory;
//! - `optimizer=adamw8bit`: AdamW with its moments in 8 bits;
//! - `rounding=SEED`: with `bf16-model`, stochastic rounding in place of the 32-bit copies;
//! - `--traced`: the memory of a step is planned after the second one;
//! - for a GPT-2, `vocabulary=N`: vocabulary size (default 50,257; many trainers use 50,304), `heads=N`: number of heads,
//!   `layers=N`: number of layers;
//! - `limit=BYTES`: a limit of reserved bytes, within which tensors are evicted and computed again;
//! - `settings=…`: allocator settings in the format of `PYTORCH_ALLOC_CONF`; by default that variable's value, or expandable
//!   segments if it is not set;
//! - under torchrun, with the device `cuda`, or with `sim-ranks=N` on a simulated device: data parallel; the batch size is of one rank; `bucket=BYTES` is
//!   the size of a bucket of gradients, and `shard=parameters`, `shard=gradients` or `shard=optimizer-state` shards these, with
//!   `replicate=R` in R copies (HSDP); with `tp=N`, N ranks share each layer and train on the same batch;
//! - `--capture`: steps are captured after the third and replayed;
//! - `snapshot=FILE`: the device's memory history, for `plimsoll explain`;
//! - `checksum` shows a checksum of the bits of all losses and parameters after the steps;
//! - `times` shows the slowest kernels of one more step.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use std::any::Any;

use plimsoll::autocast::autocast;
use plimsoll::checkpoint::Checkpointer;
use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig};
use plimsoll::offload::OffloadActivations;
use plimsoll::optim::{
    AdamW8bit, AdamW8bitOptions, Algorithm, OptimizerOf, StepInBackward, step_in_backward,
};
use plimsoll::parallel::{
    DdpOptions, DeviceMesh, DistributedDataParallel, FullyShardOptions, Shard, fully_shard,
};
use plimsoll::prelude::*;
use plimsoll::{CapturedStep, ProcessGroup, Result};
use support::{Arguments, Failure, Trained};

/// A language model: GPT-2 or Llama.
trait Language: Module {
    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor>;
    fn checkpoint_within(&mut self, checkpointer: Checkpointer);
}

impl Language for Gpt2 {
    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        Gpt2::loss(self, tokens, targets)
    }

    fn checkpoint_within(&mut self, checkpointer: Checkpointer) {
        Gpt2::checkpoint_within(self, checkpointer);
    }
}

impl Language for Llama {
    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        Llama::loss(self, tokens, targets)
    }

    fn checkpoint_within(&mut self, checkpointer: Checkpointer) {
        Llama::checkpoint_within(self, checkpointer);
    }
}

/// What the ranks share; nothing but batches without `shard` and `tp`.
fn shard(arguments: &Arguments, shares_layers: bool) -> Option<Shard> {
    match arguments.option("shard") {
        Some("optimizer-state") => Some(Shard::OptimizerState),
        Some("gradients") => Some(Shard::Gradients),
        Some(_) => Some(Shard::Parameters),
        None => shares_layers.then_some(Shard::Nothing),
    }
}

/// The number of sequences in a batch and of tokens in a sequence.
fn batch(arguments: &Arguments) -> (usize, usize) {
    let size = |number: usize, default: usize| arguments.get(number, "").parse().unwrap_or(default);
    (size(2, 2), size(3, 64))
}

/// The optimizer, which rounds 16-bit parameters stochastically or keeps 32-bit copies of them.
fn in_16_bits<O: Algorithm>(arguments: &Arguments, optimizer: OptimizerOf<O>) -> OptimizerOf<O> {
    let optimizer = match arguments.option("rounding").and_then(|seed| seed.parse().ok()) {
        Some(seed) => optimizer.with_stochastic_rounding(seed),
        None => optimizer.with_master_weights(),
    };
    if arguments.state_on_host { optimizer.with_offloaded_state() } else { optimizer }
}

/// What updates the parameters: an optimizer, or steps in the backward pass.
enum Updates {
    After(Box<dyn Optimizer>),
    InBackward(#[allow(dead_code, reason = "kept until the end")] StepInBackward<AdamWOptions>),
}

/// A model, its optimizer and one batch.
struct Training<M> {
    model: M,
    adam: Updates,
    /// Offloads what the forward pass saves.
    offload: Option<OffloadActivations>,
    tokens: Tensor,
    targets: Tensor,
    /// Whether the forward pass runs under autocast.
    short: bool,
    /// Whether gradients are dropped at the end of a step, so that a plan of the step includes them.
    drops: bool,
    /// All ranks, the number of those that train on different batches, and what averages their gradients: kept until the end.
    ranks: Option<(ProcessGroup, usize, Box<dyn Any>)>,
}

impl<M: Language> Training<M> {
    fn new(
        arguments: &Arguments,
        device: &Device,
        mesh: &DeviceMesh,
        mut model: M,
        vocabulary: usize,
    ) -> Result<Training<M>> {
        let (count, length) = batch(arguments);
        if arguments.get(4, "f32") == "bf16-model" {
            model.bfloat16()?;
        }
        if let Some(checkpointer) = arguments.checkpointer()? {
            model.checkpoint_within(checkpointer);
        }
        let mut parameters = model.parameters();
        let shares_layers = arguments.tensor_ranks() > 1;
        // The ranks that train on different batches.
        let data = if shares_layers { mesh.submesh("dp")? } else { mesh.clone() };
        let averages: Option<Box<dyn Any>> = if mesh.world().size() == 1 {
            None
        } else if let Some(shard) = shard(arguments, shares_layers) {
            let options = FullyShardOptions { shard, ..FullyShardOptions::default() };
            let sharded = fully_shard(&mut model, &data, options)?;
            parameters = sharded.parameters();
            Some(Box::new(sharded))
        } else {
            let mut options = DdpOptions::default();
            if let Some(bytes) = arguments.option("bucket").and_then(|bytes| bytes.parse().ok()) {
                options.bucket_cap_bytes = bytes;
            }
            Some(Box::new(DistributedDataParallel::new(&model, mesh.world(), options)?))
        };
        let ranks = averages.map(|averages| (mesh.world().clone(), data.world().size(), averages));
        let lr = 3e-4;
        let adam = match arguments.option("optimizer") {
            Some("adamw8bit") => {
                let options = AdamW8bitOptions { lr, ..AdamW8bitOptions::default() };
                Updates::After(Box::new(in_16_bits(arguments, AdamW8bit::new(parameters, options))))
            }
            _ if arguments.in_backward => {
                let options = AdamWOptions { lr, ..AdamWOptions::default() };
                let steps = step_in_backward(&parameters, options)?.with_master_weights();
                Updates::InBackward(if arguments.state_on_host {
                    steps.with_offloaded_state()
                } else {
                    steps
                })
            }
            _ => {
                let options = AdamWOptions { lr, ..AdamWOptions::default() };
                Updates::After(Box::new(in_16_bits(arguments, AdamW::new(parameters, options))))
            }
        };
        let draw = |seed: i64| {
            let token = |i: i64| (i * 7919 + seed * 104_729) * 31 % 65_537 % vocabulary as i64;
            let all: Vec<i64> = (0..(count * length) as i64).map(token).collect();
            Tensor::from_slice(&all, &[count, length], device)
        };
        let rank = data.world().rank() as i64;
        let (tokens, targets) = (draw(2 * rank + 1)?, draw(2 * rank + 2)?);
        let short = arguments.get(4, "f32") == "bf16";
        let drops = arguments.traced;
        let offload = arguments.offload()?;
        Ok(Training { model, adam, offload, tokens, targets, short, drops, ranks })
    }
}

impl<M: Language> Trained for Training<M> {
    fn model(&self) -> &dyn Module {
        &self.model
    }

    fn group(&self) -> Option<&ProcessGroup> {
        self.ranks.as_ref().map(|(world, ..)| world)
    }

    fn batches(&self) -> usize {
        self.ranks.as_ref().map_or(1, |(_, batches, _)| *batches)
    }

    fn step(&mut self, captured: Option<&mut CapturedStep>) -> Result<Tensor> {
        let Training { model, adam, offload, tokens, targets, short, drops, .. } = self;
        let forward = |inputs: &[Tensor]| {
            let loss = || model.loss(&inputs[0], &inputs[1]);
            let loss = || if *short { autocast(DType::BF16, loss) } else { loss() };
            offload.as_ref().map_or_else(loss, |offload| offload.run(loss))
        };
        let inputs = [tokens.clone(), targets.clone()];
        let Updates::After(adam) = adam else {
            let loss = forward(&inputs)?;
            loss.backward()?;
            return Ok(loss.detach());
        };
        let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            let loss = forward(inputs)?;
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        };
        // Done before the step, so that no gradients exist during the forward pass; a captured step makes its own.
        adam.zero_grad();
        let outputs = match captured {
            Some(captured) => captured.run(&[&*tokens, &*targets], &mut [&mut **adam], step)?,
            None => step(&inputs, &mut [&mut **adam])?,
        };
        if *drops {
            adam.zero_grad();
        }
        Ok(outputs[0].detach())
    }
}

/// Trains a model with this many layers and tokens. `make` makes it, given the number of layers that recompute.
fn run<M: Language>(
    arguments: &Arguments,
    [layers, vocabulary]: [usize; 2],
    make: impl Fn(&Scope, usize) -> Result<M>,
) -> std::result::Result<(), Failure> {
    let world = arguments.world()?;
    let training = |recompute: usize, device: &Device, group: &ProcessGroup| {
        let mesh = arguments.mesh(group)?;
        let mut scope = Scope::new(device, 1);
        if arguments.tensor_ranks() > 1 {
            scope = scope.tensor_parallel(mesh.group("tp")?);
        } else if world.size() > 1 && arguments.option("shard").is_some() {
            // A rank of a sharded model never has all parameters.
            scope = scope.deferred();
        }
        Training::new(arguments, device, &mesh, make(&scope, recompute)?, vocabulary)
    };
    let recompute = arguments.recomputed(layers, |recompute, device| {
        let group = ProcessGroup::simulated(0, world.size());
        let mut training = training(recompute, device, &group)?;
        (0..3).try_for_each(|_| training.step(None).map(drop))
    })?;
    let device = arguments.device()?;
    let mut training = training(recompute, &device, world.group())?;
    let (count, length) = batch(arguments);
    let steps = arguments.get(5, "10").parse()?;
    support::show(arguments, &device, steps, (count * length, "tokens"), &mut training)
}

fn gpt2(arguments: &Arguments, config: &Gpt2Config) -> std::result::Result<(), Failure> {
    let or = |name: &str, default: usize| arguments.option(name).map_or(Ok(default), str::parse);
    let config = Gpt2Config {
        vocab_size: or("vocabulary", config.vocab_size)?,
        n_head: or("heads", config.n_head)?,
        n_layer: or("layers", config.n_layer)?,
        dropout: 0.0,
        ..config.clone()
    };
    run(arguments, [config.n_layer, config.vocab_size], |scope, recompute_mlp| {
        Gpt2::new(scope, Gpt2Config { recompute_mlp, ..config.clone() })
    })
}

fn llama(arguments: &Arguments, config: &LlamaConfig) -> std::result::Result<(), Failure> {
    run(arguments, [config.num_hidden_layers, config.vocab_size], |scope, recompute_mlp| {
        Llama::new(scope, LlamaConfig { recompute_mlp, ..config.clone() })
    })
}

fn main() -> std::result::Result<(), Failure> {
    let arguments = Arguments::read();
    let small = Gpt2Config::small();
    let tiny =
        Gpt2Config { vocab_size: 512, n_positions: 128, n_embd: 64, n_layer: 2, n_head: 4, ..small.clone() };
    let llama_tiny = LlamaConfig {
        vocab_size: 512,
        hidden_size: 64,
        intermediate_size: 176,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    match arguments.get(1, "tiny").as_str() {
        "tiny" => gpt2(&arguments, &tiny),
        "small" => gpt2(&arguments, &small),
        "xl" => gpt2(&arguments, &Gpt2Config::xl()),
        "llama-tiny" => llama(&arguments, &llama_tiny),
        "llama-350m" => llama(&arguments, &LlamaConfig::llama_350m()),
        "llama-7b" => llama(&arguments, &LlamaConfig::default()),
        other => {
            Err(format!("no model `{other}`: use tiny, small, xl, llama-tiny, llama-350m or llama-7b").into())
        }
    }
}
