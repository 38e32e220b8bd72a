//! Models are open: layers of shipped models can be replaced and have hooks, a model can be called with different
//! parameters, and parameters can be averaged. `fixtures/make_lora.py` recorded an adapter from peft.

use std::sync::{Arc, Mutex};

use plimsoll::autograd::{GradOptions, grad};
use plimsoll::models::Gpt2;
use plimsoll::nn::{
    BatchNorm1d, BatchNormConfig, Buffer, Layer, Linear, Module, Scope, Sequential, Slot, functional_call,
};
use plimsoll::optim::swa_utils::{AveragedModel, Averaging, update_bn};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::serialize::{self, StateDict};
use plimsoll::{Category, DType, Device, Result, Tensor, members, no_grad};
use serde_json::Value;

use crate::recorded_steps::transformers::{filled, small_gpt2, tokens};

#[path = "../examples/lora.rs"]
mod lora;

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

/// Two layers in slots.
struct Pair {
    first: Slot<Linear>,
    second: Slot<Linear>,
}

impl Module for Pair {
    members!(first, second);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(x)?.tanh()?)
    }
}

fn pair(device: &Device) -> Pair {
    let s = Scope::new(device, 3);
    Pair {
        first: Linear::new(&s.at("first"), 3, 4).unwrap().into(),
        second: Linear::new(&s.at("second"), 4, 2).unwrap().into(),
    }
}

pub(crate) fn input(device: &Device) -> Tensor {
    Tensor::from_slice(&[0.5f32, -1.0, 2.0, 1.0, 0.25, -0.75], &[2, 3], device).unwrap()
}

#[test]
fn an_adapter_of_peft_loads_trains_and_is_saved_under_the_same_names() {
    let device = Device::cpu();
    let scope = Scope::new(&device, 1);
    let mut model = Gpt2::new(&scope, small_gpt2()).unwrap();
    filled(&model);
    lora::add_lora(&mut model, &scope, 4, 8.0).unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lora");
    let file = folder.join("adapter_model.safetensors");
    lora::load_adapter(&model, &file).unwrap();

    let recorded = serialize::open(&file).unwrap();
    let own = lora::adapter(&model);
    let copy = std::env::temp_dir().join(format!("plimsoll-lora-{}.safetensors", std::process::id()));
    serialize::save(&own, &copy).unwrap();
    let saved = serialize::open(&copy).unwrap();
    let (mut ours, mut theirs) = (saved.names(), recorded.names());
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    for name in theirs {
        let [a, b] = [&saved, &recorded].map(|source| source.tensor(&name, &device).unwrap());
        assert_eq!((a.shape(), values(&a)), (b.shape(), values(&b)), "{name}");
    }
    std::fs::remove_file(&copy).unwrap();

    let losses: Value = serde_json::from_str(include_str!("fixtures/lora/losses.json")).unwrap();
    let trained: Vec<Tensor> = model.parameters().into_iter().filter(Tensor::requires_grad).collect();
    assert_eq!(trained.len(), 4);
    let mut optimizer = AdamW::new(trained, AdamWOptions { lr: 1e-2, ..AdamWOptions::default() });
    for step in 0..3 {
        let loss = model.loss(&tokens(&device, 0), &tokens(&device, 1)).unwrap();
        optimizer.zero_grad();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        let (ours, theirs) =
            (f64::from(loss.item::<f32>().unwrap()), losses["float64"][step].as_f64().unwrap());
        assert!((ours - theirs).abs() < 2e-6 * theirs, "step {step}: {ours}, peft's {theirs}");
    }
}

#[test]
fn a_slot_adds_nothing_to_names_and_gives_its_layer_back() {
    let model = pair(&Device::cpu());
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first.weight", "first.bias", "second.weight", "second.bias"]);
    let module = model.get_submodule("second").unwrap();
    let linear = (module as &dyn std::any::Any).downcast_ref::<Linear>().unwrap();
    assert_eq!((linear.weight().shape(), module.kind()), (&[2, 4][..], "Linear"));
    let modules: Vec<&str> = model.named_modules().iter().map(|(_, module)| module.kind()).collect();
    assert_eq!(modules, ["Linear", "Linear"]);
}

