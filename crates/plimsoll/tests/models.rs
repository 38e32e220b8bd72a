//! Models beside those of `transformers`: names, shapes, and three steps of training from the same start values.
//! `fixtures/make_models.py` made `fixtures/models.json`.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

use std::collections::BTreeMap;

use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{DType, Device, Result, SimConfig, Tensor, autocast};
use serde_json::Value;

fn recorded(model: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("fixtures/models.json")).unwrap();
    all[model].clone()
}

/// The start value of element `i` of a parameter, as `make_models.py` has it.
fn value(name: &str, i: usize) -> f64 {
    let seed: usize = name.bytes().enumerate().map(|(k, b)| (k + 1) * usize::from(b)).sum();
    let is_norm =
        ["ln_1.weight", "ln_2.weight", "ln_f.weight", "norm.weight"].iter().any(|end| name.ends_with(end));
    f64::from(u8::from(is_norm)) + 0.05 * (12.9898 * i as f64 + 0.7 * seed as f64).sin()
}

fn tokens(device: &Device, shift: usize) -> Tensor {
    let at = |b: usize, i: usize| ((7 * i * i + 3 * i + 11 * b) % 61 + shift) % 61;
    let values: Vec<i64> = (0..24).map(|k| at(k / 12, k % 12) as i64).collect();
    Tensor::from_slice(&values, &[2, 12], device).unwrap()
}

fn gpt2(scope: &Scope) -> Gpt2 {
    let config = Gpt2Config {
        vocab_size: 61,
        n_positions: 16,
        n_embd: 32,
        n_layer: 2,
        n_head: 4,
        dropout: 0.0,
        ..Gpt2Config::small()
    };
    Gpt2::new(scope, config).unwrap()
}

fn llama(scope: &Scope) -> Llama {
    let config = LlamaConfig {
        vocab_size: 61,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    Llama::new(scope, config).unwrap()
}

/// Three steps, and what PyTorch's were.
fn train(name: &str, model: &impl Module, loss: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) {
    let expected = recorded(name);
    let device = Device::cpu();
    let parameters: BTreeMap<String, Tensor> = model.named_parameters().into_iter().collect();
    for (name, parameter) in &parameters {
        let values: Vec<f32> = (0..parameter.numel()).map(|i| value(name, i) as f32).collect();
        let values = Tensor::from_slice(&values, parameter.shape(), &device).unwrap();
        plimsoll::no_grad(|| parameter.copy_(&values)).unwrap();
    }
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-2, ..AdamWOptions::default() });
    for step in 0..3 {
        adamw.zero_grad();
        let loss = loss(&tokens(&device, 0), &tokens(&device, 1)).unwrap();
        loss.backward().unwrap();
        adamw.step().unwrap();
        let (got, wanted) = (loss.item::<f32>().unwrap(), expected["f32"]["losses"][step].as_f64().unwrap());
        assert!((f64::from(got) - wanted).abs() < 1e-5, "{name}, step {step}: {got}, PyTorch's {wanted}");
    }
    for (parameter, tensor) in &parameters {
        let got: f64 = tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).sum();
        let sum = |precision: &str| expected[precision]["sums"][parameter].as_f64().unwrap();
        // PyTorch's own rounding, and what 32 bits cost a sum of so many values.
        let allowed = 4.0 * (sum("f32") - sum("f64")).abs() + 1e-6 * tensor.numel() as f64;
        let off = (got - sum("f64")).abs();
        assert!(off <= allowed, "{name}, {parameter}: off by {off}, {allowed} allowed");
    }
}

fn same_names(name: &str, model: &impl Module, tied: &str) {
    let expected = recorded(name);
    let expected: BTreeMap<String, Vec<usize>> = expected["state_dict"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| *name != tied)
        .map(|(name, shape)| (name.clone(), serde_json::from_value(shape.clone()).unwrap()))
        .collect();
    let got: BTreeMap<String, Vec<usize>> =
        model.named_parameters().into_iter().map(|(name, tensor)| (name, tensor.shape().to_vec())).collect();
    assert_eq!(got, expected, "{name}");
}

#[test]
fn gpt2_has_the_names_and_learns_the_steps_of_transformers() {
    let model = gpt2(&Scope::new(&Device::cpu(), 1));
    same_names("gpt2", &model, "lm_head.weight");
    train("gpt2", &model, |x, y| model.loss(x, y));
}

#[test]
fn llama_has_the_names_and_learns_the_steps_of_transformers() {
    let model = llama(&Scope::new(&Device::cpu(), 1));
    same_names("llama", &model, "");
    train("llama", &model, |x, y| model.loss(x, y));
}

