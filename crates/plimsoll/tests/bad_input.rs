//! Bad input to layers, models and optimizers, as it occurs in a training script, gives a clear error or PyTorch's behaviour, and
//! no state is lost.

use std::sync::Arc;

use plimsoll::Reduction;
use plimsoll::data::{Arrays, DataLoader, HostArray};
use plimsoll::models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use plimsoll::nn::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv2d, ConvTranspose2d, Dropout2d, Embedding, EmbeddingBag, Flatten,
    GRU, GroupNorm, InstanceNorm2d, LSTM, LayerNorm, Linear, LocalResponseNorm, MaxPool2d, Module,
    MultiheadAttention, MultiheadAttentionOptions, MultiheadOptions, PReLU, PixelShuffle, RecurrentOptions,
    Scope, Upsample,
};
use plimsoll::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::{BagMode, CpuConfig, CrossEntropyOptions, DType, Device, Result, SimConfig, Tensor};

use crate::world::cnn;

fn own() -> Device {
    Device::cpu_with(CpuConfig::default())
}

fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

fn zeros(shape: &[usize], device: &Device) -> Tensor {
    Tensor::zeros(shape, device).unwrap()
}

fn whole(values: &[i64], device: &Device) -> Tensor {
    Tensor::from_slice(values, &[values.len()], device).unwrap()
}

#[test]
fn a_class_that_is_not_there_is_named_and_training_goes_on() {
    let device = own();
    let model = cnn(&device);
    let mut sgd = Sgd::new(model.parameters(), SgdOptions::default());
    let images = Tensor::randn(&[4, 1, 12, 12], &device).unwrap();
    for wrong in [10i64, -1, i64::MAX] {
        let targets = whole(&[0, 9, wrong, 3], &device);
        let logits = model.forward(&images).unwrap();
        let message = text(logits.cross_entropy(&targets));
        assert!(message.contains(&wrong.to_string()) && message.contains("classes are 0 to 9"), "{message}");
    }
    // The next step works as if nothing had happened.
    let loss = model.forward(&images).unwrap().cross_entropy(whole(&[0, 9, 2, 3], &device)).unwrap();
    loss.backward().unwrap();
    sgd.step().unwrap();
    assert!(loss.item::<f32>().unwrap().is_finite());
    // An ignored target need not be a valid class.
    let options = CrossEntropyOptions { reduction: Reduction::None, ..CrossEntropyOptions::default() };
    let logits = zeros(&[2, 3], &device);
    let losses = logits.cross_entropy_with(whole(&[-100, 1], &device), options).unwrap();
    assert_eq!(losses.to_vec::<f32>().unwrap()[0], 0.0);
    let all_ignored = logits.cross_entropy(whole(&[-100, -100], &device)).unwrap();
    assert!(all_ignored.item::<f32>().unwrap().is_nan(), "as in PyTorch: a mean of nothing");
}

#[test]
fn an_index_outside_a_table_is_an_error_with_the_layers_name() {
    let device = own();
    let scope = Scope::new(&device, 1);
    let embedding = Embedding::new(&scope.at("words"), 5, 3).unwrap();
    let bag = EmbeddingBag::new(&scope.at("bag"), 5, 3, BagMode::Sum).unwrap();
    for wrong in [5i64, -1] {
        let message = text(embedding.forward(&whole(&[0, wrong], &device)));
        assert!(message.contains(&format!("index {wrong} at [1]")) && message.contains("words"), "{message}");
        let starts = whole(&[0], &device);
        let message = text(bag.forward(&whole(&[1, wrong], &device), Some(&starts), None));
        assert!(message.contains(&wrong.to_string()) && message.contains("bag"), "{message}");
    }
    let message = text(embedding.forward(&zeros(&[2], &device)));
    assert!(message.contains("int64 or int32"), "{message}");
}

/// An empty batch: each layer's output has PyTorch's shape, and the backward pass leaves zero gradients.
#[test]
fn a_batch_of_nothing_has_pytorchs_shapes_in_every_layer() {
    let device = own();
    let scope = Scope::new(&device, 1);
    let check = |layer: Result<Box<dyn Module>>, shape: &[usize], expected: &[usize]| {
        let (layer, x) = (layer.unwrap(), zeros(shape, &device).requires_grad_(true).unwrap());
        let y = layer.forward(&x).unwrap();
        assert_eq!(y.shape(), expected, "{}", layer.kind());
        y.sum().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().shape(), shape, "{}", layer.kind());
        for (name, parameter) in layer.named_parameters() {
            let grad = parameter.grad().unwrap_or_else(|| panic!("{} {name}: no gradient", layer.kind()));
            assert!(grad.to_vec::<f32>().unwrap().iter().all(|&g| g == 0.0), "{} {name}", layer.kind());
        }
    };
    let image = &[0, 4, 6, 6][..];
    macro_rules! layer {
        ($name:literal, $type:ident $(, $more:expr)*) => {
            $type::new(&scope.at($name) $(, $more)*).map(|layer| Box::new(layer) as Box<dyn Module>)
        };
    }
    check(layer!("linear", Linear, 4, 2), &[0, 4], &[0, 2]);
    check(layer!("conv", Conv2d, 4, 2, 3), image, &[0, 2, 4, 4]);
    check(layer!("transposed", ConvTranspose2d, 4, 2, 3), image, &[0, 2, 8, 8]);
    check(layer!("bn", BatchNorm2d, 4), image, image);
    check(layer!("in", InstanceNorm2d, 4), image, image);
    check(layer!("gn", GroupNorm, 2, 4), image, image);
    check(layer!("ln", LayerNorm, 4), &[0, 4], &[0, 4]);
    check(layer!("lrn", LocalResponseNorm, 2), image, image);
    check(layer!("pool", MaxPool2d, 2), image, &[0, 4, 3, 3]);
    check(layer!("adaptive", AdaptiveAvgPool2d, 1), image, &[0, 4, 1, 1]);
    check(layer!("shuffle", PixelShuffle, 2), image, &[0, 1, 12, 12]);
    check(layer!("prelu", PReLU, 4), image, image);
    check(layer!("dropout", Dropout2d, 0.5), image, image);
    check(layer!("flatten", Flatten), image, &[0, 144]);
    let up = Upsample::scale(&scope, 2.0).map(|layer| Box::new(layer) as Box<dyn Module>);
    check(up, image, &[0, 4, 12, 12]);
    let options = RecurrentOptions::default();
    check(layer!("lstm", LSTM, 4, 3, options), &[5, 0, 4], &[5, 0, 3]);
    check(layer!("gru", GRU, 4, 3, options), &[5, 0, 4], &[5, 0, 3]);
    let first = MultiheadAttentionOptions { batch_first: true, ..MultiheadAttentionOptions::default() };
    check(layer!("mha", MultiheadAttention, 4, 2, first), &[0, 3, 4], &[0, 3, 4]);
    let embedding = Embedding::new(&scope.at("embedding"), 5, 3).unwrap();
    let none = Tensor::full(&[0, 2], 0.0, DType::I64, &device).unwrap();
    assert_eq!(embedding.forward(&none).unwrap().shape(), [0, 2, 3]);
}

