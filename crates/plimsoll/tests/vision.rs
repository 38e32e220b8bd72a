//! Models for images beside torchvision's: names, shapes, outputs, and three steps of training from the same start values.
//! `fixtures/make_vision.py` made `fixtures/vision.json`.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

use std::collections::BTreeMap;

use plimsoll::models::{ResNet, ResNetBlock, ResNetConfig, UNet, UNetConfig, Vgg, VggConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{CrossEntropyOptions, DType, Device, Result, SimConfig, Tensor, autocast, no_grad};
use serde_json::Value;

fn recorded(kind: &str, model: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("fixtures/vision.json")).unwrap();
    all[kind][model].clone()
}

/// Numbers from -1 to 1, as `make_vision.py` has them.
fn noise(x: f64) -> f64 {
    2.0 * (x.sin() * 1000.0).fract().abs() - 1.0
}

/// The start values of a parameter, as `make_vision.py` has them.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let n: usize = shape.iter().product();
    let seed: usize = name.bytes().enumerate().map(|(k, b)| (k + 1) * usize::from(b)).sum();
    let is_norm = shape.len() == 1 && name.ends_with(".weight");
    let fan_in = if shape.len() > 1 { n / shape[0] } else { 100 };
    let start = |i: usize| noise(12.9898 * i as f64 + 0.7 * seed as f64) * (3.0 / fan_in as f64).sqrt();
    (0..n).map(|i| (f64::from(u8::from(is_norm)) + start(i)) as f32).collect()
}

fn images(shape: &[usize], device: &Device) -> Tensor {
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| noise(0.37 * i as f64) as f32).collect();
    Tensor::from_slice(&values, shape, device).unwrap()
}

/// The names and shapes of a model's parameters and buffers are those of a published one's state dict.
fn same_names(expected: &Value, model: &impl Module, name: &str) {
    let expected: BTreeMap<String, Vec<usize>> = serde_json::from_value(expected.clone()).unwrap();
    let tensors = model.named_parameters().into_iter().chain(model.named_buffers());
    let got: BTreeMap<String, Vec<usize>> =
        tensors.map(|(name, tensor)| (name, tensor.shape().to_vec())).collect();
    assert_eq!(got, expected, "{name}");
}

/// The output before training and three steps, and what torchvision's were.
fn train(name: &str, model: &impl Module, size: usize, loss: impl Fn(&Tensor) -> Result<Tensor>) {
    let expected = recorded("small", name);
    same_names(&expected["state_dict"], model, name);
    let device = Device::cpu();
    for (name, parameter) in model.named_parameters() {
        let values =
            Tensor::from_slice(&values(&name, parameter.shape()), parameter.shape(), &device).unwrap();
        no_grad(|| parameter.copy_(&values)).unwrap();
    }
    let x = images(&[4, 3, size, size], &device);
    model.eval();
    let out = no_grad(|| model.forward(&x)).unwrap();
    check_output(name, &out, &expected);
    model.train();
    let options = SgdOptions { lr: 0.002, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options);
    for step in 0..3 {
        sgd.zero_grad();
        let loss = loss(&model.forward(&x).unwrap()).unwrap();
        loss.backward().unwrap();
        sgd.step().unwrap();
        let (got, wanted) = (loss.item::<f32>().unwrap(), expected["f32"]["losses"][step].as_f64().unwrap());
        assert!((f64::from(got) - wanted).abs() < 1e-5, "{name}, step {step}: {got}, PyTorch's {wanted}");
    }
    for (parameter, tensor) in model.named_parameters().into_iter().chain(model.named_buffers()) {
        let sum = |precision: &str| expected[precision]["sums"][&parameter].as_f64().unwrap();
        if tensor.dtype() == DType::I64 {
            assert_eq!(tensor.item::<i64>().unwrap() as f64, sum("f64"), "{name}, {parameter}");
            continue;
        }
        let got: f64 = tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).sum();
        // PyTorch's own rounding, and what 32 bits cost a sum of so many values.
        let allowed = 4.0 * (sum("f32") - sum("f64")).abs() + 1e-6 * tensor.numel() as f64;
        let off = (got - sum("f64")).abs();
        assert!(off <= allowed, "{name}, {parameter}: off by {off}, {allowed} allowed");
    }
}

