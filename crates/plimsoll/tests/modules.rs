//! Modules: PyTorch's names, freezing, moving, modes, and their effect on memory.

use plimsoll::models::{ResNet, ResNetConfig};
use plimsoll::nn::{
    Buffer, Conv2d, Flatten, Init, LayerNorm, Linear, Mode, Module, ModuleList, Parameter, Scope,
};
use plimsoll::nn::{ReLU, Sequential};
use plimsoll::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::{Category, CpuConfig, DType, Device, Error, MemoryFormat, Result, SimConfig, Tensor, members};

use crate::world::devices;

/// A layer with every kind of member.
#[derive(Clone)]
struct Everything {
    inner: Linear,
    blocks: ModuleList<Linear>,
    none: Option<Linear>,
    scale: Parameter,
    mean: Buffer,
    cache: Buffer,
    mode: Mode,
}

impl Everything {
    fn new(scope: &Scope) -> Result<Everything> {
        Ok(Everything {
            inner: Linear::new(&scope.at("inner"), 4, 4)?,
            blocks: ModuleList::new(&scope.at("blocks"), 2, |s| Linear::without_bias(s, 4, 4))?,
            none: None,
            scale: scope.parameter("scale", &[4], Init::Ones)?,
            mean: scope.buffer("running_mean", |device| Tensor::zeros(&[4], device))?,
            cache: scope.buffer("cache", |device| Tensor::arange(6, device))?.not_persistent(),
            mode: Mode::default(),
        })
    }
}

impl Module for Everything {
    members!(inner, blocks, none, scale, mean = "running_mean", cache, mode);
}

fn names(named: Vec<(String, Tensor)>) -> Vec<String> {
    named.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn names_are_pytorchs_with_a_modules_own_tensors_first() {
    let model = Everything::new(&Scope::new(&Device::cpu(), 1)).unwrap();
    let expected = ["scale", "inner.weight", "inner.bias", "blocks.0.weight", "blocks.1.weight"];
    assert_eq!(names(model.named_parameters()), expected);
    assert_eq!(names(model.named_buffers()), ["running_mean", "cache"]);
    let modules: Vec<_> = model.named_modules().into_iter().map(|(name, it)| (name, it.kind())).collect();
    let expected =
        [("inner", "Linear"), ("blocks", "ModuleList"), ("blocks.0", "Linear"), ("blocks.1", "Linear")];
    assert_eq!(modules, expected.map(|(name, kind)| (name.to_owned(), kind)));
    let numbered = Sequential::new(&Scope::new(&Device::cpu(), 1))
        .push(|s| Linear::new(s, 4, 4))
        .and_then(|m| m.push(ReLU::new))
        .and_then(|m| m.push(|s| Linear::without_bias(s, 4, 4)))
        .unwrap();
    assert_eq!(names(numbered.named_parameters()), ["0.weight", "0.bias", "2.weight"]);
}

#[test]
fn a_name_is_the_place_in_the_model_and_not_the_owner() {
    let scope = Scope::new(&Device::cpu(), 1);
    let encoder = Linear::new(&scope.at("encoder"), 4, 4).unwrap();
    let model = Sequential::new(&scope).add("backbone", |_| Ok(encoder)).unwrap();
    let (name, weight) = model.named_parameters().remove(0);
    assert_eq!((name.as_str(), weight.label().as_str()), ("backbone.weight", "encoder.weight"));
}

#[test]
fn a_module_without_a_forward_of_one_tensor_says_so() {
    let model = Everything::new(&Scope::new(&Device::cpu(), 1)).unwrap();
    let error = model.forward(&Tensor::ones(&[1, 4], &Device::cpu()).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Argument { op: "forward", .. }));
    assert!(error.to_string().contains("Everything does not take a single tensor"), "{error}");
}

#[test]
fn every_mode_at_any_depth_follows_the_model() {
    let scope = Scope::new(&Device::cpu(), 1);
    let model = Sequential::new(&scope).add("deep", Everything::new).unwrap();
    let is_training = || {
        let deep = model.get("deep").unwrap() as &dyn std::any::Any;
        deep.downcast_ref::<Everything>().unwrap().mode.is_training()
    };
    assert!(is_training(), "new modules train");
    model.eval();
    assert!(!is_training());
    model.train();
    assert!(is_training());
}

/// Three layers in a row, whose sizes all differ, so that the saved tensors can be distinguished.
fn chain(device: &Device) -> Sequential {
    Sequential::new(&Scope::new(device, 1))
        .add("fc1", |s| Linear::new(s, 128, 256))
        .and_then(|m| m.add("fc2", |s| Linear::new(s, 256, 512)))
        .and_then(|m| m.add("fc3", |s| Linear::new(s, 512, 128)))
        .unwrap()
}

/// With these layers frozen, the bytes of activations after a forward pass and of gradients after the backward pass.
fn kept(device: &Device, frozen: &[&str]) -> (u64, u64) {
    let model = chain(device);
    for name in frozen {
        model.get(name).unwrap().requires_grad_(false).unwrap();
    }
    let output = model.forward(&Tensor::ones(&[2, 128], device).unwrap()).unwrap();
    let activations = device.memory_by_category()[Category::Activation];
    output.sum().unwrap().backward().unwrap();
    (activations, device.memory_by_category()[Category::Gradient])
}