#[test]
fn a_path_without_a_slot_is_refused_and_the_slots_are_listed() {
    let mut model = Gpt2::new(&Scope::new(&Device::cpu(), 1), small_gpt2()).unwrap();
    let error = model.hooks("transformer.h.0.ln_1").unwrap_err().to_string();
    let expected = "hooks: `transformer.h.0.ln_1` is not in a slot of this Gpt2; the 14 slots are transformer.h.0, transformer.h.0.attn, \
                    transformer.h.0.attn.c_attn, transformer.h.0.attn.c_proj, … transformer.h.1.mlp.c_proj";
    assert_eq!(error, expected);
    let error = model.replace_submodule("head", Ok).unwrap_err().to_string();
    assert!(
        error.starts_with("replace_submodule: `head` is not a module of this Gpt2; the 14 slots"),
        "{error}"
    );
    let error = model.get_submodule("transformer.x").map(Module::kind).unwrap_err().to_string();
    assert_eq!(error, "get_submodule: `transformer.x` is not a module of this Gpt2");
    let error = tied(&Device::cpu()).hooks("first").unwrap_err().to_string();
    assert_eq!(
        error,
        "hooks: `first` is not in a slot of this Tied; the model has no slots: make the field a `Slot`"
    );
}

#[test]
fn forward_hooks_see_and_change_inputs_and_outputs_in_order() {
    let device = Device::cpu();
    let (model, x) = (pair(&device), input(&device));
    let plain = model.forward(&x).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hooks = model.hooks("first").unwrap();
    let note = |what: &'static str| {
        let seen = seen.clone();
        move || seen.lock().unwrap().push(what)
    };
    let (a, b, c) = (note("pre"), note("second pre"), note("forward"));
    let handles = [
        hooks.register_forward_hook(move |input, output| {
            c();
            assert_eq!((input.shape(), output.shape()), (&[2, 3][..], &[2, 4][..]));
            Ok(None)
        }),
        hooks.register_forward_pre_hook(move |x| {
            a();
            (x * 0.0).map(Some)
        }),
        hooks.register_forward_pre_hook(move |x| {
            b();
            assert_eq!(values(x), [0.0; 6]);
            Ok(None)
        }),
    ];
    let changed = model.forward(&x).unwrap();
    assert_eq!(*seen.lock().unwrap(), ["pre", "second pre", "forward"]);
    assert_eq!(values(&changed), values(&model.forward(&x.zeros_like().unwrap()).unwrap()));
    handles.iter().for_each(|handle| handle.remove());
    assert_eq!(values(&model.forward(&x).unwrap()), values(&plain), "without hooks");
    hooks.register_forward_hook(|_, output| (output * 0.0).map(Some));
    let bias = values(model.second.plain().unwrap().bias().unwrap());
    assert_eq!(values(&model.forward(&x).unwrap()), [bias.clone(), bias].concat());
}

#[test]
fn backward_hooks_see_both_gradients_and_may_change_the_inputs() {
    let device = Device::cpu();
    let (model, x) = (pair(&device), input(&device).requires_grad_(true).unwrap());
    model.forward(&x).unwrap().sum().unwrap().backward().unwrap();
    let (expected, weight) = (x.grad().unwrap(), model.parameters()[2].grad().unwrap());
    x.clear_grad();
    model.zero_grad();

    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let hook = model.hooks("second").unwrap().register_full_backward_hook(move |of_input, of_output| {
        kept.lock().unwrap().push((of_input.unwrap().shape().to_vec(), values(of_output)));
        of_input.map(|gradient| gradient * 2.0).transpose()
    });
    model.forward(&x).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), [(vec![2, 4], vec![1.0; 4])]);
    assert_eq!(values(&model.parameters()[2].grad().unwrap()), values(&weight), "the layer's own gradient");
    let doubled: Vec<f32> = values(&expected).iter().map(|g| 2.0 * g).collect();
    assert_eq!(values(&x.grad().unwrap()), doubled);
    hook.remove();

    // The first layer's input needs no gradient here.
    let kept = seen.clone();
    model.hooks("first").unwrap().register_full_backward_hook(move |of_input, of_output| {
        assert!(of_input.is_none());
        kept.lock().unwrap().push((Vec::new(), values(of_output)));
        Ok(None)
    });
    model.forward(&input(&device)).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
    assert!(
        !no_grad(|| model.forward(&x)).unwrap().requires_grad(),
        "without gradients there is nothing to watch"
    );
}

