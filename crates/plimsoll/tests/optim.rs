//! Compares every optimizer with PyTorch's (`fixtures/optim.json`, made by `fixtures/make_optim.py`).

use plimsoll::label::{self, Span};
use plimsoll::optim::{
    AdadeltaOptions, AdafactorOptions, AdagradOptions, AdamOptions, AdamW, AdamWOptions, AdamaxOptions,
    Algorithm, LambOptions, LionOptions, Muon, MuonOptions, NAdamOptions, Optimizer, OptimizerOf,
    OptimizerState, RAdam, RAdamOptions, RmsPropOptions, Sgd, SgdOptions, StateTensor, Updating,
    clip_grad_norm_, clip_grad_value_,
};
use plimsoll::{Category, CpuConfig, DType, Device, SimConfig, Tensor};
use serde_json::Value;

use crate::recorded::{assert_within, tensor};

pub(crate) fn table() -> Value {
    serde_json::from_str(include_str!("fixtures/optim.json")).unwrap()
}

/// Makes an optimizer with the named options; the others have their defaults.
fn build<O: Algorithm>(options: &Value, parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    let mut map = serde_json::to_value(O::default()).unwrap();
    for (name, value) in options.as_object().unwrap() {
        assert!(map.get(name).is_some(), "{name}");
        map[name] = value.clone();
    }
    Box::new(OptimizerOf::<O>::new(parameters, serde_json::from_value(map).unwrap()))
}

fn optimizer(kind: &str, options: &Value, parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    match kind {
        "AdamW" => build::<AdamWOptions>(options, parameters),
        "Adam" => build::<AdamOptions>(options, parameters),
        "SGD" => build::<SgdOptions>(options, parameters),
        "RMSprop" => build::<RmsPropOptions>(options, parameters),
        "Adagrad" => build::<AdagradOptions>(options, parameters),
        "Adafactor" => build::<AdafactorOptions>(options, parameters),
        "Lion" => build::<LionOptions>(options, parameters),
        "Muon" => build::<MuonOptions>(options, parameters),
        "NAdam" => build::<NAdamOptions>(options, parameters),
        "RAdam" => build::<RAdamOptions>(options, parameters),
        "Adamax" => build::<AdamaxOptions>(options, parameters),
        "Adadelta" => build::<AdadeltaOptions>(options, parameters),
        "Lamb" => build::<LambOptions>(options, parameters),
        other => panic!("{other}"),
    }
}

