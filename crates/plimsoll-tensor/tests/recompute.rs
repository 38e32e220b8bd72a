//! Outputs that the backward pass recomputes: bit-identical gradients with less memory.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_tensor::autograd::saved_tensors_hooks;
use plimsoll_tensor::checkpoint::{checkpoint, recompute_output};
use plimsoll_tensor::{Activation, BackwardOptions, DType, Device, Result, SimConfig, Tensor, no_grad};

const MIB: u64 = 1 << 20;

fn leaf(shape: &[usize], device: &Device) -> Tensor {
    Tensor::randn(shape, device).unwrap().requires_grad_(true).unwrap()
}

fn cpu() -> Device {
    let device = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    device.manual_seed(3);
    device
}

fn norm(x: &[Tensor]) -> Result<Tensor> {
    x[0].layer_norm(None, None, 1e-5)
}

/// A normalized tensor that two products read: the gradients, and how often it was computed.
fn two_products(recompute: bool, device: &Device) -> (Vec<Vec<f32>>, usize) {
    let (x, v, w) = (leaf(&[6, 8], device), leaf(&[8, 8], device), leaf(&[8, 8], device));
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let f = move |x: &[Tensor]| {
        count.fetch_add(1, Ordering::Relaxed);
        norm(x)
    };
    let y = if recompute { recompute_output(f, &[&x]) } else { f(from_ref(&x)) }.unwrap();
    let (a, b) = (y.matmul(&v).unwrap(), y.matmul(&w).unwrap().tanh().unwrap());
    drop(y);
    a.mul(&b).unwrap().sum().unwrap().backward().unwrap();
    let grads = [&x, &v, &w].map(|leaf| leaf.grad().unwrap().to_vec::<f32>().unwrap());
    (grads.into(), runs.load(Ordering::Relaxed))
}

#[test]
fn an_output_is_computed_once_more_for_all_that_read_it_and_gives_the_same_bits() {
    let (kept, once) = two_products(false, &cpu());
    let (recomputed, twice) = two_products(true, &cpu());
    assert_eq!((kept, once, twice), (recomputed, 1, 2));
}

#[test]
fn its_memory_is_free_between_its_last_use_and_the_derivative_that_reads_it() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let (x, w) = (leaf(&[512, 512], &device), leaf(&[512, 512], &device));
    let kept = |recompute: bool| {
        let before = device.memory_allocated();
        let y = if recompute { recompute_output(norm, &[&x]) } else { norm(from_ref(&x)) }.unwrap();
        let out = y.matmul(&w).unwrap();
        drop(y);
        let held = device.memory_allocated() - before;
        out.sum().unwrap().backward().unwrap();
        drop(out);
        x.clear_grad();
        w.clear_grad();
        assert_eq!(device.memory_allocated(), before, "all is freed with the graph");
        held / MIB
    };
    assert_eq!((kept(false), kept(true)), (2, 1));
}

#[test]
fn recipes_may_rest_on_recipes() {
    let run = |recompute: bool| {
        let device = cpu();
        let (x, up, down) = (leaf(&[6, 8], &device), leaf(&[32, 8], &device), leaf(&[8, 32], &device));
        let weight = up.clone();
        let project = move |y: &[Tensor]| y[0].linear(&weight, None);
        let wide = match recompute {
            true => {
                let y = recompute_output(norm, &[&x]).unwrap();
                recompute_output(project, &[&y]).unwrap()
            }
            false => project(&[norm(from_ref(&x)).unwrap()]).unwrap(),
        };
        let out = wide.activation_linear(Activation::GeluTanh, &down, None).unwrap();
        drop(wide);
        out.square().unwrap().sum().unwrap().backward().unwrap();
        [x, up, down].map(|leaf| leaf.grad().unwrap().to_vec::<f32>().unwrap())
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn noise_is_drawn_again_and_what_comes_after_is_not_disturbed() {
    let run = |recompute: bool| {
        let device = cpu();
        let (x, w) = (leaf(&[6, 8], &device), leaf(&[8, 8], &device));
        let noisy = |x: &[Tensor]| x[0].dropout(0.5, true);
        let y = if recompute { recompute_output(noisy, &[&x]) } else { noisy(from_ref(&x)) }.unwrap();
        y.matmul(&w).unwrap().sum().unwrap().backward().unwrap();
        let after = Tensor::randn(&[4], &device).unwrap();
        [w.grad().unwrap(), x.grad().unwrap(), after].map(|x| x.to_vec::<f32>().unwrap())
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn an_output_that_changed_is_kept_as_it_is() {
    let device = cpu();
    let (x, w) = (leaf(&[2, 2], &device), leaf(&[2, 2], &device));
    let y = recompute_output(|x| x[0].mul_scalar(2.0), &[&x]).unwrap();
    y.add_scalar_(1.0).unwrap();
    let expected = no_grad(|| y.t()?.matmul(&y.ones_like()?)).unwrap().to_vec::<f32>().unwrap();
    y.matmul(&w).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), expected);
}

#[test]
fn an_input_that_changed_is_an_error() {
    let device = cpu();
    let (x, w) = (Tensor::randn(&[2, 2], &device).unwrap(), leaf(&[2, 2], &device));
    let scale = leaf(&[2], &device);
    let y = recompute_output(move |x| x[0].mul(&scale), &[&x]).unwrap();
    let out = y.matmul(&w).unwrap();
    x.add_scalar_(1.0).unwrap();
    let error = out.sum().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("changed") || error.contains("modified"), "{error}");
}

#[test]
fn a_graph_that_is_kept_runs_a_second_time() {
    let device = cpu();
    let (x, w) = (leaf(&[4, 4], &device), leaf(&[4, 4], &device));
    let loss = recompute_output(norm, &[&x]).unwrap().matmul(&w).unwrap().sum().unwrap();
    loss.backward_with(BackwardOptions { retain_graph: true, ..BackwardOptions::default() }).unwrap();
    let once = w.grad().unwrap().to_vec::<f32>().unwrap();
    loss.backward().unwrap();
    let twice: Vec<f32> = once.iter().map(|x| 2.0 * x).collect();
    assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), twice);
}

