//! Models that people train, with the sizes and the state-dict names of PyTorch's.
//!
//! Each is a file: a configuration with the published sizes, a model, and its loss. They are made of the layers in
//! [`crate::nn`] and use the operators that save memory. [`layers_to_recompute`] says how much a limit asks to compute again.
//! `from_json` of a configuration reads the `config.json` of `transformers`, and [`load_pretrained`] the weights beside it.

pub mod bert;
mod config_json;
mod fit;
pub mod gpt2;
pub mod llama;
mod pretrained;
pub mod resnet;
mod rope;
mod rotary_tables;
pub mod unet;
pub mod vgg;
pub mod vit;

pub use bert::{Bert, BertConfig, BertForMaskedLm, BertInputs};
pub use fit::layers_to_recompute;
pub use gpt2::{Gpt2, Gpt2Config};
pub use llama::{Llama, LlamaConfig};
pub use pretrained::load_pretrained;
pub use resnet::{ResNet, ResNetBlock, ResNetConfig};
pub use rope::{RopeScaling, Yarn};
pub use unet::{UNet, UNetConfig};
pub use vgg::{Vgg, VggConfig};
pub use vit::{Vit, VitConfig};
