//! Models whose blocks are checkpointed within a budget.

#![allow(clippy::print_stdout, reason = "figures for the measurements")]

use std::sync::Arc;

use plimsoll::autocast::autocast;
use plimsoll::checkpoint::{Budget, Checkpointer, Schedule, Step, checkpoint};
use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig};
use plimsoll::nn::{
    BatchNorm2d, Conv2d, Conv2dConfig, InstanceNorm2d, InstanceNormConfig, Module, Scope, SpectralNorm,
};
use plimsoll::offload::OffloadOptions;
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::testing::LateConfig;
use plimsoll::{Category, CpuConfig, DType, Device, Result, SimConfig, Tensor};

/// A block of a pre-activation residual network (He et al. 2016), with a bottleneck.
struct Block {
    norms: [BatchNorm2d; 3],
    convs: [Conv2d; 3],
    shortcut: Option<Conv2d>,
}

impl Block {
    fn new(scope: &Scope, inputs: usize, width: usize, stride: usize) -> Result<Block> {
        let norm = |name: &str, count| BatchNorm2d::new(&scope.at(name), count);
        let conv = |name: &str, from, to, kernel: usize, stride: usize| {
            let config = Conv2dConfig::new(kernel).stride(stride).padding(kernel / 2).without_bias();
            Conv2d::with(&scope.at(name), from, to, config)
        };
        let outputs = 4 * width;
        Ok(Block {
            norms: [norm("bn1", inputs)?, norm("bn2", width)?, norm("bn3", width)?],
            convs: [
                conv("conv1", inputs, width, 1, 1)?,
                conv("conv2", width, width, 3, stride)?,
                conv("conv3", width, outputs, 1, 1)?,
            ],
            shortcut: match inputs == outputs {
                true => None,
                false => Some(conv("shortcut", inputs, outputs, 1, stride)?),
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = x.clone();
        for (norm, conv) in self.norms.iter().zip(&self.convs) {
            y = conv.forward(&norm.forward(&y)?.relu()?)?;
        }
        match &self.shortcut {
            None => y.add(x),
            Some(shortcut) => y.add(&shortcut.forward(x)?),
        }
    }
}

/// A residual network of 1,001 layers on images of 32 × 32, three stages of 111 blocks: the schedule within a budget, and the
/// floating-point operations of a step.
fn thousand_layers(device: &Device, budget: Budget) -> Result<(Arc<Schedule>, u64)> {
    let scope = Scope::new(device, 1);
    let (mut steps, mut inputs) = (Vec::new(), 16);
    for (stage, width) in [16, 32, 64].into_iter().enumerate() {
        for number in 0..111 {
            let stride = if number == 0 && stage > 0 { 2 } else { 1 };
            let block = Block::new(&scope.at(&format!("{stage}.{number}")), inputs, width, stride)?;
            inputs = 4 * width;
            steps.push(Step::new(move |x: &Tensor| block.forward(x)));
        }
    }
    let x = Tensor::zeros(&[32, 16, 32, 32], device)?;
    let checkpointer = Checkpointer::new(budget);
    let schedule = checkpointer.schedule(&steps, &x)?;
    let step = || checkpointer.forward(&steps, &x)?.sum()?.backward();
    let (done, spans) = device.record_timeline(step);
    done?;
    Ok((schedule, spans.iter().map(|span| span.cost.flops).sum()))
}

/// Chen et al. (2016) report 7 GB instead of 48 for such a network, for 30 % more time.
#[test]
fn a_thousand_layers_take_a_seventh_for_a_quarter_more_arithmetic() {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let (all, plain) = thousand_layers(&device, Budget::Bytes(u64::MAX)).unwrap();
    let (least, budget) = (thousand_layers(&device, Budget::Auto).unwrap(), all.kept_bytes() / 7);
    let (schedule, flops) = thousand_layers(&device, Budget::Bytes(budget)).unwrap();
    assert!(schedule.kept_bytes() <= budget, "{} of {budget}", schedule.kept_bytes());
    let more = |flops: u64| flops as f64 / plain as f64 - 1.0;
    println!(
        "1,001 layers keep {} MB; a seventh of it for {:.1} % more operations, {} MB for {:.1} % more",
        all.kept_bytes() / 1_000_000,
        100.0 * more(flops),
        least.0.kept_bytes() / 1_000_000,
        100.0 * more(least.1)
    );
    assert!(more(flops) <= 0.25, "{}", more(flops));
}

/// The loss and all gradients.
fn step(model: &dyn Module, loss: &Tensor) -> Vec<Vec<f32>> {
    loss.backward().unwrap();
    let gradients = model.parameters().into_iter().map(|it| it.grad().unwrap());
    [loss.clone()].into_iter().chain(gradients).map(|it| it.to_vec::<f32>().unwrap()).collect()
}

fn gpt2(device: &Device) -> Gpt2 {
    let config = Gpt2Config { n_layer: 6, n_embd: 32, n_head: 2, vocab_size: 100, ..Gpt2Config::small() };
    Gpt2::new(&Scope::new(device, 1), config).unwrap()
}

fn llama(device: &Device) -> Llama {
    let config = LlamaConfig {
        vocab_size: 100,
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 6,
        num_attention_heads: 2,
        num_key_value_heads: 2,
        ..LlamaConfig::llama_350m()
    };
    Llama::new(&Scope::new(device, 1), config).unwrap()
}

fn tokens(device: &Device, rows: usize) -> Tensor {
    let ids: Vec<i64> = (0..rows as i64 * 16).map(|i| i * 7 % 100).collect();
    Tensor::from_slice(&ids, &[rows, 16], device).unwrap()
}

/// The losses and gradients of three steps of two models.
fn trained(
    device: &Device,
    dtype: Option<DType>,
    checkpointer: impl Fn() -> Option<Checkpointer>,
) -> Vec<Vec<f32>> {
    let x = tokens(device, 4);
    device.manual_seed(1);
    let (mut gpt2, mut llama) = (gpt2(device), llama(device));
    gpt2.checkpoint_within(checkpointer());
    llama.checkpoint_within(checkpointer());
    let parameters = [gpt2.parameters(), llama.parameters()].concat();
    let mut adamw = AdamW::new(parameters, AdamWOptions::default());
    let mut all = Vec::new();
    // Weights that an optimizer has changed: a piece that is computed again must not leave old ones behind.
    for _ in 0..3 {
        adamw.zero_grad();
        all.extend(step(&gpt2, &autocast(dtype, || gpt2.loss(&x, &x)).unwrap()));
        all.extend(step(&llama, &autocast(dtype, || llama.loss(&x, &x)).unwrap()));
        adamw.step().unwrap();
    }
    all
}

#[test]
fn models_within_a_budget_compute_the_same_bits() {
    let device = Device::cpu_with(CpuConfig::default());
    for dtype in [None, Some(DType::BF16)] {
        let plain = trained(&device, dtype, || None);
        for budget in [Budget::Auto, Budget::Bytes(600 << 10), Budget::Segments(3)] {
            assert!(trained(&device, dtype, || budget.into()) == plain, "{dtype:?}, {budget:?}");
        }
    }
}

#[test]
fn models_whose_blocks_wait_on_the_host_compute_the_same_bits() {
    for (dtype, seed) in [(None, 1), (Some(DType::BF16), 2), (None, 3)] {
        // Without records of uses, memory that is read or reused too early has wrong values.
        let late = || Device::late(LateConfig { seed, records_uses: false, ..LateConfig::default() });
        let plain = trained(&late(), dtype, || None);
        for budget in [Budget::Auto, Budget::Bytes(600 << 10)] {
            let options = OffloadOptions { min_tensor_bytes: 0, ..OffloadOptions::default() };
            let offloading = || Some(Checkpointer::new(budget).with_offload(options));
            assert!(trained(&late(), dtype, offloading) == plain, "{dtype:?}, {budget:?}");
        }
    }
}

/// Layers that change their own buffers in training change them once for each batch.
#[test]
fn buffers_of_checkpointed_layers_change_once() {
    let device = Device::cpu();
    let run = |is_checkpointed: bool| {
        let scope = Scope::new(&device, 1);
        let config = InstanceNormConfig { track_running_stats: true, ..InstanceNormConfig::default() };
        let norm = BatchNorm2d::new(&scope.at("a"), 3).unwrap();
        let instance = InstanceNorm2d::with(&scope.at("b"), 3, config).unwrap();
        let made = Conv2d::new(&scope.at("c"), 3, 3, 3).unwrap();
        let spectral = SpectralNorm::new(&scope.at("c"), made).unwrap();
        let x = Tensor::ones(&[4, 3, 8, 8], &device).unwrap().cumsum(3).unwrap();
        let buffers = [norm.named_buffers(), instance.named_buffers(), spectral.named_buffers()].concat();
        let block = {
            let (norm, instance, spectral) = (norm.clone(), instance.clone(), Arc::new(spectral));
            move |x: &[Tensor]| spectral.forward(&instance.forward(&norm.forward(&x[0])?)?.relu()?)?.sin()
        };
        let mut all = Vec::new();
        for _ in 0..2 {
            let y = match is_checkpointed {
                true => checkpoint(block.clone(), &[&x]).unwrap(),
                false => block(std::slice::from_ref(&x)).unwrap(),
            };
            y.sum().unwrap().backward().unwrap();
            all.push(norm.parameters()[0].grad().unwrap().to_vec::<f32>().unwrap());
        }
        let floats = buffers.iter().filter(|(_, buffer)| buffer.dtype().is_float());
        all.extend(floats.map(|(_, buffer)| buffer.to_vec::<f32>().unwrap()));
        all
    };
    assert_eq!(run(true), run(false));
}

/// GPT-2 with 124 million parameters, 8 × 1,024: what its blocks keep is what the budget says.
#[test]
fn the_activations_of_gpt2_stay_within_their_budget() {
    let run = |budget: u64| {
        let device = Device::sim(SimConfig::like("H100").unwrap());
        let mut model = Gpt2::new(&Scope::new(&device, 1), Gpt2Config::small()).unwrap();
        model.checkpoint_within(Budget::Bytes(budget));
        let x = Tensor::from_slice(&vec![7i64; 8 * 1024], &[8, 1024], &device).unwrap();
        let hidden = model.hidden(&x).unwrap();
        let kept = device.memory_by_category()[Category::Activation];
        drop(hidden);
        model.loss(&x, &x).unwrap().backward().unwrap();
        (kept, device.max_memory_allocated())
    };
    let (all, peak) = run(u64::MAX);
    for part in [2, 3, 5] {
        let budget = all / part;
        let (kept, less) = run(budget);
        println!("{} MiB of {}: peak {} MiB of {}", kept >> 20, all >> 20, less >> 20, peak >> 20);
        // The embedding and the last normalization also keep a few bytes.
        assert!(kept <= budget + (30 << 20), "{kept} of {budget}");
        assert!((peak - less) as f64 > 0.8 * (all - budget) as f64, "{less} of {peak}");
    }
}