/// A layer that does not use its input.
#[derive(Clone)]
struct Constant(Linear);

impl Module for Constant {
    members!(0 = "base_layer");

    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        self.0.weight().tensor() * 2.0
    }
}

#[test]
fn a_pass_that_does_not_reach_the_layers_input_leaves_nothing_behind() {
    let device = Device::cpu_with(Default::default());
    let mut model = pair(&device);
    let base = Linear::new(&Scope::new(&device, 1), 4, 2).unwrap();
    model.replace_submodule("second", |_| Ok(Constant(base))).unwrap();
    model.hooks("second").unwrap().register_full_backward_hook(|_, _| Ok(None));
    let before = device.memory_allocated();
    {
        let x = input(&device).requires_grad_(true).unwrap();
        let y = model.forward(&x).unwrap().square().unwrap().sum().unwrap();
        // The gradients have a graph, which has the hooks.
        let options = GradOptions { create_graph: true, ..GradOptions::default() };
        let weight = model.parameters()[2].clone();
        drop(grad(&[&y], &[&weight], options).unwrap());
    }
    assert_eq!(device.memory_allocated(), before);
}

/// A layer, and its output doubled.
#[derive(Clone)]
pub(crate) struct Doubled(pub(crate) Box<dyn Layer>);

impl Module for Doubled {
    members!(0 = "base_layer");

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)? * 2.0
    }
}

#[test]
fn a_replaced_layer_moves_converts_and_saves_with_the_model() {
    let device = Device::cpu();
    let (mut model, x) = (pair(&device), input(&device));
    let before = values(&model.forward(&x).unwrap());
    model.replace_submodule("second", |base| Ok(Doubled(base))).unwrap();
    let doubled: Vec<f32> = before.iter().map(|y| 2.0 * y).collect();
    assert_eq!(values(&model.forward(&x).unwrap()), doubled);
    assert_eq!(model.state_dict().iter().nth(2).unwrap().0, "second.base_layer.weight");
    model.to_dtype(DType::F64).unwrap();
    assert!(model.parameters().iter().all(|parameter| parameter.dtype() == DType::F64));
    let failed = model.replace_submodule("second", |_| -> Result<Linear> {
        Linear::new(&Scope::new(&device, 1), 0, 0)?;
        Err(plimsoll::Error::argument("test", "no"))
    });
    assert!(failed.is_err());
    assert_eq!(model.get_submodule("second").unwrap().kind(), "Doubled");
}

#[test]
fn a_functional_call_differentiates_through_other_parameters_and_puts_the_own_ones_back() {
    let device = Device::cpu();
    let (mut model, x) = (pair(&device), input(&device));
    let own = model.parameters();
    let loss = |model: &Pair| model.forward(&x)?.square()?.mean();
    let options = || GradOptions { create_graph: true, ..GradOptions::default() };
    let named = model.named_parameters();
    let refs: Vec<&Tensor> = own.iter().collect();
    let inner = grad(&[&loss(&model).unwrap()], &refs, options()).unwrap();
    let stepped: StateDict = named
        .iter()
        .zip(inner)
        .map(|((name, p), g)| (name.clone(), (p - (g.unwrap() * 0.1).unwrap()).unwrap()))
        .collect();
    let outer = functional_call(&mut model, &stepped, loss).unwrap();
    outer.backward().unwrap();
    assert!(model.parameters().iter().zip(&own).all(|(now, own)| now.is_same(own)));

    // The derivative of the loss after the step, by finite differences in one weight.
    let bias = &own[1];
    let after = |by: f32| {
        let mut model = pair(&device);
        let moved = values(bias)
            .iter()
            .enumerate()
            .map(|(i, &b)| if i == 0 { b + by } else { b })
            .collect::<Vec<_>>();
        no_grad(|| model.parameters()[1].copy_(Tensor::from_slice(&moved, &[4], &device)?)).unwrap();
        let parameters = model.parameters();
        let inner =
            grad(&[&loss(&model).unwrap()], &parameters.iter().collect::<Vec<_>>(), options()).unwrap();
        let stepped = model.named_parameters().into_iter().zip(inner);
        let stepped: StateDict =
            stepped.map(|((name, p), g)| (name, (p - (g.unwrap() * 0.1).unwrap()).unwrap())).collect();
        functional_call(&mut model, &stepped, loss).unwrap().item::<f32>().unwrap()
    };
    let difference = (after(0.02) - after(-0.02)) / 0.04;
    let derivative = values(&bias.grad().unwrap())[0];
    assert!((difference - derivative).abs() < 2e-3 * derivative.abs().max(0.1), "{difference}, {derivative}");

    let wrong = StateDict::from_iter([("third.weight".to_owned(), x.clone())]);
    let error = functional_call(&mut model, &wrong, loss).unwrap_err().to_string();
    assert_eq!(error, "functional_call: `third.weight` is not a parameter or buffer of this Pair");
}

