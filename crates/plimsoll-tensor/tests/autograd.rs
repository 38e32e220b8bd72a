//! The backward pass: which tensors get a gradient, what is saved for it, and what is refused.

use std::panic;
use std::sync::Barrier;
use std::thread;

use plimsoll_tensor::{
    BackwardOptions, Category, Conv2dOptions, CpuConfig, DType, Device, Error, Result, SimConfig, Tensor,
    is_grad_enabled, no_grad,
};

const MIB: u64 = 1 << 20;

fn leaf(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, &[values.len()], device).unwrap().requires_grad_(true).unwrap()
}

fn grad(leaf: &Tensor) -> Vec<f32> {
    leaf.grad().unwrap().to_vec().unwrap()
}

fn retain() -> BackwardOptions {
    BackwardOptions { retain_graph: true, ..BackwardOptions::default() }
}

/// A tensor of one mebibyte without an owner.
fn mebibyte(device: &Device) -> Tensor {
    Tensor::ones(&[512, 512], device).unwrap()
}

fn text<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn gradients_add_up_over_backward_passes() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    x.square().unwrap().sum().unwrap().backward().unwrap();
    x.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [4.0, 8.0]);
    x.clear_grad();
    (&x * 3.0).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [3.0, 3.0]);
}

#[test]
fn a_tensor_used_twice_gets_both_gradients() {
    let x = leaf(&[2.0, 3.0], &Device::cpu());
    let y = x.square().unwrap();
    (&(&x + &x).unwrap() + &(&y * &y).unwrap()).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [2.0 + 4.0 * 8.0, 2.0 + 4.0 * 27.0]);
}

#[test]
fn equal_gradients_of_two_leaves_are_not_one_tensor() {
    let device = Device::cpu();
    let (x, y) = (leaf(&[1.0], &device), leaf(&[2.0], &device));
    (&x + &y).unwrap().sum().unwrap().backward().unwrap();
    x.grad().unwrap().fill_(7.0).unwrap();
    assert_eq!((grad(&x), grad(&y)), (vec![7.0], vec![1.0]));
}

#[test]
fn a_starting_gradient_stays_the_callers() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    let start = Tensor::from_slice(&[10.0f32, 20.0], &[2], x.device()).unwrap();
    let gradient = Some(start.clone());
    (&x + 1.0).unwrap().backward_with(BackwardOptions { gradient, ..Default::default() }).unwrap();
    x.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(start.to_vec::<f32>().unwrap(), [10.0, 20.0]);
    assert_eq!(grad(&x), [12.0, 24.0]);
}

#[test]
fn a_leaf_can_be_its_own_root() {
    let x = leaf(&[5.0], &Device::cpu());
    x.backward().unwrap();
    assert_eq!(grad(&x), [1.0]);
}

#[test]
fn a_retained_graph_runs_again_and_adds() {
    let x = leaf(&[3.0], &Device::cpu());
    let y = x.square().unwrap();
    y.backward_with(retain()).unwrap();
    y.backward_with(retain()).unwrap();
    y.backward().unwrap();
    assert_eq!(grad(&x), [18.0]);
    assert!(matches!(y.backward(), Err(Error::GraphFreed { node: "square" })));
}

#[test]
fn a_second_backward_pass_names_where_the_graph_ended() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    let y = x.exp().unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!(
        text(y.sum().unwrap().backward()),
        "backward of exp: its saved tensors were freed by an earlier backward pass, finished or failed; retain \
         the graph in that pass to allow a second one, or run the forward pass again"
    );
    assert_eq!(grad(&x), y.to_vec::<f32>().unwrap(), "the failed pass added nothing");
}

#[test]
fn a_change_of_a_saved_tensor_is_noticed() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    let y = x.square().unwrap();
    let z = y.square().unwrap().sum().unwrap();
    y.detach().narrow(0, 0, 1).unwrap().zero_().unwrap();
    assert!(matches!(
        z.backward(),
        Err(Error::SavedModified { node: "square", changed_by: "fill", saved: 0, found: 1 })
    ));

    let w = leaf(&[1.0], &Device::cpu());
    let y = (&w * &w).unwrap();
    no_grad(|| w.add_(&w)).unwrap();
    assert_eq!(
        text(y.backward()),
        "backward of mul: a tensor it saved was changed in place by add_ (version 1, saved at 0); copy it before \
         the change"
    );
}