#[test]
fn models_and_losses_take_a_batch_of_nothing_as_pytorch_does() {
    let device = own();
    let config = Gpt2Config {
        vocab_size: 10,
        n_positions: 8,
        n_embd: 8,
        n_layer: 1,
        n_head: 2,
        ..Gpt2Config::small()
    };
    let gpt2 = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
    let none = Tensor::full(&[0, 4], 0.0, DType::I64, &device).unwrap();
    assert_eq!(gpt2.forward(&none).unwrap().shape(), [0, 4, 10]);
    assert!(gpt2.loss(&none, &none).unwrap().item::<f32>().unwrap().is_nan());
    let resnet =
        ResNet::new(&Scope::new(&device, 1), ResNetConfig { width: 4, ..ResNetConfig::resnet18() }).unwrap();
    assert_eq!(resnet.forward(&zeros(&[0, 3, 32, 32], &device)).unwrap().shape(), [0, 1000]);
    let (x, y) = (zeros(&[0, 3], &device), Tensor::full(&[0], 0.0, DType::I64, &device).unwrap());
    for (reduction, expected) in [(Reduction::Mean, None), (Reduction::Sum, Some(0.0))] {
        let options = CrossEntropyOptions { reduction, ..CrossEntropyOptions::default() };
        let loss = x.cross_entropy_with(&y, options).unwrap().item::<f32>().unwrap();
        assert!(expected.map_or(loss.is_nan(), |expected| loss == expected), "{reduction:?}: {loss}");
    }
    assert!(text(x.max()).contains("max"), "a maximum of nothing is refused");
    // An empty data set has no batches.
    let none = Arrays::new([("x", HostArray::new(vec![0, 2], Vec::<f32>::new()))]).unwrap();
    let loader = DataLoader::new(Arc::new(none), 4).unwrap().shuffle(1).workers(2);
    assert_eq!((loader.len(), loader.epoch(0).count()), (0, 0));
}

#[test]
fn tensors_of_two_devices_are_refused_wherever_they_meet() {
    let (device, other) = (own(), Device::sim(SimConfig::new(1 << 30)));
    let model = cnn(&device);
    let (images, targets) = (Tensor::randn(&[2, 1, 12, 12], &device).unwrap(), whole(&[3, 1], &device));
    let before = device.memory_allocated();
    let message = text(model.forward(&zeros(images.shape(), &other)));
    assert!(message.contains("cpu") && message.contains("sim") && message.contains("conv"), "{message}");
    let logits = model.forward(&images).unwrap();
    let message = text(logits.cross_entropy(Tensor::full(&[2], 0.0, DType::I64, &other).unwrap()));
    assert!(message.contains("cpu") && message.contains("sim"), "{message}");
    let options = MultiheadAttentionOptions::default();
    let attention = MultiheadAttention::new(&Scope::new(&device, 1), 4, 2, options).unwrap();
    let (x, mask) = (zeros(&[3, 2, 4], &device), zeros(&[3, 3], &other));
    let masked = MultiheadOptions { attn_mask: Some(&mask), ..MultiheadOptions::default() };
    let message = text(attention.forward(&x, &x, &x, masked));
    assert!(message.contains("cpu") && message.contains("sim"), "{message}");
    drop((logits, attention, x));
    assert_eq!(device.memory_allocated(), before, "what was refused left nothing behind");
    // A gradient on another device is an error.
    let parameter = model.parameters().remove(0);
    let values = parameter.to_vec::<f32>().unwrap();
    let message = text(parameter.set_grad(Some(zeros(parameter.shape(), &other))));
    assert!(message.contains("cpu") && message.contains("sim"), "{message}");
    assert!(parameter.grad().is_none());
    let mut adam = Adam::new(vec![parameter.clone()], AdamOptions::default());
    // Training continues.
    let loss = model.forward(&images).unwrap().cross_entropy(&targets).unwrap();
    loss.backward().unwrap();
    adam.step().unwrap();
    assert_ne!(parameter.to_vec::<f32>().unwrap(), values);
}
