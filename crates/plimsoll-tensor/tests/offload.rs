//! Activations that wait on the host: the same bits, less memory, and no request that depends on the copies' speed.

use std::time::Duration;

use plimsoll_tensor::checkpoint::checkpoint;
use plimsoll_tensor::offload::{OffloadActivations, OffloadOptions, OffloadQueue};
use plimsoll_tensor::testing::{LateConfig, Pauses};
use plimsoll_tensor::{DType, Device, Event, Result, SimConfig, State, Stream, Tensor, with_stream};

const WIDTH: usize = 64;
const LAYERS: usize = 12;

fn all() -> OffloadOptions {
    OffloadOptions { min_tensor_bytes: 0, wait: true, ..OffloadOptions::default() }
}

fn weights(device: &Device) -> Vec<Tensor> {
    let values = |layer: usize| move |i: usize| ((i * 37 + layer * 11) % 23) as f32 / 23.0 - 0.5;
    (0..LAYERS)
        .map(|layer| {
            let values: Vec<f32> = (0..WIDTH * WIDTH).map(values(layer)).collect();
            let weight = Tensor::from_slice(&values, &[WIDTH, WIDTH], device).unwrap();
            weight.requires_grad_(true).unwrap()
        })
        .collect()
}

/// Each layer saves the input of its product and that of `gelu`; sums keep some inputs in use for longer.
fn forward(weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for (layer, weight) in weights.iter().enumerate() {
        let y = x.matmul(weight)?.gelu()?;
        x = if layer % 3 == 2 { y.add(&x)? } else { y.mul_scalar(0.7)? };
    }
    x.square()?.mean()
}

/// The losses and gradients of some steps, and the peak of allocated bytes.
fn train(device: &Device, offload: Option<&OffloadActivations>) -> (Vec<Vec<f32>>, u64) {
    let weights = weights(device);
    let x = Tensor::full(&[3 * WIDTH, WIDTH], 0.1, DType::F32, device).unwrap();
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    let mut numbers = Vec::new();
    for _step in 0..3 {
        let loss = match offload {
            Some(offload) => offload.run(|| forward(&weights, &x)),
            None => forward(&weights, &x),
        };
        let loss = loss.unwrap();
        loss.backward().unwrap();
        numbers.push(loss.to_vec::<f32>().unwrap_or_default());
        for weight in &weights {
            let grad = weight.grad().unwrap();
            numbers.push(grad.to_vec::<f32>().unwrap_or_default());
            weight.set_grad(None).unwrap();
        }
    }
    let peak = device.max_memory_allocated() - before;
    assert_eq!(device.memory_allocated(), before, "nothing is left");
    (numbers, peak)
}

#[test]
fn values_are_the_same_however_late_copies_are() {
    let (plain, peak) = train(&Device::late(LateConfig::default()), None);
    let mut peaks = Vec::new();
    for seed in 0..6 {
        // Without records of uses, memory that is freed or read too early gives wrong values.
        let longest_delay = Duration::from_micros([20, 300][seed as usize % 2]);
        let device =
            Device::late(LateConfig { seed, longest_delay, records_uses: false, ..LateConfig::default() });
        let offload = OffloadActivations::new(all());
        let (numbers, peak) = train(&device, Some(&offload));
        assert_eq!(numbers, plain);
        assert!(offload.offloaded_bytes() > 0);
        peaks.push(peak);
    }
    assert!(peaks.iter().all(|&of| of == peaks[0] && 2 * of < peak), "{peaks:?} of {peak}");
    let sim = Device::sim(SimConfig::like("H200").unwrap());
    let (_, simulated) = train(&sim, Some(&OffloadActivations::new(all())));
    assert_eq!(simulated, peaks[0], "a simulated device requests the same");
}

