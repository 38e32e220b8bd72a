//! Compares complete training programs on a GPU with the CPU, from the same weights: `cargo run --release --example
//! check_programs -- cuda:0`.
//!
//! The programs are a GAN with transposed convolutions, a tagger with a bidirectional LSTM over packed sequences, a U-Net with
//! group normalization and interpolation in `float32` and under autocast, and a Llama with grouped-query attention under autocast
//! to `float16` with a scaler. For each it prints the losses on both devices, and fails if they differ by more than the stated
//! tolerance.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use plimsoll::amp::{GradScaler, GradScalerState};
use plimsoll::autocast::autocast;
use plimsoll::models::{Llama, LlamaConfig};
use plimsoll::nn::{
    BatchNorm2d, Conv2d, ConvTranspose2d, ConvTransposeConfig, Embedding, GroupNorm, LSTM, Linear,
    PackedSequence, RecurrentOptions,
};
use plimsoll::prelude::*;
use plimsoll::{
    CrossEntropyOptions, InterpolateMode, MaxPool2dOptions, ResizeTo, Result, allow_tf32_in_convolutions,
};
use support::{Arguments, Failure};

/// Numbers from -1 to 1.
fn noise(shape: &[usize], seed: usize, device: &Device) -> Result<Tensor> {
    let at = |i: usize| (12.9898 * i as f64 + 0.7 * seed as f64).sin() * 1000.0 % 1.0;
    let all: Vec<f32> =
        (0..shape.iter().product::<usize>()).map(|i| (2.0 * at(i).abs() - 1.0) as f32).collect();
    Tensor::from_slice(&all, shape, device)
}

/// Integers below `below`.
fn numbers(shape: &[usize], seed: usize, below: usize, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let number = |i: usize| ((i * 7919 + seed * 104_729) * 31 % 65_537 % below) as i64;
    Tensor::from_slice(&(0..count).map(number).collect::<Vec<_>>(), shape, device)
}

/// Sets the same initial values on each device.
fn fill(model: &dyn Module) -> Result<()> {
    for (nth, parameter) in model.parameters().into_iter().enumerate() {
        if parameter.rank() > 1 {
            let fan_in: usize = parameter.shape()[1..].iter().product();
            let values = noise(parameter.shape(), nth, parameter.device())?;
            let values = values.mul_scalar((3.0 / fan_in as f64).sqrt())?;
            no_grad(|| parameter.copy_(&values))?;
        }
    }
    Ok(())
}

struct Painter {
    first: ConvTranspose2d,
    norm1: BatchNorm2d,
    second: ConvTranspose2d,
    norm2: BatchNorm2d,
    last: ConvTranspose2d,
}

impl Module for Painter {
    members!(first, norm1, second, norm2, last);

    fn forward(&self, z: &Tensor) -> Result<Tensor> {
        let x = self.norm1.forward(&self.first.forward(z)?)?.relu()?;
        let x = self.norm2.forward(&self.second.forward(&x)?)?.relu()?;
        self.last.forward(&x)?.tanh()
    }
}

struct Judge {
    first: Conv2d,
    second: Conv2d,
    norm: BatchNorm2d,
    out: Linear,
}

impl Module for Judge {
    members!(first, second, norm, out);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x)?.leaky_relu(0.2)?;
        let x = self.norm.forward(&self.second.forward(&x)?)?.leaky_relu(0.2)?;
        self.out.forward(&x.flatten(1, -1)?)
    }
}

