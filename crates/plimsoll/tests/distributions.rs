//! Distributions have PyTorch's log-probabilities, entropies, divergences and gradients (`fixtures/distributions.json`, made by
//! `fixtures/make_distributions.py`), and their samples have the right frequencies.

use plimsoll::distributions::{
    Bernoulli, Categorical, Distribution, Independent, Normal, Uniform, kl_divergence,
};
use plimsoll::{DType, Device, Result, SimConfig, Tensor};
use serde_json::Value;

/// Numbers from -1 to 1, computed as in the script.
fn wave(seed: f64, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|i| (1.7 * i as f64 + 0.9 * seed).sin()).collect();
    Tensor::from_slice(&values, shape, &Device::cpu()).unwrap()
}

fn positive(seed: f64, shape: &[usize]) -> Tensor {
    ((wave(seed, shape) * 0.45).unwrap() + 0.5).unwrap()
}

fn same(what: &str, got: &Tensor, shape: &[usize], expected: &Value) {
    let expected: Vec<f64> = serde_json::from_value(expected.clone()).unwrap();
    let got_values = got.to_vec::<f64>().unwrap();
    assert_eq!(got.shape(), shape, "{what}");
    for (got, expected) in got_values.iter().zip(&expected) {
        assert!(
            (got - expected).abs() < 1e-12 * expected.abs().max(1.0),
            "{what}: {got}, PyTorch's {expected}"
        );
    }
}

/// Compares all three results of a distribution, and their gradients.
fn check<D: Distribution>(
    name: &str,
    parameters: impl Fn(f64) -> Vec<Tensor>,
    make: impl Fn(&[Tensor]) -> Result<D>,
    value: &Tensor,
    kl: impl Fn(&D, &D) -> Result<Tensor>,
) {
    let all: Value = serde_json::from_str(include_str!("fixtures/distributions.json")).unwrap();
    for case in ["log_prob", "entropy", "kl"] {
        let what = format!("{name}: {case}");
        let leaves =
            |seed| parameters(seed).into_iter().map(|x| x.requires_grad_(true).unwrap()).collect::<Vec<_>>();
        let (own, other) = (leaves(1.0), leaves(5.0));
        let (p, q) = (make(&own).unwrap(), make(&other).unwrap());
        let y = match case {
            "log_prob" => p.log_prob(value),
            "entropy" => p.entropy(),
            _ => kl(&p, &q),
        };
        let y = y.unwrap();
        let recorded = &all[name][case];
        let shape: Vec<usize> = serde_json::from_value(recorded["shape"].clone()).unwrap();
        same(&what, &y, &shape, &recorded["values"]);
        y.sum().unwrap().backward().unwrap();
        for (leaf, expected) in own.iter().chain(&other).zip(recorded["grads"].as_array().unwrap()) {
            match leaf.grad() {
                // PyTorch leaves out what has no influence; a gradient of 0 is the same.
                None => assert!(expected.is_null(), "{what}"),
                Some(grad) => same(&format!("gradient of {what}"), &grad, leaf.shape(), expected),
            }
        }
    }
}

#[test]
fn log_probabilities_entropies_and_divergences_are_pytorchs() {
    let scale = |s: f64| vec![wave(s, &[2, 3]), positive(s + 1.0, &[3])];
    let value = wave(9.0, &[2, 3]);
    check("normal", scale, |p| Normal::new(&p[0], &p[1]), &value, Normal::kl_divergence);
    let bits = value.gt_scalar(0.0).unwrap().to_dtype(DType::F64).unwrap();
    let logits = |s| vec![(wave(s, &[2, 3]) * 3.0).unwrap()];
    let kl = Bernoulli::kl_divergence;
    check("bernoulli, logits", logits, |p| Bernoulli::from_logits(&p[0]), &bits, kl);
    check("bernoulli, probs", |s| vec![positive(s, &[2, 3])], |p| Bernoulli::from_probs(&p[0]), &bits, kl);
    let kl = Categorical::kl_divergence;
    let logits = |s| vec![(wave(s, &[2, 4]) * 3.0).unwrap()];
    let whole = |values: &[i64], shape: &[usize]| Tensor::from_slice(values, shape, &Device::cpu()).unwrap();
    check("categorical, logits", logits, |p| Categorical::from_logits(&p[0]), &whole(&[3, 1], &[2]), kl);
    let probs = |s| vec![positive(s, &[2, 4])];
    let many = whole(&[3, 1, 0, 2], &[2, 2]);
    check("categorical, probs", probs, |p| Categorical::from_probs(&p[0]), &many, kl);
}

