//! Recorded changes in place: gradients equal to PyTorch's, for the programs of `fixtures/make_in_place.py`, and errors.

use plimsoll_tensor::autograd::{GradOptions, grad};
use plimsoll_tensor::testing::{LateConfig, evict_at_random};
use plimsoll_tensor::{CpuConfig, DType, Device, Error, Result, Tensor, no_grad};
use serde_json::Value;

fn leaf(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, &[values.len()], device).unwrap().requires_grad_(true).unwrap()
}

/// The loss of the program with this name.
fn program(name: &str, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let device = x.device();
    let twice = || x.mul_scalar(2.0);
    match name {
        "a_product" => {
            let y = twice()?;
            y.mul_(w)?;
            y.sum()
        }
        "a_sum_of_squares" => {
            let y = x.mul(x)?;
            y.add_scaled_(w, 3.0)?;
            y.mul(&y)?.sum()
        }
        "values_taken_over" => {
            let y = twice()?;
            y.copy_(w)?;
            y.mul(&y)?.sum()
        }
        "values_overwritten" => {
            let y = x.mul(x)?;
            y.fill_(3.0)?;
            y.mul(x)?.sum()
        }
        "rows_of_a_buffer" => {
            let buffer = Tensor::zeros(&[2, 4], device)?;
            buffer.select(0, 0)?.copy_(x)?;
            buffer.select(0, 1)?.copy_(&w.mul_scalar(2.0)?)?;
            buffer.mul(&buffer)?.sum()
        }
        "a_part" => {
            let y = x.mul_scalar(3.0)?;
            y.narrow(0, 2, 2)?.mul_(&w.narrow(0, 0, 2)?)?;
            y.mul(&y)?.sum()
        }
        "a_view_before_its_base_changes" => {
            let y = twice()?;
            let v = y.narrow(0, 1, 2)?;
            y.mul_(w)?;
            v.mul(&v)?.sum()
        }
        "siblings" => {
            let y = twice()?;
            let (a, b) = (y.view(&[2, 2])?, y.narrow(0, 1, 2)?);
            a.t()?.select(0, 0)?.add_(&w.narrow(0, 0, 2)?)?;
            b.mul(&b)?.sum()?.add(&a.mul(&a)?.mul(&a)?.sum()?)
        }
        "an_expanded_sibling" => {
            let y = twice()?;
            let e = y.unsqueeze(0)?.expand(&[3, 4])?;
            y.mul_(w)?;
            e.mul(&e)?.sum()
        }
        "every_other_to_zero" => {
            let y = x.mul(x)?;
            y.slice(0, .., 2)?.zero_()?;
            y.mul(w)?.sum()
        }
        "with_itself" => {
            let y = twice()?;
            y.add_(&y)?;
            y.mul_(x)?;
            y.mul(w)?.sum()
        }
        "a_base_that_lies_transposed" => {
            let z = x.view(&[2, 2])?.t()?.mul_scalar(2.0)?;
            z.select(0, 0)?.mul_(&w.narrow(0, 0, 2)?)?;
            z.mul(&z)?.sum()
        }
        "a_view_of_all" => {
            let y = twice()?;
            y.view(&[2, 2])?.mul_(&w.view(&[2, 2])?)?;
            y.mul(&y)?.sum()
        }
        "a_view_of_a_view_and_then_the_base" => {
            let y = twice()?;
            let v = y.view(&[2, 2])?.select(0, 1)?;
            v.mul_(&w.narrow(0, 0, 2)?)?;
            y.add_(w)?;
            v.mul_(&Tensor::full(&[2], 3.0, DType::F32, device)?)?;
            y.mul(x)?.sum()?.add(&v.mul(&v)?.sum()?)
        }
        "a_recurrence_in_a_buffer" => {
            let out = Tensor::zeros(&[5], device)?;
            for t in 0..4 {
                let next = out.select(0, t)?.mul_scalar(2.0)?.add(&x.select(0, t)?)?;
                out.select(0, t + 1)?.copy_(&next)?;
            }
            out.narrow(0, 1, 4)?.mul(w)?.sum()
        }
        "a_detached_tensor_has_a_history_of_its_own" => {
            let y = twice()?;
            let d = y.detach();
            d.mul_(w)?;
            d.mul_scalar(3.0)?.sum()?.add(&y.sum()?)
        }
        "the_derivative_of_a_derivative" => {
            let y = x.mul(x)?;
            y.narrow(0, 1, 2)?.mul_(&w.narrow(0, 1, 2)?.mul(&x.narrow(0, 1, 2)?)?)?;
            let options = GradOptions { create_graph: true, ..GradOptions::default() };
            let first = grad(&[&y.sum()?], &[x], options)?.remove(0).unwrap();
            first.mul(&first)?.sum()
        }
        name => panic!("no program {name}"),
    }
}

