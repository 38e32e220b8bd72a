//! Compares image models with torchvision's: names, shapes, outputs, and three training steps from the same initial values.
//! `fixtures/make_vision.py` makes `fixtures/vision.json`.

use plimsoll::checkpoint::{Budget, Checkpointer};
use plimsoll::models::{ResNet, ResNetBlock, ResNetConfig, UNet, UNetConfig, Vgg, VggConfig};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{DType, Device, MemoryFormat, SimConfig, Tensor, autocast};

use crate::recorded_steps::same_names;
use crate::recorded_steps::torchvision::{self, classes, images, recorded, resnet};

fn scope() -> Scope {
    Scope::new(&Device::cpu(), 1)
}

#[test]
fn recorded_models_have_the_names_and_learn_the_steps_of_torchvision() {
    for program in torchvision::programs() {
        (program.run)(&Device::cpu()).unwrap().check(program.name);
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
        same_names(name, &ResNet::new(&scope(), config).unwrap(), &recorded("published", name));
    }
    for (name, config) in [
        ("vgg11", VggConfig::vgg11()),
        ("vgg16", VggConfig::vgg16()),
        ("vgg16_bn", VggConfig::vgg16().with_batch_norm()),
    ] {
        same_names(name, &Vgg::new(&scope(), config).unwrap(), &recorded("published", name));
    }
    let unet = UNet::new(&scope(), UNetConfig::new(3, 2)).unwrap();
    same_names("unet", &unet, &recorded("published", "unet"));
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

/// Which tensors of a ResNet are recomputed in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    Nothing,
    Activations,
    Outputs,
    Expansions,
    Blocks,
}

impl Again {
    fn of(self, model: ResNet) -> ResNet {
        match self {
            Again::Nothing => model,
            Again::Activations => model.recompute_activations(),
            Again::Outputs => model.recompute_activations().recompute_outputs(),
            Again::Expansions => model.recompute_activations().recompute_outputs().recompute_expansions(),
            Again::Blocks => {
                let mut model = model.recompute_outputs();
                model.checkpoint_within(Budget::Auto);
                model
            }
        }
    }
}

#[test]
fn activations_and_outputs_that_are_computed_again_give_the_same_bits() {
    let trained = |kind: ResNetBlock, again: Again, amp: Option<DType>, last: bool| -> Vec<Vec<f32>> {
        let mut model = again.of(resnet(&scope(), kind, [3, 2, 1, 2], 4));
        let x = images(&[4, 3, 32, 32], &Device::cpu());
        let format = if last { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
        model.to_memory_format(format).unwrap();
        let x = x.to_memory_format(format).unwrap();
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.01, ..SgdOptions::default() });
        let mut seen = Vec::new();
        for _ in 0..2 {
            sgd.zero_grad();
            let loss = autocast::autocast(amp, || classes(&model.forward(&x)?)).unwrap();
            loss.backward().unwrap();
            sgd.step().unwrap();
            seen.push(loss.to_vec::<f32>().unwrap());
        }
        let tensors = model.named_parameters().into_iter().chain(model.named_buffers());
        let floats = tensors.filter(|(_, tensor)| tensor.dtype().is_float());
        seen.extend(floats.map(|(_, tensor)| tensor.to_vec::<f32>().unwrap()));
        seen
    };
    for (kind, amp, last) in [
        (ResNetBlock::Basic, None, false),
        (ResNetBlock::Bottleneck, None, true),
        (ResNetBlock::Bottleneck, Some(DType::BF16), true),
    ] {
        let kept = trained(kind, Again::Nothing, amp, last);
        for again in [Again::Activations, Again::Outputs, Again::Expansions, Again::Blocks] {
            let found = trained(kind, again, amp, last);
            let differs: Vec<usize> = (0..kept.len()).filter(|&i| kept[i] != found[i]).collect();
            assert!(
                differs.is_empty(),
                "{kind:?}, {amp:?}, {again:?}: tensors {differs:?} of {}",
                kept.len()
            );
        }
    }
}

#[test]
fn a_resnet_within_a_budget_takes_less_than_pytorch_with_checkpointed_blocks() {
    // ResNet-50, batch 128, `float32`: PyTorch's peak if each block is checkpointed is 7.2 GB.
    let bytes = peak(128, None, |scope| {
        let mut model = ResNet::new(scope, ResNetConfig::resnet50()).unwrap();
        model.checkpoint_within(Budget::Bytes(4_000_000_000));
        Box::new(model)
    });
    assert!(bytes <= 7.2e9 / 1.2, "{bytes}");
    let recomputed = peak(128, None, |scope| {
        let model = ResNet::new(scope, ResNetConfig::resnet50()).unwrap();
        Box::new(model.recompute_activations().recompute_outputs().recompute_expansions())
    });
    assert!(
        recomputed
            <= 0.46
                * peak(128, None, |scope| Box::new(ResNet::new(scope, ResNetConfig::resnet50()).unwrap())),
        "{recomputed}"
    );
}

#[test]
fn a_resnet_within_a_budget_trains_in_a_third_of_its_memory() {
    let within = |budget: Option<Budget>| {
        let device = Device::sim(SimConfig::like("H200").unwrap());
        let mut model = ResNet::new(&Scope::new(&device, 1), ResNetConfig::resnet50()).unwrap();
        model.to_memory_format(MemoryFormat::ChannelsLast).unwrap();
        model.checkpoint_within(budget.map(Checkpointer::new));
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..SgdOptions::default() });
        let x = Tensor::empty(&[184, 224, 224, 3], DType::F32, &device).unwrap();
        let x = x.permute(&[0, 3, 1, 2]).unwrap();
        let y = Tensor::empty(&[184], DType::I64, &device).unwrap();
        for _ in 0..3 {
            model.forward(&x).unwrap().cross_entropy(&y).unwrap().backward().unwrap();
            sgd.step().unwrap();
            sgd.zero_grad();
        }
        device.max_memory_allocated() as f64
    };
    let part = within(Some(Budget::Bytes(2_800_000_000))) / within(None);
    assert!(part <= 0.31, "{part}");
}

/// Peak bytes of three steps of SGD with momentum on a simulated H200.
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

/// PyTorch's peaks are from the same programs on a stand-in for the same GPU.
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

/// The bytes reserved after three steps of ResNet-50 with 128 channels-last images, under autocast on an H200 with expandable
/// segments. Each step first drops the gradients.
fn reserved(again: Again) -> u64 {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    device.set_allocator_settings("expandable_segments:True").unwrap();
    let mut model = again.of(ResNet::new(&Scope::new(&device, 1), ResNetConfig::resnet50()).unwrap());
    model.to_memory_format(MemoryFormat::ChannelsLast).unwrap();
    let options = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options);
    let x = Tensor::empty(&[128, 224, 224, 3], DType::F32, &device).unwrap().permute(&[0, 3, 1, 2]).unwrap();
    let y = Tensor::empty(&[128], DType::I64, &device).unwrap();
    for _ in 0..3 {
        sgd.zero_grad();
        let loss = autocast::autocast(DType::BF16, || model.forward(&x)?.cross_entropy(&y)).unwrap();
        loss.backward().unwrap();
        sgd.step().unwrap();
    }
    device.max_memory_reserved()
}

#[test]
fn a_resnet_reserves_less_where_activations_and_outputs_are_computed_again() {
    for (again, limit) in [(Again::Activations, 4_900_000_000), (Again::Outputs, 4_200_000_000)] {
        let reserved = reserved(again);
        assert!(reserved <= limit, "{again:?}: {reserved} bytes of {limit}");
    }
}
