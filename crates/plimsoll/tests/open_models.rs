//! Layers of shipped models and of `Sequential` can have hooks and be replaced, and the numbers stay the same.

use std::sync::{Arc, Mutex};

use plimsoll::models::{Gpt2, Llama, ResNetBlock, Vit};
use plimsoll::nn::{Linear, Module, ReLU, Scope, Sequential};
use plimsoll::{Device, Tensor};

use crate::open_modules::{Doubled, input, values};
use crate::recorded_steps::torchvision::{images, resnet};
use crate::recorded_steps::transformers::{
    bert, filled, small_gpt2, small_images, small_llama, small_vit, tokens,
};

#[test]
fn hooks_and_replaced_layers_of_shipped_models_compute_the_same_numbers() {
    let device = Device::cpu();
    let tokens = tokens(&device, 0);
    let compare = |name: &str, slots: &[&str], forward: &dyn Fn() -> Tensor, hook: &dyn Fn(&str)| {
        let plain = values(&forward());
        slots.iter().for_each(|slot| hook(slot));
        let hooked = values(&forward());
        let worst = plain.iter().zip(&hooked).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{name}: {worst}");
    };
    let gpt2 = Gpt2::new(&Scope::new(&device, 1), small_gpt2()).unwrap();
    filled(&gpt2);
    let calls = Arc::new(Mutex::new(0));
    let count = |model: &dyn Fn(&str) -> plimsoll::nn::ModuleHooks, slot: &str| {
        let calls = calls.clone();
        model(slot).register_forward_hook(move |_, _| {
            *calls.lock().unwrap() += 1;
            Ok(None)
        });
    };
    let slots =
        ["transformer.h.0", "transformer.h.1.attn", "transformer.h.1.mlp", "transformer.h.1.mlp.c_proj"];
    compare("gpt2", &slots, &|| gpt2.forward(&tokens).unwrap(), &|slot| {
        count(&|s| gpt2.hooks(s).unwrap(), slot);
    });
    assert_eq!(*calls.lock().unwrap(), 4);
    let llama = Llama::new(&Scope::new(&device, 1), small_llama()).unwrap();
    filled(&llama);
    let slots = ["model.layers.0.mlp", "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj"];
    compare("llama", &slots, &|| llama.forward(&tokens).unwrap(), &|slot| {
        count(&|s| llama.hooks(s).unwrap(), slot);
    });
    assert_eq!(*calls.lock().unwrap(), 7);
    let vit = Vit::new(&Scope::new(&device, 1), small_vit()).unwrap();
    filled(&vit);
    let pictures = small_images(&device).0;
    let slots = ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1", "heads.head"];
    compare("vit", &slots, &|| vit.forward(&pictures).unwrap(), &|slot| {
        count(&|s| vit.hooks(s).unwrap(), slot);
    });
    assert_eq!(*calls.lock().unwrap(), 10);
    let bert = bert(&Scope::new(&device, 1));
    filled(&bert);
    let slots = [
        "bert.encoder.layer.0.attention.self.query",
        "bert.encoder.layer.1.intermediate.dense",
        "bert.encoder.layer.1.output.dense",
        "cls.predictions.transform.dense",
        "cls.predictions.decoder",
    ];
    let loss = |_: &str| bert.loss(&tokens, &tokens).unwrap().item::<f32>().unwrap();
    let fused = loss("before the hooks");
    compare("bert", &slots, &|| bert.forward(&tokens).unwrap(), &|slot| {
        count(&|s| bert.hooks(s).unwrap(), slot);
    });
    assert_eq!(*calls.lock().unwrap(), 15);
    assert!((loss("with hooks") - fused).abs() < 1e-5 * fused);
    assert_eq!(*calls.lock().unwrap(), 20, "the loss calls the hooks too");
    let resnet = resnet(&Scope::new(&device, 1), ResNetBlock::Basic, [1, 1, 1, 1], 8).recompute_activations();
    let pictures = images(&[2, 3, 64, 64], &device);
    resnet.eval();
    let slots = ["conv1", "layer1.0", "layer4.0", "fc"];
    compare("resnet", &slots, &|| resnet.forward(&pictures).unwrap(), &|slot| {
        count(&|s| resnet.hooks(s).unwrap(), slot);
    });
    assert_eq!(*calls.lock().unwrap(), 24);
}

#[test]
fn the_last_layer_of_a_resnet_is_replaced_and_a_block_explains_its_answer() {
    let device = Device::cpu();
    let scope = Scope::new(&device, 1);
    let mut model = resnet(&scope, ResNetBlock::Basic, [1, 1, 1, 1], 8);
    let names = model.state_dict().iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    model.parameters().iter().try_for_each(|p| p.requires_grad_(false).map(drop)).unwrap();
    model.replace_submodule("fc", |_| Linear::new(&scope.at("head"), 64, 3)).unwrap();
    assert_eq!(model.state_dict().iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>(), names);
    let trained: Vec<String> = model
        .named_parameters()
        .into_iter()
        .filter(|(_, p)| p.requires_grad())
        .map(|(name, _)| name)
        .collect();
    assert_eq!(trained, ["fc.weight", "fc.bias"]);

    // Grad-CAM: a block's output, weighted with the means of its gradient.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (of_forward, of_backward) = (seen.clone(), seen.clone());
    let block = model.hooks("layer4.0").unwrap();
    block.register_forward_hook(move |_, output| {
        of_forward.lock().unwrap().push(output.detach());
        Ok(None)
    });
    block.register_full_backward_hook(move |_, gradient| {
        of_backward.lock().unwrap().push(gradient.detach());
        Ok(None)
    });
    let pictures = images(&[2, 3, 64, 64], &device).requires_grad_(true).unwrap();
    let logits = model.forward(&pictures).unwrap();
    assert_eq!(logits.shape(), [2, 3]);
    logits.select(1, 0).unwrap().sum().unwrap().backward().unwrap();
    let seen = seen.lock().unwrap();
    let weights = seen[1].mean_keepdim(&[2, 3]).unwrap();
    let map = (&seen[0] * weights).unwrap().sum_dims(&[1]).unwrap().relu().unwrap();
    assert_eq!(map.shape(), [2, 2, 2]);
}

#[test]
fn layers_of_a_sequential_have_hooks_and_are_replaced_by_name() {
    let (device, x) = (Device::cpu(), input(&Device::cpu()));
    let scope = Scope::new(&device, 1);
    let mut model = Sequential::new(&scope)
        .add("fc1", |s| Linear::new(s, 3, 4))
        .and_then(|model| {
            model.add("inner", |s| Sequential::new(s).push(|s| Linear::new(s, 4, 2))?.push(ReLU::new))
        })
        .unwrap();
    let plain = values(&model.forward(&x).unwrap());
    let hook = model.hooks("inner.0").unwrap().register_forward_hook(|_, y| (y * 2.0).map(Some));
    let doubled: Vec<f32> = plain.iter().map(|y| 2.0 * y).collect();
    assert_eq!(values(&model.forward(&x).unwrap()), doubled);
    assert_eq!(values(&model.clone().forward(&x).unwrap()), doubled, "clones share hooks");
    hook.remove();
    model.replace_submodule("inner.0", |base| Ok(Doubled(base))).unwrap();
    assert_eq!(values(&model.forward(&x).unwrap()), doubled);
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["fc1.weight", "fc1.bias", "inner.0.base_layer.weight", "inner.0.base_layer.bias"]);
    let fc1 = model.get("fc1").unwrap() as &dyn std::any::Any;
    assert_eq!(fc1.downcast_ref::<Linear>().unwrap().weight().shape(), [4, 3]);
}