/// Two layers that share a weight, and a mask that is not saved.
struct Tied {
    first: Linear,
    second: Linear,
    steps: Buffer,
    mask: Buffer,
}

impl Module for Tied {
    members!(first, second, steps, mask);
}

fn tied(device: &Device) -> Tied {
    let s = Scope::new(device, 3);
    let first = Linear::without_bias(&s.at("first"), 3, 3).unwrap();
    let second = Linear::of(&s.at("second"), first.weight().clone(), None);
    let buffer = || Buffer::new(&Tensor::zeros(&[2], device).unwrap());
    Tied { first, second, steps: buffer(), mask: buffer().not_persistent() }
}

#[test]
fn different_tensors_under_the_names_of_a_tied_parameter_are_refused() {
    let device = Device::cpu();
    let mut model = tied(&device);
    let (a, b) = (Tensor::ones(&[3, 3], &device).unwrap(), Tensor::zeros(&[3, 3], &device).unwrap());
    let of = |a: &Tensor, b: &Tensor| {
        [("first.weight".to_owned(), a.clone()), ("second.weight".to_owned(), b.clone())]
    };
    let found = functional_call(&mut model, &of(&a, &a).into_iter().collect(), |model| {
        Ok(model.second.weight().is_same(&a))
    });
    assert!(found.unwrap());
    let error = functional_call(&mut model, &of(&a, &b).into_iter().collect(), |_| Ok(())).unwrap_err();
    let message =
        "functional_call: `second.weight` is tied to another name, under which there is another tensor";
    assert_eq!(error.to_string(), message);
}

#[test]
fn statistics_of_averages_are_means_over_the_batches() {
    let device = Device::cpu();
    let scope = Scope::new(&device, 1);
    let config = BatchNormConfig { momentum: Some(0.7), ..BatchNormConfig::default() };
    let mut model = Sequential::new(&scope)
        .push(|scope| Linear::new(scope, 3, 2))
        .and_then(|model| model.push(|scope| BatchNorm1d::with(scope, 2, config)))
        .unwrap();
    let batch = |seed: u64| {
        device.manual_seed(seed);
        Tensor::randn(&[16, 3], &device).unwrap()
    };
    let mut average = AveragedModel::new(&model, Averaging::Equal).unwrap();
    model.forward(&batch(7)).unwrap();
    average.update_parameters(&model).unwrap();
    model.eval();
    average
        .with(&mut model, |model| {
            update_bn(model, [1, 2, 3].map(batch), |model, batch| model.forward(&batch))?;
            let outputs = [1, 2, 3].map(|seed| model.get("0").unwrap().forward(&batch(seed)).unwrap());
            let mean = |of: &dyn Fn(&Tensor) -> Tensor| {
                let sum = outputs.iter().map(of).reduce(|a, b| a.add(&b).unwrap()).unwrap();
                values(&sum.mul_scalar(1.0 / 3.0).unwrap())
            };
            let buffers: Vec<Vec<f32>> =
                model.named_buffers().iter().take(2).map(|(_, buffer)| values(buffer)).collect();
            let expected = [mean(&|x| x.mean_dims(&[0]).unwrap()), mean(&|x| x.var_dims(&[0], 1.0).unwrap())];
            for (found, expected) in buffers.iter().flatten().zip(expected.iter().flatten()) {
                assert!((found - expected).abs() < 1e-5, "{buffers:?}, {expected:?}");
            }
            Ok(())
        })
        .unwrap();
    let before = values(&model.named_buffers()[0].1);
    model.forward(&batch(1)).unwrap();
    assert_eq!(
        values(&model.named_buffers()[0].1),
        before,
        "the model evaluates again, with its own statistics"
    );
}