#[test]
fn under_checkpoints_and_hooks_it_is_a_call() {
    let run = |checkpointed: bool| {
        let device = cpu();
        let (x, w) = (leaf(&[4, 4], &device), leaf(&[4, 4], &device));
        let weight = w.clone();
        let block = move |x: &[Tensor]| recompute_output(norm, &[&x[0]])?.matmul(&weight)?.tanh();
        let out = match checkpointed {
            true => checkpoint(block, &[&x]).unwrap(),
            false => {
                let pack = |saved: &Tensor| saved.copy();
                saved_tensors_hooks(pack, |packed: &Tensor| Ok(packed.clone()), || block(from_ref(&x)))
                    .unwrap()
            }
        };
        out.sum().unwrap().backward().unwrap();
        [x, w].map(|leaf| leaf.grad().unwrap().to_vec::<f32>().unwrap())
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_function_that_computes_something_else_is_an_error() {
    let device = cpu();
    let (x, w) = (leaf(&[4, 4], &device), leaf(&[4, 4], &device));
    let runs = AtomicUsize::new(0);
    let f = move |x: &[Tensor]| match runs.fetch_add(1, Ordering::Relaxed) {
        0 => x[0].tanh(),
        _ => x[0].t()?.contiguous()?.narrow(0, 0, 2)?.tanh(),
    };
    let out = recompute_output(f, &[&x]).unwrap().matmul(&w).unwrap();
    let error = out.sum().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("[2, 4]") && error.contains("must compute the same both times"), "{error}");
}

#[test]
fn a_tensor_that_wants_no_gradient_is_returned_as_it_is() {
    let device = cpu();
    let x = Tensor::ones(&[4], &device).unwrap();
    assert!(!recompute_output(|x| x[0].tanh(), &[&x]).unwrap().requires_grad());
    let leaf = x.requires_grad_(true).unwrap();
    assert!(no_grad(|| recompute_output(|x| x[0].tanh(), &[&leaf])).is_ok());
    // The result shares memory with the input, which is kept anyway.
    let same = recompute_output(|x| x[0].view(&[2, 2]), &[&leaf]).unwrap();
    same.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(leaf.grad().unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
}

#[test]
fn the_sum_of_a_fused_normalization_is_rounded_before_it_is_normalized() {
    let device = cpu();
    let x = Tensor::randn(&[5, 32], &device).unwrap();
    let residual = Tensor::randn(&[5, 32], &device).unwrap();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let (x, residual) = (x.to_dtype(dtype).unwrap(), residual.to_dtype(dtype).unwrap());
        let (sum, fused) = x.add_layer_norm(&residual, None, None, 1e-5).unwrap();
        assert_eq!(sum.to_vec_f64(), x.add(&residual).unwrap().to_vec_f64());
        let apart = sum.layer_norm(None, None, 1e-5).unwrap();
        assert_eq!(fused.to_vec_f64(), apart.to_vec_f64(), "{dtype}");
    }
}

trait Values {
    fn to_vec_f64(&self) -> Vec<f64>;
}

impl Values for Tensor {
    fn to_vec_f64(&self) -> Vec<f64> {
        self.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
    }
}
