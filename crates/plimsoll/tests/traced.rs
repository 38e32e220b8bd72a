//! Training steps of models whose memory is planned.

#![allow(clippy::print_stdout, reason = "figures for the measurements")]

use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig, ResNet, ResNetConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{Device, Result, SimConfig, Tensor, Traced, inference_mode};

use crate::on_device::seeded;

fn h100() -> Device {
    Device::sim(SimConfig::like("H100").unwrap())
}

fn tokens(device: &Device, rows: usize, length: usize) -> Tensor {
    Tensor::from_slice(&vec![7i64; rows * length], &[rows, length], device).unwrap()
}

/// Trains for some steps. The arena must take at most 0.5 % more than the bytes that are used at a time, and steps must keep to
/// the plan.
fn check(name: &str, device: &Device, model: &dyn Module, loss: impl Fn() -> Result<Tensor>) {
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
    let mut step = Traced::new(device);
    let mut asked = 0;
    for _ in 0..5 {
        let requests = || device.memory_stats()["allocation.all.allocated"];
        let before = requests();
        step.run(|| {
            loss()?.backward()?;
            adamw.step()?;
            adamw.zero_grad();
            Ok(())
        })
        .unwrap();
        asked = requests() - before;
    }
    let plan = step.plan().unwrap();
    let ratio = plan.arena_bytes as f64 / plan.live_bytes as f64;
    println!(
        "{name}: {} requests in {} MB, {ratio:.5} of the bytes in use",
        plan.planned,
        plan.arena_bytes / 1_000_000
    );
    assert!(ratio <= 1.005, "{name}: {plan:?}");
    assert_eq!((asked, plan.unplanned), (0, 0), "{name}: no request in a step");
    assert!(step.difference().is_none() && step.in_use_requests() == 0, "{name}: {step:?}");
}

#[test]
fn no_step_of_gpt2_requests_memory() {
    let device = h100();
    let config = Gpt2Config { n_layer: 4, ..Gpt2Config::small() };
    let model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
    let x = tokens(&device, 8, 1024);
    check("GPT-2", &device, &model, || model.loss(&x, &x));
}

#[test]
fn no_step_of_llama_with_checkpointing_requests_memory() {
    let device = h100();
    let config =
        LlamaConfig { gradient_checkpointing: true, num_hidden_layers: 6, ..LlamaConfig::llama_350m() };
    let model = Llama::new(&Scope::new(&device, 1), config).unwrap();
    let x = tokens(&device, 4, 512);
    check("Llama", &device, &model, || model.loss(&x, &x));
}

#[test]
fn no_step_of_resnet_requests_memory() {
    let device = h100();
    let model = ResNet::new(&Scope::new(&device, 1), ResNetConfig::resnet18()).unwrap();
    let x = Tensor::zeros(&[16, 3, 224, 224], &device).unwrap();
    let y = Tensor::from_slice(&[3i64; 16], &[16], &device).unwrap();
    check("ResNet-18", &device, &model, || model.forward(&x)?.cross_entropy(&y));
}

#[test]
fn inference_is_planned_as_well() {
    let device = h100();
    let config = Gpt2Config { n_layer: 4, dropout: 0.0, ..Gpt2Config::small() };
    let model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
    let x = tokens(&device, 2, 256);
    let mut forward = Traced::new(&device);
    let mut run = || forward.run(|| inference_mode(|| model.forward(&x)?.argmax(2)));
    let predicted: Vec<Tensor> = (0..4).map(|_| run().unwrap()).collect();
    assert_eq!(predicted[3].shape(), [2, 256]);
    let plan = forward.plan().unwrap();
    assert_eq!(plan.unplanned, 1, "the result outlives the run");
    assert!(plan.arena_bytes as f64 <= 1.005 * plan.live_bytes as f64, "{plan:?}");
}

#[test]
fn a_traced_training_gives_the_same_bits() {
    let losses = |is_traced: bool| -> Vec<f32> {
        let device = seeded();
        let config = Gpt2Config { n_layer: 3, n_embd: 64, n_head: 2, vocab_size: 100, ..Gpt2Config::small() };
        let model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
        let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
        let x = tokens(&device, 2, 16);
        let mut traced = Traced::new(&device);
        let mut step = || {
            let loss = model.loss(&x, &x)?;
            loss.backward()?;
            adamw.step()?;
            adamw.zero_grad();
            loss.item::<f32>()
        };
        let run = |_| if is_traced { traced.run(&mut step) } else { step() };
        let losses = (0..6).map(run).collect::<Result<_>>().unwrap();
        assert!(!is_traced || (traced.plan().unwrap().unplanned == 0 && traced.difference().is_none()));
        losses
    };
    assert_eq!(losses(true), losses(false));
}