fn check_output(name: &str, out: &Tensor, expected: &Value) {
    let [single, double] = ["f32", "f64"].map(|precision| &expected[precision]["out"]);
    let shape: Vec<usize> = serde_json::from_value(single["shape"].clone()).unwrap();
    assert_eq!(out.shape(), shape, "{name}");
    let got = out.contiguous().unwrap().to_vec::<f32>().unwrap();
    for (i, first) in double["first"].as_array().unwrap().iter().enumerate() {
        let (got, wanted) = (f64::from(got[i]), first.as_f64().unwrap());
        assert!((got - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{name}, output {i}: {got}, {wanted}");
    }
    let (got, wanted): (f64, f64) = (got.into_iter().map(f64::from).sum(), double["sum"].as_f64().unwrap());
    assert!((got - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{name}: sum {got}, PyTorch's {wanted}");
}

fn classes(logits: &Tensor) -> Result<Tensor> {
    logits.cross_entropy(&Tensor::from_slice(&[3i64, 0, 9, 4], &[4], logits.device())?)
}

fn resnet(block: ResNetBlock, layers: [usize; 4], width: usize) -> ResNet {
    let config = ResNetConfig { block, layers, width, num_classes: 10, ..ResNetConfig::resnet18() };
    ResNet::new(&Scope::new(&Device::cpu(), 1), config).unwrap()
}

#[test]
fn resnets_of_basic_blocks_learn_torchvisions_steps() {
    train("resnet_basic", &resnet(ResNetBlock::Basic, [2, 1, 1, 2], 8), 64, classes);
}

#[test]
fn resnets_of_bottlenecks_learn_torchvisions_steps() {
    train("resnet_bottleneck", &resnet(ResNetBlock::Bottleneck, [1, 2, 1, 1], 4), 64, classes);
}

fn vgg(batch_norm: bool, pooled: usize) -> Vgg {
    let stages = vec![vec![8], vec![12, 16]];
    let config = VggConfig { stages, batch_norm, pooled, hidden: 20, num_classes: 10, ..VggConfig::vgg16() };
    Vgg::new(&Scope::new(&Device::cpu(), 1), VggConfig { dropout: 0.0, ..config }).unwrap()
}

#[test]
fn vggs_learn_torchvisions_steps() {
    train("vgg", &vgg(false, 3), 20, classes);
    train("vgg_bn", &vgg(true, 2), 20, classes);
}

/// A class for each pixel.
fn pixels(logits: &Tensor) -> Result<Tensor> {
    let &[n, classes, h, w] = logits.shape() else { unreachable!("images") };
    let targets: Vec<i64> = (0..n * h * w).map(|i| (i * 7 % 13 % classes) as i64).collect();
    let targets = Tensor::from_slice(&targets, &[n, h, w], logits.device())?;
    logits.cross_entropy_with(&targets, CrossEntropyOptions::default())
}

#[test]
fn unets_learn_the_steps_of_the_published_one() {
    for (name, bilinear) in [("unet", false), ("unet_bilinear", true)] {
        let config = UNetConfig { width: 4, bilinear, ..UNetConfig::new(3, 4) };
        train(name, &UNet::new(&Scope::new(&Device::cpu(), 1), config).unwrap(), 50, pixels);
    }
}

#[test]
fn published_models_have_torchvisions_names_and_shapes() {
    let device = Device::sim(SimConfig::new(1 << 40));
    let scope = || Scope::new(&device, 1);
    for (name, config) in [
        ("resnet18", ResNetConfig::resnet18()),
        ("resnet34", ResNetConfig::resnet34()),
        ("resnet50", ResNetConfig::resnet50()),
    ] {
        same_names(&recorded("published", name), &ResNet::new(&scope(), config).unwrap(), name);
    }
    for (name, config) in [
        ("vgg11", VggConfig::vgg11()),
        ("vgg16", VggConfig::vgg16()),
        ("vgg16_bn", VggConfig::vgg16().with_batch_norm()),
    ] {
        same_names(&recorded("published", name), &Vgg::new(&scope(), config).unwrap(), name);
    }
    let unet = UNet::new(&scope(), UNetConfig::new(3, 2)).unwrap();
    same_names(&recorded("published", "unet"), &unet, "unet");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let scope = Scope::new(&Device::sim(SimConfig::new(1 << 40)), 1);
    let error = ResNet::new(&scope, ResNetConfig { width: 0, ..ResNetConfig::resnet18() }).unwrap_err();
    assert!(error.to_string().starts_with("resnet: a size of 0"), "{error}");
    let model = ResNet::new(&scope, ResNetConfig::resnet18()).unwrap();
    let grey = Tensor::zeros(&[2, 1, 64, 64], scope.device()).unwrap();
    assert!(model.forward(&grey).unwrap_err().to_string().starts_with("conv2d: "));
    let one = Tensor::zeros(&[1, 3, 32, 32], scope.device()).unwrap();
    let error = model.forward(&one).unwrap_err().to_string();
    assert!(error.contains("one value per channel"), "{error}");
}

/// Bytes at the peak of three steps of SGD with momentum on a simulated H200.
fn peak(batch: usize, amp: Option<DType>, make: impl Fn(&Scope) -> Box<dyn Module>) -> f64 {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let model = make(&Scope::new(&device, 1));
    let options = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options);
    for _ in 0..3 {
        let x = Tensor::empty(&[batch, 3, 224, 224], DType::F32, &device).unwrap();
        let y = Tensor::empty(&[batch], DType::I64, &device).unwrap();
        let loss = autocast::autocast(amp, || model.forward(&x)?.cross_entropy(&y)).unwrap();
        sgd.zero_grad();
        loss.backward().unwrap();
        sgd.step().unwrap();
    }
    device.max_memory_allocated() as f64
}

/// PyTorch's peaks are of the same programs on a stand-in of the same GPU.
#[test]
fn training_a_resnet_takes_less_than_pytorchs_memory() {
    let resnet = |scope: &Scope| -> Box<dyn Module> {
        Box::new(ResNet::new(scope, ResNetConfig::resnet50()).unwrap())
    };
    for (amp, pytorch) in [(None, 5_843_566_080.0), (Some(DType::BF16), 3_224_968_192.0)] {
        let ours = peak(64, amp, resnet);
        println!("ResNet-50, batch 64, {amp:?}: {ours} of PyTorch's {pytorch}: {:.3}", ours / pytorch);
        assert!(ours < pytorch, "{amp:?}: {ours} bytes, PyTorch {pytorch}");
    }
}
