//! Training steps of GPT-2: time, loss and peaks. `cargo run --release --example gpt2_step -- cuda:0 small 8 1024 bf16`.
//!
//! Arguments: device (`cpu`, `cuda:N`, `sim:GPU`), size (`tiny`, `small`, `xl`), batch, tokens of a sequence, `f32`, `bf16` (autocast) or
//! `bf16-model` (parameters and residual stream in 16 bits, 32-bit copies in the optimizer), and how many steps. Weights and tokens are drawn; dropout is 0.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use std::time::Instant;

use plimsoll::autocast::autocast;
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{DType, Tensor};
use support::Arguments;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::read();
    let arg = |number: usize, default: &str| arguments.get(number, default);
    let device = arguments.device()?;
    let (batch, length, steps) =
        (arg(2, "2").parse()?, arg(3, "64").parse()?, arg(5, "10").parse::<usize>()?);
    let small = Gpt2Config { dropout: 0.0, ..Gpt2Config::small() };
    let config = match arg(1, "tiny").as_str() {
        "small" => small,
        "xl" => Gpt2Config { dropout: 0.0, ..Gpt2Config::xl() },
        _ => Gpt2Config { vocab_size: 512, n_positions: 128, n_embd: 64, n_layer: 2, n_head: 4, ..small },
    };
    let vocabulary = config.vocab_size as i64;
    let mut model = Gpt2::new(&Scope::new(&device, 1), config)?;
    if arg(4, "f32") == "bf16-model" {
        model.bfloat16()?;
    }
    let mut adam = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-4, ..AdamWOptions::default() })
        .with_master_weights();
    let draw = |seed: i64| -> Vec<i64> {
        (0..(batch * length) as i64).map(|i| (i * 7919 + seed * 104_729) * 31 % 65_537 % vocabulary).collect()
    };
    let tokens = Tensor::from_slice(&draw(1), &[batch, length], &device)?;
    let targets = Tensor::from_slice(&draw(2), &[batch, length], &device)?;
    let short = arg(4, "f32") == "bf16";
    let (mut times, mut losses, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..steps {
        let start = Instant::now();
        let loss = match short {
            true => autocast(DType::BF16, || model.loss(&tokens, &targets))?,
            false => model.loss(&tokens, &targets)?,
        };
        adam.zero_grad();
        loss.backward()?;
        adam.step()?;
        let queued = start.elapsed().as_secs_f64() * 1e3;
        if device.has_values() {
            losses.push(loss.float()?.item::<f32>()?);
        }
        device.synchronize()?;
        hosts.push(queued);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let shown: Vec<String> = losses.iter().map(|loss| format!("{loss:.5}")).collect();
    println!("losses {}", shown.join(" "));
    let first = times[0];
    hosts.sort_by(f64::total_cmp);
    println!("the host queues a step in {:.2} ms", hosts[hosts.len() / 2]);
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "first step {first:.1} ms, median {median:.2} ms, {:.0} tokens/s",
        (batch * length) as f64 / median * 1e3
    );
    println!("peak allocated {} reserved {}", device.max_memory_allocated(), device.max_memory_reserved());
    Ok(())
}
