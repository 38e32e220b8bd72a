//! Small models and batches that several tests share.

use plimsoll::label::{self, Span};
use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, ReLU, Scope, Sequential};
use plimsoll::{Category, CpuConfig, Device, SimConfig, Tensor};

/// A host device and a simulated one, both empty.
pub(crate) fn devices() -> [Device; 2] {
    [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(1 << 30))]
}

/// A network with a convolution, pooling and two fully connected layers, for images of 12 × 12.
pub(crate) fn cnn(device: &Device) -> Sequential {
    Sequential::new(&Scope::new(device, 7))
        .add("conv", |s| Ok(Conv2d::new(s, 1, 8, 3)?.padding(1)))
        .and_then(|m| m.add("relu", ReLU::new))
        .and_then(|m| m.add("pool", |s| MaxPool2d::new(s, 2)))
        .and_then(|m| m.add("flatten", Flatten::new))
        .and_then(|m| m.add("fc1", |s| Linear::new(s, 8 * 6 * 6, 32)))
        .and_then(|m| m.add("relu2", ReLU::new))
        .and_then(|m| m.add("fc2", |s| Linear::new(s, 32, 10)))
        .unwrap()
}

/// LeNet's architecture with 32 and 64 channels, for images of 28 × 28.
pub(crate) fn lenet(device: &Device) -> Sequential {
    Sequential::new(&Scope::new(device, 1))
        .add("conv1", |s| Ok(Conv2d::new(s, 1, 32, 5)?.padding(2)))
        .and_then(|m| m.add("relu1", ReLU::new))
        .and_then(|m| m.add("pool1", |s| MaxPool2d::new(s, 2)))
        .and_then(|m| m.add("conv2", |s| Conv2d::new(s, 32, 64, 5)))
        .and_then(|m| m.add("relu2", ReLU::new))
        .and_then(|m| m.add("pool2", |s| MaxPool2d::new(s, 2)))
        .and_then(|m| m.add("flatten", Flatten::new))
        .and_then(|m| m.add("fc1", |s| Linear::new(s, 64 * 5 * 5, 120)))
        .and_then(|m| m.add("relu3", ReLU::new))
        .and_then(|m| m.add("fc2", |s| Linear::new(s, 120, 84)))
        .and_then(|m| m.add("relu4", ReLU::new))
        .and_then(|m| m.add("fc3", |s| Linear::new(s, 84, 10)))
        .unwrap()
}

/// Sixteen images and their classes, as a loader would make them.
pub(crate) fn batch(device: &Device) -> (Tensor, Tensor) {
    let _owner = Span::of(Category::Input, label::intern("batch"));
    let labels: Vec<i64> = (0..16).map(|i| i % 10).collect();
    (Tensor::randn(&[16, 1, 12, 12], device).unwrap(), Tensor::from_slice(&labels, &[16], device).unwrap())
}