#[test]
fn averages_are_pytorchs() {
    let device = Device::cpu();
    for (averaging, expected) in [(Averaging::Equal, 3.0), (Averaging::Ema { decay: 0.75 }, 2.3125)] {
        let mut model = pair(&device);
        let mut average = AveragedModel::new(&model, averaging).unwrap();
        for value in [1.0, 3.0, 5.0] {
            no_grad(|| model.parameters().iter().try_for_each(|p| p.fill_(value))).unwrap();
            average.update_parameters(&model).unwrap();
        }
        // EMA: ((1 · 0.75 + 3 · 0.25) · 0.75 + 5 · 0.25).
        let expected = if averaging == Averaging::Equal { expected } else { 0.75 * 1.5 + 1.25 };
        let found = average.with(&mut model, |model| Ok(values(&model.parameters()[0]))).unwrap();
        assert!(found.iter().all(|x| (f64::from(*x) - expected).abs() < 1e-6), "{averaging:?}: {found:?}");
        assert_eq!(values(&model.parameters()[0]), [5.0; 12], "the model has its own parameters again");

        let saved = average.state_dict().unwrap();
        assert_eq!(saved.iter().next().unwrap().0, "n_averaged");
        let mut other = AveragedModel::new(&pair(&device), averaging).unwrap();
        other.load_state_dict(&saved).unwrap();
        assert_eq!((other.n_averaged(), average.n_averaged()), (3, 3));
        let loaded = other.state_dict().unwrap();
        assert_eq!(
            values(loaded.get("module.first.bias").unwrap()),
            values(saved.get("module.first.bias").unwrap())
        );
    }
    // PyTorch lists both names of a tied parameter, and no buffer that is not persistent.
    let mut model = tied(&device);
    let mut average = AveragedModel::new(&model, Averaging::Equal).unwrap();
    for value in [1.0, 3.0] {
        no_grad(|| model.parameters().iter().chain([&*model.mask]).try_for_each(|p| p.fill_(value))).unwrap();
        average.update_parameters(&model).unwrap();
    }
    let saved = average.state_dict().unwrap();
    let names: Vec<&str> = saved.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["n_averaged", "module.steps", "module.first.weight", "module.second.weight"]);
    assert_eq!(values(saved.get("module.second.weight").unwrap()), [2.0; 9]);
    let mut other = AveragedModel::new(&tied(&device), Averaging::Equal).unwrap();
    other.load_state_dict(&saved).unwrap();
    let found = other.with(&mut model, |model| Ok(values(model.second.weight()))).unwrap();
    assert_eq!(found, [2.0; 9]);
    let mask = average.with(&mut model, |model| Ok(values(&model.mask))).unwrap();
    assert_eq!(mask, [3.0; 2]);
    let error = AveragedModel::new(&pair(&device), Averaging::Ema { decay: 1.5 }).unwrap_err().to_string();
    assert_eq!(error, "averaged_model: the decay is 1.5; it must be from 0 to 1");
}

#[test]
fn a_freed_tensor_says_when_and_in_which_layer() {
    let device = Device::cpu();
    let (model, x) = (pair(&device), input(&device));
    let freed = Arc::new(Mutex::new(Vec::new()));
    let note = freed.clone();
    model.hooks("second").unwrap().register_forward_pre_hook(move |input| {
        let (note, input) = (note.clone(), (input * 1.0)?); // only the layer saves this one
        input.register_free_hook(move |what| note.lock().unwrap().push(what.clone()));
        Ok(Some(input))
    });
    let y = model.forward(&x).unwrap().sum().unwrap();
    assert!(freed.lock().unwrap().is_empty(), "saved for the backward pass");
    y.backward().unwrap();
    let freed = freed.lock().unwrap();
    assert_eq!(freed.len(), 1);
    assert_eq!((freed[0].bytes, freed[0].category), (32, Category::Activation));
    assert_eq!((freed[0].label.as_str(), freed[0].by.as_str()), ("affine", "second backward"));
}
