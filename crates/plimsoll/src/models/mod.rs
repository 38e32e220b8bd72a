//! Widely used models, with the sizes and state-dict names of their PyTorch versions.
//!
//! Each is a file: a configuration with the published sizes, a model, and its loss. They are built from the layers in
//! [`crate::nn`] and use the memory-saving operators. [`layers_to_recompute`] finds how many layers must recompute activations to
//! fit a memory limit. A configuration's `from_json` reads the `config.json` of `transformers`, and [`load_pretrained`] reads the
//! weights stored next to it.

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
