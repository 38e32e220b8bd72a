//! Models that train under a limit, with `Device::rematerialize` and nothing else.

#![allow(clippy::print_stdout, reason = "figures for the measurements")]

use plimsoll::autocast::autocast;
use plimsoll::members;
use plimsoll::models::{
    Gpt2, Gpt2Config, Llama, LlamaConfig, ResNet, ResNetConfig, UNet, UNetConfig, Vgg, VggConfig, Vit,
    VitConfig,
};
use plimsoll::nn::{Dropout, LSTM, LayerNorm, Linear, Module, RecurrentOptions, Scope};
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

/// A model for images, and its loss on a batch of `[batch, 3, side, side]`.
fn images<M: Module + 'static>(
    device: &Device,
    (batch, side): (usize, usize),
    model: impl Fn(&Scope) -> Result<M>,
    loss: impl Fn(&Tensor) -> Result<Tensor> + 'static,
) -> Built {
    let model = model(&Scope::new(device, 1)).unwrap();
    let x = Tensor::randn(&[batch, 3, side, side], device).unwrap();
    (Box::new(model), Box::new(move |model| loss(&model.forward(&x)?)))
}

/// A user's model: a recurrent layer, a change in place, dropout, and a normalization.
struct Own {
    lstm: LSTM,
    norm: LayerNorm,
    dropout: Dropout,
    out: Linear,
}

impl Own {
    fn new(scope: &Scope) -> Result<Own> {
        Ok(Own {
            lstm: LSTM::new(&scope.at("lstm"), 512, 512, RecurrentOptions::default())?,
            norm: LayerNorm::new(&scope.at("norm"), 512)?,
            dropout: Dropout::new(&scope.at("dropout"), 0.1)?,
            out: Linear::new(&scope.at("out"), 512, 10)?,
        })
    }
}

impl Module for Own {
    members!(lstm, norm, dropout, out);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for _ in 0..6 {
            let y = self.norm.forward(&x)?;
            y.mul_scalar_(0.5)?;
            x = self.dropout.forward(&y.gelu()?.tanh()?)?.sin()?;
        }
        self.out.forward(&Module::forward(&self.lstm, &x)?)
    }
}

#[test]
fn any_model_on_a_simulated_gpu_trains_with_half_of_its_activations() {
    let classes = |logits: &Tensor| {
        let labels =
            Tensor::from_slice(&vec![3i64; logits.shape()[0]], &logits.shape()[..1], logits.device())?;
        logits.cross_entropy(&labels)
    };
    let squared = |out: &Tensor| (out * out)?.mean();
    let gpt2_small =
        |device: &Device| gpt2(device, Gpt2Config { dropout: 0.0, ..Gpt2Config::small() }, 8, 1024);
    let vgg = VggConfig { dropout: 0.0, ..VggConfig::vgg16() };
    let models: Vec<(&str, Box<Make>)> = vec![
        ("GPT-2", Box::new(gpt2_small)),
        ("Llama", Box::new(|device| llama(device, LlamaConfig::llama_350m(), 8, 1024))),
        ("ResNet", Box::new(|device| resnet(device, ResNetConfig::resnet50(), 64, 224))),
        (
            "ViT",
            Box::new(move |device| images(device, (64, 224), |s| Vit::new(s, VitConfig::b_16()), classes)),
        ),
        ("VGG", Box::new(move |device| images(device, (64, 224), |s| Vgg::new(s, vgg.clone()), classes))),
        (
            "U-Net",
            Box::new(move |device| {
                images(device, (8, 256), |s| UNet::new(s, UNetConfig::new(3, 2)), squared)
            }),
        ),
        (
            "user's",
            Box::new(move |device| {
                let model = Own::new(&Scope::new(device, 1)).unwrap();
                let x = Tensor::randn(&[64, 512, 512], device).unwrap();
                (Box::new(model), Box::new(move |model| squared(&model.forward(&x)?)))
            }),
        ),
    ];
    for (name, make) in &models {
        let run = |limit: Option<u64>| {
            let device = Device::sim(SimConfig::like("H200").unwrap());
            // In VGG, half of the free bytes would be in segments with a few bytes in use.
            device.set_allocator_settings("expandable_segments:True").unwrap();
            if limit.is_some() {
                device.rematerialize();
            }
            device.set_memory_limit(limit);
            let (done, spans) = device.record_timeline(|| trained(&device, Some(DType::BF16), make));
            done.unwrap_or_else(|error| panic!("{name}: {error}"));
            let seconds: f64 = spans.iter().map(|span| span.duration.as_secs_f64()).sum();
            (device.max_memory_reserved(), device.peak_by_category()[Category::Activation], seconds)
        };
        let (reserved, activations, seconds) = run(None);
        let limit = reserved - activations / 2;
        let (less, _, longer) = run(Some(limit));
        println!(
            "{name}: {less} of {reserved} bytes, {activations} of activations: {:.3} times as long",
            longer / seconds
        );
        // As in PyTorch, the limit is compared before expandable segments map whole pages.
        assert!(less <= limit + (4 << 20), "{name}");
        assert!(longer < 1.35 * seconds, "{name}: {}", longer / seconds);
    }
}
