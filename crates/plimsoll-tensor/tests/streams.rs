//! Streams and events, on a device that computes at once and on one that computes later.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use plimsoll_tensor::testing::{LateConfig, Pauses};
use plimsoll_tensor::{DType, Device, Error, Event, SimConfig, Stream, Tensor, with_stream};

const MIB: usize = 1 << 20;

fn sim() -> Device {
    Device::sim(SimConfig::new(1 << 30))
}

/// A device that computes later, and the handle that pauses its streams.
fn late() -> (Device, Pauses) {
    let pauses = Pauses::default();
    (Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() }), pauses)
}

/// A tensor of 1 MiB filled with one value.
fn full(value: f64, device: &Device) -> Tensor {
    Tensor::full(&[MIB / 4], value, DType::F32, device).unwrap()
}

fn is_all(tensor: &Tensor, value: f32) -> bool {
    tensor.to_vec::<f32>().unwrap().iter().all(|&x| x == value)
}

#[test]
fn the_current_stream_belongs_to_a_thread_and_a_device() {
    let (a, b) = (sim(), sim());
    let (first, second, other) = (Stream::new(&a), Stream::new(&a), Stream::new(&b));
    assert_eq!((first.id().0, second.id().0, other.id().0), (1, 2, 1));
    assert_eq!(a.current_stream(), a.default_stream());
    with_stream(&first, || {
        assert_eq!((a.current_stream(), b.current_stream()), (first.clone(), b.default_stream()));
        with_stream(&other, || {
            assert_eq!((a.current_stream(), b.current_stream()), (first.clone(), other.clone()));
        });
        with_stream(&second, || assert_eq!(a.current_stream(), second.clone()));
        with_stream(&a.default_stream(), || assert_eq!(a.current_stream(), a.default_stream()));
        assert_eq!(a.current_stream(), first);
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| a.current_stream()).join().unwrap());
        assert_eq!(elsewhere, a.default_stream());
    });
    assert_eq!(a.current_stream(), a.default_stream());
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| with_stream(&first, || panic!("inside"))));
    assert!(panicked.is_err());
    assert_eq!(a.current_stream(), a.default_stream());
}

#[test]
fn a_device_has_32_streams_and_hands_them_out_in_turn() {
    let device = sim();
    let streams: Vec<Stream> = (0..33).map(|_| Stream::new(&device)).collect();
    assert_eq!(streams[0], streams[32]);
    assert!(streams[..32].iter().enumerate().all(|(i, stream)| !streams[..i].contains(stream)));
}

#[test]
fn memory_is_requested_for_the_current_stream_on_every_device() {
    for device in [sim(), late().0] {
        let side = Stream::new(&device);
        let x = full(1.0, &device);
        let y = with_stream(&side, || x.mul_scalar(2.0)).unwrap();
        assert_eq!((x.stream(), y.stream()), (device.default_stream(), side));
        let streams: Vec<u64> = device.memory_snapshot().iter().map(|segment| segment.stream.0).collect();
        assert_eq!(streams.len(), 2, "a segment for each stream");
        assert!(streams.contains(&0) && streams.contains(&1));
    }
}

#[test]
fn a_device_that_computes_at_once_is_never_behind() {
    let device = sim();
    let side = Stream::new(&device);
    let event = Event::new();
    assert!(event.query().unwrap());
    with_stream(&side, || Tensor::ones(&[4], &device)).unwrap();
    event.record(&side).unwrap();
    assert!(event.query().unwrap() && side.query().unwrap());
    device.default_stream().wait_event(&event).unwrap();
    device.synchronize().unwrap();
}

#[test]
fn a_stream_of_another_device_is_refused_by_a_tensor() {
    let (device, other) = (sim(), late().0);
    let x = Tensor::ones(&[4], &device).unwrap();
    let error = x.record_stream(&other.default_stream()).unwrap_err();
    assert_eq!(error.to_string(), "record_stream: tensors on sim and on late; move one with `to_device`");
}

#[test]
fn calls_return_before_their_work_is_done() {
    let (device, pauses) = late();
    let stream = device.current_stream();
    pauses.pause(&stream);
    let x = full(1.0, &device).add_scalar(1.0).unwrap();
    let event = stream.record_event().unwrap();
    assert!(!event.query().unwrap() && !stream.query().unwrap());
    pauses.resume(&stream);
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
    assert!(is_all(&x, 2.0));
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let (device, pauses) = late();
    let (first, second) = (Stream::new(&device), Stream::new(&device));
    pauses.pause(&first);
    let x = with_stream(&first, || full(3.0, &device));
    let event = first.record_event().unwrap();
    second.wait_event(&event).unwrap();
    let y = with_stream(&second, || x.mul_scalar(2.0)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!second.query().unwrap(), "it waits");
    pauses.resume(&first);
    second.synchronize().unwrap();
    assert!(is_all(&y, 6.0));
}

