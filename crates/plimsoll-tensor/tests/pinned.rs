//! Pinned host memory, and copies that the host does not wait for.

use std::time::Duration;

use plimsoll_tensor::testing::{LateConfig, Pauses};
use plimsoll_tensor::{
    CpuConfig, DType, Device, Error, SimConfig, Stream, Tensor, no_grad, pinned, with_stream,
};

fn late() -> (Device, Pauses) {
    let pauses = Pauses::default();
    (Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() }), pauses)
}

fn own() -> Device {
    Device::cpu_with(CpuConfig::default())
}

fn full(value: f64, device: &Device) -> Tensor {
    Tensor::full(&[1000], value, DType::F32, device).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn resume_later(pauses: &Pauses, stream: &Stream) -> std::thread::JoinHandle<()> {
    let (pauses, stream) = (pauses.clone(), stream.clone());
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        pauses.resume(&stream);
    })
}

#[test]
fn pinned_memory_has_an_account_of_its_own() {
    let host = own();
    let x = full(2.0, &host);
    assert!(!x.is_pinned());
    let before = host.memory_allocated();
    let y = x.pin_memory().unwrap();
    assert!(y.is_pinned() && y.pin_memory().unwrap().is_same(&y));
    assert_eq!((y.device(), host.memory_allocated()), (&host, before));
    assert!(pinned::host_memory_stats()["active_bytes.current"] >= 4096);
    // It can be used like any other host tensor, including views and changes in place.
    assert_eq!(values(&(&x + &y).unwrap()), [4.0; 1000]);
    y.narrow(0, 0, 10).unwrap().fill_(7.0).unwrap();
    assert_eq!(values(&y)[9..11], [7.0, 2.0]);
    let grad = y.requires_grad_(true).unwrap();
    grad.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(values(&y.grad().unwrap())[..1], [14.0]);
    assert!(!grad.grad().unwrap().is_pinned());
    pinned::reset_peak_host_memory_stats();
}

#[test]
fn only_the_host_has_pinned_memory() {
    for device in [late().0, Device::sim(SimConfig::new(1 << 30))] {
        let x = Tensor::ones(&[4], &device).unwrap();
        let name = device.name();
        let expected =
            format!("pin_memory: a tensor on {name}: only the host has pinned memory; use `to_device` first");
        assert_eq!(x.pin_memory().unwrap_err().to_string(), expected);
        assert!(!x.is_pinned());
    }
}

#[test]
fn a_request_beyond_all_memory_names_who_asked() {
    let device = Device::sim(SimConfig::new(1 << 60));
    let x = Tensor::empty(&[1 << 57], DType::U8, &device).unwrap();
    let error = x.offload().unwrap_err();
    assert!(
        matches!(&error, Error::PinnedMemory { op: "offload", owner, .. } if owner == "tensor"),
        "{error}"
    );
    assert!(error.to_string().starts_with("offload in tensor: out of pinned memory: asked for"), "{error}");
    assert_eq!((x.state(), device.memory_allocated()), (plimsoll_tensor::State::Resident, 1 << 57));
}

#[test]
fn a_copy_from_pinned_memory_runs_while_the_host_goes_on() {
    let (gpu, pauses) = late();
    let copies = Stream::new(&gpu);
    let batch = full(3.0, &own()).pin_memory().unwrap();
    pauses.pause(&copies);
    let there = with_stream(&copies, || batch.to_device_non_blocking(&gpu)).unwrap();
    assert_eq!((there.stream(), copies.query().unwrap()), (copies.clone(), false));
    // The host must not change memory that is still being copied, so it waits.
    let resume = resume_later(&pauses, &copies);
    batch.fill_(9.0).unwrap();
    resume.join().unwrap();
    gpu.current_stream().wait_stream(&copies).unwrap();
    assert_eq!(values(&there), [3.0; 1000]);
    assert_eq!(values(&batch), [9.0; 1000]);
}

#[test]
fn pinned_memory_that_is_freed_is_reused_after_its_copy() {
    let (gpu, pauses) = late();
    let (host, copies) = (own(), Stream::new(&gpu));
    let batch = full(3.0, &host).pin_memory().unwrap();
    pauses.pause(&copies);
    let there = with_stream(&copies, || batch.to_device_non_blocking(&gpu)).unwrap();
    drop(batch);
    let others: Vec<Tensor> = (0..4).map(|_| full(9.0, &host).pin_memory().unwrap()).collect();
    pauses.resume(&copies);
    gpu.current_stream().wait_stream(&copies).unwrap();
    assert_eq!(values(&there), [3.0; 1000]);
    drop(others);
}

#[test]
fn a_copy_to_the_host_is_pinned_and_waited_for_when_it_is_used() {
    let (gpu, pauses) = late();
    let host = own();
    let x = full(2.0, &gpu);
    gpu.synchronize().unwrap();
    let stream = gpu.current_stream();
    pauses.pause(&stream);
    let y = x.square().unwrap();
    let back = y.to_device_non_blocking(&host).unwrap();
    drop((x, y));
    assert!(back.is_pinned() && !stream.query().unwrap());
    let resume = resume_later(&pauses, &stream);
    assert_eq!(values(&back.add_scalar(1.0).unwrap()), [5.0; 1000]);
    resume.join().unwrap();
    assert_eq!(gpu.memory_allocated(), 0);
}

#[test]
fn what_is_not_pinned_or_not_late_is_copied_at_once() {
    let (gpu, _) = late();
    let (host, other) = (own(), own());
    let x = full(2.0, &host);
    let there = x.to_device_non_blocking(&gpu).unwrap();
    no_grad(|| x.fill_(9.0)).unwrap();
    assert_eq!(values(&there), [2.0; 1000]);
    let elsewhere = x.pin_memory().unwrap().to_device_non_blocking(&other).unwrap();
    assert_eq!(
        (elsewhere.device(), elsewhere.is_pinned(), values(&elsewhere)),
        (&other, false, vec![9.0; 1000])
    );
    assert!(x.to_device_non_blocking(&host).unwrap().is_same(&x));
    let sim = Device::sim(SimConfig::new(1 << 30));
    let counted = x.pin_memory().unwrap().to_device_non_blocking(&sim).unwrap();
    assert_eq!((counted.shape(), sim.memory_allocated()), (&[1000][..], 4096));
}

#[test]
fn a_gradient_flows_back_through_an_asynchronous_copy() {
    let (gpu, _) = late();
    let host = own();
    let w = full(3.0, &host).pin_memory().unwrap().requires_grad_(true).unwrap();
    let there = w.to_device_non_blocking(&gpu).unwrap();
    there.square().unwrap().sum().unwrap().backward().unwrap();
    let grad = w.grad().unwrap();
    assert_eq!((grad.device(), values(&grad)), (&host, vec![6.0; 1000]));
}