#[test]
fn a_change_of_a_tensor_that_nobody_saved_is_fine() {
    let device = Device::cpu();
    let (x, w) = (Tensor::ones(&[1], &device).unwrap(), leaf(&[2.0], &device));
    let sum = (&w + &x).unwrap();
    // Only `w` requires a gradient, so the product saved only `x`.
    let product = (&w * &x).unwrap();
    no_grad(|| w.zero_()).unwrap();
    sum.backward().unwrap();
    product.backward().unwrap();
    assert_eq!(grad(&w), [2.0]);
}

#[test]
fn a_detached_tensor_ends_the_graph() {
    let x = leaf(&[2.0], &Device::cpu());
    let y = x.square().unwrap().detach();
    assert!(y.is_leaf() && !y.requires_grad());
    (&y * &x).unwrap().backward().unwrap();
    assert_eq!(grad(&x), [4.0]);
}

#[test]
fn recording_is_off_inside_no_grad_and_on_again_after_it() {
    no_grad(|| {
        no_grad(|| assert!(!is_grad_enabled()));
        assert!(!is_grad_enabled(), "the inner one must not switch recording on");
        // Each thread has its own switch.
        assert!(thread::spawn(is_grad_enabled).join().unwrap());
    });
    assert!(is_grad_enabled());
    let panicked = panic::catch_unwind(|| no_grad(|| panic::resume_unwind(Box::new("inside"))));
    assert!(panicked.is_err() && is_grad_enabled());
}

#[test]
fn a_backward_pass_that_fails_switches_recording_on_again() {
    let x = leaf(&[1.0], &Device::cpu());
    let y = x.exp().unwrap();
    y.backward().unwrap();
    assert!(y.backward().is_err() && is_grad_enabled());
}

#[test]
fn what_cannot_want_a_gradient_says_why() {
    let device = Device::cpu();
    let y = leaf(&[1.0], &device).exp().unwrap();
    assert_eq!(
        text(y.requires_grad_(true)),
        "requires_grad_: only a leaf can be marked; this tensor was made by an operation: detach it first"
    );
    for dtype in [DType::I64, DType::I32, DType::U8] {
        let x = Tensor::full(&[2], 1.0, dtype, &device).unwrap();
        let expected = format!("requires_grad_: expected float32, got {dtype}; convert with `to_dtype`");
        assert_eq!(text(x.clone().requires_grad_(true)), expected);
        assert!(x.requires_grad_(false).is_ok());
    }
}

#[test]
fn a_root_without_a_way_back_says_why() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    let y = x.exp().unwrap();
    assert_eq!(
        text(y.backward()),
        "backward: [2] is not a scalar: reduce it first, or give an initial gradient"
    );
    let gradient = Some(Tensor::ones(&[3], x.device()).unwrap());
    assert_eq!(
        text(y.backward_with(BackwardOptions { gradient, ..Default::default() })),
        "backward: a gradient of [3] for a tensor of [2]"
    );
    let constant = no_grad(|| x.sum()).unwrap();
    assert_eq!(
        text(constant.backward()),
        "backward: this tensor does not require a gradient: nothing it was made from requires one, or it was made without \
         recording"
    );
    assert!(x.grad().is_none());
}

#[test]
fn a_tensor_that_takes_part_in_recording_refuses_a_change_in_place() {
    let x = leaf(&[1.0, 2.0], &Device::cpu());
    let view = x.narrow(0, 0, 1).unwrap();
    for tensor in [&x, &view] {
        assert!(matches!(tensor.zero_(), Err(Error::Autograd { op: "fill", .. })));
        assert!(matches!(tensor.add_(x.detach().narrow(0, 0, 1).unwrap()), Err(Error::Autograd { .. })));
    }
    no_grad(|| view.zero_()).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 2.0]);
}

