//! Trains a GPT on the characters of a text, within a memory limit, and writes a sample.
//!
//!     cargo run --release -p plimsoll --example char_gpt -- [FILE] [STEPS]
//!
//! Without a file it trains on simple generated sentences.

#![allow(clippy::print_stdout, reason = "an example speaks to its reader")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use plimsoll::Bytes;
use plimsoll::data::{RandomSampler, Text};
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::prelude::*;

const CONTEXT: usize = 64;
const BATCH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let text = match arguments.next() {
        Some(file) => Text::read(Path::new(&file))?,
        None => Text::sentences(1, 100_000)?,
    };
    let steps: usize = arguments.next().map_or(Ok(200), |steps| steps.parse())?;

    let device = Device::cpu();
    device.set_memory_limit(256 << 20);
    let config = Gpt2Config {
        vocab_size: text.vocabulary().len(),
        n_positions: CONTEXT,
        n_embd: 128,
        n_layer: 4,
        n_head: 4,
        dropout: 0.0,
        ..Gpt2Config::small()
    };
    let model = Gpt2::new(&Scope::new(&device, 1), config)?;
    let parameters = model.parameters();
    let mut adamw = AdamW::new(parameters.clone(), AdamWOptions { lr: 1e-3, ..AdamWOptions::default() });

    let train = text.split(CONTEXT)?.train;
    let sampler = RandomSampler::new(train.positions(), 7).with_replacement(steps * BATCH);
    let loader = DataLoader::new(Arc::new(train), BATCH)?.sampler(sampler);
    for (step, batch) in loader.epoch(0).enumerate() {
        let [x, y] = <[Tensor; 2]>::try_from(batch?.to_device(&device)?).map_err(|_| "a batch is x and y")?;
        let loss = model.loss(&x, &y)?;
        adamw.zero_grad();
        loss.backward()?;
        clip_grad_norm_(&parameters, 1.0, 2.0)?;
        adamw.step()?;
        if step % 20 == 0 || step + 1 == steps {
            println!("step {step:>4}  loss {:.3}", loss.item::<f32>()?);
        }
    }

    // Greedy decoding: always picks the most likely character.
    model.eval();
    let mut tokens = text.vocabulary().encode("The ").unwrap_or_else(|_| vec![0]);
    for _ in 0..120 {
        let window = &tokens[tokens.len().saturating_sub(CONTEXT)..];
        let x = Tensor::from_slice(window, &[1, window.len()], &device)?;
        let logits = no_grad(|| model.forward(&x))?.select(1, window.len() as isize - 1)?;
        tokens.push(logits.argmax(1)?.item::<i64>()?);
    }
    println!("\n{}\n", text.vocabulary().decode(&tokens)?);
    println!(
        "at most {} allocated, {} reserved",
        Bytes(device.max_memory_allocated()),
        Bytes(device.max_memory_reserved())
    );
    Ok(())
}