#[test]
fn no_more_than_the_limit_leaves() {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let peak = |max_bytes: u64| {
        let offload = OffloadActivations::new(OffloadOptions { max_bytes, ..all() });
        let (_, peak) = train(&device, Some(&offload));
        assert!(offload.offloaded_bytes() <= max_bytes);
        (offload.offloaded_bytes(), peak)
    };
    let (none, plain) = peak(0);
    assert_eq!((none, plain), (0, train(&device, None).1));
    let (some, less) = peak(600 << 10);
    assert!(some > 500 << 10 && less < plain, "{some} {less} {plain}");
}

#[test]
fn only_copies_that_are_hidden_run_without_a_request() {
    // A product of these sizes takes as long as copying 1.5 of its inputs.
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let weight =
        |i: usize| Tensor::empty(&[i, i], DType::BF16, &device).unwrap().requires_grad_(true).unwrap();
    let time = |rows: usize, width: usize, offload: Option<&OffloadActivations>| {
        let weights: Vec<Tensor> = (0..24).map(|_| weight(width)).collect();
        let x = Tensor::empty(&[rows, width], DType::BF16, &device).unwrap();
        let step = || {
            let run = || weights.iter().try_fold(x.clone(), |x, weight| x.matmul(weight)?.tanh());
            let y = offload.map_or_else(run, |offload| offload.run(run)).unwrap();
            y.sum().unwrap().backward().unwrap();
        };
        step();
        device.reset_peak_memory_stats();
        let before = device.estimated_time().unwrap();
        step();
        let seconds = (device.estimated_time().unwrap() - before).as_secs_f64();
        (seconds, device.max_memory_allocated())
    };
    for (rows, width, least) in [(16_384, 16_384, 0.6), (16_384, 8_192, 0.3)] {
        let offload = OffloadActivations::default();
        let (plain, all_of_it) = time(rows, width, None);
        let (seconds, peak) = time(rows, width, Some(&offload));
        let saved = 24 * (rows * width * 2) as u64;
        assert!(seconds < 1.01 * plain, "{seconds} for {plain}");
        assert!(
            offload.offloaded_bytes() as f64 > least * saved as f64,
            "{} of {saved}",
            offload.offloaded_bytes()
        );
        assert!(peak < all_of_it - saved / 5, "{peak} of {all_of_it}");
    }
    // Narrow products are too fast: nearly nothing leaves.
    let offload = OffloadActivations::default();
    let (plain, _) = time(65_536, 256, None);
    let (seconds, _) = time(65_536, 256, Some(&offload));
    assert!(seconds < 1.02 * plain, "{seconds} for {plain}");
    let forced = OffloadActivations::new(OffloadOptions { wait: true, ..OffloadOptions::default() });
    assert!(time(65_536, 256, Some(&forced)).0 > 2.0 * plain, "on request it waits");
}

#[test]
fn copies_back_begin_in_the_order_of_the_last_backward_pass() {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let offload = OffloadActivations::new(OffloadOptions { wait: true, ..OffloadOptions::default() });
    let tensor = || Tensor::empty(&[8192, 8192], DType::BF16, &device).unwrap();
    let inputs = [(); 2].map(|()| tensor().requires_grad_(true).unwrap());
    let weights = [(); 8].map(|()| tensor().requires_grad_(true).unwrap());
    let chain = |x: &Tensor| weights.iter().try_fold(x.clone(), |x, weight| x.matmul(weight)?.tanh());
    let mut waits = Vec::new();
    for _step in 0..2 {
        // The branch that ran first is derived first, against the order of saving.
        let (a, b) = offload.run(|| (chain(&inputs[0]).unwrap(), chain(&inputs[1]).unwrap()));
        let before = device.estimated_time().unwrap();
        a.sum().unwrap().backward().unwrap();
        b.sum().unwrap().backward().unwrap();
        waits.push((device.estimated_time().unwrap() - before).as_secs_f64());
    }
    assert!(waits[1] < 0.9 * waits[0], "{waits:?}");
}