#[test]
fn logits_and_loss_agree() {
    let device = Device::cpu();
    let model = gpt2(&Scope::new(&device, 3));
    let (x, y) = (tokens(&device, 0), tokens(&device, 1));
    let logits = model.forward(&x).unwrap();
    assert_eq!(logits.shape(), [2, 12, 61]);
    let whole = logits.reshape(&[24, 61]).unwrap().cross_entropy(&y.reshape(&[24]).unwrap()).unwrap();
    let chunked = model.loss(&x, &y).unwrap();
    assert!((whole.item::<f32>().unwrap() - chunked.item::<f32>().unwrap()).abs() < 1e-5);
}

#[test]
fn published_sizes_have_the_published_numbers_of_parameters() {
    let device = Device::sim(SimConfig::new(1 << 40));
    let count = |config: Gpt2Config| -> usize {
        let model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
        model.parameters().iter().map(Tensor::numel).sum()
    };
    assert_eq!(count(Gpt2Config::small()), 124_439_808);
    assert_eq!(count(Gpt2Config::medium()), 354_823_168);
    assert_eq!(count(Gpt2Config::large()), 774_030_080);
    assert_eq!(count(Gpt2Config::xl()), 1_557_611_200);
}

#[test]
fn checkpointed_blocks_have_the_same_gradients() {
    let gradients = |gradient_checkpointing: bool| -> Vec<Vec<f32>> {
        let device = Device::cpu_with(plimsoll::CpuConfig::default());
        let config = gpt2(&Scope::new(&device, 1)).config().clone();
        device.manual_seed(5);
        let model =
            Gpt2::new(&Scope::new(&device, 1), Gpt2Config { dropout: 0.1, gradient_checkpointing, ..config })
                .unwrap();
        model.loss(&tokens(&device, 0), &tokens(&device, 1)).unwrap().backward().unwrap();
        model.parameters().iter().map(|p| p.grad().unwrap().to_vec::<f32>().unwrap()).collect()
    };
    assert_eq!(gradients(false), gradients(true));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let scope = Scope::new(&Device::cpu(), 1);
    let error = Gpt2::new(&scope, Gpt2Config { n_head: 5, ..Gpt2Config::small() }).unwrap_err().to_string();
    assert_eq!(error, "gpt2: 5 heads do not divide a width of 768");
    let model = gpt2(&Scope::new(&Device::cpu(), 1));
    let long = Tensor::full(&[1, 17], 0.0, DType::I64, &Device::cpu()).unwrap();
    assert_eq!(
        model.forward(&long).unwrap_err().to_string(),
        "gpt2: 17 tokens in a sequence; there are 16 positions"
    );
    let unknown = Tensor::full(&[1, 2], 61.0, DType::I64, &Device::cpu()).unwrap();
    assert!(model.forward(&unknown).unwrap_err().to_string().contains("61"));
}

/// On a simulated H200: three steps of AdamW, beside PyTorch's peaks of the same programs on the same device.
#[test]
fn training_takes_less_than_two_thirds_of_pytorchs_memory() {
    let peak = |amp: Option<DType>,
                batch: usize,
                length: usize,
                parameters: Vec<Tensor>,
                loss: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let device = parameters[0].device().clone();
        let mut adamw = AdamW::new(parameters, AdamWOptions::default());
        for _ in 0..3 {
            let x = Tensor::empty(&[batch, length], DType::I64, &device).unwrap();
            let loss = autocast::autocast(amp, || loss(&x)).unwrap();
            adamw.zero_grad();
            loss.backward().unwrap();
            adamw.step().unwrap();
        }
        device.max_memory_allocated() as f64 / 1e9
    };
    let h200 = || Device::sim(SimConfig::like("H200").unwrap());
    for (amp, pytorch) in [(None, 15.35), (Some(DType::BF16), 13.28)] {
        let model =
            Gpt2::new(&Scope::new(&h200(), 1), Gpt2Config { dropout: 0.0, ..Gpt2Config::small() }).unwrap();
        let ours = peak(amp, 8, 1024, model.parameters(), &|x| model.loss(x, x));
        assert!(ours < 0.4 * pytorch, "{ours} GB, PyTorch {pytorch} GB");
        let config = Gpt2Config { gradient_checkpointing: true, ..model.config().clone() };
        drop(model);
        let model = Gpt2::new(&Scope::new(&h200(), 1), config).unwrap();
        let checkpointed = peak(amp, 8, 1024, model.parameters(), &|x| model.loss(x, x));
        assert!(checkpointed < 0.65 * ours, "{checkpointed} GB checkpointed, {ours} GB without");
    }
    let model = Llama::new(&Scope::new(&h200(), 1), LlamaConfig::llama_350m()).unwrap();
    let ours = peak(Some(DType::BF16), 4, 2048, model.parameters(), &|x| model.loss(x, x));
    assert!(ours < 0.6 * 21.33, "{ours} GB, PyTorch 21.33 GB");
}
