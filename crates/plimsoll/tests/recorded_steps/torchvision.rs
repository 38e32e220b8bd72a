//! Compares image models with torchvision's, and a U-Net with the published one. `fixtures/make_vision.py` makes
//! `fixtures/vision.json`.

use plimsoll::models::{ResNet, ResNetBlock, ResNetConfig, UNet, UNetConfig, Vgg, VggConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{CrossEntropyOptions, DType, Device, Result, Tensor, no_grad};
use serde_json::Value;

use super::{Comparison, Pair, Program, same_names};

pub(crate) fn recorded(kind: &str, model: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../fixtures/vision.json")).unwrap();
    all[kind][model].clone()
}

/// Numbers from -1 to 1, computed as in `make_vision.py`.
fn noise(x: f64) -> f64 {
    2.0 * (x.sin() * 1000.0).fract().abs() - 1.0
}

/// The initial values of a parameter, computed as in `make_vision.py`.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let n: usize = shape.iter().product();
    let seed: usize = name.bytes().enumerate().map(|(k, b)| (k + 1) * usize::from(b)).sum();
    let is_norm = shape.len() == 1 && name.ends_with(".weight");
    let fan_in = if shape.len() > 1 { n / shape[0] } else { 100 };
    let start = |i: usize| noise(12.9898 * i as f64 + 0.7 * seed as f64) * (3.0 / fan_in as f64).sqrt();
    (0..n).map(|i| (f64::from(u8::from(is_norm)) + start(i)) as f32).collect()
}

pub(crate) fn images(shape: &[usize], device: &Device) -> Tensor {
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| noise(0.37 * i as f64) as f32).collect();
    Tensor::from_slice(&values, shape, device).unwrap()
}

/// Compares the names, the output before training, and three steps.
fn train(
    name: &str,
    model: &impl Module,
    (size, device): (usize, &Device),
    loss: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Comparison> {
    let (expected, mut compared) = (recorded("small", name), Comparison::default());
    same_names(name, model, &expected["state_dict"]);
    for (name, parameter) in model.named_parameters() {
        let values = Tensor::from_slice(&values(&name, parameter.shape()), parameter.shape(), device)?;
        no_grad(|| parameter.copy_(&values))?;
    }
    let x = images(&[4, 3, size, size], device);
    model.eval();
    let out = no_grad(|| model.forward(&x))?;
    compare_output(&out, &expected, &mut compared)?;
    model.train();
    let options = SgdOptions { lr: 0.002, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options);
    for step in 0..3 {
        sgd.zero_grad();
        let loss = loss(&model.forward(&x)?)?;
        loss.backward()?;
        sgd.step()?;
        compared.loss(step, loss.item::<f32>()?.into(), &expected);
    }
    for (name, tensor) in model.named_parameters().into_iter().chain(model.named_buffers()) {
        if tensor.dtype() == DType::I64 {
            let (got, recorded) = (tensor.item::<i64>()? as f64, expected["f64"]["sums"][&name].as_f64());
            let recorded = recorded.unwrap();
            compared.others.push(Pair { what: name, got, recorded, allowed: 0.5 });
            continue;
        }
        let sum = tensor.to_vec::<f32>()?.into_iter().map(f64::from).sum();
        compared.sum(&name, sum, tensor.numel(), &expected);
    }
    Ok(compared)
}

fn compare_output(out: &Tensor, expected: &Value, compared: &mut Comparison) -> Result<()> {
    let [single, double] = ["f32", "f64"].map(|precision| &expected[precision]["out"]);
    let shape: Vec<usize> = serde_json::from_value(single["shape"].clone()).unwrap();
    assert_eq!(out.shape(), shape);
    let got = out.contiguous()?.to_vec::<f32>()?;
    let mut compare = |what: String, got: f64, recorded: f64| {
        let allowed = 1e-4 * recorded.abs().max(1.0);
        compared.others.push(Pair { what, got, recorded, allowed });
    };
    for (i, first) in double["first"].as_array().unwrap().iter().enumerate() {
        compare(format!("output {i}"), got[i].into(), first.as_f64().unwrap());
    }
    let sum = got.into_iter().map(f64::from).sum();
    compare("sum of the outputs".to_owned(), sum, double["sum"].as_f64().unwrap());
    Ok(())
}

pub(crate) fn classes(logits: &Tensor) -> Result<Tensor> {
    logits.cross_entropy(&Tensor::from_slice(&[3i64, 0, 9, 4], &[4], logits.device())?)
}

/// Rearranges logits so that each pixel is a row of classes.
fn pixels(logits: &Tensor) -> Result<Tensor> {
    let &[n, classes, h, w] = logits.shape() else { unreachable!("images") };
    let targets: Vec<i64> = (0..n * h * w).map(|i| (i * 7 % 13 % classes) as i64).collect();
    let targets = Tensor::from_slice(&targets, &[n, h, w], logits.device())?;
    logits.cross_entropy_with(&targets, CrossEntropyOptions::default())
}

pub(crate) fn resnet(scope: &Scope, block: ResNetBlock, layers: [usize; 4], width: usize) -> ResNet {
    let config = ResNetConfig { block, layers, width, num_classes: 10, ..ResNetConfig::resnet18() };
    ResNet::new(scope, config).unwrap()
}

pub(crate) fn vgg(scope: &Scope, batch_norm: bool, pooled: usize) -> Vgg {
    let stages = vec![vec![8], vec![12, 16]];
    let config = VggConfig { stages, batch_norm, pooled, hidden: 20, num_classes: 10, ..VggConfig::vgg16() };
    Vgg::new(scope, VggConfig { dropout: 0.0, ..config }).unwrap()
}

pub(crate) fn unet(scope: &Scope, bilinear: bool) -> UNet {
    UNet::new(scope, UNetConfig { width: 4, bilinear, ..UNetConfig::new(3, 4) }).unwrap()
}

fn program<M: Module>(
    name: &'static str,
    size: usize,
    make: impl Fn(&Scope) -> M + 'static,
    loss: fn(&Tensor) -> Result<Tensor>,
) -> Program {
    let run = move |device: &Device| train(name, &make(&Scope::new(device, 1)), (size, device), loss);
    Program { name, run: Box::new(run) }
}

/// ResNets, VGGs and U-Nets.
pub(crate) fn programs() -> Vec<Program> {
    let bottleneck = |scope: &Scope| resnet(scope, ResNetBlock::Bottleneck, [1, 2, 1, 1], 4);
    vec![
        program("resnet_basic", 64, |s| resnet(s, ResNetBlock::Basic, [2, 1, 1, 2], 8), classes),
        program("resnet_bottleneck", 64, bottleneck, classes),
        program("vgg", 20, |s| vgg(s, false, 3), classes),
        program("vgg_bn", 20, |s| vgg(s, true, 2), classes),
        program("unet", 50, |s| unet(s, false), pixels),
        program("unet_bilinear", 50, |s| unet(s, true), pixels),
    ]
}
