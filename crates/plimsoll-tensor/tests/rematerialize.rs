//! Long programs under [`Device::rematerialize`]: neither their length nor what they have freed may cost a stack or memory.

use std::thread;

use plimsoll_tensor::label::intern;
use plimsoll_tensor::{CpuConfig, DType, Device, Graph, SimConfig, State, Tensor, into_out, no_grad};

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

/// A tensor of 16 MiB that no operator has made, so it stays.
fn kept(value: f32, device: &Device) -> Tensor {
    Tensor::from_slice(&vec![value; 4 << 20], &[4 << 20], device).unwrap()
}

fn is_all(tensor: &Tensor, value: f32) -> bool {
    tensor.to_vec::<f32>().unwrap().iter().all(|x| (x - value).abs() < 1e-5)
}

#[test]
fn a_change_that_failed_is_still_preceded_by_what_depends_on_the_old_values() {
    let device = Device::cpu_with(CpuConfig::default());
    device.rematerialize();
    device.set_memory_limit(48 << 20);
    let x = kept(0.5, &device);
    let (exp, sin) = (x.exp().unwrap(), x.sin().unwrap());
    let cos = x.cos().unwrap();
    assert_eq!(exp.state(), State::Evicted, "there is room for three tensors");
    // All three would have to come back first.
    let error = x.add_scalar_(1.0).unwrap_err();
    // The message names what cannot be evicted.
    let left = &error.out_of_memory().expect("it ran out of memory").irreducible;
    assert!(left.iter().map(|owner| owner.bytes).sum::<u64>() <= 48 << 20 && left[0].bytes >= 16 << 20);
    let text = error.to_string();
    assert!(text.contains(&format!("the largest owners of the rest are {} (", left[0].label)), "{text}");
    assert!(is_all(&x, 0.5));
    drop(sin);
    x.add_scalar_(1.0).unwrap();
    assert!(is_all(&x, 1.5) && is_all(&exp, 0.5f32.exp()) && is_all(&cos, 0.5f32.cos()));
}

#[test]
fn an_output_that_has_changed_does_not_come_back_with_another_one() {
    let device = Device::cpu_with(CpuConfig::default());
    device.rematerialize();
    let x = kept(0.5, &device);
    let (values, indices) = x.sort(0, false).unwrap();
    values.add_scalar_(1.0).unwrap();
    let again = device.clone();
    values.evict_with(move || Tensor::full(&[4 << 20], 1.5, DType::F32, &again)).unwrap();
    device.empty_cache().unwrap();
    device.set_memory_limit(device.memory_reserved());
    let exp = x.exp().unwrap();
    assert_eq!(indices.state(), State::Evicted);
    device.set_memory_limit(None);
    assert_eq!(indices.max().unwrap().item::<i64>().unwrap(), (4 << 20) - 1);
    assert!(is_all(&values, 1.5) && is_all(&exp, 0.5f32.exp()));
}

#[test]
fn an_operand_that_comes_back_is_not_written_into_out() {
    let device = Device::cpu_with(CpuConfig::default());
    device.rematerialize();
    device.set_memory_limit(64 << 20);
    let (x, out) = (kept(0.5, &device), kept(0.25, &device));
    let exp = x.exp().unwrap();
    let (sin, cos) = (x.sin().unwrap(), x.cos().unwrap());
    assert_eq!(exp.state(), State::Evicted);
    drop((sin, cos));
    into_out(&out, || exp.add(&out)).unwrap();
    assert!(is_all(&out, 0.25 + 0.5f32.exp()));
}

#[test]
fn a_device_that_evicts_tensors_captures_nothing() {
    let gpu = Device::sim(SimConfig::like("H200").unwrap());
    gpu.rematerialize();
    let x = Tensor::ones(&[4], &gpu).unwrap();
    let error = Graph::capture(&gpu, None, || x.exp()).unwrap_err().to_string();
    assert!(error.contains("Device::rematerialize"), "{error}");
}

#[test]
fn what_was_made_from_gathered_rows_comes_back_before_the_rows_change() {
    let device = Device::cpu_with(CpuConfig::default());
    device.rematerialize();
    device.set_memory_limit(64 << 20);
    let (rows, slot) = (kept(0.5, &device), kept(0.0, &device));
    let gather = {
        let rows = rows.detach();
        move || slot.copy_(&rows).map(|()| slot.clone())
    };
    let whole = Tensor::lent(&rows, 4 << 20, intern("whole"), gather).unwrap();
    let exp = whole.exp().unwrap();
    let (sin, cos) = (rows.sin().unwrap(), rows.cos().unwrap());
    assert_eq!(exp.state(), State::Evicted);
    drop((sin, cos));
    rows.fill_(1.0).unwrap();
    assert!(is_all(&exp, 0.5f32.exp()) && is_all(&whole, 1.0));
}

/// A chain from a tensor that is dropped, and cannot be made again: what was made first has to stay, and the rest can leave.
#[test]
fn what_was_made_from_a_dropped_tensor_can_be_evicted() {
    let trained = |limit: Option<u64>| {
        let device = Device::cpu_with(CpuConfig::default());
        if limit.is_some() {
            assert!(device.rematerialize());
            device.set_memory_limit(limit);
        }
        let made: Vec<f32> = (0..1 << 20).map(|i| (i % 97) as f32 / 97.0).collect();
        let first = Tensor::from_slice(&made, &[1 << 10, 1 << 10], &device).unwrap();
        let x = first.t().unwrap().contiguous().unwrap().requires_grad_(true).unwrap();
        drop(first);
        let mut y = x.mul_scalar(1.5).unwrap();
        for _ in 0..16 {
            y = y.tanh().unwrap();
        }
        y.sum().unwrap().backward().unwrap();
        (x.grad().unwrap().to_vec::<f32>().unwrap(), device.max_memory_reserved())
    };
    let (plain, peak) = trained(None);
    assert!(peak >= 18 * (4 << 20), "{peak}");
    let (evicted, less) = trained(Some(12 * (4 << 20)));
    assert!(plain == evicted && less <= 12 * (4 << 20), "{less} of {peak}");
}
