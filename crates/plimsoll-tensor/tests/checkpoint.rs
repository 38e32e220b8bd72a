//! Checkpointing: bit-identical gradients with less memory.

use plimsoll_tensor::autograd::{GradOptions, grad};
use plimsoll_tensor::checkpoint::{Step, checkpoint, checkpoint_sequential, is_recomputing};
use plimsoll_tensor::{CpuConfig, DType, Device, Error, Result, SimConfig, Tensor, autocast};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn leaf(shape: &[usize], device: &Device) -> Tensor {
    Tensor::randn(shape, device).unwrap().requires_grad_(true).unwrap()
}

/// Three products with dropout between them: enough to save, and random numbers that must be reproduced.
fn block(w: &Tensor, x: &Tensor) -> Result<Tensor> {
    let noise = Tensor::randn(x.shape(), x.device())?;
    let x = x.matmul(w)?.gelu()?.mul(&noise)?;
    x.matmul(w)?.tanh()?.matmul(w)
}

fn gradients(device: &Device, checkpointed: bool) -> Vec<Vec<f32>> {
    device.manual_seed(7);
    let (w, x) = (leaf(&[8, 8], device), leaf(&[4, 8], device));
    let mut y = x.clone();
    for _ in 0..3 {
        let inner = w.clone();
        y = match checkpointed {
            true => checkpoint(move |x| block(&inner, &x[0]), &[&y]).unwrap(),
            false => block(&inner, &y).unwrap(),
        };
    }
    y.sum().unwrap().backward().unwrap();
    let after = Tensor::randn(&[4], device).unwrap();
    [w.grad().unwrap(), x.grad().unwrap(), y, after].iter().map(|x| x.to_vec::<f32>().unwrap()).collect()
}

#[test]
fn gradients_and_random_numbers_are_the_same_bits() {
    let device = Device::cpu_with(CpuConfig::default());
    assert_eq!(gradients(&device, true), gradients(&device, false));
}

#[test]
fn a_checkpoint_in_a_checkpoint_gives_the_same_bits() {
    let run = |levels: usize| {
        let device = Device::cpu_with(CpuConfig::default());
        let (w, x) = (leaf(&[8, 8], &device), leaf(&[4, 8], &device));
        fn nested(levels: usize, w: &Tensor, x: &Tensor) -> Result<Tensor> {
            let w = w.clone();
            match levels {
                0 => block(&w, &block(&w, x)?),
                _ => checkpoint(move |x| nested(levels - 1, &w, &x[0].tanh()?)?.tanh(), &[x]),
            }
        }
        // Every depth runs the same operations: those that are not checkpointed run here.
        let mut y = x.clone();
        for _ in levels..3 {
            y = y.tanh().unwrap();
        }
        let mut y = nested(levels, &w, &y).unwrap();
        for _ in levels..3 {
            y = y.tanh().unwrap();
        }
        y.sum().unwrap().backward().unwrap();
        (w.grad().unwrap().to_vec::<f32>().unwrap(), x.grad().unwrap().to_vec::<f32>().unwrap())
    };
    let plain = run(0);
    assert_eq!(run(1), plain);
    assert_eq!(run(2), plain);
    assert_eq!(run(3), plain);
}

#[test]
fn only_inputs_stay_and_the_second_run_frees_as_it_goes() {
    const MIB: u64 = 1 << 20;
    let device = Device::sim(SimConfig::new(1 << 32));
    let x = Tensor::empty(&[1 << 18], DType::F32, &device).unwrap().requires_grad_(true).unwrap();
    let chain = |x: &Tensor| (0..8).try_fold(x.clone(), |x, _| x.tanh());
    let y = chain(&x).unwrap();
    assert_eq!(device.memory_allocated(), 9 * MIB, "the leaf and eight outputs");
    drop(y);
    let y = checkpoint(move |x| chain(&x[0]), &[&x]).unwrap();
    assert_eq!(device.memory_allocated(), 2 * MIB, "the leaf and the last output");
    device.reset_peak_memory_stats();
    let gradient = Some(y.ones_like().unwrap());
    let options = plimsoll_tensor::BackwardOptions { gradient, ..Default::default() };
    y.backward_with(options).unwrap();
    // The leaf, the output and its gradient; seven recomputed outputs and the last, which ends the second run; one more
    // gradient.
    assert!(device.max_memory_allocated() <= 12 * MIB, "{}", device.max_memory_allocated());
    drop(y);
    assert_eq!(device.memory_allocated(), 2 * MIB, "the leaf and its gradient");
}