#[test]
fn inputs_that_want_no_gradient_get_none_and_do_not_keep_the_others() {
    let device = Device::cpu_with(CpuConfig::default());
    let w = mebibyte(&device).requires_grad_(true).unwrap();
    // The derivative with respect to `w` needs the other factor, so that is saved, but it gets no gradient.
    let other = mebibyte(&device);
    let product = (&w * &other).unwrap();
    assert_eq!((other.category(), w.category()), (Category::Activation, Category::Temporary));
    product.sum().unwrap().backward().unwrap();
    assert!(other.grad().is_none() && w.grad().is_some());
    w.clear_grad();
    drop((product, other));
    // The derivative of a sum needs no values, so nothing is saved.
    let sum = (&w + &mebibyte(&device)).unwrap();
    assert_eq!(device.memory_allocated(), 2 * MIB);
    drop(sum);
    assert_eq!(device.memory_allocated(), MIB);
}

/// Which inputs an operation saves for the backward pass if only input number `wants` requires a gradient.
fn kept(shapes: &[&[usize]], wants: usize, f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Vec<bool> {
    let device = Device::sim(SimConfig::new(1 << 30));
    let inputs: Vec<Tensor> = (0..shapes.len())
        .map(|i| Tensor::zeros(shapes[i], &device).unwrap().requires_grad_(i == wants).unwrap())
        .collect();
    let _output = f(&inputs).unwrap();
    inputs.iter().map(|input| input.category() == Category::Activation).collect()
}

#[test]
fn an_operation_keeps_only_the_inputs_that_wanted_gradients_need() {
    let square: &[&[usize]] = &[&[2, 2], &[2, 2]];
    type Product = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let products: [Product; 2] = [|a, b| a.mul(b), |a, b| a.matmul(b)];
    for product in products {
        assert_eq!(kept(square, 0, |x| product(&x[0], &x[1])), [false, true]);
        assert_eq!(kept(square, 1, |x| product(&x[0], &x[1])), [true, false]);
    }
    assert_eq!(kept(square, 0, |x| &x[0] / &x[1]), [false, true]);
    assert_eq!(kept(square, 1, |x| &x[0] / &x[1]), [true, true]);
    assert_eq!(kept(square, 0, |x| &x[0] + &x[1]), [false, false]);
    let linear: &[&[usize]] = &[&[3, 2], &[4, 2], &[4]];
    let conv: &[&[usize]] = &[&[1, 2, 5, 5], &[4, 2, 3, 3], &[4]];
    for (wants, expected) in
        [[false, true, false], [true, false, false], [false, false, false]].into_iter().enumerate()
    {
        assert_eq!(kept(linear, wants, |x| x[0].linear(&x[1], Some(&x[2]))), expected);
        assert_eq!(
            kept(conv, wants, |x| x[0].conv2d(&x[1], Some(&x[2]), Conv2dOptions::default())),
            expected
        );
    }
    // A derivative that can be computed from the output alone saves no input.
    for f in
        [Tensor::relu, Tensor::exp, Tensor::sqrt, Tensor::tanh, Tensor::sigmoid, Tensor::sum, Tensor::neg]
    {
        assert_eq!(kept(&[&[2]], 0, |x| f(&x[0])), [false]);
    }
    assert_eq!(kept(&[&[2]], 0, |x| x[0].softmax(0)), [false]);
    assert_eq!(kept(&[&[2]], 0, |x| x[0].log()), [true]);
}

#[test]
fn operations_without_an_input_that_wants_a_gradient_keep_nothing() {
    let device = Device::cpu_with(CpuConfig::default());
    let mut x = mebibyte(&device);
    for _ in 0..5 {
        x = x.exp().unwrap().tanh().unwrap();
    }
    assert_eq!(device.memory_allocated(), MIB);
    let w = x.requires_grad_(true).unwrap();
    drop(no_grad(|| w.exp()).unwrap());
    assert_eq!(device.memory_allocated(), MIB);
}

#[test]
fn gradients_of_broadcast_inputs_have_the_inputs_shapes() {
    let device = Device::cpu();
    for (a, b) in [(&[2, 3][..], &[3][..]), (&[2, 1], &[1, 3]), (&[], &[2, 2]), (&[4, 1, 2], &[3, 1])] {
        type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;
        let pairs: [Pair; 4] = [|a, b| a.add(b), |a, b| a.sub(b), |a, b| a.mul(b), |a, b| a.div(b)];
        for op in pairs {
            let [x, y] =
                [a, b].map(|shape| Tensor::ones(shape, &device).unwrap().requires_grad_(true).unwrap());
            op(&x, &y).unwrap().sum().unwrap().backward().unwrap();
            assert_eq!((x.grad().unwrap().shape(), y.grad().unwrap().shape()), (a, b));
        }
    }
}

#[test]
fn integers_carry_no_gradient() {
    let x = leaf(&[1.0, 3.0], &Device::cpu());
    assert!(!x.argmax(0).unwrap().requires_grad());
    assert!(!x.to_dtype(DType::I64).unwrap().requires_grad());
    assert!(x.to_dtype(DType::F32).unwrap().requires_grad());
}

#[test]
fn a_long_chain_is_dropped_without_a_deep_stack() {
    let x = leaf(&[1.0], &Device::cpu());
    let last = (0..300_000).try_fold(x, |x, _| &x + 1.0).unwrap();
    assert_eq!(last.item::<f32>().unwrap(), 300_001.0);
    drop(last);
}

#[test]
fn a_long_chain_runs_backward_without_a_deep_stack() {
    let x = leaf(&[1.0], &Device::cpu());
    (0..300_000).try_fold(x.clone(), |x, _| -&x).unwrap().backward().unwrap();
    assert_eq!(grad(&x), [1.0]);
}

#[test]
fn a_long_chain_that_saved_something_everywhere_gives_it_back() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::ones(&[1], &device).unwrap().requires_grad_(true).unwrap();
    for run_it in [true, false] {
        let last = (0..300_000).try_fold(x.clone(), |x, _| x.tanh()).unwrap();
        assert_eq!(device.memory_allocated(), 300_001 * 512);
        if run_it {
            last.backward().unwrap();
            x.clear_grad();
        }
        drop(last);
        assert_eq!(device.memory_allocated(), 512);
    }
}

