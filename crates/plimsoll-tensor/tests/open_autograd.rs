//! Autograd as programs use it: several roots, `grad`, gradients of gradients, hooks, user-defined functions, and errors in
//! them.

use std::sync::{Arc, Mutex};

use plimsoll_tensor::Reduction;
use plimsoll_tensor::autograd::{
    GradOptions, backward, detect_anomaly, enable_grad, grad, is_grad_enabled, saved_tensors_hooks,
};
use plimsoll_tensor::label::{Span, intern};
use plimsoll_tensor::{
    BackwardOptions, Category, Conv2dOptions, CpuConfig, Device, Error, Function, FunctionBackward, Grads,
    MaxPool2dOptions, Result, Save, SimConfig, Tensor, Tensors, apply, no_grad,
};

use crate::second::check_second;

fn leaf(values: &[f32]) -> Tensor {
    let tensor = Tensor::from_slice(values, &[values.len()], &Device::cpu()).unwrap();
    tensor.requires_grad_(true).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn gradient(leaf: &Tensor) -> Vec<f32> {
    values(&leaf.grad().unwrap())
}

fn create_graph() -> GradOptions {
    GradOptions { create_graph: true, ..GradOptions::default() }
}

#[test]
fn several_roots_add_into_the_leaves_in_one_pass() {
    let x = leaf(&[2.0]);
    let shared = x.square().unwrap();
    let (a, b) = ((&shared * 3.0).unwrap(), shared.exp().unwrap());
    let b = (&b * 0.0).unwrap();
    backward(&[&a, &b, &a], GradOptions::default()).unwrap();
    assert_eq!(gradient(&x), [24.0]);
    let error =
        backward(&[&a], GradOptions { gradients: vec![None, None], ..Default::default() }).unwrap_err();
    assert_eq!(error.to_string(), "backward: 2 initial gradients for 1 roots");
}

#[test]
fn grad_gives_what_is_asked_for_and_touches_no_leaf() {
    let (x, w) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    let y = (&x * &w).unwrap();
    let loss = y.square().unwrap().sum().unwrap();
    let keep = GradOptions { retain_graph: true, ..GradOptions::default() };
    let found = grad(&[&loss], &[&w, &y], keep).unwrap();
    let found: Vec<_> = found.iter().map(|grad| values(grad.as_ref().unwrap())).collect();
    assert_eq!(found, [[6.0, 32.0], [6.0, 16.0]]);
    assert!(x.grad().is_none() && w.grad().is_none());
    // Only an intermediate tensor: operations below it neither run nor are freed.
    let found = grad(&[&loss], &[&y], GradOptions::default()).unwrap();
    assert_eq!(values(found[0].as_ref().unwrap()), [6.0, 16.0]);
    y.sum().unwrap().backward().unwrap();
    assert_eq!(gradient(&x), [3.0, 4.0]);

    let other = leaf(&[1.0]);
    let loss = || x.square().unwrap().sum().unwrap();
    let error = grad(&[&loss()], &[&other], GradOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("grad: input 0 was not used"), "{error}");
    let allowed = GradOptions { allow_unused: true, ..GradOptions::default() };
    assert!(grad(&[&loss()], &[&other], allowed).unwrap()[0].is_none());
    assert!(grad(&[&loss()], &[&other.detach()], GradOptions::default()).is_err());
}

#[test]
fn gradients_have_gradients() {
    // The derivatives of x³: 3x², 6x, 6.
    let x = leaf(&[2.0, -3.0]);
    let cube = x.square().unwrap().mul(&x).unwrap().sum().unwrap();
    let first = grad(&[&cube], &[&x], create_graph()).unwrap().remove(0).unwrap();
    let second = grad(&[&first.sum().unwrap()], &[&x], create_graph()).unwrap().remove(0).unwrap();
    second.sum().unwrap().backward().unwrap();
    assert_eq!((values(&first), values(&second)), (vec![12.0, 27.0], vec![12.0, -18.0]));
    assert_eq!(gradient(&x), [6.0, 6.0]);
}

#[test]
fn the_leafs_gradient_is_part_of_the_graph_under_create_graph() {
    let x = leaf(&[3.0]);
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    x.square().unwrap().backward_with(options).unwrap();
    let slope = x.grad().unwrap();
    assert!(slope.requires_grad());
    x.clear_grad();
    slope.square().unwrap().backward().unwrap(); // the derivative of 4x² is 8x
    assert_eq!(gradient(&x), [24.0]);
}

#[test]
fn every_operators_derivative_has_a_derivative() {
    let device = Device::cpu();
    let fixed = |shape: &[usize]| {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|i: usize| (i * 3 % 5) as f32 / 5.0 - 0.3).collect();
        Tensor::from_slice(&values, shape, &device).unwrap()
    };
    for (name, f) in [
        ("exp", Tensor::exp as fn(&Tensor) -> Result<Tensor>),
        ("log", Tensor::log),
        ("sqrt", Tensor::sqrt),
        ("tanh", Tensor::tanh),
        ("sigmoid", Tensor::sigmoid),
        ("gelu", Tensor::gelu),
        ("erf", Tensor::erf),
        ("reciprocal", Tensor::reciprocal),
        ("relu", Tensor::relu),
        ("mean", Tensor::mean),
    ] {
        check_second(name, &[2, 3], f);
    }
    check_second("softmax", &[2, 3], |x| x.softmax(1));
    check_second("log_softmax", &[2, 3], |x| x.log_softmax(0));
    check_second("layer_norm", &[2, 4], |x| x.layer_norm(Some(&fixed(&[4])), Some(&fixed(&[4])), 1e-2));
    check_second("div", &[2, 3], |x| fixed(&[2, 1]).div(x));
    check_second("mul", &[2, 3], |x| x.mul(&x.narrow(0, 0, 1)?));
    check_second("matmul", &[3, 3], |x| x.matmul(&x.t()?));
    check_second("linear", &[2, 3], |x| x.linear(fixed(&[4, 3]), Some(&fixed(&[4]))));
    check_second("conv2d", &[1, 2, 4, 4], |x| {
        x.conv2d(fixed(&[2, 2, 3, 3]), None, Conv2dOptions { padding: [1, 1].into(), ..Default::default() })
    });
    check_second("conv2d by its weight", &[2, 1, 2, 2], |w| {
        fixed(&[1, 1, 4, 4]).conv2d(w, None, Conv2dOptions::default())
    });
    check_second("max_pool2d", &[1, 1, 4, 4], |x| x.max_pool2d(MaxPool2dOptions::square(2)));
    check_second("mse_loss", &[2, 3], |x| x.mse_loss(fixed(&[2, 3])));
    let target = Tensor::from_slice(&[1i64, 0], &[2], &device).unwrap();
    check_second("cross_entropy", &[2, 3], |x| x.log_softmax(1)?.nll_loss(&target, Reduction::Sum));
}