#[test]
fn a_frozen_layer_keeps_neither_gradients_nor_the_activations_that_only_they_need() {
    const KIB: u64 = 1 << 10;
    // Two rows of 128, 256 and 512 numbers: the inputs of the three layers.
    let (first, second, third) = (KIB, 2 * KIB, 4 * KIB);
    // Bytes of each layer's weight and bias.
    let (fc1, fc2, fc3) = (128 * KIB + KIB, 512 * KIB + 2 * KIB, 256 * KIB + 512);
    for device in devices() {
        assert_eq!(kept(&device, &[]), (first + second + third, fc1 + fc2 + fc3));
        assert_eq!(kept(&device, &["fc2"]), (first + third, fc1 + fc3), "its input is not kept");
        assert_eq!(kept(&device, &["fc1"]), (second + third, fc2 + fc3));
        assert_eq!(kept(&device, &["fc1", "fc2"]), (third, fc3), "nothing below the first that trains");
        assert_eq!(kept(&device, &["fc3"]), (first + second, fc1 + fc2));
    }
}

#[test]
fn frozen_convolutions_and_norms_keep_no_activations_either() {
    for device in devices() {
        let model = Sequential::new(&Scope::new(&device, 1))
            .add("conv", |s| Conv2d::new(s, 1, 8, 3))
            .and_then(|m| m.add("flatten", Flatten::new))
            .and_then(|m| m.add("norm", |s| LayerNorm::new(s, 8 * 6 * 6)))
            .and_then(|m| m.add("head", |s| Linear::new(s, 8 * 6 * 6, 4)))
            .unwrap();
        for name in ["conv", "norm"] {
            model.get(name).unwrap().requires_grad_(false).unwrap();
        }
        let output = model.forward(&Tensor::ones(&[4, 1, 8, 8], &device).unwrap()).unwrap();
        let head_input = 4 * 8 * 6 * 6 * 4;
        assert_eq!(device.memory_by_category()[Category::Activation], head_input);
        drop(output);
    }
}

#[test]
fn freezing_drops_the_gradient_that_is_there() {
    for device in devices() {
        let model = chain(&device);
        model.forward(&Tensor::ones(&[2, 128], &device).unwrap()).unwrap().sum().unwrap().backward().unwrap();
        model.requires_grad_(false).unwrap();
        assert_eq!(device.memory_by_category()[Category::Gradient], 0);
        model.requires_grad_(true).unwrap();
        assert!(model.parameters().iter().all(Tensor::requires_grad));
    }
}

/// The owners of bytes, and their categories.
fn owners(device: &Device) -> Vec<(String, Category)> {
    device.reset_peak_memory_stats();
    let mut owners: Vec<_> =
        device.owners_at_peak().into_iter().map(|owner| (owner.label, owner.category)).collect();
    owners.sort();
    owners
}

#[test]
fn a_model_that_moves_keeps_its_names_owners_values_and_ties() {
    let [here, there] = [(); 2].map(|()| Device::cpu_with(CpuConfig::default()));
    let scope = Scope::new(&here, 1);
    let first = Linear::new(&scope.at("first"), 4, 4).unwrap();
    let tied = Linear::of(&scope.at("tied"), first.weight().clone(), None);
    let mut model = Sequential::new(&scope)
        .add("first", |_| Ok(first))
        .and_then(|m| m.add("tied", |_| Ok(tied)))
        .and_then(|m| m.add("rest", Everything::new))
        .unwrap();
    model.get("rest").unwrap().requires_grad_(false).unwrap();
    let x = Tensor::ones(&[1, 4], &here).unwrap();
    model.get("first").unwrap().forward(&x).unwrap().sum().unwrap().backward().unwrap();
    drop(x);
    let before: Vec<_> = model
        .named_parameters()
        .into_iter()
        .map(|(name, p)| (name, p.to_vec::<f32>().unwrap(), p.requires_grad(), p.grad().is_some()))
        .collect();
    let owned = owners(&here);
    model.to(&there).unwrap();
    assert_eq!(here.memory_allocated(), 0, "nothing stays behind");
    let after: Vec<_> = model
        .named_parameters()
        .into_iter()
        .map(|(name, p)| (name, p.to_vec::<f32>().unwrap(), p.requires_grad(), p.grad().is_some()))
        .collect();
    assert_eq!(before, after, "the tied weight is one parameter on both");
    assert_eq!(owners(&there), owned);
    assert!(owned.contains(&("rest.running_mean".to_owned(), Category::Buffer)));
    assert!(owned.contains(&("first.weight".to_owned(), Category::Gradient)));
}