#[test]
fn what_is_impossible_has_an_infinite_divergence_and_adds_nothing_to_entropy() {
    let device = Device::cpu();
    let of =
        |values: &[f32]| Categorical::from_probs(Tensor::from_slice(values, &[2], &device).unwrap()).unwrap();
    let (sure, open) = (of(&[1.0, 0.0]), of(&[0.5, 0.5]));
    assert_eq!(open.kl_divergence(&sure).unwrap().item::<f32>().unwrap(), f32::INFINITY);
    assert!((sure.kl_divergence(&open).unwrap().item::<f32>().unwrap() - 2.0_f32.ln()).abs() < 1e-6);
    assert!(sure.entropy().unwrap().item::<f32>().unwrap().abs() < 1e-6);
    let coin = |p: f32| Bernoulli::from_probs(Tensor::from_slice(&[p], &[1], &device).unwrap()).unwrap();
    assert_eq!(coin(0.5).kl_divergence(&coin(1.0)).unwrap().item::<f32>().unwrap(), f32::INFINITY);
    assert!(coin(1.0).kl_divergence(&coin(0.5)).unwrap().item::<f32>().unwrap().is_finite());
}

#[test]
fn a_categorical_without_dimensions_is_refused() {
    let scalar = Tensor::zeros(&[], &Device::cpu()).unwrap();
    let message = |error: plimsoll::Error| error.to_string();
    assert_eq!(
        message(Categorical::from_logits(&scalar).unwrap_err()),
        "categorical: logits without dimensions: needs […, numbers]"
    );
    assert_eq!(
        message(Categorical::from_probs(&scalar).unwrap_err()),
        "categorical: probabilities without dimensions: needs […, numbers]"
    );
}

#[test]
fn an_impossible_number_adds_nothing_to_the_entropy_in_any_type() {
    let logits = Tensor::from_slice(&[0.0, 0.0, f32::NEG_INFINITY], &[3], &Device::cpu()).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let entropy = Categorical::from_logits(logits.to_dtype(dtype).unwrap()).unwrap().entropy().unwrap();
        let entropy: f32 = entropy.to_dtype(DType::F32).unwrap().item().unwrap();
        assert!((entropy - 2.0_f32.ln()).abs() < 0.01, "{dtype:?}: {entropy}");
    }
}

#[test]
fn samples_have_the_frequencies_of_their_distribution() {
    let device = Device::cpu();
    device.manual_seed(7);
    let probs = Tensor::from_slice(&[0.1f32, 0.2, 0.7, 0.5, 0.5, 0.0], &[2, 3], &device).unwrap();
    let drawn = Categorical::from_probs(&probs).unwrap().sample(&[20, 1000]).unwrap();
    assert_eq!((drawn.shape(), drawn.dtype()), (&[20, 1000, 2][..], DType::I64));
    for (number, expected) in [(0, [0.1, 0.5]), (1, [0.2, 0.5]), (2, [0.7, 0.0])] {
        let share =
            drawn.eq_scalar(number).unwrap().to_dtype(DType::F32).unwrap().mean_dims(&[0, 1]).unwrap();
        for (share, expected) in share.to_vec::<f32>().unwrap().iter().zip(expected) {
            assert!((share - expected).abs() < 0.015, "{number}: {share}, expected {expected}");
        }
    }
    let coin = Bernoulli::from_probs(probs.narrow(1, 0, 2).unwrap()).unwrap();
    let mean = coin.sample(&[20_000]).unwrap().mean_dims(&[0]).unwrap().to_vec::<f32>().unwrap();
    assert!(mean.iter().zip([0.1, 0.2, 0.5, 0.5]).all(|(a, b)| (a - b).abs() < 0.015), "{mean:?}");
    let (loc, scale) =
        (Tensor::full(&[], 2.0, DType::F32, &device), Tensor::full(&[], 0.5, DType::F32, &device));
    let normal = Normal::new(loc.unwrap(), scale.unwrap()).unwrap().sample(&[40_000]).unwrap();
    let (mean, deviation) =
        (normal.mean().unwrap().item::<f32>().unwrap(), normal.std(1.0).unwrap().item::<f32>().unwrap());
    assert!((mean - 2.0).abs() < 0.015 && (deviation - 0.5).abs() < 0.01, "{mean}, {deviation}");
}