#[test]
fn enable_grad_records_inside_no_grad() {
    let x = leaf(&[2.0]);
    let y = no_grad(|| {
        let inner = enable_grad(|| x.square()).unwrap();
        assert!(!is_grad_enabled());
        inner
    });
    y.backward().unwrap();
    assert_eq!(gradient(&x), [4.0]);
}

#[test]
fn a_hook_sees_the_whole_gradient_once_and_may_change_it() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let x = leaf(&[1.0, 2.0]);
    let y = x.square().unwrap();
    let watch = |name: &'static str, factor: f64| {
        let seen = seen.clone();
        move |grad: &Tensor| {
            seen.lock().unwrap().push((name, values(grad)));
            Ok(Some((grad * factor)?))
        }
    };
    let on_leaf = x.register_hook(watch("x", 10.0)).unwrap();
    y.register_hook(watch("y", 2.0)).unwrap();
    // `y` is used twice, `x` three times: each hook is called once, with the sum.
    let loss = (&(&y + &y).unwrap() + &x).unwrap().sum().unwrap();
    loss.backward_with(BackwardOptions { retain_graph: true, ..Default::default() }).unwrap();
    let first = vec![("y", vec![2.0, 2.0]), ("x", vec![9.0, 17.0])];
    assert_eq!((seen.lock().unwrap().clone(), gradient(&x)), (first, vec![90.0, 170.0]));
    on_leaf.remove();
    on_leaf.remove();
    x.clear_grad();
    loss.backward().unwrap();
    assert_eq!((seen.lock().unwrap().len(), gradient(&x)), (3, vec![9.0, 17.0]));
    assert!(x.detach().register_hook(|_| Ok(None)).is_err(), "it requires no gradient");
}

