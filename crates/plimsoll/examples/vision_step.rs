//! Measures training steps of image models: time, losses and peaks. `cargo run --release --example vision_step -- cuda:0 resnet50
//! 128 bf16`.
//!
//! Arguments: device (`cpu`, `cuda:N`, `sim:GPU`), model (with SGD and momentum: `lenet`, `resnet18`, `resnet50`, `resnet1001`; with AdamW: `vit-tiny`,
//! `vit-b16`), batch size, `f32`, `f32-exact` (without TF32), `bf16` (autocast) or `bf16-model` (a ViT with parameters in 16 bits
//! and 32-bit copies in the optimizer), number of steps, size of the images, `nhwc` (channels-last) or `nchw`, and the learning
//! rate. Weights and images are random. Options:
//!
//! - `recompute=…`: for a ViT, the number of layers whose MLP recomputes its first product (or `peak=6.5e9`: the smallest number
//!   with which training reserves at most this many bytes); for a ResNet, `activations` inside blocks, or also the `outputs` of
//!   every second block, or also the last convolutions of bottlenecks (`expansions`);
//! - for a ResNet, `budget=BYTES` or `budget=auto`: blocks are checkpointed so that they keep at most this many bytes, or as few as
//!   possible;
//! - `host=BYTES`: with `budget`, blocks may also wait in pinned host memory, at most this many bytes; without, `offload=BYTES`: saved tensors
//!   wait there as far as their copies are hidden, at most this many bytes;
//! - `limit=BYTES`: a limit of reserved bytes, within which tensors are evicted and computed again;
//! - `settings=…`: allocator settings in the format of `PYTORCH_ALLOC_CONF`; by default that variable's value, or expandable
//!   segments if it is not set;
//! - `--capture`: steps are captured after the third and replayed;
//! - `snapshot=FILE`: the device's memory history, for `plimsoll explain`;
//! - `checksum` shows a checksum of the bits of all losses and parameters after the steps;
//! - `times` shows the slowest kernels of one more step.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use plimsoll::autocast::autocast;
use plimsoll::models::{ResNet, ResNetConfig, Vit, VitConfig};
use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, ReLU};
use plimsoll::offload::OffloadActivations;
use plimsoll::prelude::*;
use plimsoll::{CapturedStep, MemoryFormat, Result};
use support::{Arguments, Failure, Trained};

fn lenet(scope: &Scope) -> Result<Sequential> {
    Sequential::new(scope)
        .push(|s| Ok(Conv2d::new(s, 1, 32, 5)?.padding(2)))?
        .push(ReLU::new)?
        .push(|s| MaxPool2d::new(s, 2))?
        .push(|s| Conv2d::new(s, 32, 64, 5))?
        .push(ReLU::new)?
        .push(|s| MaxPool2d::new(s, 2))?
        .push(Flatten::new)?
        .push(|s| Linear::new(s, 1600, 120))?
        .push(ReLU::new)?
        .push(|s| Linear::new(s, 120, 84))?
        .push(ReLU::new)?
        .push(|s| Linear::new(s, 84, 10))
}

fn resnet(
    scope: &Scope,
    config: ResNetConfig,
    arguments: &Arguments,
) -> std::result::Result<ResNet, Failure> {
    let model = ResNet::new(scope, config)?;
    let mut model = match arguments.option("recompute").unwrap_or_default() {
        "" => model,
        "activations" => model.recompute_activations(),
        "outputs" => model.recompute_activations().recompute_outputs(),
        "expansions" => model.recompute_activations().recompute_outputs().recompute_expansions(),
        _ => return Err("recompute= is `activations`, `outputs` or `expansions`".into()),
    };
    model.checkpoint_within(arguments.checkpointer()?);
    Ok(model)
}

/// A model, its optimizer and one batch.
struct Training<M> {
    model: M,
    optimizer: Box<dyn Optimizer>,
    images: Tensor,
    labels: Tensor,
    /// Whether the forward pass runs under autocast.
    short: bool,
    /// Offloads what the forward pass saves.
    offload: Option<OffloadActivations>,
}

impl<M: Module> Training<M> {
    /// Trains on images with this many channels, this default height and width, and this many classes.
    fn new(
        arguments: &Arguments,
        device: &Device,
        mut model: M,
        [channels, size, classes]: [usize; 3],
        optimizer: impl FnOnce(Vec<Tensor>) -> std::result::Result<Box<dyn Optimizer>, Failure>,
    ) -> std::result::Result<Training<M>, Failure> {
        let (batch, kind) = (arguments.get(2, "64").parse::<usize>()?, arguments.get(3, "f32"));
        let size = arguments.get(5, &size.to_string()).parse::<usize>()?;
        let last = arguments.get(6, "nhwc") == "nhwc";
        if last {
            model.to_memory_format(MemoryFormat::ChannelsLast)?;
        }
        if kind == "bf16-model" {
            model.bfloat16()?;
        }
        let optimizer = optimizer(model.parameters())?;
        let pixels = (batch * channels * size * size) as u64;
        let drawn: Vec<f32> =
            (0..pixels).map(|i| (i.wrapping_mul(2_654_435_761) % 2001) as f32 / 1000.0 - 1.0).collect();
        let images =
            Tensor::from_slice(&drawn, &[batch, size, size, channels], device)?.permute(&[0, 3, 1, 2])?;
        let images = if last { images } else { images.contiguous()? };
        let images = if kind == "bf16-model" { images.to_dtype(DType::BF16)? } else { images };
        let labels: Vec<i64> = (0..batch as i64).map(|i| i * 7919 % classes as i64).collect();
        let labels = Tensor::from_slice(&labels, &[batch], device)?;
        let offload = arguments.offload()?;
        Ok(Training { model, optimizer, images, labels, short: kind == "bf16", offload })
    }