fn gan(device: &Device) -> Result<Vec<f32>> {
    let s = Scope::new(device, 1);
    let up =
        |name: &str, inputs, outputs, config| ConvTranspose2d::with(&s.at(name), inputs, outputs, config);
    let twice = || ConvTransposeConfig::new(4).stride(2).padding(1);
    let painter = Painter {
        first: up("first", 16, 32, ConvTransposeConfig::new(4).without_bias())?,
        norm1: BatchNorm2d::new(&s.at("norm1"), 32)?,
        second: up("second", 32, 16, twice())?,
        norm2: BatchNorm2d::new(&s.at("norm2"), 16)?,
        last: up("last", 16, 3, twice())?,
    };
    let judge = Judge {
        first: Conv2d::new(&s.at("j1"), 3, 16, 4)?.stride(2).padding(1),
        second: Conv2d::new(&s.at("j2"), 16, 32, 4)?.stride(2).padding(1),
        norm: BatchNorm2d::new(&s.at("norm"), 32)?,
        out: Linear::new(&s.at("out"), 32 * 16, 1)?,
    };
    fill(&painter)?;
    fill(&judge)?;
    let options = AdamOptions { lr: 2e-4, betas: (0.5, 0.999), ..AdamOptions::default() };
    let (mut of_painter, mut of_judge) =
        (Adam::new(painter.parameters(), options), Adam::new(judge.parameters(), options));
    let bce = |x: &Tensor, target: f64| {
        x.binary_cross_entropy_with_logits(&x.detach().full_like(target)?, None, None, Reduction::Mean)
    };
    let mut losses = Vec::new();
    for step in 0..6 {
        let (real, z) = (noise(&[8, 3, 16, 16], step, device)?, noise(&[8, 16, 1, 1], 90 + step, device)?);
        of_judge.zero_grad();
        let fake = painter.forward(&z)?;
        let loss = (&bce(&judge.forward(&real)?, 1.0)? + &bce(&judge.forward(&fake.detach())?, 0.0)?)?;
        loss.backward()?;
        of_judge.step()?;
        of_painter.zero_grad();
        let fooled = bce(&judge.forward(&fake)?, 1.0)?;
        fooled.backward()?;
        of_painter.step()?;
        losses.extend([loss.item::<f32>()?, fooled.item::<f32>()?]);
    }
    Ok(losses)
}

struct Tagger {
    embed: Embedding,
    lstm: LSTM,
    out: Linear,
}

impl Module for Tagger {
    members!(embed, lstm, out);
}

fn tagger(device: &Device) -> Result<Vec<f32>> {
    let s = Scope::new(device, 1);
    let options = RecurrentOptions {
        num_layers: 2,
        bidirectional: true,
        batch_first: true,
        ..RecurrentOptions::default()
    };
    let model = Tagger {
        embed: Embedding::new(&s.at("embed"), 50, 24)?.padding_idx(0),
        lstm: LSTM::new(&s.at("lstm"), 24, 20, options)?,
        out: Linear::new(&s.at("out"), 40, 7)?,
    };
    fill(&model)?;
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.5, momentum: 0.9, ..SgdOptions::default() });
    let lengths = [17, 31, 5, 24, 31, 1];
    let criterion = CrossEntropyOptions { ignore_index: 0, ..CrossEntropyOptions::default() };
    let mut losses = Vec::new();
    for step in 0..8 {
        let words = numbers(&[6, 31], step, 50, device)?;
        let tags = numbers(&[6, 31], 50 + step, 7, device)?;
        sgd.zero_grad();
        let packed = PackedSequence::pack_padded(&model.embed.forward(&words)?, &lengths, true)?;
        let (out, _) = model.lstm.forward_packed(&packed, None)?;
        let (out, _) = out.pad(true, 0.0, None)?;
        let loss = model.out.forward(&out)?.transpose(1, 2)?.cross_entropy_with(&tags, criterion)?;
        loss.backward()?;
        clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
        sgd.step()?;
        losses.push(loss.item::<f32>()?);
    }
    Ok(losses)
}

struct Block {
    conv: Conv2d,
    norm: GroupNorm,
}

impl Module for Block {
    members!(conv, norm);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)?.silu()
    }
}

struct UNet {
    down1: Block,
    down2: Block,
    middle: Block,
    up2: Block,
    up1: Block,
    out: Conv2d,
}

impl Module for UNet {
    members!(down1, down2, middle, up2, up1, out);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let half = |x: &Tensor| x.max_pool2d(MaxPool2dOptions::square(2));
        let twice = |x: &Tensor| {
            x.interpolate(ResizeTo::Scale(&[2.0]), InterpolateMode::Linear { align_corners: false })
        };
        let first = self.down1.forward(x)?;
        let second = self.down2.forward(&half(&first)?)?;
        let x = self.middle.forward(&half(&second)?)?;
        let x = self.up2.forward(&Tensor::cat(&[&twice(&x)?, &second], 1)?)?;
        let x = self.up1.forward(&Tensor::cat(&[&twice(&x)?, &first], 1)?)?;
        self.out.forward(&x)
    }
}

