//! Loads a state dict of torchvision or `transformers` by name, runs the model on an input, and compares the output.
//!
//! ```sh
//! python examples/load_state_dict.py FOLDER   # models with random weights, inputs and outputs, by PyTorch
//! cargo run --release --example load_state_dict -- resnet34 FOLDER/resnet34.pt FOLDER/resnet34.io.safetensors
//! ```
//!
//! The second file has the tensors `input` and `output`. To use other sizes than the published ones, add `name=value` arguments,
//! such as `n_layer=2`.

#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::error::Error;

use plimsoll::models::{
    Bert, BertConfig, Gpt2, Gpt2Config, Llama, LlamaConfig, ResNet, ResNetConfig, RopeScaling, Vgg,
    VggConfig, Vit, VitConfig, Yarn,
};
use plimsoll::nn::{Module, Scope};
use plimsoll::serialize::{self, Strict};
use plimsoll::{DType, Device, Tensor, inference_mode};

type Failure = Box<dyn Error>;

/// Sizes given on the command line.
struct Sizes(Vec<(String, String)>);

impl Sizes {
    fn set<T: std::str::FromStr>(&self, name: &str, size: &mut T) -> Result<(), Failure> {
        for (_, value) in self.0.iter().filter(|(given, _)| given == name) {
            *size = value.parse().map_err(|_| format!("{name}={value} is not of the type of `{name}`"))?;
        }
        Ok(())
    }

    fn get<T: std::str::FromStr + Default>(&self, name: &str) -> Result<Option<T>, Failure> {
        let mut size = T::default();
        self.set(name, &mut size)?;
        Ok(self.0.iter().any(|(given, _)| given == name).then_some(size))
    }
}

/// Reads the `rope_parameters` of `transformers`, under their names there.
fn rope_scaling(sizes: &Sizes) -> Result<Option<RopeScaling>, Failure> {
    let (factor, original) = (sizes.get("factor")?, sizes.get("original_max_position_embeddings")?);
    let factor = factor.unwrap_or(1.0);
    Ok(match sizes.get::<String>("rope_type")?.as_deref() {
        None => None,
        Some("linear") => Some(RopeScaling::Linear { factor }),
        Some("dynamic") => {
            let longest = sizes.get("max_position_embeddings")?.unwrap_or(2048);
            Some(RopeScaling::Dynamic { factor, max_position_embeddings: longest })
        }
        Some("llama3") => Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: sizes.get("low_freq_factor")?.unwrap_or(1.0),
            high_freq_factor: sizes.get("high_freq_factor")?.unwrap_or(4.0),
            original_max_position_embeddings: original.unwrap_or(8192),
        }),
        Some("yarn") => Some(RopeScaling::Yarn(Yarn {
            factor,
            original_max_position_embeddings: original.unwrap_or(2048),
            ..Yarn::default()
        })),
        Some(other) => return Err(format!("there is no rope_type `{other}` in this example").into()),
    })
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, weights, io, sizes @ ..] = arguments.as_slice() else {
        return Err("usage: load_state_dict MODEL WEIGHTS IO.safetensors [NAME=VALUE ...]".into());
    };
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let sizes = Sizes(sizes.iter().filter_map(pair).collect());
    let device = Device::cpu();
    let model = build(kind, &Scope::new(&device, 1), &sizes)?;
    let keys = model.load_state_dict(serialize::open(weights)?.as_ref(), Strict::Yes)?;
    model.eval();
    let io = serialize::open(io)?;
    let (input, expected) = (io.tensor("input", &device)?, io.tensor("output", &device)?);
    let output = inference_mode(|| forward(model.as_ref(), &input))?;
    let off = output.sub(&expected)?.abs()?.max()?.to_dtype(DType::F64)?.item::<f64>()?;
    let largest = expected.abs()?.max()?.to_dtype(DType::F64)?.item::<f64>()?;
    println!(
        "{kind}: {} parameters, {} names missing, output {:?}, off by {off:.2e} of {largest:.3}",
        model.parameters().iter().map(Tensor::numel).sum::<usize>(),
        keys.missing.len(),
        output.shape()
    );
    match off <= 2e-5 * largest.max(1.0) {
        true => Ok(()),
        false => Err("the output differs".into()),
    }
}

fn forward(model: &dyn Module, input: &Tensor) -> plimsoll::Result<Tensor> {
    match (model as &dyn std::any::Any).downcast_ref::<Bert>() {
        Some(bert) => bert.hidden(input),
        None => model.forward(input),
    }
}

fn build(kind: &str, scope: &Scope, sizes: &Sizes) -> Result<Box<dyn Module>, Failure> {
    let resnet = match kind {
        "resnet18" => Some(ResNetConfig::resnet18()),
        "resnet34" => Some(ResNetConfig::resnet34()),
        "resnet50" => Some(ResNetConfig::resnet50()),
        "resnet101" => Some(ResNetConfig::resnet101()),
        "wide_resnet50_2" => Some(ResNetConfig::wide_resnet50_2()),
        "resnext50_32x4d" => Some(ResNetConfig::resnext50_32x4d()),
        _ => None,
    };
    if let Some(config) = resnet {
        return Ok(Box::new(ResNet::new(scope, config)?));
    }
    Ok(match kind {
        "vgg11_bn" => Box::new(Vgg::new(scope, VggConfig::vgg11().with_batch_norm())?),
        "vit_b_32" | "vit_l_16" => {
            let mut config = if kind == "vit_b_32" { VitConfig::b_32() } else { VitConfig::l_16() };
            sizes.set("num_layers", &mut config.num_layers)?;
            Box::new(Vit::new(scope, config)?)
        }
        "gpt2" | "gpt2-medium" | "gpt2-xl" => {
            let mut config = match kind {
                "gpt2-medium" => Gpt2Config::medium(),
                "gpt2-xl" => Gpt2Config::xl(),
                _ => Gpt2Config::small(),
            };
            sizes.set("n_layer", &mut config.n_layer)?;
            sizes.set("layer_norm_epsilon", &mut config.layer_norm_epsilon)?;
            config.n_inner = sizes.get("n_inner")?;
            Box::new(Gpt2::new(scope, config)?)
        }
        "llama" => {
            let mut config = LlamaConfig::default();
            sizes.set("vocab_size", &mut config.vocab_size)?;
            sizes.set("hidden_size", &mut config.hidden_size)?;
            sizes.set("intermediate_size", &mut config.intermediate_size)?;
            sizes.set("num_hidden_layers", &mut config.num_hidden_layers)?;
            sizes.set("num_attention_heads", &mut config.num_attention_heads)?;
            sizes.set("num_key_value_heads", &mut config.num_key_value_heads)?;
            sizes.set("attention_bias", &mut config.attention_bias)?;
            sizes.set("mlp_bias", &mut config.mlp_bias)?;
            sizes.set("tie_word_embeddings", &mut config.tie_word_embeddings)?;
            sizes.set("rope_theta", &mut config.rope_theta)?;
            config.head_dim = sizes.get("head_dim")?;
            config.rope_scaling = rope_scaling(sizes)?;
            Box::new(Llama::new(scope, config)?)
        }
        "bert-large" => {
            let mut config = BertConfig::large();
            sizes.set("num_hidden_layers", &mut config.num_hidden_layers)?;
            Box::new(Bert::new(scope, config)?)
        }
        _ => return Err(format!("there is no model `{kind}` in this example").into()),
    })
}
