//! Tensors whose bytes are evicted from their device and restored.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_tensor::label::{Span, intern};
use plimsoll_tensor::suite::{Case, check_on};
use plimsoll_tensor::testing::{LateConfig, Pauses, evict_at_random};
use plimsoll_tensor::{
    Category, CpuConfig, DType, Device, Error, OPERATORS, SimConfig, State, Stream, Tensor, autocast,
    with_stream,
};

fn own() -> Device {
    Device::cpu_with(CpuConfig::default())
}

fn late() -> Device {
    Device::late(LateConfig::default())
}

fn full(value: f64, device: &Device) -> Tensor {
    Tensor::full(&[1 << 18], value, DType::F32, device).unwrap()
}

fn is_all(tensor: &Tensor, value: f32) -> bool {
    tensor.to_vec::<f32>().unwrap().iter().all(|&x| x == value)
}

#[test]
fn an_offloaded_tensor_takes_no_device_memory_and_comes_back_by_itself() {
    for device in [own(), late()] {
        let x = full(2.0, &device);
        let view = x.narrow(0, 5, 10).unwrap();
        assert_eq!((x.state(), device.memory_allocated()), (State::Resident, 1 << 20));
        x.offload().unwrap();
        x.offload().unwrap(); // does nothing
        assert_eq!(
            (x.state(), view.state(), device.memory_allocated()),
            (State::Offloaded, State::Offloaded, 0)
        );
        let other = full(7.0, &device); // reuses the block
        assert!(is_all(&view.add_scalar(1.0).unwrap(), 3.0));
        assert_eq!((x.state(), device.memory_allocated()), (State::Resident, 2 << 20));
        assert!(is_all(&x, 2.0) && is_all(&other, 7.0));
    }
}

#[test]
fn a_change_in_place_brings_back_first_and_stays() {
    for device in [own(), late()] {
        let x = full(2.0, &device);
        x.offload().unwrap();
        x.narrow(0, 0, 1).unwrap().fill_(5.0).unwrap();
        x.offload().unwrap();
        let values = x.to_vec::<f32>().unwrap();
        assert_eq!(values[..2], [5.0, 2.0]);
    }
}

#[test]
fn an_evicted_tensor_is_computed_again_when_it_is_needed() {
    for device in [own(), late()] {
        let x = full(3.0, &device);
        let y = x.square().unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let (count, from) = (runs.clone(), x.clone());
        y.evict_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            from.square()
        })
        .unwrap();
        assert_eq!(
            (y.state(), device.memory_allocated(), runs.load(Ordering::Relaxed)),
            (State::Evicted, 1 << 20, 0)
        );
        assert!(is_all(&y, 9.0) && is_all(&y, 9.0));
        assert_eq!((y.state(), runs.load(Ordering::Relaxed)), (State::Resident, 1));
        assert_eq!(device.memory_allocated(), 2 << 20);
    }
}

#[test]
fn a_recipe_runs_under_the_autocast_of_its_eviction() {
    let x = Tensor::full(&[4, 4], 1.0, DType::F32, &own()).unwrap();
    let y = x.matmul(&x).unwrap();
    y.evict_with(move || x.matmul(&x)).unwrap();
    let z = autocast::autocast(DType::BF16, || y.add_scalar(1.0)).unwrap();
    assert_eq!((z.dtype(), z.to_vec::<f32>().unwrap()), (DType::F32, vec![5.0; 16]));
}

#[test]
fn saved_tensors_may_be_away_when_the_backward_pass_comes() {
    for device in [own(), late()] {
        let w = full(3.0, &device).requires_grad_(true).unwrap();
        let y = w.square().unwrap();
        let z = y.square().unwrap(); // saves `y`
        w.offload().unwrap();
        let again = w.detach();
        y.evict_with(move || again.square()).unwrap();
        z.sum().unwrap().backward().unwrap();
        assert!(is_all(&w.grad().unwrap(), 108.0)); // 4 · 27
    }
}

#[test]
fn a_guard_keeps_the_bytes_on_their_device() {
    let device = own();
    let x = full(1.0, &device);
    x.offload().unwrap();
    let (first, second) = (x.pin().unwrap(), x.pin().unwrap());
    assert_eq!(x.state(), State::Resident);
    let text = "a guard or an operation keeps the tensor on its device: drop the guard first";
    assert_eq!(x.offload().unwrap_err().to_string(), format!("offload: {text}"));
    drop(first);
    let again = x.copy().unwrap();
    assert_eq!(x.evict_with(move || again.copy()).unwrap_err().to_string(), format!("evict_with: {text}"));
    drop(second);
    x.offload().unwrap();
    assert_eq!(x.state(), State::Offloaded);
}

