//! Trains a small GPT on two ranks and shows that they end with the same weights. The ranks are threads, or processes under
//! torchrun.
//!
//!     cargo run --release -p plimsoll --example ddp
//!     torchrun --no-python --nproc-per-node 2 target/release/examples/ddp

#![allow(clippy::print_stdout, reason = "an example speaks to its reader")]

use std::error::Error;
use std::sync::Arc;
use std::thread;

use plimsoll::data::{RandomSampler, Text};
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::parallel::{DdpOptions, DistributedDataParallel};
use plimsoll::prelude::*;
use plimsoll::{ProcessGroup, dist};

const CONTEXT: usize = 32;
/// The batch size, in total over all ranks.
const BATCH: usize = 16;
const STEPS: usize = 100;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let world = dist::init_from_env()?;
    if world.size() > 1 {
        let weights = train(world.group())?;
        if world.rank() == 0 {
            println!("{} ranks; the first weight is {}", world.size(), weights[0]);
        }
        return Ok(());
    }
    let ranks = ProcessGroup::threads(2);
    let weights: Vec<Vec<f32>> = thread::scope(|scope| {
        let running: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| train(rank))).collect();
        running.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked")?).collect::<Result<_, _>>()
    })?;
    println!("2 ranks; the first weights are {} and {}", weights[0][0], weights[1][0]);
    assert_eq!(weights[0], weights[1]);
    Ok(())
}

fn train(group: &ProcessGroup) -> Outcome<Vec<f32>> {
    let device = Device::cpu();
    let text = Text::sentences(1, 50_000)?;
    let config = Gpt2Config {
        vocab_size: text.vocabulary().len(),
        n_positions: CONTEXT,
        n_embd: 64,
        n_layer: 2,
        n_head: 4,
        dropout: 0.0,
        ..Gpt2Config::small()
    };
    let model = Gpt2::new(&Scope::new(&device, 1), config)?;
    let ddp = DistributedDataParallel::new(&model, group, DdpOptions::default())?;
    let parameters = model.parameters();
    let mut adamw = AdamW::new(parameters.clone(), AdamWOptions { lr: 1e-3, ..AdamWOptions::default() });
    let train = text.split(CONTEXT)?.train;
    let sampler = RandomSampler::new(train.positions(), 7).with_replacement(STEPS * BATCH);
    let loader =
        DataLoader::new(Arc::new(train), BATCH)?.sampler(sampler).replica(group.rank(), group.size())?;
    for (step, batch) in loader.epoch(0).enumerate() {
        let [x, y] = <[Tensor; 2]>::try_from(batch?.to_device(&device)?).map_err(|_| "a batch is x and y")?;
        let loss = model.loss(&x, &y)?;
        adamw.zero_grad();
        loss.backward()?;
        clip_grad_norm_(&parameters, 1.0, 2.0)?;
        adamw.step()?;
        if group.rank() == 0 && step % 20 == 0 {
            println!(
                "step {step:>4}  loss {:.3} of rank 0's part, buckets: {}",
                loss.item::<f32>()?,
                ddp.buckets().len()
            );
        }
    }
    Ok(parameters[0].to_vec()?)
}
