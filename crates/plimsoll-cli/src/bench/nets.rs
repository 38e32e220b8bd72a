//! The networks of `bench step`, which are those of `../shared/tools/peers`, with their batches, their optimizers and the
//! work of a step.

use clap::ValueEnum;
use plimsoll::models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use plimsoll::nn::{Linear, Module, ReLU, Scope, Sequential};
use plimsoll::optim::{Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::{Device, MemoryFormat, Result, Tensor};

use super::floor::Work;
use crate::lenet::lenet;

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Net {
    /// LeNet, batch 64, SGD with momentum
    Lenet,
    /// 784-1024-1024-10, batch 256, Adam
    Mlp,
    /// 6 blocks of width 384, 8 sequences of 256 tokens, AdamW; its head is tied to the embedding
    Gpt,
    /// ResNet-18 in training mode, 8 images of 224 × 224, channels last, SGD with momentum
    #[allow(clippy::doc_markdown, reason = "the text of --help")]
    Resnet18,
    /// Like resnet18, with row-major images (NCHW)
    #[value(name = "resnet18-nchw")]
    Resnet18RowMajor,
}

/// A network with everything that a step needs.
pub(crate) struct Ready {
    pub(crate) parameters: Vec<Tensor>,
    pub(crate) optimizer: Box<dyn Optimizer>,
    pub(crate) loss: Box<dyn Fn() -> Result<Tensor>>,
}

impl Net {
    /// The name that the peers use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Net::Lenet => "lenet",
            Net::Mlp => "mlp",
            Net::Gpt => "gpt",
            Net::Resnet18 => "resnet18",
            Net::Resnet18RowMajor => "resnet18-nchw",
        }
    }

    /// The work of a step: the forward pass, the gradient of the weights, and the gradient of every input
    /// except the batch.
    pub(crate) fn work(self) -> Work {
        match self {
            Net::Lenet => Work { flop: FLOP, bytes: Some(BYTES), items: 64, unit: "images" },
            Net::Mlp => {
                let products = 2.0 * 784.0 * 1024.0 + 3.0 * 1024.0 * (1024.0 + 10.0);
                Work { flop: 2.0 * 256.0 * products, bytes: None, items: 256, unit: "images" }
            }
            Net::Gpt => {
                let (tokens, width, layers) = (2048.0, 384.0, 6.0);
                let weights = 3.0 * tokens * (layers * 12.0 * width * width + 256.0 * width);
                // Seven products, each of half a matrix of scores: two forward, five backward.
                let attention = 7.0 * layers * tokens * 256.0 / 2.0 * width;
                Work { flop: 2.0 * (weights + attention), bytes: None, items: 2048, unit: "tokens" }
            }
            Net::Resnet18 | Net::Resnet18RowMajor => {
                let flop = 2.0 * 8.0 * (3.0 * resnet18_products() - RESNET_CONV1);
                Work { flop, bytes: None, items: 8, unit: "images" }
            }
        }
    }

    /// Builds the network on a device, with one fixed batch.
    pub(crate) fn build(self, device: &Device) -> Result<Ready> {
        let scope = Scope::new(device, 1);
        match self {
            Net::Lenet => {
                let model = lenet(&scope, 28, 28)?;
                let options = SgdOptions { lr: 0.01, momentum: 0.9, ..SgdOptions::default() };
                let sgd = Sgd::new(model.parameters(), options);
                classifier(model, Box::new(sgd), &[64, 1, 28, 28])
            }
            Net::Mlp => {
                let model = Sequential::new(&scope)
                    .push(|s| Linear::new(s, 784, 1024))?
                    .push(ReLU::new)?
                    .push(|s| Linear::new(s, 1024, 1024))?
                    .push(ReLU::new)?
                    .push(|s| Linear::new(s, 1024, 10))?;
                let adam = Adam::new(model.parameters(), AdamOptions::default());
                classifier(model, Box::new(adam), &[256, 784])
            }
            Net::Gpt => {
                let config = Gpt2Config {
                    vocab_size: 256,
                    n_positions: 256,
                    n_embd: 384,
                    n_layer: 6,
                    n_head: 6,
                    dropout: 0.0,
                    ..Gpt2Config::small()
                };
                let model = Gpt2::new(&scope, config)?;
                let options = AdamWOptions { lr: 3e-4, weight_decay: 0.1, ..AdamWOptions::default() };
                let optimizer = Box::new(AdamW::new(model.parameters(), options));
                let token = |i: i64| i * i % 251 + i % 5;
                let tokens = |shift: i64| {
                    let values: Vec<i64> = (0..2048).map(|i| token(i + shift)).collect();
                    Tensor::from_slice(&values, &[8, 256], device)
                };
                let (x, y) = (tokens(0)?, tokens(1)?);
                let parameters = model.parameters();
                Ok(Ready { parameters, optimizer, loss: Box::new(move || model.loss(&x, &y)) })
            }
            Net::Resnet18 | Net::Resnet18RowMajor => {
                let mut model = ResNet::new(&scope, ResNetConfig::resnet18())?;
                if self == Net::Resnet18 {
                    model.to_memory_format(MemoryFormat::ChannelsLast)?;
                }
                let options = SgdOptions { lr: 0.01, momentum: 0.9, ..SgdOptions::default() };
                let sgd = Sgd::new(model.parameters(), options);
                classifier(model, Box::new(sgd), &[8, 3, 224, 224])
            }
        }
    }
}

