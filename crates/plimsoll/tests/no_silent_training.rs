//! A parameter that would silently not be trained or saved is an error.

use plimsoll::nn::{Init, Linear, Module, Parameter, Scope};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions, step_in_backward};
use plimsoll::serialize::{self, Checkpoint};
use plimsoll::{DType, Device, Result, Tensor, members};

/// A module that does not list its `head`.
struct Forgetful {
    body: Linear,
    head: Linear,
}

impl Forgetful {
    fn new(scope: &Scope) -> Result<Forgetful> {
        let (body, head) = (scope.at("body"), scope.at("head"));
        Ok(Forgetful { body: Linear::new(&body, 4, 4)?, head: Linear::new(&head, 4, 2)? })
    }
}

impl Module for Forgetful {
    members!(body);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.body.forward(x)?)
    }
}

/// A model that lists its two modules but not its parameter.
struct Whole {
    first: Forgetful,
    scale: Parameter,
}

impl Module for Whole {
    members!(first);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.first.forward(x)?.mul(&self.scale)
    }
}

fn root() -> Scope {
    Scope::new(&Device::cpu(), 1)
}

fn sgd(parameters: Vec<Tensor>) -> Sgd {
    Sgd::new(parameters, SgdOptions { lr: 0.1, ..SgdOptions::default() })
}

fn file(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("plimsoll-{}-{name}.safetensors", std::process::id()))
}

const MISSING: &str = "the parameter `head.weight` is in no `members!`, so it would be neither trained nor saved: add the field \
                       `head` to the `members!`; if it belongs to another model, make that from its own Scope";

#[test]
fn a_field_that_no_list_has_is_named_in_the_first_step_and_save() {
    let model = Forgetful::new(&root()).unwrap();
    let mut optimizer = sgd(model.parameters());
    model
        .forward(&Tensor::ones(&[1, 4], &Device::cpu()).unwrap())
        .unwrap()
        .sum()
        .unwrap()
        .backward()
        .unwrap();
    assert_eq!(optimizer.step().unwrap_err().to_string(), format!("sgd: {MISSING}"));
    let path = file("forgetful");
    assert_eq!(
        serialize::save(&model.state_dict(), &path).unwrap_err().to_string(),
        format!("save: {MISSING}")
    );
    let error = Checkpoint::default().model(&model).save(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("save: {MISSING}"));
    assert!(!path.exists());
    // A module's own parameter list counts, so the parameters that it lists are trained.
    let mut both = sgd(model.parameters());
    both.add_param_group(model.head.parameters(), SgdOptions::default()).unwrap();
    both.step().unwrap();
}

#[test]
fn the_layer_that_lacks_a_field_is_named_where_it_is_not_the_root() {
    let scope = root();
    let first = Forgetful::new(&scope.at("first")).unwrap();
    let scale = scope.parameter("scale", &[2], Init::Ones).unwrap();
    let model = Whole { first, scale };
    let error = sgd(model.parameters()).step().unwrap_err().to_string();
    assert!(error.contains("`first.head.weight` is in no `members!`"), "{error}");
    assert!(error.contains("add the field `head` to the `members!` of `first`"), "{error}");
    let Whole { first, scale } = model;
    drop(first.head);
    let error = sgd(first.body.parameters()).step().unwrap_err().to_string();
    assert!(error.contains("the parameter `scale`") && error.contains("add the field `scale`"), "{error}");
    drop(scale);
    sgd(first.body.parameters()).step().unwrap();
}

#[test]
fn an_optimizer_over_nothing_is_an_error() {
    let error = sgd(Vec::new()).step().unwrap_err().to_string();
    assert_eq!(error, "sgd: the optimizer has no parameters: give it those of a model, `model.parameters()`");
    let error = step_in_backward(&[], SgdOptions::default()).unwrap_err().to_string();
    assert!(error.contains("there are no parameters to step"), "{error}");
}

#[test]
fn an_optimizer_whose_parameters_were_replaced_says_so() {
    let mut model = Linear::new(&root().at("fc"), 4, 2).unwrap();
    let mut optimizer = sgd(model.parameters());
    optimizer.step().unwrap();
    // Converting a copy gives it new parameters; the model keeps its own.
    let mut copy = model.clone();
    copy.to_dtype(DType::F64).unwrap();
    optimizer.step().unwrap();
    model.to_dtype(DType::F64).unwrap();
    let error = optimizer.step().unwrap_err().to_string();
    assert_eq!(
        error,
        "sgd: the parameter fc.weight got another tensor after this optimizer was made (the model was moved or converted): \
         make the optimizer after that, from `parameters()`"
    );
    sgd(model.parameters()).step().unwrap();
    model.to_dtype(DType::F64).unwrap(); // as it is
    sgd(model.parameters()).step().unwrap();
}

#[test]
fn a_gradient_that_does_not_fit_is_refused_and_the_old_one_stays() {
    let device = Device::cpu();
    let w = Tensor::ones(&[2], &device).unwrap().requires_grad_(true).unwrap();
    w.set_grad(Some(Tensor::ones(&[2], &device).unwrap())).unwrap();
    let other = Device::cpu_with(plimsoll::CpuConfig::default());
    let refused = [
        (Tensor::ones(&[3], &device), "a gradient [3] of a tensor [2]: both need the same shape"),
        (Tensor::ones(&[2], &device).and_then(|x| x.to_dtype(DType::F64)), "float64"),
        (Tensor::ones(&[2], &other), "cpu"),
    ];
    for (grad, part) in refused {
        let error = w.set_grad(Some(grad.unwrap())).unwrap_err().to_string();
        assert!(error.starts_with("set_grad: ") && error.contains(part), "{error}");
    }
    assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
    w.clear_grad();
    assert!(w.grad().is_none());
}
