//! Fine-tunes a GPT-2 with LoRA: each attention's first product gets an update of low rank, and only the updates are trained and
//! saved, in peft's format. The model here is small and new; `load_pretrained` fills one with published weights.

use plimsoll::Result;
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{Layer, Linear};
use plimsoll::prelude::*;
use plimsoll::serialize::{Renamed, StateDict, Strict, open, save};

// The lines from here to the next comment are LoRA.
#[derive(Clone)]
struct Lora {
    base: Box<dyn Layer>,
    lora_a: Linear,
    lora_b: Linear,
    scale: f64,
}

impl Module for Lora {
    members!(base = "base_layer", lora_a = "lora_A", lora_b = "lora_B");

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.base.forward(x)? + (self.lora_b.forward(&self.lora_a.forward(x)?)? * self.scale)?
    }
}

/// Freezes the model and adds an update of this rank to each attention's first product.
pub(crate) fn add_lora(model: &mut Gpt2, scope: &Scope, rank: usize, alpha: f64) -> Result<()> {
    model.requires_grad_(false)?;
    let (width, scale) = (model.config().n_embd, alpha / rank as f64);
    for block in 0..model.config().n_layer {
        let path = format!("transformer.h.{block}.attn.c_attn");
        let (a, b) = (scope.at(&path).at("lora_A"), scope.at(&path).at("lora_B"));
        let lora_a = Linear::without_bias(&a, width, rank)?;
        let lora_b = Linear::of(&b, b.parameter("weight", &[3 * width, rank], Init::Zeros)?, None);
        model.replace_submodule(&path, |base| Ok(Lora { base, lora_a, lora_b, scale }))?;
    }
    Ok(())
}

// The adapter's tensors under peft's names, and loading those of a file.
pub(crate) fn adapter(model: &Gpt2) -> StateDict {
    let state = model.state_dict();
    let own = state.iter().filter(|(name, _)| name.contains(".lora_"));
    own.map(|(name, tensor)| (format!("base_model.model.{name}"), tensor.clone())).collect()
}

pub(crate) fn load_adapter(model: &Gpt2, path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let file = open(path)?;
    let ours = Renamed::new(file.as_ref(), |name| name.strip_prefix("base_model.model.").map(str::to_owned))?;
    let keys = model.load_state_dict(&ours, Strict::No)?;
    match keys.unexpected.is_empty() {
        true => Ok(()),
        false => Err(format!("{:?} are not of this model", keys.unexpected).into()),
    }
}

#[allow(dead_code, reason = "a test uses the functions above")]
#[allow(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu();
    let scope = Scope::new(&device, 1);
    let config = Gpt2Config { vocab_size: 64, n_embd: 64, n_layer: 2, n_head: 4, ..Gpt2Config::small() };
    let mut model = Gpt2::new(&scope, config)?;
    add_lora(&mut model, &scope, 8, 16.0)?;
    let trained: Vec<Tensor> = model.parameters().into_iter().filter(Tensor::requires_grad).collect();
    let mut optimizer = AdamW::new(trained, AdamWOptions { lr: 1e-2, ..AdamWOptions::default() });
    let tokens: Vec<i64> = (0..128).map(|i| i * i % 64).collect();
    let tokens = Tensor::from_slice(&tokens, &[2, 64], &device)?;
    for step in 0..20 {
        let loss = model.loss(&tokens.narrow(1, 0, 63)?, &tokens.narrow(1, 1, 63)?)?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
        println!("step {step}: loss {:.3}", loss.item::<f32>()?);
    }
    let folder = std::env::temp_dir().join("plimsoll-lora");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("adapter_model.safetensors");
    save(&adapter(&model), &file)?;
    load_adapter(&model, &file)?;
    Ok(())
}
