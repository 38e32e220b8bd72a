//! Optimizers take the same steps as PyTorch's, and change nothing if memory runs out.

use plimsoll::label::{self, Span};
use plimsoll::optim::{
    Adam, AdamOptions, Algorithm, LambOptions, NAdamOptions, Optimizer, OptimizerOf, Sgd, SgdOptions,
};
use plimsoll::{Category, CpuConfig, DType, Device, Error, Result, SimConfig, Tensor};
use serde_json::Value;

use crate::recorded::{assert_near, table, tensor};

const NAMES: [&str; 3] = ["w", "b", "late"];
const MIB: u64 = 1 << 20;

/// Makes the optimizer with PyTorch's name and these options; the others have their defaults.
fn optimizer(kind: &str, options: &Value, parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    let number = |name: &str, default: f64| options[name].as_f64().unwrap_or(default);
    if kind == "SGD" {
        let default = SgdOptions::default();
        return Box::new(Sgd::new(
            parameters,
            SgdOptions {
                lr: number("lr", default.lr),
                momentum: number("momentum", default.momentum),
                dampening: number("dampening", default.dampening),
                weight_decay: number("weight_decay", default.weight_decay),
                nesterov: options["nesterov"].as_bool().unwrap_or(default.nesterov),
                maximize: false,
            },
        ));
    }
    let default = AdamOptions::default();
    let beta = |i: usize, default: f64| options["betas"][i].as_f64().unwrap_or(default);
    Box::new(Adam::new(
        parameters,
        AdamOptions {
            lr: number("lr", default.lr),
            betas: (beta(0, default.betas.0), beta(1, default.betas.1)),
            eps: number("eps", default.eps),
            weight_decay: number("weight_decay", default.weight_decay),
            ..default
        },
    ))
}

/// The loss of the recorded problem, which uses `late` from the third step on.
fn loss(p: &[Tensor], x: &Tensor, y: &Tensor, step: usize) -> Result<Tensor> {
    let loss = (&x.matmul(&p[0])? + &p[1])?.tanh()?.mse_loss(y)?;
    if step >= 2 { &loss + &p[2].square()?.sum()? } else { Ok(loss) }
}

#[test]
fn every_optimizer_walks_pytorchs_path() {
    let (device, table) = (Device::cpu(), table());
    let problem = &table["problem"];
    let (x, y) = (tensor(&problem["x"], &device), tensor(&problem["y"], &device));
    for case in table["optimizers"].as_array().unwrap() {
        let start = NAMES.map(|name| tensor(&problem["start"][name], &device).requires_grad_(true).unwrap());
        let mut optimizer = optimizer(case["kind"].as_str().unwrap(), &case["options"], start.to_vec());
        for (step, expected) in case["steps"].as_array().unwrap().iter().enumerate() {
            optimizer.zero_grad();
            loss(&start, &x, &y, step).unwrap().backward().unwrap();
            optimizer.step().unwrap();
            for (name, parameter) in NAMES.iter().zip(&start) {
                assert_near(
                    &format!("{}: {name} after step {step}", case["name"]),
                    parameter,
                    &expected[name],
                );
            }
        }
    }
}

#[test]
fn the_defaults_are_pytorchs() {
    let sgd = SgdOptions {
        lr: 1e-3,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        maximize: false,
    };
    assert_eq!(SgdOptions::default(), sgd);
    let adam = AdamOptions {
        lr: 1e-3,
        betas: (0.9, 0.999),
        eps: 1e-8,
        weight_decay: 0.0,
        amsgrad: false,
        maximize: false,
    };
    assert_eq!(AdamOptions::default(), adam);
}

/// Two parameters of one mebibyte, each with a gradient.
fn two_parameters(device: &Device) -> Vec<Tensor> {
    let parameter = |name: &str| {
        let _owner = Span::of(Category::Parameter, label::intern(name));
        let parameter = Tensor::ones(&[512, 512], device).unwrap().requires_grad_(true).unwrap();
        parameter.set_grad(Some(parameter.ones_like().unwrap())).unwrap();
        parameter
    };
    ["fc1.weight", "fc2.weight"].map(parameter).to_vec()
}

fn momentum(parameters: Vec<Tensor>) -> Sgd {
    Sgd::new(parameters, SgdOptions { lr: 0.5, momentum: 0.9, ..SgdOptions::default() })
}

fn devices() -> [Device; 2] {
    [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(1 << 30))]
}

/// The owners of optimizer state and their bytes, sorted by name.
fn state(device: &Device) -> Vec<(String, u64)> {
    device.reset_peak_memory_stats();
    let owners = device.owners_at_peak().into_iter();
    let mut state: Vec<_> = owners
        .filter(|owner| owner.category == Category::OptimizerState)
        .map(|owner| (owner.label, owner.bytes))
        .collect();
    state.sort();
    state
}