#[test]
fn tensors_that_change_or_stay_in_use_stay() {
    let device = Device::late(LateConfig { records_uses: false, ..LateConfig::default() });
    let offload = OffloadActivations::new(all());
    let x = Tensor::full(&[4096], 0.5, DType::F32, &device).unwrap().requires_grad_(true).unwrap();
    // Kept by the program, so its memory is not freed, and it can be read at once.
    let (kept, y) = offload
        .run(|| -> Result<_> {
            let kept = x.exp()?;
            let y = (0..10).try_fold(kept.clone(), |y, _| y.tanh())?;
            Ok((kept, y))
        })
        .unwrap();
    assert_eq!(kept.state(), State::Resident);
    y.sum().unwrap().backward().unwrap();
    let with = x.grad().unwrap().to_vec::<f32>().unwrap();
    x.set_grad(None).unwrap();
    (0..10).try_fold(x.exp().unwrap(), |y, _| y.tanh()).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), with);
    // Changed after it was saved: the usual error, and the new values are what the program reads.
    let (saved, y) = offload
        .run(|| -> Result<_> {
            let saved = x.exp()?;
            let y = saved.square()?;
            let z = (0..6).try_fold(y.clone(), |y, _| y.tanh())?;
            saved.detach().mul_scalar_(0.0)?;
            Ok((saved, z))
        })
        .unwrap();
    assert!(y.sum().unwrap().backward().unwrap_err().to_string().contains("changed"));
    assert_eq!(saved.to_vec::<f32>().unwrap(), [0.0; 4096]);
}

#[test]
fn graphs_may_be_dropped_kept_and_read_on_another_stream() {
    let device = Device::late(LateConfig { records_uses: false, ..LateConfig::default() });
    let offload = OffloadActivations::new(all());
    let weights = weights(&device);
    let x = Tensor::full(&[WIDTH, WIDTH], 0.1, DType::F32, &device).unwrap();
    let before = device.memory_allocated();
    drop(offload.run(|| forward(&weights, &x)).unwrap());
    assert_eq!(device.memory_allocated(), before);
    // Two graphs at a time; the first is read twice.
    let (one, two) =
        (offload.run(|| forward(&weights, &x)).unwrap(), offload.run(|| forward(&weights, &x)).unwrap());
    let options = plimsoll_tensor::BackwardOptions { retain_graph: true, ..Default::default() };
    one.backward_with(options).unwrap();
    let once = weights[0].grad().unwrap().to_vec::<f32>().unwrap();
    drop(two);
    one.backward().unwrap();
    let twice = weights[0].grad().unwrap().to_vec::<f32>().unwrap();
    assert!(once.iter().zip(&twice).all(|(one, two)| *two == 2.0 * one));
    weights.iter().for_each(|weight| weight.set_grad(None).unwrap());
    // The backward pass on another stream.
    let side = Stream::new(&device);
    let loss = offload.run(|| forward(&weights, &x)).unwrap();
    side.wait_stream(&device.current_stream()).unwrap();
    with_stream(&side, || loss.backward()).unwrap();
    let done: Event = side.record_event().unwrap();
    device.current_stream().wait_event(&done).unwrap();
    assert_eq!(weights[0].grad().unwrap().to_vec::<f32>().unwrap(), once);
}

/// A device whose streams can be paused.
fn late() -> (Device, Pauses) {
    let pauses = Pauses::default();
    (Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() }), pauses)
}

fn full(value: f64, device: &Device) -> Tensor {
    Tensor::full(&[1 << 14], value, DType::F32, device).unwrap()
}

/// Work that does not wait reads nines: they are in the memory that the current stream has cached.
fn leave_nines(device: &Device) {
    let nines = [(); 8].map(|()| full(9.0, device));
    device.synchronize().unwrap();
    drop(nines);
}

