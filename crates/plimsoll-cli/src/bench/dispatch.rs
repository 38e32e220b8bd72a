//! The cost of dispatching operations to a simulated device, which computes nothing: an `add` of one element, with
//! and without recording, and training steps of complete models.

use std::fmt::Write as _;
use std::time::Instant;

use clap::Args;
use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{DType, Device, SimConfig, Tensor};
use serde::Serialize;

use super::meter::{Cost, Meter};
use super::table;
use crate::exit::Failure;

#[derive(Args)]
pub(crate) struct DispatchArgs {
    /// Operations in each round
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Rounds; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// One line of the result.
#[derive(Serialize)]
struct Line {
    recording: bool,
    ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<f64>,
}

/// A training step of a model.
#[derive(Serialize)]
struct Step {
    model: &'static str,
    parameters: usize,
    ms: f64,
}

/// Measures. Returns the text for stdout.
pub(crate) fn run(args: &DispatchArgs) -> Result<String, Failure> {
    let mut meter = Meter::new();
    let lines = [false, true].map(|recording| {
        measure(args, &mut meter, recording).map(|cost| Line {
            recording,
            ns: cost.ns,
            instructions: cost.instructions,
        })
    });
    let [without, with] = lines;
    let lines = [without?, with?];
    let steps = [gpt2()?, llama()?];
    if args.json {
        let operation = "add of one element on sim";
        let json = serde_json::json!({ "schema": 1, "operation": operation, "lines": lines, "steps": steps });
        return Ok(json.to_string());
    }
    let mut text = String::from("one add of one element on a simulated device\n");
    for line in &lines {
        let name = if line.recording { "recorded" } else { "not recorded" };
        let counted =
            line.instructions.map_or_else(String::new, |count| format!("  {count:.0} instructions"));
        let _ = writeln!(text, "  {name:<14}{:>8.0} ns{counted}", line.ns);
    }
    text.push_str("one training step of AdamW there\n");
    for Step { model, parameters, ms } in &steps {
        let _ =
            writeln!(text, "  {model:<14}{ms:>8.2} ms  {:.2} billion parameters", *parameters as f64 / 1e9);
    }
    if let Some(why) = meter.why_no_instructions() {
        let _ = writeln!(text, "instructions are not counted: {why}");
    }
    Ok(text)
}

fn measure(args: &DispatchArgs, meter: &mut Meter, recording: bool) -> Result<Cost, Failure> {
    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::ones(&[1], &device)?.requires_grad_(recording)?;
    let mut best: Option<Cost> = None;
    for _ in 0..args.rounds {
        let cost = meter.second(args.operations, || -> plimsoll::Result<()> {
            for _ in 0..args.operations {
                std::hint::black_box((&x + &x)?);
            }
            Ok(())
        })?;
        best = Some(best.map_or(cost, |best| best.min(cost)));
    }
    Ok(best.unwrap_or(Cost { ns: 0.0, instructions: None }))
}

/// Timed steps of a model, after two untimed ones; the median counts.
const STEPS: usize = 10;

/// GPT-2 124M, 8 sequences of 1,024 tokens.
fn gpt2() -> plimsoll::Result<Step> {
    let device = Device::sim(SimConfig::new(1 << 40));
    let model = Gpt2::new(&Scope::new(&device, 1), Gpt2Config::small())?;
    time("GPT-2", &device, [8, 1024], model.parameters(), |x| model.loss(x, x))
}

/// Ten billion parameters, one sequence of 2,048 tokens.
fn llama() -> plimsoll::Result<Step> {
    let device = Device::sim(SimConfig::new(1 << 42));
    let config = LlamaConfig {
        hidden_size: 5120,
        intermediate_size: 13_824,
        num_hidden_layers: 31,
        num_attention_heads: 40,
        num_key_value_heads: 40,
        ..LlamaConfig::default()
    };
    let model = Llama::new(&Scope::new(&device, 1), config)?;
    time("Llama", &device, [1, 2048], model.parameters(), |x| model.loss(x, x))
}

fn time(
    model: &'static str,
    device: &Device,
    tokens: [usize; 2],
    parameters: Vec<Tensor>,
    loss: impl Fn(&Tensor) -> plimsoll::Result<Tensor>,
) -> plimsoll::Result<Step> {
    let count = parameters.iter().map(Tensor::numel).sum();
    let mut adamw = AdamW::new(parameters, AdamWOptions::default());
    let mut times = Vec::new();
    for step in 0..2 + STEPS {
        let x = Tensor::empty(&tokens, DType::I64, device)?;
        let start = Instant::now();
        adamw.zero_grad();
        loss(&x)?.backward()?;
        adamw.step()?;
        if step >= 2 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(Step { model, parameters: count, ms: table::median(&mut times) })
}