    fn show(mut self, arguments: &Arguments, device: &Device) -> std::result::Result<(), Failure> {
        let (steps, batch) = (arguments.get(4, "20").parse()?, self.labels.numel());
        support::show(arguments, device, steps, (batch, "images"), &mut self)
    }
}

impl<M: Module> Trained for Training<M> {
    fn model(&self) -> &dyn Module {
        &self.model
    }

    fn step(&mut self, captured: Option<&mut CapturedStep>) -> Result<Tensor> {
        let Training { model, optimizer, images, labels, short, offload } = self;
        let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            let loss = || model.forward(&inputs[0])?.cross_entropy(&inputs[1]);
            let loss = || if *short { autocast(DType::BF16, loss) } else { loss() };
            let loss = offload.as_ref().map_or_else(loss, |offload| offload.run(loss))?;
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        };
        // Done before the step, so that no gradients exist during the forward pass; a captured step makes its own.
        optimizer.zero_grad();
        let outputs = match captured {
            Some(captured) => captured.run(&[&*images, &*labels], &mut [optimizer.as_mut()], step)?,
            None => step(&[images.clone(), labels.clone()], &mut [optimizer.as_mut()])?,
        };
        Ok(outputs[0].detach())
    }
}

/// Trains a model with SGD and momentum.
fn convolutional<M: Module>(
    arguments: &Arguments,
    sizes: [usize; 3],
    make: impl FnOnce(&Scope) -> std::result::Result<M, Failure>,
) -> std::result::Result<(), Failure> {
    let device = arguments.device()?;
    let model = make(&Scope::new(&device, 1))?;
    let sgd = |parameters| -> std::result::Result<Box<dyn Optimizer>, Failure> {
        let lr = arguments.get(7, "0.1").parse()?;
        Ok(Box::new(Sgd::new(parameters, SgdOptions { lr, momentum: 0.9, ..SgdOptions::default() })))
    };
    Training::new(arguments, &device, model, sizes, sgd)?.show(arguments, &device)
}

fn vit(arguments: &Arguments, config: &VitConfig) -> std::result::Result<(), Failure> {
    let training = |recompute_mlp: usize, device: &Device| {
        let model = Vit::new(&Scope::new(device, 1), VitConfig { recompute_mlp, ..config.clone() })?;
        let adamw = |parameters| -> std::result::Result<Box<dyn Optimizer>, Failure> {
            let options = AdamWOptions { lr: arguments.get(7, "3e-4").parse()?, ..AdamWOptions::default() };
            Ok(Box::new(AdamW::new(parameters, options).with_master_weights()))
        };
        Training::new(arguments, device, model, [3, config.image_size, config.num_classes], adamw)
    };
    let recompute = arguments.recomputed(config.num_layers, |recompute, device| {
        let mut training = training(recompute, device).map_err(tensor_error)?;
        (0..3).try_for_each(|_| training.step(None).map(drop))
    })?;
    let device = arguments.device()?;
    training(recompute, &device)?.show(arguments, &device)
}

/// Running out of memory is an expected result while searching for the number of layers.
fn tensor_error(failure: Failure) -> plimsoll::Error {
    match failure.0.downcast::<plimsoll::Error>() {
        Ok(error) => *error,
        Err(other) => plimsoll::Error::Argument { op: "vision_step", message: other.to_string() },
    }
}

fn main() -> std::result::Result<(), Failure> {
    let arguments = Arguments::read();
    plimsoll::allow_tf32_in_convolutions(arguments.get(3, "f32") != "f32-exact");
    let of_resnet = |config: ResNetConfig| {
        convolutional(&arguments, [3, 224, 1000], |scope| resnet(scope, config, &arguments))
    };
    let vit_tiny = VitConfig {
        image_size: 32,
        patch_size: 8,
        num_layers: 2,
        num_heads: 4,
        hidden_dim: 64,
        mlp_dim: 256,
        num_classes: 10,
        ..VitConfig::b_16()
    };
    match arguments.get(1, "lenet").as_str() {
        "lenet" => convolutional(&arguments, [1, 28, 10], |scope| Ok(lenet(scope)?)),
        "resnet18" => of_resnet(ResNetConfig::resnet18()),
        "resnet50" => of_resnet(ResNetConfig::resnet50()),
        // 333 bottleneck blocks of three convolutions, the first convolution and the last layer.
        "resnet1001" => of_resnet(ResNetConfig { layers: [83, 83, 83, 84], ..ResNetConfig::resnet50() }),
        "vit-tiny" => vit(&arguments, &vit_tiny),
        "vit-b16" => vit(&arguments, &VitConfig::b_16()),
        other => {
            Err(format!("no model `{other}`: use lenet, resnet18, resnet50, resnet1001, vit-tiny or vit-b16")
                .into())
        }
    }
}