#[test]
fn state_comes_with_the_first_step_and_has_its_parameters_name() {
    for device in devices() {
        let mut sgd = momentum(two_parameters(&device));
        assert_eq!(state(&device), []);
        for _ in 0..2 {
            sgd.step().unwrap();
            let expected = ["fc1.weight momentum_buffer", "fc2.weight momentum_buffer"];
            assert_eq!(state(&device), expected.map(|name| (name.to_owned(), MIB)));
        }
        drop(sgd);
        let mut adam = Adam::new(two_parameters(&device), AdamOptions::default());
        adam.step().unwrap();
        let expected =
            ["fc1.weight exp_avg", "fc1.weight exp_avg_sq", "fc2.weight exp_avg", "fc2.weight exp_avg_sq"];
        assert_eq!(state(&device), expected.map(|name| (name.to_owned(), MIB)));
        drop(adam);
        assert_eq!(device.memory_allocated(), 0);
    }
}

#[test]
fn plain_descent_keeps_nothing() {
    for device in devices() {
        let parameters = two_parameters(&device);
        let mut sgd = Sgd::new(parameters, SgdOptions::default());
        device.reset_peak_memory_stats();
        let before = device.memory_allocated();
        sgd.step().unwrap();
        assert_eq!((device.memory_allocated(), device.max_memory_allocated()), (before, before));
    }
}

/// Checks that a first step with room for `room_bytes` of state fails to allocate the tensor `missing`, and succeeds with enough
/// room.
fn check_out_of_room(optimizer: fn(Vec<Tensor>) -> Box<dyn Optimizer>, room_bytes: u64, missing: &str) {
    for device in devices() {
        let parameters = two_parameters(&device);
        let (before, start) = (device.memory_allocated(), parameters.clone());
        let mut optimizer = optimizer(parameters);
        assert_eq!(before, device.memory_reserved(), "the cache must not help");
        device.set_memory_limit(before + room_bytes);
        let error = optimizer.step().unwrap_err();
        let report = error.out_of_memory().unwrap();
        assert_eq!((report.label.as_str(), report.numbers.category), (missing, Category::OptimizerState));
        assert_eq!(device.memory_allocated(), before, "the state that did fit is given back");
        for parameter in start.iter().filter(|_| device.has_values()) {
            assert!(parameter.to_vec::<f32>().unwrap().iter().all(|&x| x == 1.0), "a parameter moved");
        }
        device.set_memory_limit(None);
        optimizer.step().unwrap();
        for parameter in start.iter().filter(|_| device.has_values()) {
            let values = parameter.to_vec::<f32>().unwrap();
            assert!(values.iter().all(|&x| (x - 0.5).abs() < 1e-6), "a first step is one learning rate long");
        }
    }
}

#[test]
fn a_step_without_room_for_its_state_changes_nothing() {
    check_out_of_room(|parameters| Box::new(momentum(parameters)), 0, "fc1.weight momentum_buffer");
    let adam = |parameters| -> Box<dyn Optimizer> {
        Box::new(Adam::new(parameters, AdamOptions { lr: 0.5, ..AdamOptions::default() }))
    };
    check_out_of_room(adam, 2 * MIB, "fc2.weight exp_avg");
}

/// Fails unless a step with these options fails with this message and changes nothing, and a step with valid options then
/// succeeds.
fn check_refused<O: Optimizer>(
    new: impl Fn(Vec<Tensor>) -> O,
    spoil: fn(&mut O),
    correct: fn(&mut O),
    message: &str,
) {
    for device in devices() {
        let parameters = two_parameters(&device);
        let (before, start) = (device.memory_allocated(), parameters.clone());
        let mut optimizer = new(parameters);
        spoil(&mut optimizer);
        let error = optimizer.step().unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
        assert_eq!(device.memory_allocated(), before, "{message}: no state is made");
        for parameter in start.iter().filter(|_| device.has_values()) {
            assert!(
                parameter.to_vec::<f32>().unwrap().iter().all(|&x| x == 1.0),
                "{message}: a parameter moved"
            );
        }
        correct(&mut optimizer);
        optimizer.step().unwrap();
    }
}

#[test]
fn sgd_refuses_the_options_that_pytorch_refuses() {
    let check = |spoil: fn(&mut Sgd), message: &str| {
        check_refused(momentum, spoil, |sgd| sgd.param_groups[0].options = SgdOptions::default(), message);
    };
    check(|sgd| sgd.param_groups[0].options.lr = -0.1, "sgd: lr is -0.1; it must be 0 or more");
    check(|sgd| sgd.set_lr(f64::NAN), "sgd: lr is NaN; it must be 0 or more");
    check(|sgd| sgd.param_groups[0].options.momentum = -0.9, "sgd: momentum is -0.9; it must be 0 or more");
    check(
        |sgd| sgd.param_groups[0].options.momentum = f64::NAN,
        "sgd: momentum is NaN; it must be 0 or more",
    );
    check(
        |sgd| sgd.param_groups[0].options.weight_decay = -1.0,
        "sgd: weight_decay is -1; it must be 0 or more",
    );
    check(
        |sgd| sgd.param_groups[0].options.weight_decay = f64::NAN,
        "sgd: weight_decay is NaN; it must be 0 or more",
    );
    check(
        |sgd| sgd.param_groups[0].options.dampening = f64::NAN,
        "sgd: dampening is NaN; it must be a number",
    );
    let nesterov =
        |momentum, dampening| SgdOptions { nesterov: true, momentum, dampening, ..Default::default() };
    let parameter = Tensor::from_slice(&[1.0f32], &[1], &Device::cpu()).unwrap();
    let mut sgd = Sgd::new(vec![parameter.requires_grad_(true).unwrap()], nesterov(0.0, 0.0));
    assert_eq!(sgd.step().unwrap_err().to_string(), "sgd: momentum is 0; it must be above 0 for nesterov");
    sgd.param_groups[0].options = nesterov(0.9, 0.5);
    assert_eq!(sgd.step().unwrap_err().to_string(), "sgd: dampening is 0.5; it must be 0 for nesterov");
    sgd.param_groups[0].options = nesterov(0.9, 0.0);
    sgd.step().unwrap();
}

