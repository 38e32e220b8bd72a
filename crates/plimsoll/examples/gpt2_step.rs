//! Training steps of GPT-2: time, loss and peaks. `cargo run --release --example gpt2_step -- cuda:0 small 8 1024 bf16`.
//!
//! Arguments: device (`cpu`, `cuda:N`, `sim:GPU`), size (`tiny`, `small`, `xl`), batch, tokens of a sequence, `f32`, `bf16` (autocast) or
//! `bf16-model` (parameters and residual stream in 16 bits, 32-bit copies in the optimizer), how many steps, and in how many layers the
//! perceptron's first product is computed again (`3`), or how many bytes may be reserved (`fit=14.5e9`). Weights and tokens are drawn;
//! dropout is 0. A last argument `times` shows the slowest kernels of one more step.
//! With `--capture`, steps are captured after the third and replayed.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use std::time::Instant;

use plimsoll::autocast::autocast;
use plimsoll::models::{Gpt2, Gpt2Config, layers_to_recompute};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{CapturedStep, DType, Device, Result, SimConfig, Tensor};
use support::Arguments;

/// Sequences of a batch and tokens of a sequence.
fn batch(arguments: &Arguments) -> (usize, usize) {
    let size = |number: usize, default: usize| arguments.get(number, "").parse().unwrap_or(default);
    (size(2, 2), size(3, 64))
}

/// A model, its optimizer and one batch.
struct Training {
    model: Gpt2,
    adam: AdamW,
    tokens: Tensor,
    targets: Tensor,
    /// Whether the forward pass is under autocast.
    short: bool,
}

impl Training {
    fn new(arguments: &Arguments, device: &Device, config: Gpt2Config) -> Result<Training> {
        let (count, length) = batch(arguments);
        let vocabulary = config.vocab_size as i64;
        let mut model = Gpt2::new(&Scope::new(device, 1), config)?;
        if arguments.get(4, "f32") == "bf16-model" {
            model.bfloat16()?;
        }
        let adam = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-4, ..AdamWOptions::default() });
        let draw = |seed: i64| {
            let token = |i: i64| (i * 7919 + seed * 104_729) * 31 % 65_537 % vocabulary;
            let all: Vec<i64> = (0..(count * length) as i64).map(token).collect();
            Tensor::from_slice(&all, &[count, length], device)
        };
        let (tokens, targets) = (draw(1)?, draw(2)?);
        let short = arguments.get(4, "f32") == "bf16";
        Ok(Training { model, adam: adam.with_master_weights(), tokens, targets, short })
    }

    fn step(&mut self, captured: Option<&mut CapturedStep>) -> Result<Tensor> {
        let Training { model, adam, tokens, targets, short } = self;
        let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            let loss = || model.loss(&inputs[0], &inputs[1]);
            let loss = if *short { autocast(DType::BF16, loss)? } else { loss()? };
            optimizers[0].zero_grad();
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        };
        let outputs = match captured {
            Some(captured) => captured.run(&[&*tokens, &*targets], &mut [&mut *adam], step)?,
            None => step(&[tokens.clone(), targets.clone()], &mut [&mut *adam])?,
        };
        Ok(outputs[0].detach())
    }
}

/// In how many layers the first product must be computed again for a training to reserve no more than this.
fn layers_for(arguments: &Arguments, config: &Gpt2Config, limit_bytes: u64) -> Result<usize> {
    let train = |recompute_mlp: usize, device: &Device| {
        let config = Gpt2Config { recompute_mlp, ..config.clone() };
        let mut training = Training::new(arguments, device, config)?;
        (0..3).try_for_each(|_| training.step(None).map(drop))
    };
    let found = layers_to_recompute(config.n_layer, limit_bytes, &SimConfig::like("H200")?, train)?;
    Ok(found.unwrap_or(config.n_layer))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::read();
    let arg = |number: usize, default: &str| arguments.get(number, default);
    let device = arguments.device()?;
    let (count, length) = batch(&arguments);
    let small = Gpt2Config { dropout: 0.0, ..Gpt2Config::small() };
    let config = match arg(1, "tiny").as_str() {
        "small" => small,
        "xl" => Gpt2Config { dropout: 0.0, ..Gpt2Config::xl() },
        _ => Gpt2Config { vocab_size: 512, n_positions: 128, n_embd: 64, n_layer: 2, n_head: 4, ..small },
    };
    let recompute = arg(6, "0");
    let recompute_mlp = match recompute.strip_prefix("fit=") {
        None => recompute.parse()?,
        Some(bytes) => layers_for(&arguments, &config, bytes.parse::<f64>()? as u64)?,
    };
    println!("the first product is computed again in {recompute_mlp} of {} layers", config.n_layer);
    let mut training = Training::new(&arguments, &device, Gpt2Config { recompute_mlp, ..config })?;
    let (mut times, mut losses, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
    let mut captured = arguments.captures.then(|| CapturedStep::new(&device));
    for _ in 0..arg(5, "10").parse::<usize>()? {
        let start = Instant::now();
        let loss = training.step(captured.as_mut())?;
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
    let rate = (count * length) as f64 / median * 1e3;
    println!("first step {first:.1} ms, median {median:.2} ms, {rate:.0} tokens/s");
    println!("peak allocated {} reserved {}", device.max_memory_allocated(), device.max_memory_reserved());
    arguments.show_kernel_times(|| training.step(None).map(drop))?;
    Ok(())
}
