//! Training steps of models for images: time, losses and peaks. `cargo run --release --example vision_step -- cuda:0 resnet50 128 bf16`.
//!
//! Arguments: device (`cpu`, `cuda:N`, `sim:GPU`), model (`lenet`, `resnet18`, `resnet50`, `resnet50-recompute`), batch, `f32`, `f32-exact`
//! (without TF32) or `bf16` (autocast), steps, size of the images, `nhwc` (channels-last) or `nchw`, and the learning rate. Weights and
//! images are drawn; SGD with momentum. A last argument `times` shows the slowest kernels of one more step.
//! With `--capture`, steps are captured after the third and replayed.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use std::time::Instant;

use plimsoll::autocast::autocast;
use plimsoll::models::{ResNet, ResNetConfig};
use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Scope, Sequential};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{CapturedStep, DType, MemoryFormat, Result, Tensor};
use support::Arguments;

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

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::read();
    let arg = |number: usize, default: &str| arguments.get(number, default);
    let device = arguments.device()?;
    let (model, batch, short) = (arg(1, "lenet"), arg(2, "64").parse::<usize>()?, arg(3, "f32") == "bf16");
    plimsoll::allow_tf32_in_convolutions(arg(3, "f32") != "f32-exact");
    let (steps, last) = (arg(4, "20").parse::<usize>()?, arg(6, "nhwc") == "nhwc");
    let scope = Scope::new(&device, 1);
    let (mut model, channels, classes): (Box<dyn Module>, usize, usize) = match model.as_str() {
        "lenet" => (Box::new(lenet(&scope)?), 1, 10),
        "resnet18" => (Box::new(ResNet::new(&scope, ResNetConfig::resnet18())?), 3, 1000),
        "resnet50" => (Box::new(ResNet::new(&scope, ResNetConfig::resnet50())?), 3, 1000),
        "resnet50-recompute" => {
            (Box::new(ResNet::new(&scope, ResNetConfig::resnet50())?.recompute_activations()), 3, 1000)
        }
        _ => return Err("a model is lenet, resnet18, resnet50 or resnet50-recompute".into()),
    };
    let size = arg(5, if channels == 1 { "28" } else { "224" }).parse::<usize>()?;
    if last {
        model.to_memory_format(MemoryFormat::ChannelsLast)?;
    }
    let options = SgdOptions { lr: arg(7, "0.1").parse()?, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options);
    let pixels = batch * channels * size * size;
    let drawn: Vec<f32> =
        (0..pixels as u64).map(|i| (i.wrapping_mul(2_654_435_761) % 2001) as f32 / 1000.0 - 1.0).collect();
    let images =
        Tensor::from_slice(&drawn, &[batch, size, size, channels], &device)?.permute(&[0, 3, 1, 2])?;
    let images = if last { images } else { images.contiguous()? };
    let labels: Vec<i64> = (0..batch as i64).map(|i| i * 7919 % classes as i64).collect();
    let labels = Tensor::from_slice(&labels, &[batch], &device)?;
    let (mut times, mut hosts, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let mut captured = CapturedStep::new(&device);
    let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
        let loss = || model.forward(&inputs[0])?.cross_entropy(&inputs[1]);
        let loss = if short { autocast(DType::BF16, loss)? } else { loss()? };
        optimizers[0].zero_grad();
        loss.backward()?;
        optimizers[0].step()?;
        Ok(vec![loss])
    };
    for _ in 0..steps {
        let start = Instant::now();
        let outputs = match arguments.captures {
            true => captured.run(&[&images, &labels], &mut [&mut sgd], step)?,
            false => step(&[images.clone(), labels.clone()], &mut [&mut sgd])?,
        };
        let queued = start.elapsed().as_secs_f64() * 1e3;
        let loss = outputs[0].detach();
        device.synchronize()?;
        hosts.push(queued);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if device.has_values() && losses.len() < 8 {
            losses.push(loss.float()?.item::<f32>()?);
        }
    }
    let shown: Vec<String> = losses.iter().map(|loss| format!("{loss:.5}")).collect();
    println!("losses {}", shown.join(" "));
    let first = times[0];
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    hosts.sort_by(f64::total_cmp);
    println!("the host queues a step in {:.3} ms", hosts[hosts.len() / 2]);
    println!("first step {first:.1} ms, median {median:.2} ms, {:.0} images/s", batch as f64 / median * 1e3);
    println!("peak allocated {} reserved {}", device.max_memory_allocated(), device.max_memory_reserved());
    arguments.show_kernel_times(|| step(&[images.clone(), labels.clone()], &mut [&mut sgd]).map(drop))?;
    Ok(())
}