#[test]
fn the_graph_dies_with_the_backward_pass_though_the_output_lives() {
    let device = Device::cpu_with(CpuConfig::default());
    let w = mebibyte(&device).requires_grad_(true).unwrap();
    let loss = w.exp().unwrap().tanh().unwrap().sum().unwrap();
    assert_eq!(device.memory_allocated(), 3 * MIB + 512);
    loss.backward().unwrap();
    assert_eq!(device.memory_allocated(), 2 * MIB + 512, "the leaf, its gradient and the loss");
}

#[test]
fn threads_that_reach_a_leaf_at_once_lose_no_gradient() {
    for _ in 0..20 {
        let x = Tensor::ones(&[256, 256], &Device::cpu()).unwrap().requires_grad_(true).unwrap();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let sum = x.sum().unwrap();
                    start.wait();
                    // The gradient arrives as a view, so the first one is copied, which gives the other thread time to arrive.
                    sum.backward().unwrap();
                });
            }
        });
        assert!(grad(&x).iter().all(|&x| x == 2.0));
    }
}

#[test]
fn a_change_in_place_never_drops_a_gradient_silently() {
    let device = Device::cpu();
    let w = Tensor::ones(&[2], &device).unwrap().requires_grad_(true).unwrap();
    let total = Tensor::zeros(&[2], &device).unwrap();
    no_grad(|| total.add_(&w)).unwrap();
    total.add_(w.detach()).unwrap();
    assert!(total.is_leaf(), "nothing was recorded");
    total.add_scaled_(&w, 2.0).unwrap();
    total.mul_(&w).unwrap();
    assert_eq!(total.to_vec::<f32>().unwrap(), [4.0, 4.0]);
    total.sum().unwrap().backward().unwrap();
    assert_eq!(grad(&w), [6.0, 6.0]);
}