#[test]
fn gradients_through_changes_in_place_are_pytorchs() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("fixtures/in_place.json")).unwrap();
    let evicting = Device::cpu_with(CpuConfig::default());
    let _evictions = evict_at_random(&evicting, 5);
    for device in [Device::cpu_with(CpuConfig::default()), Device::late(LateConfig::default()), evicting] {
        for case in &cases {
            let name = case["name"].as_str().unwrap();
            let (x, w) = (leaf(&[1.0, 2.0, 3.0, 4.0], &device), leaf(&[5.0, -6.0, 7.0, 0.5], &device));
            let loss = program(name, &x, &w).unwrap_or_else(|error| panic!("{name}: {error}"));
            loss.backward().unwrap_or_else(|error| panic!("{name}: {error}"));
            let of = |tensor: Option<Tensor>| tensor.map(|tensor| tensor.to_vec::<f32>().unwrap());
            let expected = |key: &str| -> Option<Vec<f32>> {
                let values = case[key].as_array()?;
                Some(values.iter().map(|value| value.as_f64().unwrap() as f32).collect())
            };
            assert_eq!(f64::from(loss.item::<f32>().unwrap()), case["loss"].as_f64().unwrap(), "{name}");
            assert_eq!((of(x.grad()), of(w.grad())), (expected("x"), expected("w")), "{name} on {device}");
        }
        device.synchronize().unwrap();
        assert_eq!(device.memory_allocated(), 0);
    }
}

#[test]
fn a_leaf_that_wants_a_gradient_does_not_change_outside_of_no_grad() {
    let w = leaf(&[1.0, 2.0], &Device::cpu());
    let text = |result: Result<()>| result.unwrap_err().to_string();
    let message = "mul_: a leaf Variable that requires grad is being used in an in-place operation";
    assert!(text(w.mul_(w.detach())).starts_with(message));
    let message = "fill: a view of a leaf Variable that requires grad is being used in an in-place operation";
    assert!(text(w.narrow(0, 0, 1).unwrap().fill_(0.0)).starts_with(message));
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0, 2.0], "a refused change changes nothing");
    let view = w.narrow(0, 0, 1).unwrap();
    no_grad(|| w.fill_(3.0).and_then(|()| view.mul_(&view))).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [9.0, 3.0]);
    assert!(w.is_leaf() && w.requires_grad());
    // For a view, the base is a leaf even if it was marked as requiring a gradient after the view was made.
    let x = Tensor::ones(&[2], &Device::cpu()).unwrap();
    let part = x.narrow(0, 0, 1).unwrap();
    x.requires_grad_(true).unwrap();
    assert!(text(part.mul_(w.narrow(0, 0, 1).unwrap())).contains("a view of a leaf"));
}

#[test]
fn what_took_part_in_recording_is_no_leaf_any_more() {
    let (x, w) = (Tensor::zeros(&[2], &Device::cpu()).unwrap(), leaf(&[3.0, 4.0], &Device::cpu()));
    let view = x.narrow(0, 1, 1).unwrap();
    x.add_(&w).unwrap();
    assert!(!x.is_leaf() && x.requires_grad() && view.requires_grad());
    assert_eq!(format!("{x:?}"), "Tensor([2], float32, cpu, made by add_)");
    view.sum().unwrap().backward().unwrap();
    assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0]);
    // Integers have no gradient.
    let counts = Tensor::full(&[2], 0.0, DType::I64, &Device::cpu()).unwrap();
    counts.copy_(&w).unwrap();
    assert!(!counts.requires_grad());
}

#[test]
fn a_view_made_under_no_grad_is_not_changed_while_operations_are_recorded() {
    let y = leaf(&[1.0, 2.0], &Device::cpu()).mul_scalar(2.0).unwrap();
    let view = no_grad(|| y.narrow(0, 0, 1)).unwrap();
    let other = leaf(&[1.0], &Device::cpu());
    assert!(view.mul_(&other).unwrap_err().to_string().contains("a view that was made under `no_grad`"));
    no_grad(|| view.mul_(&other)).unwrap();
}

#[test]
fn a_saved_tensor_that_changed_in_place_is_an_error_of_the_backward_pass() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    let y = x.exp().unwrap();
    y.narrow(0, 0, 1).unwrap().mul_(x.detach().narrow(0, 0, 1).unwrap()).unwrap();
    let error = y.sum().unwrap().backward().unwrap_err();
    assert!(matches!(error, Error::SavedModified { node: "exp", .. }), "{error}");
}

#[test]
fn a_chain_of_a_hundred_thousand_changes_is_dropped_without_overflow() {
    let (y, one) = (Tensor::zeros(&[1], &Device::cpu()).unwrap(), leaf(&[1.0], &Device::cpu()));
    for _ in 0..100_000 {
        y.add_(&one).unwrap();
    }
    y.sum().unwrap().backward().unwrap();
    assert_eq!(one.grad().unwrap().item::<f32>().unwrap(), 100_000.0);
}