/// Long enough for work that is not paused.
fn let_work_run() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn what_another_stream_computes_leaves_afterwards() {
    let (device, pauses) = late();
    let (main, side) = (device.default_stream(), Stream::new(&device));
    let offload = OffloadActivations::new(all());
    let [x, z] = [(); 2].map(|()| full(0.5, &device).requires_grad_(true).unwrap());
    with_stream(&side, || leave_nines(&device));
    side.wait_stream(&main).unwrap();
    pauses.pause(&side);
    let forward = || -> Result<_> {
        let y = with_stream(&side, || x.exp()?.square()?.sum())?;
        // The output of `exp` leaves while this runs.
        let other = (0..12).try_fold(z.clone(), |z, _| z.tanh())?;
        Ok((y, other))
    };
    let (y, other) = offload.run(forward).unwrap();
    assert!(offload.offloaded_bytes() > 4 << 16);
    let_work_run();
    pauses.resume(&side);
    with_stream(&side, || y.backward()).unwrap();
    device.synchronize().unwrap();
    let (grad, expected) = (x.grad().unwrap().to_vec::<f32>().unwrap(), 2.0 * 1f32.exp());
    assert!(grad.iter().all(|grad| (grad - expected).abs() < 1e-4), "{} for {expected}", grad[0]);
    drop(other);
}

#[test]
fn each_stream_waits_for_a_copy_back() {
    for side_is_first in [true, false] {
        let (device, pauses) = late();
        let (main, side) = (device.default_stream(), Stream::new(&device));
        let queue = OffloadQueue::default();
        let states = [(); 5].map(|()| full(1.0, &device));
        for state in &states {
            queue.during(&[state], || state.add_scalar_(1.0)).unwrap();
        }
        assert_eq!(states[0].state(), State::Offloaded);
        leave_nines(&device);
        side.wait_stream(&main).unwrap();
        // The queue's streams are those after `side`: the second one copies back.
        let number = side.id().0 + 2;
        let back = (0..32).map(|_| Stream::new(&device)).find(|stream| stream.id().0 == number).unwrap();
        pauses.pause(&back);
        let on = |stream: &Stream| with_stream(stream, || states[0].mul_scalar(2.0));
        let (first, second) = if side_is_first { (&side, &main) } else { (&main, &side) };
        let both = queue.during(&[&states[0]], || Ok([on(first)?, on(second)?])).unwrap();
        let_work_run();
        pauses.resume(&back);
        device.synchronize().unwrap();
        for doubled in both {
            assert!(doubled.to_vec::<f32>().unwrap().iter().all(|&x| x == 4.0), "{side_is_first}");
        }
    }
}

#[test]
fn inputs_of_checkpoints_leave_and_captures_are_refused() {
    let device = Device::late(LateConfig { records_uses: false, ..LateConfig::default() });
    let offload = OffloadActivations::new(all());
    let weights = weights(&device);
    let x = Tensor::full(&[4 * WIDTH, WIDTH], 0.1, DType::F32, &device).unwrap();
    let pieces = || -> Result<Tensor> {
        let mut x = x.clone();
        for pair in weights.chunks(2) {
            let pair = pair.to_vec();
            x = checkpoint(
                move |x: &[Tensor]| x[0].matmul(&pair[0])?.gelu()?.matmul(&pair[1])?.gelu(),
                &[&x],
            )?;
        }
        x.square()?.mean()
    };
    let gradients = |loss: Tensor| {
        loss.backward().unwrap();
        let all: Vec<Vec<f32>> = weights.iter().map(|w| w.grad().unwrap().to_vec().unwrap()).collect();
        weights.iter().for_each(|weight| weight.set_grad(None).unwrap());
        all
    };
    let plain = gradients(pieces().unwrap());
    let loss = offload.run(pieces).unwrap();
    assert!(offload.offloaded_bytes() >= 3 * (4 * WIDTH * WIDTH * 4) as u64);
    assert_eq!(gradients(loss), plain);
    let captured = plimsoll_tensor::Graph::capture(&device, None, || offload.run(|| forward(&weights, &x)));
    assert!(captured.err().unwrap().to_string().contains("offload"));
}

