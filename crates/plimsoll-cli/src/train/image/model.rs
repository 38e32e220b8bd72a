//! The networks of `plimsoll train image`.

use clap::ValueEnum;
use plimsoll::Result;
use plimsoll::models::{ResNet, ResNetConfig};
use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, ReLU, Scope, Sequential};

use super::super::classifier::Classifier;
use super::super::task::Network;

/// A network that classifies images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Model {
    /// Three convolutions with 32, 64 and 128 channels, each followed by pooling, and a linear layer
    Cnn,
    /// ResNet-18, with torchvision's parameter names
    #[value(name = "resnet18")]
    ResNet18,
    /// ResNet-50, with torchvision's parameter names
    #[value(name = "resnet50")]
    ResNet50,
}

impl Model {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Model::Cnn => "cnn",
            Model::ResNet18 => "resnet18",
            Model::ResNet50 => "resnet50",
        }
    }

    /// The default number of rows and columns of an image.
    pub(super) fn default_side(self) -> usize {
        match self {
            Model::Cnn => 64,
            Model::ResNet18 | Model::ResNet50 => 224,
        }
    }

    /// The minimum number of rows and columns that the network accepts.
    pub(super) fn smallest_side(self) -> usize {
        match self {
            Model::Cnn => 8,
            Model::ResNet18 | Model::ResNet50 => 1,
        }
    }

    /// The network, with initial values.
    pub(super) fn build(self, scope: &Scope, side: usize, classes: usize) -> Result<Box<dyn Network>> {
        let config = match self {
            Model::Cnn => return Ok(Classifier::without_blocks(cnn(scope, side, classes)?)),
            Model::ResNet18 => ResNetConfig::resnet18(),
            Model::ResNet50 => ResNetConfig::resnet50(),
        };
        let model = ResNet::new(scope, ResNetConfig { num_classes: classes, ..config })?;
        Ok(Classifier::of_blocks(model, |model, checkpointer| model.checkpoint_within(checkpointer)))
    }
}

fn cnn(scope: &Scope, side: usize, classes: usize) -> Result<Sequential> {
    let convolution = |s: &Scope, from, to| Ok(Conv2d::new(s, from, to, 3)?.padding(1));
    Sequential::new(scope)
        .add("conv1", |s| convolution(s, 3, 32))?
        .add("relu1", ReLU::new)?
        .add("pool1", |s| MaxPool2d::new(s, 2))?
        .add("conv2", |s| convolution(s, 32, 64))?
        .add("relu2", ReLU::new)?
        .add("pool2", |s| MaxPool2d::new(s, 2))?
        .add("conv3", |s| convolution(s, 64, 128))?
        .add("relu3", ReLU::new)?
        .add("pool3", |s| MaxPool2d::new(s, 2))?
        .add("flatten", Flatten::new)?
        .add("fc", |s| Linear::new(s, 128 * (side / 8) * (side / 8), classes))
}