fn classifier<M: Module + 'static>(
    model: M,
    optimizer: Box<dyn Optimizer>,
    shape: &[usize],
) -> Result<Ready> {
    let parameters = model.parameters();
    let device = parameters[0].device().clone();
    device.manual_seed(2);
    let mut images = Tensor::randn(shape, &device)?;
    if parameters[0].is_in_memory_format(MemoryFormat::ChannelsLast) {
        images = images.to_memory_format(MemoryFormat::ChannelsLast)?;
    }
    let classes: Vec<i64> = (0..shape[0] as i64).map(|i| i * 7 % 10).collect();
    let labels = Tensor::from_slice(&classes, &shape[..1], &device)?;
    let loss = Box::new(move || model.forward(&images)?.cross_entropy(&labels));
    Ok(Ready { parameters, optimizer, loss })
}

/// Multiply-adds per image of `ResNet`-18's first convolution.
const RESNET_CONV1: f64 = 64.0 * 3.0 * 49.0 * 112.0 * 112.0;

/// Multiply-adds per image of `ResNet`-18. Each of its four stages has four convolutions of 3 × 3. From the second stage on,
/// the first convolution has half the input channels, and a convolution of 1 × 1 runs in parallel to it.
fn resnet18_products() -> f64 {
    let stage = |channels: f64, size: f64, halves: bool| {
        let conv = 9.0 * channels * channels * size * size;
        if halves { 3.5 * conv + conv / 18.0 } else { 4.0 * conv }
    };
    let stages = stage(64.0, 56.0, false)
        + stage(128.0, 28.0, true)
        + stage(256.0, 14.0, true)
        + stage(512.0, 7.0, true);
    RESNET_CONV1 + stages + 512.0 * 1000.0
}

/// Images in LeNet's batch.
const N: f64 = 64.0;
/// Multiply-adds per image of the two convolutions and of the fully connected layers.
const CONV1: f64 = 32.0 * 25.0 * 28.0 * 28.0;
const CONV2: f64 = 64.0 * 800.0 * 10.0 * 10.0;
const FC: f64 = 1600.0 * 120.0 + 120.0 * 84.0 + 84.0 * 10.0;
/// Operations of a step: the forward pass, the gradient of the weights, and the gradient of every input
/// except the images. A multiply-add counts as two.
const FLOP: f64 = 2.0 * N * (2.0 * CONV1 + 3.0 * CONV2 + 3.0 * FC);

/// Elements of the outputs of conv1, pool1, conv2 and pool2 for a batch, and of all weights.
const C1: f64 = N * 32.0 * 784.0;
const P1: f64 = N * 32.0 * 196.0;
const C2: f64 = N * 64.0 * 100.0;
const P2: f64 = N * 64.0 * 25.0;
const WEIGHTS: f64 = 255_230.0;
/// Bytes of a step if each kernel reads its inputs and writes its outputs once. Each convolution's output is
/// written, read and written by relu, and read by the pooling. In the backward pass, the gradient of that
/// output is written by the pooling, read (with relu's output) and written by relu, and read for the
/// gradients of weight and bias, in conv2 also for that of the input. The pooled output is written, with an
/// index of one byte, and read three times. Weights are read twice, their gradients are written, and the
/// optimizer step reads three arrays and writes two.
const BYTES: f64 = 4.0 * (10.0 * C1 + 11.0 * C2 + 4.5 * (P1 + P2) + 8.0 * WEIGHTS);