#[test]
fn a_step_in_the_hook_after_accumulation_needs_one_gradient_at_a_time() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let leaves: Vec<Tensor> =
        (0..8).map(|_| Tensor::ones(&[512, 512], &device).unwrap().requires_grad_(true).unwrap()).collect();
    let most = Arc::new(Mutex::new(0));
    let run = || {
        let first = leaves[0].tanh().unwrap();
        let loss = leaves[1..].iter().try_fold(first, |x, w| (&x + w)?.tanh()).unwrap().sum().unwrap();
        loss.backward().unwrap();
    };
    let hook = |leaf: &Tensor| {
        let (device, most) = (device.clone(), most.clone());
        let step = move |leaf: &Tensor| {
            let held = device.memory_by_category()[Category::Gradient];
            let mut most = most.lock().unwrap();
            *most = held.max(*most);
            let grad = leaf.grad().ok_or_else(|| Error::autograd("step", "no gradient"))?;
            leaf.clear_grad();
            leaf.detach().add_scaled_(&grad, -0.1)
        };
        leaf.register_post_accumulate_grad_hook(step).unwrap()
    };
    let handles: Vec<_> = leaves.iter().map(hook).collect();
    run();
    assert_eq!((*most.lock().unwrap(), leaves.iter().filter_map(Tensor::grad).count()), (1 << 20, 0));
    handles.iter().for_each(|handle| handle.remove());
    run();
    assert_eq!(device.memory_by_category()[Category::Gradient], 8 << 20);
    let made = leaves[0].tanh().unwrap();
    assert!(made.register_post_accumulate_grad_hook(|_| Ok(())).is_err(), "it is no leaf");
}

#[test]
fn a_tensor_in_the_middle_keeps_its_gradient_where_asked() {
    let x = leaf(&[1.0, 2.0]);
    let y = x.square().unwrap();
    y.retain_grad().unwrap();
    (&y * 3.0).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!((gradient(&y), gradient(&x)), (vec![3.0, 3.0], vec![6.0, 12.0]));
}

#[test]
fn what_fails_in_a_hook_ends_the_pass_and_the_next_one_works() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::ones(&[4], &device).unwrap().requires_grad_(true).unwrap();
    let before = device.memory_allocated();
    let run = || x.exp().and_then(|y| y.sum()).and_then(|loss| loss.backward());
    let handle = x.register_hook(|_| Err(Error::autograd("mine", "not today"))).unwrap();
    let message = "accumulate_grad in ones: a hook on its gradient failed: mine: not today";
    assert_eq!(run().unwrap_err().to_string(), message);
    handle.remove();
    let handle = x.register_hook(|grad| Ok(Some(grad.narrow(0, 0, 1)?))).unwrap();
    assert!(run().unwrap_err().to_string().contains("shape and type must stay the same"));
    handle.remove();
    let handle = x.register_hook(|_| panic!("inside a hook")).unwrap();
    assert!(run().unwrap_err().to_string().ends_with("accumulate_grad: it panicked: inside a hook"));
    handle.remove();
    assert!(is_grad_enabled() && x.grad().is_none());
    assert_eq!(device.memory_allocated(), before, "nothing is left behind");
    run().unwrap();
    assert!(x.grad().is_some());
}

#[test]
fn a_hook_may_run_a_backward_pass_and_change_hooks() {
    let x = leaf(&[3.0]);
    let (inner, own) = (leaf(&[2.0]), Arc::new(Mutex::new(None)));
    let (again, of) = (inner.clone(), own.clone());
    let handle = x
        .register_hook(move |_| {
            enable_grad(|| again.square())?.backward()?;
            if let Some(handle) = of.lock().unwrap().take() {
                plimsoll_tensor::HookHandle::remove(&handle);
            }
            Ok(None)
        })
        .unwrap();
    *own.lock().unwrap() = Some(handle);
    x.square().unwrap().backward().unwrap();
    x.square().unwrap().backward().unwrap();
    assert_eq!((gradient(&inner), gradient(&x)), (vec![4.0], vec![12.0]), "it took itself away");
}

#[test]
fn saved_tensors_wait_where_the_hooks_put_them() {
    let (device, host) = (Device::cpu_with(CpuConfig::default()), Device::cpu_with(CpuConfig::default()));
    let x = Tensor::ones(&[512, 512], &device).unwrap().requires_grad_(true).unwrap();
    let (there, back) = (host.clone(), device.clone());
    let run = || x.tanh().and_then(|y| y.square()).and_then(|y| y.sum());
    let loss = saved_tensors_hooks(
        move |saved| saved.to_device(&there),
        move |packed: &Tensor| packed.to_device(&back),
        || run().unwrap(),
    );
    assert_eq!((device.memory_allocated(), host.memory_allocated()), ((1 << 20) + 512, 2 << 20));
    loss.backward().unwrap();
    let offloaded = x.grad().unwrap();
    drop(loss);
    assert_eq!(host.memory_allocated(), 0);
    x.clear_grad();
    run().unwrap().backward().unwrap();
    assert_eq!(values(&offloaded), values(&x.grad().unwrap()), "the same bits");
}