#[test]
fn a_model_in_channels_last_trains_to_the_same_losses() {
    let train = |format: MemoryFormat| {
        let device = Device::cpu_with(CpuConfig::default());
        let config = ResNetConfig { num_classes: 5, ..ResNetConfig::resnet18() };
        let mut model = ResNet::new(&Scope::new(&device, 1), config).unwrap();
        let owned = owners(&device);
        model.to_memory_format(format).unwrap();
        assert_eq!(owners(&device), owned);
        let parameters = model.parameters();
        let options = SgdOptions { lr: 1e-3, momentum: 0.9, ..SgdOptions::default() };
        let mut sgd = Sgd::new(parameters.clone(), options);
        device.manual_seed(2);
        let images = Tensor::randn(&[4, 3, 64, 64], &device).unwrap().to_memory_format(format).unwrap();
        let labels = Tensor::from_slice(&[1i64, 4, 0, 2], &[4], &device).unwrap();
        let step = |_| {
            let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
            sgd.zero_grad();
            loss.backward().unwrap();
            sgd.step().unwrap();
            loss.item().unwrap()
        };
        let losses: Vec<f32> = (0..3).map(step).collect();
        for parameter in parameters.iter().filter(|parameter| parameter.rank() == 4) {
            assert!(parameter.is_leaf() && parameter.is_in_memory_format(format));
            assert!(parameter.grad().unwrap().is_in_memory_format(format));
        }
        losses
    };
    let (row_major, last) = (train(MemoryFormat::Contiguous), train(MemoryFormat::ChannelsLast));
    for (a, b) in row_major.iter().zip(&last) {
        assert!((a - b).abs() < 1e-3 * a.abs().max(1.0), "{row_major:?} and {last:?}");
    }
    assert!(row_major[2] < row_major[0]);
}

#[test]
fn a_move_without_room_leaves_the_model_as_it_was() {
    let [here, there] = devices();
    let mut model = chain(&here);
    there.set_memory_limit(2 << 20);
    let small = Device::sim(SimConfig::new(1 << 20));
    assert!(matches!(model.to(&small), Err(Error::OutOfMemory(_))));
    assert_eq!(small.memory_allocated(), 0);
    assert!(model.parameters().iter().all(|parameter| parameter.device() == &here));
    model.forward(&Tensor::ones(&[2, 128], &here).unwrap()).unwrap();
}

#[test]
fn a_model_of_another_type_keeps_its_owners_and_trains_in_it() {
    let device = Device::cpu_with(CpuConfig::default());
    let mut model = Sequential::new(&Scope::new(&device, 1))
        .add("rest", Everything::new)
        .and_then(|m| m.add("fc", |s| Linear::new(s, 4, 4)))
        .unwrap();
    let owned = owners(&device);
    model.to_dtype(DType::BF16).unwrap();
    assert_eq!(owners(&device), owned);
    let types = |named: Vec<(String, Tensor)>| named.into_iter().map(|(_, x)| x.dtype()).collect::<Vec<_>>();
    assert!(types(model.named_parameters()).iter().all(|&dtype| dtype == DType::BF16));
    assert_eq!(types(model.named_buffers()), [DType::BF16, DType::I64], "whole numbers stay");
    let fc = model.get("fc").unwrap();
    let mut sgd = Adam::new(fc.parameters(), AdamOptions { lr: 0.5, ..AdamOptions::default() });
    let x = Tensor::ones(&[1, 4], &device).unwrap().to_dtype(DType::BF16).unwrap();
    let before = fc.parameters()[1].to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    fc.forward(&x).unwrap().sum().unwrap().backward().unwrap();
    sgd.step().unwrap();
    let after = fc.parameters()[1].to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert!(before.iter().zip(after).all(|(b, a)| (b - a - 0.5).abs() < 0.01), "{before:?}");
    assert!(matches!(model.to_dtype(DType::I64), Err(Error::DType { .. })));
}

#[test]
fn apply_visits_what_is_inside_first_and_the_model_last() {
    let mut model = Everything::new(&Scope::new(&Device::cpu(), 1)).unwrap();
    let mut seen = Vec::new();
    model
        .apply(&mut |module| {
            seen.push(module.kind());
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, ["Linear", "Linear", "Linear", "ModuleList", "Everything"]);
    let error = model.apply(&mut |_| Err(Error::argument("init", "no"))).unwrap_err();
    assert_eq!(error.to_string(), "init: no");
}

#[test]
fn a_summary_counts_a_tied_parameter_once_and_buffers_apart() {
    let scope = Scope::new(&Device::cpu(), 1);
    let first = Linear::new(&scope.at("first"), 4, 4).unwrap();
    let tied = Linear::of(&scope.at("tied"), first.weight().clone(), None);
    let model = Sequential::new(&scope)
        .add("first", |_| Ok(first))
        .and_then(|m| m.add("tied", |_| Ok(tied)))
        .and_then(|m| m.add("rest", Everything::new))
        .unwrap();
    let summary = model.summary();
    let total = &summary.total;
    assert_eq!((total.parameters, total.trained, total.buffers), (20 + 20 + 32 + 4, 76, 4 + 6));
    assert_eq!(total.bytes, 76 * 4 + 4 * 4 + 6 * 8);
    let names: Vec<&str> = summary.rows.iter().map(|row| row.name.as_str()).collect();
    let expected = ["first", "tied", "rest", "rest.inner", "rest.blocks.0", "rest.blocks.1"];
    assert_eq!(names, expected, "a list that only groups has no row");
}
