//! The programs of `bench models`: the model, batch and loss of each.

use plimsoll::models::{
    BertConfig, BertForMaskedLm, Gpt2, Gpt2Config, Llama, LlamaConfig, ResNet, ResNetConfig, Vit, VitConfig,
};
use plimsoll::nn::{Linear, Module, ReLU, Scope, Sequential};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::{DType, Device, Result, Tensor};

use crate::lenet::lenet;

/// A model to train.
pub(super) struct Trained {
    pub(super) parameters: Vec<Tensor>,
    pub(super) loss: Loss,
}

/// Computes the loss from inputs and targets.
type Loss = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor>>;

/// A model and the data that it is trained on.
pub(super) struct Program {
    /// The name in `pytorch.py`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) build: fn(&Device) -> Result<Trained>,
    pub(super) batch: fn(&Device) -> Result<(Tensor, Tensor)>,
}

pub(super) static PROGRAMS: &[Program] = &[
    Program {
        name: "mlp",
        title: "MLP 784-1024-1024-10, batch 256",
        build: |device| {
            let mlp = Sequential::new(&Scope::new(device, 1))
                .push(|s| Linear::new(s, 784, 1024))?
                .push(ReLU::new)?
                .push(|s| Linear::new(s, 1024, 1024))?
                .push(ReLU::new)?
                .push(|s| Linear::new(s, 1024, 10))?;
            Ok(classifier(mlp))
        },
        batch: |device| labelled(device, &[256, 784]),
    },
    Program {
        name: "lenet",
        title: "LeNet, batch 64",
        build: |device| Ok(classifier(lenet(&Scope::new(device, 1), 28, 28)?)),
        batch: |device| labelled(device, &[64, 1, 28, 28]),
    },
    Program {
        name: "resnet50",
        title: "ResNet-50, batch 64",
        build: |device| {
            let model = ResNet::new(&Scope::new(device, 1), ResNetConfig::resnet50())?;
            let parameters = model.parameters();
            Ok(Trained { parameters, loss: Box::new(move |x, y| model.forward(x)?.cross_entropy(y)) })
        },
        batch: |device| labelled(device, &[64, 3, 224, 224]),
    },
    Program {
        name: "vit_b_16",
        title: "ViT-B/16, batch 32",
        build: |device| {
            let model = Vit::new(&Scope::new(device, 1), VitConfig::b_16())?;
            Ok(Trained { parameters: model.parameters(), loss: Box::new(move |x, y| model.loss(x, y)) })
        },
        batch: |device| labelled(device, &[32, 3, 224, 224]),
    },
    Program {
        name: "bert",
        title: "BERT-base, batch 16, 512 tokens",
        build: |device| {
            let config = BertConfig {
                hidden_dropout_prob: 0.0,
                attention_probs_dropout_prob: 0.0,
                ..BertConfig::base()
            };
            let model = BertForMaskedLm::new(&Scope::new(device, 1), config)?;
            Ok(Trained { parameters: model.parameters(), loss: Box::new(move |x, y| model.loss(x, y)) })
        },
        batch: |device| tokens(device, 16, 512),
    },
    Program {
        name: "gpt2",
        title: "GPT-2 124M, batch 8, 1024 tokens",
        build: |device| {
            let config = Gpt2Config { dropout: 0.0, ..Gpt2Config::small() };
            let model = Gpt2::new(&Scope::new(device, 1), config)?;
            Ok(Trained { parameters: model.parameters(), loss: Box::new(move |x, y| model.loss(x, y)) })
        },
        batch: |device| tokens(device, 8, 1024),
    },
    Program {
        name: "llama",
        title: "Llama 350M, batch 4, 2048 tokens",
        build: |device| {
            let model = Llama::new(&Scope::new(device, 1), LlamaConfig::llama_350m())?;
            Ok(Trained { parameters: model.parameters(), loss: Box::new(move |x, y| model.loss(x, y)) })
        },
        batch: |device| tokens(device, 4, 2048),
    },
];

/// The program with this name.
pub(super) fn named(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

/// The optimizer of `pytorch.py` with this name.
pub(super) fn optimizer(name: &str, parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    match name {
        "sgd" => {
            Box::new(Sgd::new(parameters, SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() }))
        }
        _ => Box::new(AdamW::new(parameters, AdamWOptions::default())),
    }
}

fn classifier(model: Sequential) -> Trained {
    Trained { parameters: model.parameters(), loss: Box::new(move |x, y| model.forward(x)?.cross_entropy(y)) }
}

fn labelled(device: &Device, shape: &[usize]) -> Result<(Tensor, Tensor)> {
    Ok((Tensor::randn(shape, device)?, Tensor::empty(&shape[..1], DType::I64, device)?))
}

fn tokens(device: &Device, batch: usize, length: usize) -> Result<(Tensor, Tensor)> {
    let x = Tensor::empty(&[batch, length], DType::I64, device)?;
    Ok((x.clone(), x))
}
