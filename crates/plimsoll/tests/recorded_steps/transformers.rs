//! Compares models with those of `transformers`, and with torchvision's ViT. `fixtures/make_models.py` makes
//! `fixtures/models.json`.

use std::collections::BTreeMap;

use plimsoll::models::{
    BertConfig, BertForMaskedLm, BertInputs, Gpt2, Gpt2Config, Llama, LlamaConfig, RopeScaling, Vit,
    VitConfig, Yarn,
};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{Device, Result, Tensor, no_grad};
use serde_json::Value;

use super::{Comparison, Program, same_names};

pub(crate) fn recorded(model: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../fixtures/models.json")).unwrap();
    all[model].clone()
}

/// The initial value of element `i` of a parameter, computed as in `make_models.py`.
fn value(name: &str, i: usize) -> f64 {
    let seed: usize = name.bytes().enumerate().map(|(k, b)| (k + 1) * usize::from(b)).sum();
    let norms =
        ["ln_1.weight", "ln_2.weight", "ln_f.weight", "norm.weight", "LayerNorm.weight", "encoder.ln.weight"];
    let is_norm = norms.iter().any(|end| name.ends_with(end));
    f64::from(u8::from(is_norm)) + 0.05 * (12.9898 * i as f64 + 0.7 * seed as f64).sin()
}

/// Sets the parameters to these initial values and returns them by name.
pub(crate) fn filled(model: &impl Module) -> BTreeMap<String, Tensor> {
    let parameters: BTreeMap<String, Tensor> = model.named_parameters().into_iter().collect();
    for (name, parameter) in &parameters {
        let values: Vec<f32> = (0..parameter.numel()).map(|i| value(name, i) as f32).collect();
        let values = Tensor::from_slice(&values, parameter.shape(), parameter.device()).unwrap();
        no_grad(|| parameter.copy_(&values)).unwrap();
    }
    parameters
}

/// Two sequences of twelve tokens. With a `shift` of 1, these are the targets.
pub(crate) fn tokens(device: &Device, shift: usize) -> Tensor {
    whole(device, |k| ((7 * (k % 12) * (k % 12) + 3 * (k % 12) + 11 * (k / 12)) % 61 + shift) as i64 % 61)
}

fn whole(device: &Device, f: impl Fn(usize) -> i64) -> Tensor {
    Tensor::from_slice(&(0..24).map(f).collect::<Vec<i64>>(), &[2, 12], device).unwrap()
}

pub(crate) fn small_gpt2() -> Gpt2Config {
    Gpt2Config {
        vocab_size: 61,
        n_positions: 16,
        n_embd: 32,
        n_layer: 2,
        n_head: 4,
        dropout: 0.0,
        ..Gpt2Config::small()
    }
}

pub(crate) fn small_llama() -> LlamaConfig {
    LlamaConfig {
        vocab_size: 61,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    }
}

pub(crate) fn small_vit() -> VitConfig {
    VitConfig {
        image_size: 8,
        patch_size: 4,
        num_layers: 2,
        num_heads: 4,
        hidden_dim: 32,
        mlp_dim: 48,
        num_classes: 6,
        ..VitConfig::b_16()
    }
}

/// Images for [`small_vit`], and their classes.
pub(crate) fn small_images(device: &Device) -> (Tensor, Tensor) {
    let pixels: Vec<f32> = (0..2 * 3 * 64).map(|i| (0.37 * f64::from(i)).sin() as f32).collect();
    let images = Tensor::from_slice(&pixels, &[2, 3, 8, 8], device).unwrap();
    (images, Tensor::from_slice(&[1i64, 4], &[2], device).unwrap())
}

fn small_bert() -> BertConfig {
    BertConfig {
        vocab_size: 61,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        max_position_embeddings: 16,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..BertConfig::base()
    }
}

pub(crate) fn bert(scope: &Scope) -> BertForMaskedLm {
    BertForMaskedLm::new(scope, small_bert()).unwrap()
}

/// The `config.json` of a recorded model.
fn config_json(name: &str) -> String {
    recorded(name)["config"].to_string()
}

/// Compares the names, and three steps.
fn train(name: &str, model: &impl Module, loss: impl Fn() -> Result<Tensor>) -> Result<Comparison> {
    let (expected, parameters, mut compared) = (recorded(name), filled(model), Comparison::default());
    same_names(name, model, &expected["state_dict"]);
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-2, ..AdamWOptions::default() });
    for step in 0..3 {
        adamw.zero_grad();
        let loss = loss()?;
        loss.backward()?;
        adamw.step()?;
        compared.loss(step, loss.item::<f32>()?.into(), &expected);
    }
    for (name, tensor) in &parameters {
        // Softmax does not depend on the keys' bias, so its gradient is only rounding error, which Adam amplifies.
        if name.ends_with("key.bias") {
            continue;
        }
        let sum = tensor.to_vec::<f32>()?.into_iter().map(f64::from).sum();
        compared.sum(name, sum, tensor.numel(), &expected);
    }
    Ok(compared)
}