fn names(case: &Value) -> Vec<String> {
    case["parameters"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn start(table: &Value, case: &Value, device: &Device) -> Vec<Tensor> {
    names(case)
        .iter()
        .map(|name| {
            let _owner = Span::of(Category::Parameter, label::intern(name));
            tensor(&table["start"][name], device).requires_grad_(true).unwrap()
        })
        .collect()
}

/// Sets the parameters' gradients to those of a step.
fn set_grads(table: &Value, case: &Value, step: usize, parameters: &[Tensor]) {
    for (name, parameter) in names(case).iter().zip(parameters) {
        let grad = &table["grads"][step][name];
        parameter.set_grad((!grad.is_null()).then(|| tensor(grad, parameter.device()))).unwrap();
    }
}

/// The tolerance, relative to the largest value. Muon iterates in `bfloat16`, where a single different rounding changes an update
/// by 0.4 %.
fn tolerance(kind: &str) -> f32 {
    if kind == "Muon" { 2e-3 } else { 2e-6 }
}

#[test]
fn every_optimizer_walks_pytorchs_path_and_keeps_pytorchs_state() {
    let (device, table) = (Device::cpu(), table());
    for case in table["optimizers"].as_array().unwrap() {
        let (what, kind) = (case["name"].as_str().unwrap(), case["kind"].as_str().unwrap());
        let parameters = start(&table, case, &device);
        let mut optimizer = optimizer(kind, &case["options"], parameters.clone());
        for (step, expected) in case["steps"].as_array().unwrap().iter().enumerate() {
            set_grads(&table, case, step, &parameters);
            optimizer.step().unwrap();
            for (name, parameter) in names(case).iter().zip(&parameters) {
                let what = format!("{what}: {name} after step {step}");
                assert_within(&what, parameter, &expected[name], tolerance(kind));
            }
        }
        let saved = optimizer.state_dict();
        let recorded = case["state"].as_object().unwrap();
        assert_eq!(saved.state.len(), recorded.len(), "{what}");
        for (number, entry) in recorded {
            let state = &saved.state[&number.parse().unwrap()];
            for (name, value) in entry.as_object().unwrap() {
                match name.as_str() {
                    "step" => assert_eq!(state.step.map(|n| n as f64), value["values"][0].as_f64(), "{what}"),
                    name => {
                        assert_within(&format!("{what}: {name}"), &state.tensors[name], value, 2e-6);
                    }
                }
            }
            assert_eq!(
                state.tensors.len() + usize::from(state.step.is_some()),
                entry.as_object().unwrap().len()
            );
        }
        for (name, value) in &saved.param_groups[0].options {
            let recorded = &case["group"][name];
            let same = recorded == value || recorded.as_f64().is_some_and(|x| Some(x) == value.as_f64());
            assert!(same, "{what}: {name} is {value}, PyTorch's {recorded}");
        }
    }
}

#[test]
fn parameters_of_float64_move_as_pytorchs_in_64_bits() {
    let (device, table) = (Device::cpu(), table());
    let values = |entry: &Value| -> Vec<f64> {
        entry["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let wide = |entry: &Value| tensor(entry, &device).to_dtype(DType::F64).unwrap();
    // PyTorch did not start from 32-bit numbers: the script rounds to two decimals in 64 bits.
    let exact = |tensor: Tensor| {
        let values: Vec<f64> =
            tensor.to_vec::<f64>().unwrap().into_iter().map(|x| (x * 100.0).round() / 100.0).collect();
        Tensor::from_slice(&values, tensor.shape(), &device).unwrap()
    };
    for case in table["float64"].as_array().unwrap() {
        let names = names(case);
        let parameters: Vec<Tensor> = names
            .iter()
            .map(|name| exact(wide(&table["start"][name])).requires_grad_(true).unwrap())
            .collect();
        let kind = case["kind"].as_str().unwrap();
        let mut optimizer = optimizer(kind, &case["options"], parameters.clone());
        for step in 0..4 {
            for (name, parameter) in names.iter().zip(&parameters) {
                let grad = &table["grads"][step][name];
                parameter.set_grad((!grad.is_null()).then(|| exact(wide(grad)))).unwrap();
            }
            optimizer.step().unwrap();
        }
        for (name, parameter) in names.iter().zip(&parameters) {
            assert_eq!(parameter.dtype(), DType::F64);
            let got = parameter.to_vec::<f64>().unwrap();
            // Muon's direction is computed in 16 bits, as in PyTorch; everything else in 64 bits.
            let allowed = if kind == "Muon" { 2e-3 } else { 1e-13 };
            for (got, expected) in got.iter().zip(values(&case["end"][name])) {
                assert!((got - expected).abs() <= allowed, "{kind}: {name} is {got}, PyTorch's {expected}");
            }
            assert!(got.iter().any(|&x| f64::from(x as f32) != x), "{kind}: {name} was in 32 bits: {got:?}");
        }
    }
}

#[test]
fn clipping_in_64_bits_is_exact() {
    let device = Device::cpu();
    let leaf = Tensor::from_slice(&[3.0f64, 4.0], &[2], &device).unwrap().requires_grad_(true).unwrap();
    leaf.set_grad(Some(leaf.detach().copy().unwrap())).unwrap();
    let norm = clip_grad_norm_(std::slice::from_ref(&leaf), 1.0, 2.0).unwrap().unwrap();
    assert_eq!(norm.item::<f64>().unwrap(), 5.0);
    let clipped = leaf.grad().unwrap().to_vec::<f64>().unwrap();
    assert!((clipped[0] - 3.0 / (5.0 + 1e-6)).abs() < 1e-15, "{clipped:?}");
    clip_grad_value_(std::slice::from_ref(&leaf), 0.7).unwrap();
    assert_eq!(leaf.grad().unwrap().to_vec::<f64>().unwrap()[1], 0.7);
}

#[test]
fn a_resumed_optimizer_goes_on_bit_for_bit() {
    let (device, table) = (Device::cpu_with(CpuConfig::default()), table());
    for case in table["optimizers"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let values = |parameters: &[Tensor]| -> Vec<Vec<f32>> {
            parameters.iter().map(|parameter| parameter.to_vec().unwrap()).collect()
        };
        let whole = start(&table, case, &device);
        let mut first = optimizer(kind, &case["options"], whole.clone());
        for step in 0..2 {
            set_grads(&table, case, step, &whole);
            first.step().unwrap();
        }
        let halfway: Vec<Tensor> =
            whole.iter().map(|x| x.detach().copy().unwrap().requires_grad_(true).unwrap()).collect();
        // Deliberately made with default options: loading the state restores the saved ones.
        let mut resumed = optimizer(kind, &serde_json::json!({}), halfway.clone());
        resumed.load_state_dict(&first.state_dict()).unwrap();
        for step in 2..4 {
            for (optimizer, parameters) in [(&mut first, &whole), (&mut resumed, &halfway)] {
                set_grads(&table, case, step, parameters);
                optimizer.step().unwrap();
            }
        }
        assert_eq!(values(&whole), values(&halfway), "{}", case["name"]);
    }
}

#[test]
fn a_step_of_a_group_is_one_call_without_temporaries_if_there_is_a_kernel_for_it() {
    const OF_OPERATIONS: [&str; 5] = ["NAdam", "RAdam", "Adamax", "Adadelta", "Lamb"];
    for device in [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(1 << 30))] {
        let table = table();
        for case in table["optimizers"].as_array().unwrap() {
            if OF_OPERATIONS.iter().any(|kind| case["kind"] == *kind) {
                continue;
            }
            let parameters = start(&table, case, &device);
            let mut optimizer =
                optimizer(case["kind"].as_str().unwrap(), &case["options"], parameters.clone());
            set_grads(&table, case, 0, &parameters);
            optimizer.step().unwrap();
            let requests = || device.memory_stats()["allocation.all.allocated"];
            let before = requests();
            optimizer.step().unwrap();
            // Muon's iteration needs one workspace, which all parameters share.
            let expected = i64::from(case["kind"] == "Muon");
            assert_eq!(requests() - before, expected, "{}", case["name"]);
        }
    }
}

#[test]
fn muon_refuses_what_is_no_matrix_and_names_it() {
    let device = Device::cpu();
    let _owner = Span::of(Category::Parameter, label::intern("fc.bias"));
    let bias = Tensor::ones(&[4], &device).unwrap().requires_grad_(true).unwrap();
    let error = Muon::new(vec![bias], MuonOptions::default()).step().unwrap_err();
    let expected =
        "muon: fc.bias has shape [4]; Muon supports only matrices: give the other parameters to AdamW";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn groups_have_options_of_their_own_and_no_parameter_twice() {
    let device = Device::cpu();
    let parameter = || {
        let parameter = Tensor::ones(&[2], &device).unwrap().requires_grad_(true).unwrap();
        parameter.set_grad(Some(Tensor::ones(&[2], &device).unwrap())).unwrap();
        parameter
    };
    let (a, b) = (parameter(), parameter());
    let mut sgd = Sgd::new(vec![a.clone()], SgdOptions { lr: 0.5, ..SgdOptions::default() });
    sgd.add_param_group(vec![b.clone()], SgdOptions { lr: 0.25, ..SgdOptions::default() }).unwrap();
    assert!(sgd.add_param_group(vec![a.clone()], SgdOptions::default()).is_err());
    sgd.step().unwrap();
    assert_eq!((a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap()), (vec![0.5; 2], vec![0.75; 2]));
    let saved = sgd.state_dict();
    assert_eq!(saved.param_groups.iter().map(|group| group.params.clone()).collect::<Vec<_>>(), [[0], [1]]);
}

#[test]
fn a_state_dict_that_does_not_fit_is_refused_and_changes_nothing() {
    let device = Device::cpu();
    let parameter = || {
        let parameter = Tensor::ones(&[2], &device).unwrap().requires_grad_(true).unwrap();
        parameter.set_grad(Some(Tensor::ones(&[2], &device).unwrap())).unwrap();
        parameter
    };
    let mut saved = AdamW::new(vec![parameter()], AdamWOptions::default());
    saved.step().unwrap();
    let good = saved.state_dict();
    let check = |spoil: &dyn Fn(&mut OptimizerState), message: &str| {
        let mut adamw = AdamW::new(vec![parameter()], AdamWOptions::default());
        let mut state = good.clone();
        spoil(&mut state);
        let error = adamw.load_state_dict(&state).unwrap_err().to_string();
        assert_eq!(error, format!("adamw: load_state_dict: {message}"));
        assert!(adamw.state_dict().state.is_empty());
    };
    let none = |state: &mut OptimizerState| state.param_groups.clear();
    check(&none, "0 parameter groups were saved, but this optimizer has 1");
    let more = |state: &mut OptimizerState| state.param_groups[0].params.push(1);
    check(&more, "group 0 was saved with 2 parameters, but this one has 1");
    let misshaped = |state: &mut OptimizerState| {
        let tensor = Tensor::ones(&[3], &Device::cpu()).unwrap();
        state.state.get_mut(&0).unwrap().tensors.insert("exp_avg".to_owned(), tensor);
    };
    check(&misshaped, "`exp_avg` of parameter 0 has shape [3], not [2]");
    let missing =
        |state: &mut OptimizerState| drop(state.state.get_mut(&0).unwrap().tensors.remove("exp_avg"));
    check(&missing, "parameter 0 has no `exp_avg`");
    let other = |state: &mut OptimizerState| {
        let tensor = Tensor::ones(&[2], &Device::cpu()).unwrap();
        state.state.get_mut(&0).unwrap().tensors.insert("max_exp_avg_sq".to_owned(), tensor);
    };
    check(&other, "parameter 0 has `max_exp_avg_sq`; this optimizer keeps exp_avg, exp_avg_sq");
    let amsgrad = |state: &mut OptimizerState| {
        state.param_groups[0].options.insert("amsgrad".to_owned(), true.into());
    };
    check(&amsgrad, "parameter 0 has no `max_exp_avg_sq`");
    let mut lion = OptimizerOf::<LionOptions>::new(vec![], LionOptions::default());
    let mut state = lion.state_dict();
    state.param_groups[0].options.insert("maximize".to_owned(), true.into());
    let error = lion.load_state_dict(&state).unwrap_err().to_string();
    assert_eq!(error, "lion: load_state_dict: the saved optimizer has maximize=True, which is not supported");
}

#[test]
fn clipped_gradients_are_pytorchs_and_stay_where_they_are() {
    let (device, table) = (Device::cpu_with(CpuConfig::default()), table());
    let parameters = || -> Vec<Tensor> {
        let grads = table["grads"][0].as_object().unwrap();
        table["start"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, start)| {
                let parameter = tensor(start, &device).requires_grad_(true).unwrap();
                parameter.set_grad(Some(tensor(&grads[name], &device))).unwrap();
                parameter
            })
            .collect()
    };
    for case in table["clipped"].as_array().unwrap() {
        let parameters = parameters();
        let number = |name: &str| case[name].as_f64().unwrap_or(f64::INFINITY);
        let held = device.memory_allocated();
        let norm = clip_grad_norm_(&parameters, number("max_norm"), number("norm_type")).unwrap().unwrap();
        assert_eq!(device.memory_allocated() - held, 512, "the norm is all that is new");
        let norm: f32 = norm.item().unwrap();
        assert!((f64::from(norm) - number("norm")).abs() < 1e-5 * number("norm"), "{norm}: {case}");
        // PyTorch's file has the gradients in the order of the table's shapes, which differs from the order of names.
        let mut expected: Vec<Vec<f32>> = Vec::new();
        for grad in case["grads"].as_array().unwrap() {
            expected.push(tensor(grad, &device).to_vec().unwrap());
        }
        let mut got: Vec<Vec<f32>> =
            parameters.iter().map(|parameter| parameter.grad().unwrap().to_vec().unwrap()).collect();
        let order = |a: &Vec<f32>, b: &Vec<f32>| a.len().cmp(&b.len());
        expected.sort_by(order);
        got.sort_by(order);
        for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
            assert!((got - expected).abs() <= 1e-6, "{got}, PyTorch's {expected}: {case}");
        }
    }
    let parameters = parameters();
    clip_grad_value_(&parameters, 0.5).unwrap();
    let grads = parameters.iter().flat_map(|parameter| parameter.grad().unwrap().to_vec::<f32>().unwrap());
    assert!(grads.clone().all(|x| x.abs() <= 0.5) && grads.into_iter().any(|x| x == -0.5));
    assert!(clip_grad_norm_(&[], 1.0, 2.0).unwrap().is_none());
    assert!(clip_grad_norm_(&parameters, f64::NAN, 2.0).is_err());
    assert!(clip_grad_value_(&parameters, -1.0).is_err());
}

#[test]
fn a_gradient_whose_square_is_not_finite_in_16_bits_is_taken() {
    let device = Device::cpu();
    let half = |x: Tensor| x.to_dtype(DType::F16).unwrap();
    for kind in ["NAdam", "RAdam", "Adadelta"] {
        let w = half(Tensor::ones(&[2], &device).unwrap()).requires_grad_(true).unwrap();
        let mut optimizer = optimizer(kind, &serde_json::json!({}), vec![w.clone()]);
        w.set_grad(Some(half(Tensor::full(&[2], 300.0, DType::F32, &device).unwrap()))).unwrap();
        optimizer.step().unwrap();
        let saved = optimizer.state_dict();
        for (name, tensor) in saved.state[&0].tensors.iter().filter(|(name, _)| *name != "mu_product") {
            let values = tensor.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            // With a share of 0.1, the mean square is 9000.
            assert!(values.iter().all(|x| x.is_finite()), "{kind}: {name} is {values:?}");
        }
    }
}

#[test]
fn options_that_are_not_finite_are_refused_and_none_is_not() {
    /// An option that may be missing.
    #[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
    struct Limited {
        lr: f64,
        limit: Option<f64>,
        pair: (f64, f64),
    }
    impl Algorithm for Limited {
        const NAME: &'static str = "some";
        fn lr(&self) -> f64 {
            self.lr
        }
        fn set_lr(&mut self, lr: f64) {
            self.lr = lr;
        }
        fn state(&self, _: &[usize]) -> Vec<StateTensor> {
            Vec::new()
        }
    }
    let good = Limited { lr: 0.1, limit: None, pair: (0.0, 1.0) };
    good.check().unwrap();
    Limited { limit: Some(1.0), ..good.clone() }.check().unwrap();
    let message = |options: Limited| options.check().unwrap_err().to_string();
    let infinite = message(Limited { lr: f64::INFINITY, ..good.clone() });
    assert_eq!(infinite, "some: lr must be a finite number, 0 or more");
    let in_pair = message(Limited { pair: (0.0, f64::NAN), ..good });
    assert_eq!(in_pair, "some: pair must be a finite number, 0 or more");
    let eps = NAdamOptions { eps: f64::NAN, ..NAdamOptions::default() }.check().unwrap_err();
    assert_eq!(eps.to_string(), "nadam: eps must be a finite number, 0 or more");
}

#[test]
fn an_update_that_fails_leaves_the_parameters_before_it_stepped_and_counted() {
    /// Steps by 1, and fails for parameters of two numbers.
    #[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
    struct Fails {
        lr: f64,
    }
    impl Algorithm for Fails {
        const NAME: &'static str = "fails";
        fn lr(&self) -> f64 {
            self.lr
        }
        fn set_lr(&mut self, lr: f64) {
            self.lr = lr;
        }
        fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
            vec![StateTensor::zeros("count", shape)]
        }
        fn update(&self, at: &Updating<'_>) -> plimsoll::Result<Tensor> {
            let [count] = at.state()?;
            count.add_scalar_(1.0)?;
            at.grad.reshape(&[1])
        }
    }
    let device = Device::cpu();
    let of = |len: usize| Tensor::zeros(&[len], &device).unwrap().requires_grad_(true).unwrap();
    let parameters = vec![of(1), of(2)];
    parameters.iter().for_each(|p| p.set_grad(Some(p.detach().ones_like().unwrap())).unwrap());
    let mut fails = OptimizerOf::new(parameters.clone(), Fails::default());
    fails.step().unwrap_err();
    assert_eq!((fails.steps(), parameters[0].to_vec::<f32>().unwrap()), (vec![1, 0], vec![1.0]));
    let saved = fails.state_dict();
    assert_eq!(saved.state[&0].tensors["count"].to_vec::<f32>().unwrap(), [1.0]);
    assert!(!saved.state.contains_key(&1));
}

#[test]
fn a_plain_step_of_radam_does_not_divide_by_the_mean_square() {
    let device = Device::cpu();
    let w = Tensor::ones(&[2], &device).unwrap().requires_grad_(true).unwrap();
    let mut radam = RAdam::new(vec![w.clone()], RAdamOptions { eps: 0.0, ..RAdamOptions::default() });
    w.set_grad(Some(Tensor::zeros(&[2], &device).unwrap())).unwrap();
    radam.step().unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0; 2]);
}