fn unet(device: &Device, short: bool) -> Result<Vec<f32>> {
    let s = Scope::new(device, 1);
    let block = |name: &str, inputs, outputs| -> Result<Block> {
        let at = s.at(name);
        Ok(Block {
            conv: Conv2d::new(&at.at("conv"), inputs, outputs, 3)?.padding(1),
            norm: GroupNorm::new(&at.at("norm"), 4, outputs)?,
        })
    };
    let model = UNet {
        down1: block("down1", 3, 16)?,
        down2: block("down2", 16, 32)?,
        middle: block("middle", 32, 64)?,
        up2: block("up2", 96, 32)?,
        up1: block("up1", 48, 16)?,
        out: Conv2d::new(&s.at("out"), 16, 1, 1)?,
    };
    fill(&model)?;
    let mut adam = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-3, ..AdamWOptions::default() });
    let mut losses = Vec::new();
    for step in 0..6 {
        let images = noise(&[3, 3, 24, 40], step, device)?;
        let wanted = images.mean_dims(&[1])?.unsqueeze(1)?.gt_scalar(0)?.float()?;
        adam.zero_grad();
        let logits = || model.forward(&images);
        let logits = if short { autocast(DType::BF16, logits)? } else { logits()? }.float()?;
        let p = logits.sigmoid()?;
        let overlap = (&(&p * &wanted)?.sum()?.mul_scalar(2)? / &(&p.sum()? + &wanted.sum()?)?)?;
        let bce = logits.binary_cross_entropy_with_logits(&wanted, None, None, Reduction::Mean)?;
        let loss = (&bce - &overlap)?.add_scalar(1)?;
        loss.backward()?;
        adam.step()?;
        losses.push(loss.item::<f32>()?);
    }
    Ok(losses)
}

fn llama(device: &Device) -> Result<Vec<f32>> {
    let config = LlamaConfig {
        vocab_size: 300,
        hidden_size: 128,
        intermediate_size: 344,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    let model = Llama::new(&Scope::new(device, 1), config)?;
    fill(&model)?;
    let mut adam = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-3, ..AdamWOptions::default() });
    let start = GradScaler::default().state_dict();
    let mut scaler =
        GradScaler::new(GradScalerState { scale: f64::from(1 << 24), growth_interval: 2, ..start });
    let mut losses = Vec::new();
    for step in 0..8 {
        let [x, y] = [0, 1].map(|i| numbers(&[3, 77], 2 * step + i, 300, device));
        let loss = autocast(DType::F16, || model.loss(&x?, &y?))?.float()?;
        scaler.scale(&loss)?.backward()?;
        scaler.unscale_(&adam)?;
        clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
        scaler.step(&mut adam)?;
        scaler.update();
        adam.zero_grad();
        losses.extend([loss.item::<f32>()?, (scaler.get_scale() as f32).log2()]);
    }
    Ok(losses)
}

/// A program, which returns its losses.
type Program = fn(&Device) -> Result<Vec<f32>>;

fn main() -> std::result::Result<(), Failure> {
    let arguments = Arguments::read();
    let device = arguments.device()?;
    // The CPU computes in 32 bits.
    allow_tf32_in_convolutions(false);
    let programs: [(&str, f32, Program); 5] = [
        ("GAN of transposed convolutions", 1e-4, gan),
        ("tagger with a bidirectional LSTM", 1e-4, tagger),
        ("U-Net", 1e-4, |device| unet(device, false)),
        ("U-Net under autocast to bfloat16", 1e-2, |device| unet(device, true)),
        ("Llama in float16 with a scaler", 1e-2, llama),
    ];
    let mut differ = 0;
    for (name, allowed, program) in programs {
        let (here, there) = (program(&Device::cpu())?, program(&device)?);
        let worst =
            here.iter().zip(&there).map(|(a, b)| (a - b).abs() / a.abs().max(0.1)).fold(0.0, f32::max);
        let is_right =
            here.len() == there.len() && worst <= allowed && there.iter().all(|loss| loss.is_finite());
        println!("{name}: {there:.5?}, at most {worst:.1e} from the CPU's of {allowed:.0e} allowed");
        differ += usize::from(!is_right);
    }
    if differ == 0 { Ok(()) } else { Err(format!("{differ} programs differ from the CPU's").into()) }
}