fn train_gpt2(name: &str, device: &Device, config: Gpt2Config) -> Result<Comparison> {
    let model = Gpt2::new(&Scope::new(device, 1), config)?;
    let (x, y) = (tokens(device, 0), tokens(device, 1));
    train(name, &model, || model.loss(&x, &y))
}

fn train_llama(name: &str, device: &Device, config: LlamaConfig) -> Result<Comparison> {
    let model = Llama::new(&Scope::new(device, 1), config)?;
    let (x, y) = (tokens(device, 0), tokens(device, 1));
    train(name, &model, || model.loss(&x, &y))
}

/// Uses padding, two token types, and labels for every third token.
fn train_bert(name: &str, device: &Device, config: BertConfig) -> Result<Comparison> {
    let model = BertForMaskedLm::new(&Scope::new(device, 1), config)?;
    let (mask, kinds) = (whole(device, |i| i64::from(i < 21)), whole(device, |i| i64::from(i % 12 >= 6)));
    let shifted = tokens(&Device::cpu(), 1).to_vec::<i64>()?;
    let labels = whole(device, |i| if i % 12 % 3 == 0 { shifted[i] } else { -100 });
    let ids = tokens(device, 0);
    let inputs = BertInputs { input_ids: &ids, attention_mask: Some(&mask), token_type_ids: Some(&kinds) };
    train(name, &model, || model.loss(inputs, &labels))
}

fn train_vit(device: &Device) -> Result<Comparison> {
    let model = Vit::new(&Scope::new(device, 1), small_vit())?;
    let (images, classes) = small_images(device);
    train("vit", &model, || model.loss(&images, &classes))
}

/// GPT-2, Llama, BERT and ViT.
pub(crate) fn programs() -> Vec<Program> {
    let gpt2 = |name: &'static str, config: Gpt2Config| Program {
        name,
        run: Box::new(move |device| train_gpt2(name, device, config.clone())),
    };
    let llama = |name: &'static str, scaling: Option<RopeScaling>| Program {
        name,
        run: Box::new(move |device| {
            train_llama(name, device, LlamaConfig { rope_scaling: scaling.clone(), ..small_llama() })
        }),
    };
    let bert = |name: &'static str, config: BertConfig| Program {
        name,
        run: Box::new(move |device| train_bert(name, device, config.clone())),
    };
    let gpt2_by_json = |name| gpt2(name, Gpt2Config::from_json(&config_json(name)).unwrap());
    let llama_by_json = |name: &'static str| Program {
        name,
        run: Box::new(move |device| train_llama(name, device, LlamaConfig::from_json(&config_json(name))?)),
    };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    let yarn = Yarn { factor: 8.0, original_max_position_embeddings: 64, ..Yarn::default() };
    let (mscale, mscale_all_dim) = (Some(0.7), Some(0.4));
    let scaled = Yarn { mscale, mscale_all_dim, beta_fast: 16.0, beta_slow: 2.0, truncate: false, ..yarn };
    let longrope = |original_max_position_embeddings| RopeScaling::LongRope {
        factor: 4.0,
        short_factor: vec![1.0, 1.1, 1.3, 1.6],
        long_factor: vec![1.0, 2.0, 5.0, 9.0],
        attention_factor: None,
        original_max_position_embeddings,
    };
    let inner = Gpt2Config { n_inner: Some(40), layer_norm_epsilon: 1e-2, ..small_gpt2() };
    vec![
        gpt2("gpt2", small_gpt2()),
        gpt2("gpt2, inner width and epsilon", inner),
        llama("llama", None),
        llama("llama, linear", Some(RopeScaling::Linear { factor: 4.0 })),
        llama("llama, dynamic", Some(RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 8 })),
        llama("llama, llama3", Some(llama3)),
        llama("llama, yarn", Some(RopeScaling::Yarn(yarn))),
        llama("llama, yarn of given scales", Some(RopeScaling::Yarn(scaled))),
        llama("llama, longrope, short", Some(longrope(16))),
        llama("llama, longrope, long", Some(longrope(8))),
        gpt2_by_json("gpt2, relu, scaled by block, untied"),
        gpt2_by_json("gpt2, silu, unscaled"),
        llama_by_json("qwen2"),
        llama_by_json("llama, by its config"),
        bert("bert", small_bert()),
        bert("bert, relu", BertConfig::from_json(&config_json("bert, relu")).unwrap()),
        Program { name: "vit", run: Box::new(train_vit) },
    ]
}