#[test]
fn no_room_to_come_back_is_an_error_that_names_operator_and_owner_and_the_next_operation_works() {
    for device in [own(), Device::sim(SimConfig::new(1 << 30)), late()] {
        let x = {
            let _layer = Span::of(Category::Parameter, intern("fc1.weight"));
            Tensor::full(&[3 << 20], 2.0, DType::F32, &device).unwrap() // 12 MiB: its own segment
        };
        x.offload().unwrap();
        device.synchronize().unwrap();
        device.empty_cache().unwrap();
        let small = Tensor::ones(&[4], &device).unwrap();
        device.set_memory_limit(8 << 20);
        let before = device.memory_allocated();
        let error = x.add_scalar(1.0).unwrap_err();
        let Error::OutOfMemory(_) = &error else {
            // The memory of the output is requested first.
            panic!("{error}");
        };
        let error = x.sum().unwrap_err();
        assert!(
            matches!(&error, Error::NotResident { op: "sum", owner, .. } if owner == "fc1.weight"),
            "{error}"
        );
        let begin = format!("sum: the bytes of fc1.weight cannot be moved back to {device}: out of memory");
        assert!(error.to_string().starts_with(&begin), "{error}");
        assert_eq!(error.out_of_memory().unwrap().label, "fc1.weight");
        assert!(matches!(x.pin().unwrap_err(), Error::NotResident { op: "pin", .. }));
        assert_eq!((x.state(), device.memory_allocated()), (State::Offloaded, before), "nothing leaked");
        small.add_scalar(1.0).unwrap();
        device.set_memory_limit(None);
        let sum = x.sum().unwrap();
        assert_eq!(x.state(), State::Resident);
        assert_eq!((x.category(), x.label()), (Category::Parameter, "fc1.weight".to_owned()));
        if device.has_values() {
            assert_eq!(sum.item::<f32>().unwrap(), (6 << 20) as f32);
        }
    }
}

#[test]
fn a_recipe_that_fails_or_gives_something_else_is_an_error_and_can_be_replaced() {
    let device = own();
    let x = full(2.0, &device);
    let text = |x: &Tensor| x.sum().map(drop).unwrap_err().to_string();
    x.evict_with(|| Err(Error::argument("users", "lost the input"))).unwrap();
    assert_eq!(text(&x), "sum: the bytes of full cannot be moved back to cpu: users: lost the input");
    let there = device.clone();
    x.evict_with(move || Tensor::ones(&[3], &there)).unwrap();
    assert!(
        text(&x).contains("its recipe returned Tensor([3], float32, cpu) for [262144] of float32 on cpu")
    );
    let itself = Arc::new(Mutex::new(Some(x.clone())));
    let inside = itself.clone();
    x.evict_with(move || inside.lock().unwrap().as_ref().unwrap().add_scalar(1.0)).unwrap();
    assert!(
        text(&x).contains("its recipe needs the tensor itself: let it use other tensors only"),
        "{}",
        text(&x)
    );
    itself.lock().unwrap().take();
    assert_eq!(x.state(), State::Evicted);
    let there = device.clone();
    x.evict_with(move || Tensor::full(&[1 << 18], 4.0, DType::F32, &there)).unwrap();
    assert!(is_all(&x, 4.0));
    // A recipe may return a tensor that is used elsewhere or has another layout: it is copied.
    let shared = full(5.0, &device);
    let keep = shared.clone();
    x.evict_with(move || Ok(shared.clone())).unwrap();
    assert!(is_all(&x, 5.0));
    x.fill_(6.0).unwrap();
    assert!(is_all(&keep, 5.0));
}

#[test]
fn a_view_of_a_part_cannot_be_evicted() {
    let x = full(1.0, &own());
    let part = x.narrow(0, 0, 4).unwrap();
    let error = part.evict_with(|| unreachable!()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "evict_with: [4] is a view of a part of its memory: evict the tensor that it is a view of"
    );
    let pinned = x.pin_memory().unwrap();
    assert_eq!(
        pinned.offload().unwrap_err().to_string(),
        "offload: a tensor in pinned memory is on the host already"
    );
    let empty = Tensor::zeros(&[0, 3], &own()).unwrap();
    empty.offload().unwrap();
    assert!(empty.exp().unwrap().to_vec::<f32>().unwrap().is_empty());
}

#[test]
fn an_offload_waits_for_the_work_that_computes_the_bytes() {
    let pauses = Pauses::default();
    let device = Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() });
    let stream = device.current_stream();
    pauses.pause(&stream);
    let x = full(2.0, &device).square().unwrap();
    x.offload().unwrap(); // only queued so far
    let other = full(9.0, &device);
    let resume = {
        let stream = stream.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            pauses.resume(&stream);
        })
    };
    let side = Stream::new(&device);
    side.wait_stream(&stream).unwrap();
    let y = with_stream(&side, || x.add_scalar(1.0)).unwrap();
    resume.join().unwrap();
    device.synchronize().unwrap();
    assert!(is_all(&y, 5.0) && is_all(&other, 9.0));
}

#[test]
fn threads_bring_one_tensor_back_together() {
    let device = own();
    let x = full(1.0, &device);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let x = &x;
                scope.spawn(move || match thread {
                    // May have no effect, if another thread is using it.
                    0 => drop(x.offload()),
                    _ => assert_eq!(x.sum().unwrap().item::<f32>().unwrap(), (1 << 18) as f32),
                });
            }
        });
    }
    drop(x);
    assert_eq!(device.memory_allocated(), 0);
}

#[test]
fn every_operator_gives_the_hosts_bits_while_tensors_leave_at_random() {
    for (seed, device) in [own(), own(), late()].into_iter().enumerate() {
        let evictions = evict_at_random(&device, seed as u64);
        let cases: Vec<Case> = OPERATORS.iter().flat_map(|(_, cases)| cases()).collect();
        let failures: Vec<String> = cases.iter().filter_map(|case| check_on(case, &device).err()).collect();
        assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
        assert!(evictions.offloaded() > 500 && evictions.evicted() > 200, "{evictions:?}");
        assert_eq!(device.memory_allocated(), 0);
    }
}
