//! The network of `train mnist` and of the step benchmark: LeNet's layout with 32 and 64 channels.

use plimsoll::Result;
use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, ReLU, Scope, Sequential};

/// Classifies images of 28 × 28 into ten classes, with 255,230 parameters. For other image sizes, the first
/// fully connected layer has a different width.
pub(crate) fn lenet(scope: &Scope, height: usize, width: usize) -> Result<Sequential> {
    // Two poolings halve the size, rounding down; the second convolution reduces it by 4.
    let after = |size: usize| (size / 2).saturating_sub(4) / 2;
    Sequential::new(scope)
        .add("conv1", |s| Ok(Conv2d::new(s, 1, 32, 5)?.padding(2)))?
        .add("relu1", ReLU::new)?
        .add("pool1", |s| MaxPool2d::new(s, 2))?
        .add("conv2", |s| Conv2d::new(s, 32, 64, 5))?
        .add("relu2", ReLU::new)?
        .add("pool2", |s| MaxPool2d::new(s, 2))?
        .add("flatten", Flatten::new)?
        .add("fc1", |s| Linear::new(s, 64 * after(height) * after(width), 120))?
        .add("relu3", ReLU::new)?
        .add("fc2", |s| Linear::new(s, 120, 84))?
        .add("relu4", ReLU::new)?
        .add("fc3", |s| Linear::new(s, 84, 10))
}
