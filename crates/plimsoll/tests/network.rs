//! A small network has PyTorch's losses, gradients and weights for three steps, its names, and its initial values.

use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Scope, Sequential};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{Device, Error, Result, Tensor, no_grad};

use crate::recorded::{assert_near, table, tensor};

/// The network of `fixtures/make.py`.
fn model(scope: &Scope) -> Result<Sequential> {
    Sequential::new(scope)
        .add("conv", |s| Ok(Conv2d::new(s, 1, 3, 3)?.padding(1)))?
        .add("relu", ReLU::new)?
        .add("pool", |s| MaxPool2d::new(s, 2))?
        .add("flatten", Flatten::new)?
        .add("head", |s| {
            Sequential::new(s)
                .add("fc1", |s| Linear::new(s, 48, 6))?
                .add("fc2", |s| Linear::without_bias(s, 6, 4))
        })
}

#[test]
fn three_steps_of_training_are_pytorchs() {
    let (device, table) = (Device::cpu(), table());
    let network = &table["network"];
    let model = model(&Scope::new(&device, 0)).unwrap();
    for (name, parameter) in model.named_parameters() {
        no_grad(|| parameter.copy_(tensor(&network["start"][&name], &device))).unwrap();
    }
    let images = tensor(&network["images"], &device);
    let labels: Vec<i64> =
        network["labels"].as_array().unwrap().iter().map(|label| label.as_i64().unwrap()).collect();
    let labels = Tensor::from_slice(&labels, &[labels.len()], &device).unwrap();
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() });
    for (number, step) in network["steps"].as_array().unwrap().iter().enumerate() {
        sgd.zero_grad();
        let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
        loss.backward().unwrap();
        let (got, expected) = (loss.item::<f32>().unwrap(), step["loss"].as_f64().unwrap() as f32);
        assert!(
            (got - expected).abs() <= 1e-5 * expected,
            "loss of step {number}: {got}, PyTorch's {expected}"
        );
        for (name, parameter) in model.named_parameters() {
            assert_near(
                &format!("gradient of {name} in step {number}"),
                &parameter.grad().unwrap(),
                &step["grads"][&name],
            );
        }
        sgd.step().unwrap();
    }
    for (name, parameter) in model.named_parameters() {
        assert_near(&name, &parameter, &network["end"][&name]);
    }
}

#[test]
fn parameters_have_pytorchs_names_and_shapes() {
    let table = table();
    let model = model(&Scope::new(&Device::cpu(), 0)).unwrap();
    let named = model.named_parameters();
    let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["conv.weight", "conv.bias", "head.fc1.weight", "head.fc1.bias", "head.fc2.weight"]);
    let start = table["network"]["start"].as_object().unwrap();
    assert_eq!(start.len(), named.len());
    for (name, parameter) in named {
        assert_eq!(parameter.shape(), tensor(&start[&name], &Device::cpu()).shape(), "{name}");
        assert!(parameter.requires_grad() && parameter.is_leaf(), "{name}");
    }
}

/// Fails unless the values look uniformly distributed in `-bound..bound`: all inside, some near each end, and mean and variance
/// within five standard errors of 0 and bound²/3.
fn assert_uniform(what: &str, tensor: &Tensor, bound: f64) {
    let values: Vec<f64> = tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    let n = values.len() as f64;
    let (low, high) = values.iter().fold((0.0f64, 0.0f64), |(low, high), &x| (low.min(x), high.max(x)));
    assert!(low >= -bound && high <= bound, "{what}: {low} to {high}, the bound is {bound}");
    assert!(low < -0.9 * bound && high > 0.9 * bound, "{what}: {low} to {high} of {bound}");
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    assert!(mean.abs() < 5.0 * bound / (3.0 * n).sqrt(), "{what}: a mean of {mean}");
    // The variance of x² for x uniform in ±1 is 4/45.
    let error = 5.0 * bound * bound * (4.0 / 45.0 / n).sqrt();
    assert!((variance - bound * bound / 3.0).abs() < error, "{what}: a variance of {variance}");
}

#[test]
fn start_values_are_even_within_one_over_the_root_of_the_inputs() {
    let scope = Scope::new(&Device::cpu(), 5);
    let linear = Linear::new(&scope.at("fc"), 400, 300).unwrap();
    let conv = Conv2d::new(&scope.at("conv"), 16, 256, 3).unwrap();
    for (layer, fan_in) in [(linear.parameters(), 400.0f64), (conv.parameters(), 144.0)] {
        for parameter in layer {
            assert_uniform(&parameter.label(), &parameter, 1.0 / fan_in.sqrt());
        }
    }
}

#[test]
fn start_values_follow_from_the_seed_and_the_name() {
    let weights = |seed| -> Vec<Vec<f32>> {
        let model = model(&Scope::new(&Device::cpu(), seed)).unwrap();
        model.parameters().iter().map(|parameter| parameter.to_vec().unwrap()).collect()
    };
    assert_eq!(weights(1), weights(1));
    assert!(weights(1).iter().zip(weights(2)).all(|(one, two)| *one != two));
}

#[test]
fn a_layer_refuses_what_does_not_fit_and_says_the_sizes() {
    let device = Device::cpu();
    let linear = Linear::new(&Scope::new(&device, 0).at("fc"), 3, 2).unwrap();
    let error = linear.forward(&Tensor::ones(&[1, 4], &device).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fc: linear: input [1, 4] with weight [2, 3] and bias Some([2]): needs […, in], [out, in] and [out]"
    );
}

/// Fails unless this is the error for a second parameter with this path.
fn assert_taken<T>(result: Result<T>, path: &str) {
    let error = result.err().unwrap();
    assert!(matches!(error, Error::Argument { op: "parameter", .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("`{path}` was already made")), "{error}");
}

#[test]
fn two_layers_of_one_path_are_refused() {
    let device = Device::cpu();
    let twice = Sequential::new(&Scope::new(&device, 0))
        .add("fc", |s| Linear::new(s, 4, 4))
        .unwrap()
        .add("relu", ReLU::new)
        .unwrap()
        .add("fc", |s| Linear::new(s, 4, 4));
    assert_taken(twice, "fc.weight");

    let scope = Scope::new(&device, 0);
    let first = Linear::new(&scope, 2, 2).unwrap();
    assert_taken(Linear::new(&scope, 2, 2), "weight");
    assert_taken(Conv2d::new(&scope.clone(), 1, 1, 3), "weight");
    assert_eq!(first.named_parameters()[0].0, "weight");

    // Two chains in one scope are one model.
    let chain = |scope: &Scope| Sequential::new(scope).add("head", |s| Linear::new(s, 2, 2));
    chain(&scope).unwrap();
    assert_taken(chain(&scope), "head.weight");
    chain(&Scope::new(&device, 0)).unwrap();
}

#[test]
fn layers_show_their_weight_and_bias() {
    let scope = Scope::new(&Device::cpu(), 0);
    let conv = Conv2d::new(&scope.at("conv"), 3, 8, 5).unwrap().stride(2);
    assert_eq!(conv.weight().shape(), [8, 3, 5, 5]);
    assert_eq!((conv.weight().label(), conv.weight().requires_grad()), ("conv.weight".to_owned(), true));
    assert_eq!(conv.bias().map(|bias| bias.shape().to_vec()), Some(vec![8]));
    assert!(Conv2d::without_bias(&scope.at("bare"), 3, 8, 5).unwrap().bias().is_none());
}