#[test]
fn an_event_of_another_device_is_waited_for_on_the_host() {
    let ((a, pauses), (b, _)) = (late(), late());
    pauses.pause(&a.default_stream());
    let x = full(1.0, &a);
    let event = a.default_stream().record_event().unwrap();
    let resume = {
        let (pauses, stream) = (pauses.clone(), a.default_stream());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            pauses.resume(&stream);
        })
    };
    b.default_stream().wait_event(&event).unwrap();
    assert!(event.query().unwrap());
    resume.join().unwrap();
    assert!(is_all(&x.to_device(&b).unwrap(), 1.0));
}

/// A side stream computes a value from a tensor that is freed before it runs.
#[test]
fn memory_that_another_stream_still_reads_is_not_reused() {
    let (device, pauses) = late();
    let (main, side) = (device.default_stream(), Stream::new(&device));
    let x = full(1.0, &device);
    side.wait_stream(&main).unwrap();
    pauses.pause(&side);
    let y = with_stream(&side, || x.mul_scalar(2.0)).unwrap();
    drop(x); // dispatch has recorded the use on `side`
    let z = full(9.0, &device); // would reuse the block of `x`
    main.synchronize().unwrap();
    pauses.resume(&side);
    side.synchronize().unwrap();
    assert!(is_all(&y, 2.0), "`x` was overwritten while `side` still had to read it");
    assert!(is_all(&z, 9.0));
}

#[test]
fn without_the_note_of_its_use_that_memory_is_overwritten() {
    let pauses = Pauses::default();
    let config = LateConfig { pauses: pauses.clone(), records_uses: false, ..LateConfig::default() };
    let device = Device::late(config);
    let (main, side) = (device.default_stream(), Stream::new(&device));
    let x = full(1.0, &device);
    side.wait_stream(&main).unwrap();
    pauses.pause(&side);
    let y = with_stream(&side, || x.mul_scalar(2.0)).unwrap();
    drop(x);
    let z = full(9.0, &device);
    main.synchronize().unwrap();
    pauses.resume(&side);
    side.synchronize().unwrap();
    assert!(is_all(&y, 18.0), "twice what `z` wrote over `x`");
    assert!(is_all(&z, 9.0));
}

#[test]
fn record_stream_keeps_a_freed_block_until_that_stream_is_done() {
    let (device, pauses) = late();
    let side = Stream::new(&device);
    let x = full(1.0, &device);
    device.synchronize().unwrap();
    pauses.pause(&side);
    let work = with_stream(&side, || full(1.0, &device));
    x.record_stream(&side).unwrap();
    drop(x);
    let active = || device.memory_stats()["active_bytes.all.current"];
    assert_eq!((active(), device.memory_allocated()), (2 << 20, 1 << 20), "freed, and not to be reused yet");
    pauses.resume(&side);
    side.synchronize().unwrap();
    let next = full(2.0, &device); // polls the events
    assert_eq!((active(), device.memory_allocated()), (2 << 20, 2 << 20));
    drop((next, work));
}

#[test]
fn segments_go_back_to_the_system_after_the_work_on_them() {
    let (device, pauses) = late();
    let stream = device.default_stream();
    let x = full(1.0, &device);
    device.synchronize().unwrap();
    pauses.pause(&stream);
    let y = x.mul_scalar(2.0).unwrap();
    drop(x);
    let resume = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        pauses.resume(&stream);
    });
    device.empty_cache().unwrap();
    resume.join().unwrap();
    assert!(is_all(&y, 2.0));
}

#[test]
fn a_derivative_runs_on_the_stream_of_its_operation() {
    let (device, _) = late();
    let side = Stream::new(&device);
    let w = full(3.0, &device).requires_grad_(true).unwrap();
    side.wait_stream(&device.default_stream()).unwrap();
    let y = with_stream(&side, || w.square()).unwrap();
    device.default_stream().wait_stream(&side).unwrap();
    y.sum().unwrap().backward().unwrap();
    let grad = w.grad().unwrap();
    assert_eq!(grad.stream(), side);
    assert!(is_all(&grad, 6.0));
}