#[test]
fn a_packing_hook_that_fails_leaves_nothing_and_ends_with_its_scope() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::ones(&[4], &device).unwrap().requires_grad_(true).unwrap();
    let before = device.memory_allocated();
    let no_room = |_: &Tensor| -> Result<()> { Err(Error::autograd("pack", "no room")) };
    let error =
        saved_tensors_hooks(no_room, |()| unreachable!("nothing was packed"), || x.exp()).unwrap_err();
    assert_eq!((error.to_string().as_str(), device.memory_allocated()), ("pack: no room", before));
    let unpack = |_: &()| -> Result<Tensor> { Err(Error::autograd("unpack", "it is gone")) };
    let y = saved_tensors_hooks(|_| Ok(()), unpack, || x.exp()).unwrap();
    assert_eq!(y.sum().unwrap().backward().unwrap_err().to_string(), "unpack: it is gone");
    x.exp().unwrap().sum().unwrap().backward().unwrap();
}

/// `x · e^x` as one operation that saves its input and its output.
struct XExp {
    wrong_shape: bool,
}

impl Function for XExp {
    fn name(&self) -> &'static str {
        "x_exp"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let out = ins[0].mul(&ins[0].exp()?)?;
        save.tensor(ins[0])?;
        save.tensor(&out)?;
        Ok(vec![out].into())
    }

    /// `(1 + x) e^x = e^x + y`
    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(vec![None].into()) };
        if self.wrong_shape {
            return Ok(vec![Some(grad.unsqueeze(0)?)].into());
        }
        let slope = at.saved(0)?.exp()?.add(&at.saved(1)?)?;
        Ok(vec![Some(grad.mul(&slope)?)].into())
    }
}

#[test]
fn a_function_of_ones_own_has_derivatives_of_any_order() {
    let x = leaf(&[0.5, -1.0]);
    let y = apply(XExp { wrong_shape: false }, &[&x]).unwrap().remove(0);
    let first = grad(&[&y.sum().unwrap()], &[&x], create_graph()).unwrap().remove(0).unwrap();
    let second = grad(&[&first.sum().unwrap()], &[&x], GradOptions::default()).unwrap().remove(0).unwrap();
    let close = |got: Vec<f32>, f: fn(f32) -> f32| {
        got.iter().zip([0.5f32, -1.0]).all(|(got, x)| (got - f(x)).abs() < 1e-5)
    };
    assert!(close(values(&y), |x| x * x.exp()) && close(values(&first), |x| (1.0 + x) * x.exp()));
    assert!(close(values(&second), |x| (2.0 + x) * x.exp()), "{second:?}");
}

#[test]
fn a_derivative_of_the_wrong_shape_is_named_with_its_owner() {
    let x = leaf(&[1.0, 2.0]);
    let y = {
        let _layer = Span::layer(intern("head"));
        apply(XExp { wrong_shape: true }, &[&x]).unwrap().remove(0)
    };
    let error = y.sum().unwrap().backward().unwrap_err();
    assert_eq!(
        error.to_string(),
        "x_exp: its derivative returned a gradient [1, 2] of float32 for input 0, which is [2] of float32 (in head)"
    );
    assert!(x.grad().is_none());
}

#[test]
fn anomaly_mode_names_the_operation_and_the_line_that_called_it() {
    // Not inlined: without debug information, inlined frames are missing from the stack.
    #[inline(never)]
    fn infinite_slope(x: &Tensor) -> Result<()> {
        x.sqrt()?.mul(&x.zeros_like()?)?.sum()?.backward()
    }
    let run = infinite_slope;
    let x = leaf(&[0.0]);
    run(&x).unwrap();
    assert!(gradient(&x)[0].is_nan(), "0 · 1/0");
    x.clear_grad();
    let error = detect_anomaly(|| run(&x)).unwrap_err();
    let Error::Anomaly { op, input, place, .. } = &error else { panic!("{error}") };
    assert_eq!((*op, *input), ("sqrt", 0));
    assert!(place.contains("infinite_slope"), "{place}");
    assert!(x.grad().is_none());
    detect_anomaly(|| leaf(&[1.0]).sqrt().unwrap().sum().unwrap().backward()).unwrap();
}

/// Saves its output, then changes it.
struct ChangedAfterSave;

impl Function for ChangedAfterSave {
    fn name(&self) -> &'static str {
        "changed"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let out = ins[0].copy()?;
        save.tensor(&out)?;
        out.mul_scalar_(2)?;
        Ok(vec![out].into())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        Ok(vec![Some(at.saved(0)?)].into())
    }
}

#[test]
fn a_function_that_changes_what_it_saved_is_refused() {
    let x = Tensor::ones(&[2], &Device::cpu()).unwrap().requires_grad_(true).unwrap();
    let error = apply(ChangedAfterSave, &[&x]).unwrap_err().to_string();
    assert!(error.contains("changes a tensor in place that it has saved"), "{error}");
}