#[test]
fn gradients_pass_through_rsample_and_shapes_work_without_values() {
    let device = Device::cpu();
    let scale = Tensor::ones(&[3], &device).unwrap().requires_grad_(true).unwrap();
    let normal = Normal::new(Tensor::zeros(&[2, 1], &device).unwrap(), &scale).unwrap();
    let drawn = normal.rsample(&[4]).unwrap();
    drawn.sum().unwrap().backward().unwrap();
    let sums = drawn.detach().sum_dims(&[0, 1]).unwrap();
    assert!(sums.allclose(scale.grad().unwrap(), plimsoll::Tolerance::default()).unwrap());
    assert!(!normal.sample(&[]).unwrap().requires_grad());
    let gpu = Device::sim(SimConfig::new(1 << 30));
    let die = Categorical::from_logits(Tensor::zeros(&[5, 6], &gpu).unwrap()).unwrap();
    assert_eq!(die.log_prob(&die.sample(&[3]).unwrap()).unwrap().shape(), [3, 5]);
    let error = Normal::new(Tensor::zeros(&[2], &device).unwrap(), &scale).unwrap_err().to_string();
    assert_eq!(error, "distribution: the shapes [2] and [3] do not broadcast");
}

/// Compares with literal results of PyTorch.
fn near(got: Result<Tensor>, expected: &[f32]) {
    let got = got.unwrap().to_vec::<f32>().unwrap();
    let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 1e-5 * b.abs();
    assert!(got.len() == expected.len() && got.iter().zip(expected).all(same), "{got:?}, {expected:?}");
}

#[test]
fn uniform_and_independent_distributions_are_pytorchs() {
    let device = Device::cpu();
    let of = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, &device).unwrap();
    let own = Uniform::new(of(&[0.0, -1.0], &[2]), of(&[2.0, 1.0], &[2])).unwrap();
    let other = Uniform::new(of(&[-1.0, 0.0], &[2]), of(&[3.0, 1.0], &[2])).unwrap();
    let (ln2, inf) = (2.0_f32.ln(), f32::INFINITY);
    near(own.log_prob(&of(&[0.5, 0.5, 2.0, -1.0], &[2, 2])), &[-ln2, -ln2, -inf, -ln2]);
    near(own.entropy(), &[ln2, ln2]);
    near(kl_divergence(&own, &other), &[ln2, inf]);
    let drawn = own.sample(&[2000]).unwrap();
    let inside = drawn.ge(own.low()).unwrap().logical_and(drawn.lt(own.high()).unwrap()).unwrap();
    assert!(inside.all().unwrap().item::<bool>().unwrap());
    let mean = drawn.mean_dims(&[0]).unwrap().to_vec::<f32>().unwrap();
    assert!((mean[0] - 1.0).abs() < 0.05 && mean[1].abs() < 0.05, "{mean:?}");

    let a = of(&[1.0, 2.0, 3.0, 0.5, -1.0, 2.0], &[2, 3]);
    let b = of(&[1.5, 2.0, 2.0, 0.0, -1.0, 1.0], &[2, 3]);
    let c = of(&[0.0, 2.5, 3.0, 1.0, 1.0, 2.0], &[2, 3]);
    let rows = |loc: &Tensor, scale: &Tensor| {
        let scale = (scale.abs().unwrap() + 0.5).unwrap();
        Independent::new(Normal::new(loc, scale).unwrap(), 1).unwrap()
    };
    let (own, other) = (rows(&a, &b), rows(&b, &c));
    near(own.log_prob(&c), &[-5.427_544, -4.263_488]);
    near(own.entropy(), &[6.782_544_6, 4.374_598_5]);
    near(kl_divergence(&own, &other), &[6.775_64, 0.980_549_1]);
    assert_eq!((own.batch_shape(), own.sample(&[4]).unwrap().shape()), (&[2][..], &[4, 2, 3][..]));
    let error = Independent::new(Normal::new(&a, &b).unwrap(), 3).unwrap_err().to_string();
    assert_eq!(error, "independent: a batch [2, 3] has fewer than 3 dimensions");
}