#[test]
fn a_device_that_goes_finishes_its_work() {
    let (device, pauses) = late();
    pauses.pause(&device.default_stream());
    let _ = full(1.0, &device).square().unwrap();
    drop(device); // resumes the streams, and must not hang
}

#[test]
fn threads_with_a_stream_each_do_not_mix_their_results() {
    let (device, _) = late();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let value = f64::from(thread);
                with_stream(&Stream::new(device), || {
                    for _ in 0..20 {
                        let x = full(value, device);
                        let y = (&x + &x).unwrap().mul(&x).unwrap();
                        drop(x);
                        assert!(is_all(&y, (2.0 * value * value) as f32));
                    }
                });
            });
        }
    });
    assert_eq!(device.memory_allocated(), 0);
}

#[test]
fn a_late_error_names_what_failed_and_whose_it_was_and_then_work_goes_on() {
    use plimsoll_tensor::Reduction;
    use plimsoll_tensor::label::{Span, intern};
    let (device, pauses) = late();
    let stream = device.default_stream();
    let scores = Tensor::zeros(&[2, 3], &device).unwrap();
    let wrong = Tensor::from_slice(&[0i64, 3], &[2], &device).unwrap();
    device.synchronize().unwrap();
    pauses.pause(&stream);
    let loss = {
        let _layer = Span::layer(intern("head.loss"));
        scores.nll_loss(&wrong, Reduction::Mean).unwrap()
    };
    let fine = scores.add_scalar(1.0).unwrap(); // this call comes before the error is found
    pauses.resume(&stream);
    let error = loop {
        // The next call returns the error.
        match scores.add_scalar(1.0) {
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert_eq!(
        error.to_string(),
        "late: nll_loss in head.loss, queued by an earlier call, failed: nll_loss: target 3 in row 1 is not a \
         class: classes are 0 to 2"
    );
    let Error::Late { op: "nll_loss", owner, cause, .. } = error else { panic!("{error}") };
    assert_eq!(owner, "head.loss");
    assert!(matches!(*cause, Error::Target { row: 1, value: 3, .. }));
    assert!(is_all(&fine, 1.0) && is_all(&scores.add_scalar(2.0).unwrap(), 2.0), "the next operation works");
    drop((loss, fine, wrong));
    device.synchronize().unwrap();
    assert_eq!(device.memory_allocated(), 512, "nothing but the scores");
}

#[test]
fn reading_returns_the_error_of_the_work_that_the_values_come_from() {
    use plimsoll_tensor::Reduction;
    let (device, _) = late();
    let scores = Tensor::zeros(&[1, 3], &device).unwrap();
    let wrong = Tensor::from_slice(&[7i64], &[1], &device).unwrap();
    let loss = scores.nll_loss(&wrong, Reduction::Mean).unwrap();
    let error = loss.item::<f32>().unwrap_err();
    assert!(matches!(error, Error::Late { op: "nll_loss", ref owner, .. } if owner.is_empty()), "{error}");
    device.synchronize().unwrap();
}

/// Random programs on several streams, ordered by events, compared with the same values computed at once.
#[test]
fn programs_of_several_streams_compute_what_one_would() {
    for seed in 0..20u64 {
        let device = Device::late(LateConfig { seed, ..LateConfig::default() });
        let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&device)).collect();
        let mut random = seed;
        let mut next = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n
        };
        let mut live: Vec<(Tensor, Stream, f32)> = vec![];
        for step in 0..60 {
            let stream = streams[next(3)].clone();
            if live.len() < 2 || next(4) == 0 {
                let value = step as f32;
                let x = with_stream(&stream, || Tensor::full(&[512], f64::from(value), DType::F32, &device));
                live.push((x.unwrap(), stream, value));
                continue;
            }
            let (a, b) = (live[next(live.len())].clone(), live[next(live.len())].clone());
            stream.wait_stream(&a.1).unwrap();
            stream.wait_stream(&b.1).unwrap();
            let sum = with_stream(&stream, || &a.0 + &b.0).unwrap();
            live.push((sum, stream, a.2 + b.2));
            if live.len() > 6 {
                live.remove(next(live.len())); // freed while streams may still read it
            }
        }
        for (tensor, stream, value) in &live {
            let values = with_stream(stream, || tensor.to_vec::<f32>()).unwrap();
            assert!(values.iter().all(|x| x == value), "seed {seed}: {} is not {value}", values[0]);
        }
    }
}
