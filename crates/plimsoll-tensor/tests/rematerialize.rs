//! Long programs under [`Device::rematerialize`]: neither their length nor what they have freed may cost a stack or memory.

use std::thread;

use plimsoll_tensor::{CpuConfig, Device, Tensor, no_grad};

/// The gradient of a chain of this many functions, each of which keeps 64 KiB.
fn gradient(length: usize, limit: Option<u64>) -> (Vec<f32>, u64) {
    let device = Device::cpu_with(CpuConfig::default());
    if limit.is_some() {
        device.rematerialize();
        device.set_memory_limit(limit);
    }
    let values: Vec<f32> = (0..1 << 14).map(|i| (i as f32 / 5000.0).sin()).collect();
    let x = Tensor::from_slice(&values, &[values.len()], &device).unwrap().requires_grad_(true).unwrap();
    let mut y = x.clone();
    for _ in 0..length {
        y = y.sin().unwrap();
    }
    y.sum().unwrap().backward().unwrap();
    (x.grad().unwrap().to_vec().unwrap(), device.max_memory_reserved())
}

#[test]
fn a_chain_that_is_far_longer_than_its_limit_has_the_same_gradient() {
    // A thread's stack is 2 MiB.
    let test = || {
        let (plain, peak) = gradient(1500, None);
        let (evicted, less) = gradient(1500, Some(12 << 20));
        assert!(peak > 90 << 20 && less <= 12 << 20, "{less} of {peak}");
        assert!(plain == evicted);
    };
    thread::spawn(test).join().unwrap();
}

#[test]
fn a_loop_does_not_remember_all_of_its_iterations() {
    let device = Device::cpu_with(CpuConfig::default());
    assert!(device.rematerialize() && !device.rematerialize());
    let mut state = Tensor::ones(&[16], &device).unwrap();
    no_grad(|| {
        for _ in 0..30_000 {
            state = state.mul_scalar(0.5).unwrap().add_scalar(1.0).unwrap();
        }
    });
    assert_eq!(state.to_vec::<f32>().unwrap(), [2.0; 16]);
}