#[test]
fn schedules_offload_what_is_hidden() {
    use plimsoll_tensor::checkpoint::{Budget, Checkpointer, Step};
    let device = Device::sim(SimConfig::like("H200").unwrap());
    // A product takes 6 ms, the copy of its 512 MiB 10 ms.
    let weight = Tensor::empty(&[8192, 8192], DType::BF16, &device).unwrap().requires_grad_(true).unwrap();
    let steps: Vec<Step> = (0..32)
        .map(|_| {
            let weight = weight.clone();
            Step::new(move |x| x.matmul(&weight)?.tanh())
        })
        .collect();
    let x = Tensor::empty(&[32_768, 8192], DType::BF16, &device).unwrap();
    let before = device.memory_allocated();
    let step = |checkpointer: &Checkpointer| {
        let run = || {
            let begin = device.estimated_time().unwrap();
            checkpointer.forward(&steps, &x).unwrap().sum().unwrap().backward().unwrap();
            weight.set_grad(None).unwrap();
            (device.estimated_time().unwrap() - begin).as_secs_f64()
        };
        run();
        device.reset_peak_memory_stats();
        let seconds = run();
        (seconds, device.max_memory_allocated() - before, checkpointer.schedule(&steps, &x).unwrap())
    };
    let (plain, all, _) = step(&Checkpointer::new(Budget::Bytes(u64::MAX)));
    for budget in [13 << 30, 10 << 30, 5 << 30] {
        let (without, _, schedule) = step(&Checkpointer::new(Budget::Bytes(budget)));
        let (seconds, peak, offloaded) =
            step(&Checkpointer::new(Budget::Bytes(budget)).with_offload(u64::MAX));
        assert!(schedule.offloaded().is_empty() && !offloaded.offloaded().is_empty());
        assert!(offloaded.recomputed() < schedule.recomputed() - 0.1, "{budget}: {offloaded:?} {schedule:?}");
        assert!(
            seconds < without && seconds < plain * (1.02 + offloaded.recomputed() / 3.0),
            "{seconds} {without} {plain}"
        );
        assert!(offloaded.kept_bytes() <= budget && peak < all, "{peak} of {all}");
        // On top of what is kept: the output of a layer, three of its gradients, that of the weight, and a sum.
        assert!(peak <= budget + 4 * (512 << 20) + (129 << 20), "{budget}: {peak}");
    }
    let few = Checkpointer::new(Budget::Bytes(10 << 30)).with_offload(2 << 30);
    assert_eq!(step(&few).2.offloaded().len(), 4, "the host has room for four");
}

#[test]
fn an_offloaded_schedule_computes_the_same_bits() {
    use plimsoll_tensor::checkpoint::{Budget, Checkpointer, Step};
    let device = Device::late(LateConfig { records_uses: false, ..LateConfig::default() });
    const SIDE: usize = 640; // Tensors of 1.6 MB: small ones do not leave.
    let weights: Vec<Tensor> = (0..10)
        .map(|layer| {
            let values: Vec<f32> =
                (0..SIDE * SIDE).map(|i| ((i * 7 + layer) % 13) as f32 / 130.0 - 0.05).collect();
            Tensor::from_slice(&values, &[SIDE, SIDE], &device).unwrap().requires_grad_(true).unwrap()
        })
        .collect();
    let steps: Vec<Step> =
        (weights.iter().cloned()).map(|weight| Step::new(move |x| x.matmul(&weight)?.tanh())).collect();
    let x = Tensor::full(&[SIDE, SIDE], 0.3, DType::F32, &device).unwrap();
    let gradients = |checkpointer: &Checkpointer| {
        checkpointer.forward(&steps, &x).unwrap().sum().unwrap().backward().unwrap();
        let all: Vec<Vec<f32>> = weights.iter().map(|w| w.grad().unwrap().to_vec().unwrap()).collect();
        weights.iter().for_each(|weight| weight.set_grad(None).unwrap());
        all
    };
    let plain = gradients(&Checkpointer::new(Budget::Bytes(u64::MAX)));
    let offloading = Checkpointer::new(Budget::Bytes(6 * 4 * (SIDE * SIDE) as u64)).with_offload(u64::MAX);
    for _step in 0..2 {
        assert_eq!(gradients(&offloading), plain);
    }
    assert!(!offloading.schedule(&steps, &x).unwrap().offloaded().is_empty());
}