#[test]
fn adam_refuses_the_options_that_pytorch_refuses() {
    let check = |spoil: fn(&mut Adam), message: &str| {
        let new = |parameters| Adam::new(parameters, AdamOptions::default());
        check_refused(new, spoil, |adam| adam.param_groups[0].options = AdamOptions::default(), message);
    };
    check(|adam| adam.set_lr(-1.0), "adam: lr is -1; it must be 0 or more");
    check(|adam| adam.param_groups[0].options.lr = f64::NAN, "adam: lr is NaN; it must be 0 or more");
    check(|adam| adam.param_groups[0].options.eps = -1e-3, "adam: eps is -0.001; it must be 0 or more");
    check(|adam| adam.param_groups[0].options.eps = f64::NAN, "adam: eps is NaN; it must be 0 or more");
    check(
        |adam| adam.param_groups[0].options.weight_decay = -0.5,
        "adam: weight_decay is -0.5; it must be 0 or more",
    );
    check(
        |adam| adam.param_groups[0].options.betas.0 = 1.0,
        "adam: betas.0 is 1; it must be at least 0 and below 1",
    );
    check(
        |adam| adam.param_groups[0].options.betas.0 = -0.1,
        "adam: betas.0 is -0.1; it must be at least 0 and below 1",
    );
    check(
        |adam| adam.param_groups[0].options.betas.1 = 1.5,
        "adam: betas.1 is 1.5; it must be at least 0 and below 1",
    );
    check(
        |adam| adam.param_groups[0].options.betas.1 = f64::NAN,
        "adam: betas.1 is NaN; it must be at least 0 and below 1",
    );
}

#[test]
fn the_edges_that_pytorch_allows_are_allowed() {
    let device = Device::cpu();
    let zeros = SgdOptions { lr: 0.0, dampening: -1.0, ..SgdOptions::default() };
    Sgd::new(two_parameters(&device), zeros).step().unwrap();
    let zeros = AdamOptions { lr: 0.0, betas: (0.0, 0.0), eps: 0.0, ..AdamOptions::default() };
    Adam::new(two_parameters(&device), zeros).step().unwrap();
}

#[test]
fn a_parameter_in_16_bits_moves_as_its_32_bit_copy_does_also_after_resuming() {
    master_weights(&AdamOptions { lr: 1e-3, ..AdamOptions::default() });
    master_weights(&NAdamOptions { lr: 1e-3, ..NAdamOptions::default() });
    master_weights(&LambOptions { lr: 1e-3, ..LambOptions::default() });
}

fn master_weights<O: Algorithm>(options: &O) {
    let device = Device::cpu();
    let start: Vec<f32> = (0..40).map(|i| (i as f32 - 20.0) / 8.0).collect();
    let wide = Tensor::from_slice(&start, &[5, 8], &device).unwrap().requires_grad_(true).unwrap();
    let short = wide.detach().to_dtype(DType::BF16).unwrap().requires_grad_(true).unwrap();
    let mut of_wide = OptimizerOf::new(vec![wide.clone()], options.clone());
    let mut of_short = OptimizerOf::new(vec![short.clone()], options.clone()).with_master_weights();
    for step in 0..6 {
        if step == 3 {
            let saved = of_short.state_dict();
            of_short = OptimizerOf::new(vec![short.clone()], options.clone()).with_master_weights();
            of_short.load_state_dict(&saved).unwrap();
        }
        let grad: Vec<f32> = (0..40).map(|i| (i as f32 + step as f32).sin()).collect();
        let grad = Tensor::from_slice(&grad, &[5, 8], &device).unwrap().to_dtype(DType::BF16).unwrap();
        wide.set_grad(Some(grad.to_dtype(DType::F32).unwrap())).unwrap();
        short.set_grad(Some(grad)).unwrap();
        of_wide.step().unwrap();
        of_short.step().unwrap();
    }
    let values = |x: &Tensor| x.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(values(&of_short.state_dict().state[&0].tensors["master_weight"]), values(&wide));
    assert_eq!(values(&short), values(&wide.detach().to_dtype(DType::BF16).unwrap()));
    assert_ne!(values(&short), values(&wide));
}
