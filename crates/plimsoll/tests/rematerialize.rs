//! Models that train under a limit, with `Device::rematerialize` and nothing else.

#![allow(clippy::print_stdout, reason = "figures for the measurements")]

use plimsoll::autocast::autocast;
use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig, ResNet, ResNetConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{Category, CpuConfig, DType, Device, Result, SimConfig, Tensor};

/// A model, and its loss on a batch.
type Built = (Box<dyn Module>, Box<dyn Fn(&dyn Module) -> Result<Tensor>>);

type Make = dyn Fn(&Device) -> Built;

/// Losses, parameters and buffers after two steps.
fn trained(device: &Device, dtype: Option<DType>, make: &Make) -> Result<Vec<Vec<f32>>> {
    device.manual_seed(3);
    let (model, loss) = make(device);
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
    let mut all = Vec::new();
    for _ in 0..2 {
        let loss = autocast(dtype, || loss(model.as_ref()))?;
        loss.backward()?;
        adamw.step()?;
        adamw.zero_grad();
        if device.has_values() {
            all.push(loss.to_vec::<f32>()?);
        }
    }
    if device.has_values() {
        let tensors = model.named_parameters().into_iter().chain(model.named_buffers());
        let floats = tensors.filter(|(_, tensor)| tensor.dtype().is_float());
        all.extend(floats.map(|(_, tensor)| tensor.to_vec::<f32>().unwrap()));
    }
    Ok(all)
}

fn gpt2(device: &Device, config: Gpt2Config, rows: usize, length: usize) -> Built {
    let model = std::sync::Arc::new(Gpt2::new(&Scope::new(device, 1), config).unwrap());
    let ids: Vec<i64> = (0..(rows * length) as i64).map(|i| i * 7 % 100).collect();
    let x = Tensor::from_slice(&ids, &[rows, length], device).unwrap();
    let own = model.clone();
    (Box::new(Shared(model)), Box::new(move |_| own.loss(&x, &x)))
}

fn llama(device: &Device, config: LlamaConfig, rows: usize, length: usize) -> Built {
    let model = std::sync::Arc::new(Llama::new(&Scope::new(device, 1), config).unwrap());
    let ids: Vec<i64> = (0..(rows * length) as i64).map(|i| i * 7 % 100).collect();
    let x = Tensor::from_slice(&ids, &[rows, length], device).unwrap();
    let own = model.clone();
    (Box::new(Shared(model)), Box::new(move |_| own.loss(&x, &x)))
}

fn resnet(device: &Device, config: ResNetConfig, batch: usize, side: usize) -> Built {
    let model = ResNet::new(&Scope::new(device, 1), config).unwrap();
    let x = Tensor::randn(&[batch, 3, side, side], device).unwrap();
    let y = Tensor::from_slice(&vec![3i64; batch], &[batch], device).unwrap();
    (Box::new(model), Box::new(move |model| model.forward(&x)?.cross_entropy(&y)))
}

struct Shared<M>(std::sync::Arc<M>);

impl<M: Module> Module for Shared<M> {
    fn members<'a>(&'a self, list: &mut plimsoll::nn::Members<'a>) {
        self.0.members(list);
    }
    fn members_mut<'a>(&'a mut self, _: &mut plimsoll::nn::MembersMut<'a>) {}
}

#[test]
fn models_train_within_less_to_the_bit() {
    let small = Gpt2Config {
        n_layer: 6,
        n_embd: 128,
        n_head: 2,
        vocab_size: 100,
        dropout: 0.1,
        ..Gpt2Config::small()
    };
    let small_llama = LlamaConfig {
        vocab_size: 100,
        hidden_size: 128,
        intermediate_size: 256,
        num_hidden_layers: 6,
        num_attention_heads: 2,
        num_key_value_heads: 2,
        ..LlamaConfig::llama_350m()
    };
    let small_resnet =
        ResNetConfig { layers: [2, 1, 1, 1], width: 8, num_classes: 10, ..ResNetConfig::resnet18() };
    let builds: Vec<(&str, Box<Make>)> = vec![
        ("GPT-2", Box::new(move |device| gpt2(device, small.clone(), 8, 128))),
        ("Llama", Box::new(move |device| llama(device, small_llama.clone(), 8, 128))),
        ("ResNet", Box::new(move |device| resnet(device, small_resnet.clone(), 32, 128))),
    ];
    for (name, make) in &builds {
        for dtype in [None, Some(DType::BF16)] {
            let device = Device::cpu_with(CpuConfig::default());
            let plain = trained(&device, dtype, make).unwrap();
            let peak = device.max_memory_reserved();
            // Reserved bytes of such small models are whole segments, so what a limit leaves differs.
            let within = |limit: u64| {
                let device = Device::cpu_with(CpuConfig::default());
                assert!(device.rematerialize() && !device.rematerialize());
                device.set_memory_limit(limit);
                let all = trained(&device, dtype, make).ok()?;
                assert!(device.max_memory_reserved() <= limit);
                Some((limit, all))
            };
            let found = [80, 85, 90, 95].into_iter().find_map(|percent| within(peak * percent / 100));
            let (limit, evicted) =
                found.unwrap_or_else(|| panic!("{name}, {dtype:?}: not within 95 % of {peak}"));
            println!("{name} {dtype:?}: {} MiB of {}", limit >> 20, peak >> 20);
            assert!(plain == evicted, "{name}, {dtype:?}");
        }
    }
}

#[test]
fn a_gpt2_on_a_simulated_gpu_trains_with_half_of_its_activations() {
    let make = |device: &Device| gpt2(device, Gpt2Config { dropout: 0.0, ..Gpt2Config::small() }, 8, 1024);
    let run = |limit: Option<u64>| {
        let device = Device::sim(SimConfig::like("H200").unwrap());
        if limit.is_some() {
            device.rematerialize();
        }
        device.set_memory_limit(limit);
        let start = std::time::Instant::now();
        let (done, spans) = device.record_timeline(|| trained(&device, Some(DType::BF16), &make));
        println!("{:?}", start.elapsed());
        done.unwrap();
        let seconds: f64 = spans.iter().map(|span| span.duration.as_secs_f64()).sum();
        (
            device.max_memory_reserved(),
            device.max_memory_allocated(),
            device.peak_by_category()[Category::Activation],
            seconds,
        )
    };
    let (reserved, allocated, activations, seconds) = run(None);
    let (less, less_allocated, _, longer) = run(Some(reserved - activations / 2));
    println!(
        "{allocated} bytes in {seconds:.4} s, {less_allocated} ({less} reserved) in {longer:.4} s: {:.3}",
        longer / seconds
    );
    assert!(less <= reserved - activations / 2);
    assert!(longer < 1.25 * seconds, "{}", longer / seconds);
}