#[test]
fn the_second_run_ends_at_the_last_tensor_that_is_needed() {
    let device = Device::cpu();
    let (x, runs) = (leaf(&[4], &device), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
    let seen = runs.clone();
    let y = checkpoint(
        move |x| {
            seen[0].fetch_add(1, Ordering::Relaxed);
            let y = x[0].exp()?;
            seen[1].fetch_add(1, Ordering::Relaxed);
            assert!(!is_recomputing(), "exp saves its output, which is all that is needed");
            y.mul_scalar(2)
        },
        &[&x],
    )
    .unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!(runs.each_ref().map(|n| n.load(Ordering::Relaxed)), [2, 1]);
}

#[test]
fn grad_and_autocast_reach_into_a_checkpoint() {
    let device = Device::cpu();
    let (w, x) = (leaf(&[4, 4], &device), leaf(&[2, 4], &device));
    let run = |checkpointed: bool| {
        let captured = w.clone();
        let y = autocast::autocast(DType::BF16, || match checkpointed {
            true => checkpoint(move |x| x[0].matmul(&captured)?.exp(), &[&x]),
            false => x.matmul(&captured)?.exp(),
        })
        .unwrap();
        let found = grad(&[&y.sum().unwrap()], &[&w, &x], GradOptions::default()).unwrap();
        found.into_iter().map(|g| g.unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
    assert!(w.grad().is_none());
}

#[test]
fn a_function_that_computes_something_else_is_named() {
    let device = Device::cpu();
    let (x, runs) = (leaf(&[4], &device), AtomicUsize::new(0));
    let y = checkpoint(
        move |x| match runs.fetch_add(1, Ordering::Relaxed) {
            0 => x[0].exp()?.tanh(),
            _ => x[0].narrow(0, 0, 2)?.exp()?.tanh(),
        },
        &[&x],
    )
    .unwrap();
    let error = y.sum().unwrap().backward().unwrap_err().to_string();
    let expected =
        "checkpoint: the recomputed function saved tensor 0 is [2] of float32, unlike the original";
    assert!(error.starts_with(expected), "{error}");
    let failing = checkpoint(
        |x| match is_recomputing() {
            false => x[0].exp(),
            true => Err(Error::argument("mine", "it does not want to")),
        },
        &[&x],
    );
    let error = failing.unwrap().sum().unwrap().backward().unwrap_err().to_string();
    assert_eq!(error, "mine: it does not want to");
}

#[test]
fn a_second_run_that_panics_leaves_the_random_numbers_as_they_were() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = leaf(&[4, 8], &device);
    let function = |x: &[Tensor]| {
        assert!(!is_recomputing(), "the second run");
        x[0].mul(&Tensor::randn(&[4, 8], x[0].device())?)?.tanh()
    };
    let y = checkpoint(function, &[&x]).unwrap();
    Tensor::randn(&[4], &device).unwrap();
    let before = device.rng_state();
    let error = y.sum().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("the second run"), "{error}");
    assert_eq!(device.rng_state(), before);
}

#[test]
fn a_sequence_is_cut_into_segments() {
    let device = Device::cpu();
    let x = leaf(&[4], &device);
    let steps: Vec<Step> = (0..7).map(|_| Step::new(Tensor::tanh)).collect();
    let gradient = |segments: usize| {
        x.clear_grad();
        checkpoint_sequential(&steps, segments, &x).unwrap().sum().unwrap().backward().unwrap();
        x.grad().unwrap().to_vec::<f32>().unwrap()
    };
    let whole = gradient(1);
    (2..=7).for_each(|segments| assert_eq!(gradient(segments), whole, "{segments}"));
    assert!(checkpoint_sequential(&steps, 8, &x).is_err() && checkpoint_sequential(&steps, 0, &x).is_err());
}
