//! Captured training steps compute the same results as uncaptured ones.

use plimsoll::label::Category;
use plimsoll::nn::{Conv2d, Dropout, Flatten, Linear, Module, ReLU, Scope, Sequential};
use plimsoll::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Lamb, LambOptions, NAdam, NAdamOptions, Optimizer, RAdam,
    RAdamOptions, Sgd, SgdOptions, clip_grad_norm_, step_in_backward,
};
use plimsoll::testing::LateConfig;
use plimsoll::{CapturedStep, DType, Device, Error, Result, SimConfig, Tensor};

pub(crate) fn late() -> Device {
    Device::late(LateConfig::default())
}

pub(crate) fn model(device: &Device) -> Sequential {
    Sequential::new(&Scope::new(device, 3))
        .push(|s| Conv2d::new(s, 1, 4, 3))
        .unwrap()
        .push(ReLU::new)
        .unwrap()
        .push(Flatten::new)
        .unwrap()
        .push(|s| Dropout::new(s, 0.3))
        .unwrap()
        .push(|s| Linear::new(s, 4 * 36, 10))
        .unwrap()
}

pub(crate) fn batch(device: &Device, number: u64, size: usize) -> (Tensor, Tensor) {
    let pixels: Vec<f32> = (0..size as u64 * 64)
        .map(|i| ((i * 2_654_435_761 + number * 977) % 2001) as f32 / 1000.0 - 1.0)
        .collect();
    let labels: Vec<i64> = (0..size as i64).map(|i| (i * 7 + number as i64) % 10).collect();
    let images = Tensor::from_slice(&pixels, &[size, 1, 8, 8], device).unwrap();
    (images, Tensor::from_slice(&labels, &[size], device).unwrap())
}

/// How a program runs its steps.
enum How {
    Eager,
    Captured,
}

/// Trains for some steps with a changing learning rate, two batch sizes and clipped gradients. Returns the losses and the final
/// parameters.
fn train(
    device: &Device,
    how: &How,
    optimizer: &mut dyn Optimizer,
    model: &dyn Module,
) -> (Vec<f32>, Vec<f32>) {
    device.manual_seed(11);
    let parameters = model.parameters();
    let mut captured = CapturedStep::new(device).warm_up(2);
    let mut losses = Vec::new();
    for number in 0..14 {
        let (images, labels) = batch(device, number, if number % 4 == 3 { 5 } else { 8 });
        optimizer.set_lr(0.02 / (1.0 + number as f64));
        let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            let loss = model.forward(&inputs[0])?.cross_entropy(&inputs[1])?;
            optimizers[0].zero_grad();
            loss.backward()?;
            let norm = clip_grad_norm_(&parameters, 0.5, 2.0)?;
            optimizers[0].step()?;
            Ok(vec![loss, norm.unwrap()])
        };
        let outputs = match how {
            How::Eager => step(&[images, labels], &mut [&mut *optimizer]).unwrap(),
            How::Captured => captured.run(&[&images, &labels], &mut [&mut *optimizer], step).unwrap(),
        };
        losses.extend(outputs.iter().map(|output| output.item::<f32>().unwrap()));
        losses.extend(parameters[0].grad().unwrap().to_vec::<f32>().unwrap());
    }
    if matches!(how, How::Captured) && device.captures() {
        assert_eq!(captured.captures(), 2, "one for each size of batches");
    }
    let all = parameters.iter().flat_map(|parameter| parameter.to_vec::<f32>().unwrap()).collect();
    (losses, all)
}

fn compare(device: &Device, make: impl Fn(Vec<Tensor>) -> Box<dyn Optimizer>) {
    let [eager, captured] = [How::Eager, How::Captured].map(|how| {
        let model = model(device);
        let mut optimizer = make(model.parameters());
        let trained = train(device, &how, optimizer.as_mut(), &model);
        (trained, optimizer.steps(), device.rng_state())
    });
    assert_eq!(eager, captured);
}

#[test]
fn a_captured_step_trains_as_the_step_itself_to_the_bit() {
    let device = late();
    compare(&device, |parameters| {
        let options = AdamWOptions { lr: 0.01, ..AdamWOptions::default() };
        Box::new(AdamW::new(parameters, options))
    });
    compare(&device, |parameters| {
        let options = SgdOptions { lr: 0.01, momentum: 0.9, ..SgdOptions::default() };
        Box::new(Sgd::new(parameters, options))
    });
    compare(&device, |parameters| {
        Box::new(Adam::new(parameters, AdamOptions { amsgrad: true, ..AdamOptions::default() }))
    });
    // Steps made of operations on tensors.
    compare(&device, |parameters| Box::new(Lamb::new(parameters, LambOptions::default())));
    compare(&device, |parameters| Box::new(NAdam::new(parameters, NAdamOptions::default())));
    compare(&device, |parameters| {
        Box::new(RAdam::new(parameters, RAdamOptions { betas: (0.8, 0.9), ..RAdamOptions::default() }))
    });
    // On a device that computes immediately, each run executes as usual.
    compare(&Device::cpu_with(plimsoll::CpuConfig::default()), |parameters| {
        Box::new(Sgd::new(parameters, SgdOptions { lr: 0.01, ..SgdOptions::default() }))
    });
}

#[test]
fn an_option_that_changes_in_a_captured_step_of_operations_is_captured_again() {
    let device = late();
    let run = |captures: bool| {
        let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 6, 4)).unwrap();
        let mut nadam = NAdam::new(model.parameters(), NAdamOptions::default());
        let mut captured = CapturedStep::new(&device).warm_up(1);
        let x = Tensor::ones(&[3, 6], &device).unwrap();
        for number in 0..6 {
            nadam.param_groups[0].options.weight_decay = if number < 4 { 0.0 } else { 0.5 };
            let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                let loss = model.forward(&inputs[0])?.square()?.mean()?;
                optimizers[0].zero_grad();
                loss.backward()?;
                optimizers[0].step()?;
                Ok(vec![loss])
            };
            if captures {
                captured.run(&[&x], &mut [&mut nadam], step).unwrap();
            } else {
                step(std::slice::from_ref(&x), &mut [&mut nadam]).unwrap();
            }
        }
        let values = model.parameters().iter().flat_map(|p| p.to_vec::<f32>().unwrap()).collect::<Vec<_>>();
        (values, captured.captures())
    };
    let ((captured, captures), (eager, _)) = (run(true), run(false));
    assert_eq!((captured, captures), (eager, 2));
}

#[test]
fn each_graph_steps_the_parameters_that_its_own_run_steps() {
    let device = late();
    // By the number of rows: 2 only computes gradients, 3 steps both layers, 4 steps the second one, with a decay.
    let run = |captures: bool| {
        let model = Sequential::new(&Scope::new(&device, 1))
            .add("a", |s| Linear::new(s, 6, 6))
            .unwrap()
            .add("b", |s| Linear::new(s, 6, 4))
            .unwrap();
        let mut nadam = NAdam::new(model.parameters(), NAdamOptions::default());
        let mut captured = CapturedStep::new(&device).warm_up(1);
        for number in 0..18 {
            let rows = 2 + number % 3;
            nadam.param_groups[0].options.weight_decay = if rows == 4 { 0.5 } else { 0.0 };
            let x = Tensor::ones(&[rows, 6], &device).unwrap();
            let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                optimizers[0].zero_grad();
                if rows == 4 {
                    model.get("b").unwrap().forward(&inputs[0])?.square()?.mean()?.backward()?;
                } else {
                    model.forward(&inputs[0])?.square()?.mean()?.backward()?;
                }
                if rows > 2 {
                    optimizers[0].step()?;
                }
                Ok(Vec::new())
            };
            if captures {
                captured.run(&[&x], &mut [&mut nadam], step).unwrap();
            } else {
                step(std::slice::from_ref(&x), &mut [&mut nadam]).unwrap();
            }
        }
        let values = model.parameters().iter().flat_map(|p| p.to_vec::<f32>().unwrap()).collect::<Vec<_>>();
        (values, nadam.steps(), captured.captures())
    };
    let ((values, steps, captures), (expected, eager, _)) = (run(true), run(false));
    assert_eq!((values, steps), (expected, eager));
    // A shape for which there are other gradients, or which needs a larger arena, has one more graph.
    assert!((3..=7).contains(&captures), "{captures}");
}

#[test]
fn a_second_step_of_operations_in_one_captured_step_is_refused_and_a_hidden_one_found() {
    let device = late();
    let x = Tensor::ones(&[2, 4], &device).unwrap();
    let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 4, 2)).unwrap();
    let mut nadam = NAdam::new(model.parameters(), NAdamOptions::default());
    let mut twice = CapturedStep::new(&device).warm_up(1);
    let mut run = || {
        twice.run(&[&x], &mut [&mut nadam], |inputs, optimizers| {
            model.forward(&inputs[0])?.sum()?.backward()?;
            optimizers[0].step()?;
            optimizers[0].step()?;
            Ok(Vec::new())
        })
    };
    run().unwrap();
    let error = run().unwrap_err();
    assert!(matches!(error.without_layer(), Error::Captured { op: "nadam", .. }), "{error}");
    assert_eq!(nadam.steps(), [2, 2]);
    let mut hiding = CapturedStep::new(&device).warm_up(1);
    let mut run = || {
        hiding.run(&[&x], &mut [], |inputs, _| {
            model.forward(&inputs[0])?.sum()?.backward()?;
            nadam.step()?;
            Ok(Vec::new())
        })
    };
    run().unwrap();
    assert!(run().unwrap_err().to_string().contains("was not given to `CapturedStep::run`"));
}

#[test]
fn parameters_in_16_bits_with_32_bit_copies_are_captured() {
    let device = late();
    let run = |captures: bool| {
        let mut model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 6, 4)).unwrap();
        model.bfloat16().unwrap();
        let mut adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-3, ..AdamWOptions::default() })
            .with_master_weights();
        let mut captured = CapturedStep::new(&device).warm_up(1);
        let x = Tensor::ones(&[3, 6], &device).unwrap().to_dtype(DType::BF16).unwrap();
        for _ in 0..6 {
            let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                let loss = model.forward(&inputs[0])?.square()?.mean()?;
                loss.backward()?;
                optimizers[0].step()?;
                optimizers[0].zero_grad();
                Ok(vec![loss])
            };
            if captures {
                captured.run(&[&x], &mut [&mut adamw], step).unwrap();
            } else {
                step(std::slice::from_ref(&x), &mut [&mut adamw]).unwrap();
            }
            assert!(model.parameters().iter().all(|parameter| parameter.grad().is_none()));
        }
        let bits = |x: &Tensor| x.float().unwrap().to_vec::<f32>().unwrap();
        model.parameters().iter().flat_map(bits).collect::<Vec<f32>>()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_step_that_reads_a_value_is_refused_and_nothing_has_changed() {
    let device = late();
    let model = model(&device);
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..SgdOptions::default() });
    let mut captured = CapturedStep::new(&device).warm_up(1);
    let (images, labels) = batch(&device, 0, 4);
    let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
        let loss = model.forward(&inputs[0])?.cross_entropy(&inputs[1])?;
        optimizers[0].zero_grad();
        loss.backward()?;
        optimizers[0].step()?;
        loss.item::<f32>()?;
        Ok(vec![loss])
    };
    captured.run(&[&images, &labels], &mut [&mut sgd], step).unwrap();
    let weights = || model.parameters()[0].to_vec::<f32>().unwrap();
    let (before, steps, random) = (weights(), sgd.steps(), device.rng_state());
    let error = captured.run(&[&images, &labels], &mut [&mut sgd], step).unwrap_err();
    assert!(matches!(error.without_layer(), Error::Captured { op: "item", .. }), "{error}");
    assert_eq!((weights(), sgd.steps(), device.rng_state()), (before, steps, random));
    assert!(model.parameters().iter().all(|parameter| parameter.grad().is_none()));
    // Without capture the step runs.
    step(&[images, labels], &mut [&mut sgd]).unwrap();
}

#[test]
fn steps_that_a_replay_could_not_take_are_refused() {
    let device = late();
    let x = Tensor::ones(&[2, 4], &device).unwrap();
    let fc = || Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 4, 2)).unwrap();
    let (model, other) = (fc(), fc());
    let options = || SgdOptions { momentum: 0.9, ..SgdOptions::default() };
    let (mut sgd, mut hidden) =
        (Sgd::new(model.parameters(), options()), Sgd::new(other.parameters(), options()));
    // The optimizer's state, which the first step creates.
    let mut at_once = CapturedStep::new(&device).warm_up(0);
    let error = at_once.run(&[&x], &mut [&mut sgd], |inputs, optimizers| {
        model.forward(&inputs[0])?.sum()?.backward()?;
        optimizers[0].step()?;
        Ok(Vec::new())
    });
    let message = error.unwrap_err().to_string();
    assert!(message.starts_with("sgd: cannot be captured: each replay would create"), "{message}");
    // An optimizer that was not passed to `run`.
    let mut captured = CapturedStep::new(&device).warm_up(1);
    let mut run = || {
        captured.run(&[&x], &mut [&mut sgd], |inputs, optimizers| {
            model.forward(&inputs[0])?.add(&other.forward(&inputs[0])?)?.sum()?.backward()?;
            optimizers[0].step()?;
            hidden.step()?;
            Ok(Vec::new())
        })
    };
    run().unwrap();
    assert!(run().unwrap_err().to_string().contains("was not given to `CapturedStep::run`"));
    // Steps in the backward pass count as an optimizer that was not passed.
    let third = fc();
    let steps = step_in_backward(&third.parameters(), options()).unwrap();
    let mut captured = CapturedStep::new(&device).warm_up(1);
    let mut run = || {
        captured.run(&[&x], &mut [], |inputs, _| {
            third.forward(&inputs[0])?.sum()?.backward()?;
            Ok(Vec::new())
        })
    };
    run().unwrap();
    assert!(run().unwrap_err().to_string().contains("was not given"));
    drop(steps);
}

#[test]
fn an_option_that_needs_other_kernels_is_captured_again() {
    let device = late();
    let run = |captures: bool| {
        let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 4, 2)).unwrap();
        let mut adam = Adam::new(model.parameters(), AdamOptions::default());
        let x = Tensor::ones(&[2, 4], &device).unwrap();
        let mut captured = CapturedStep::new(&device).warm_up(1);
        for number in 0..6 {
            adam.param_groups[0].options.maximize = number >= 4;
            let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                optimizers[0].zero_grad();
                model.forward(&inputs[0])?.square()?.sum()?.backward()?;
                optimizers[0].step()?;
                Ok(Vec::new())
            };
            match captures {
                true => captured.run(&[&x], &mut [&mut adam], step).unwrap(),
                false => step(std::slice::from_ref(&x), &mut [&mut adam]).unwrap(),
            };
        }
        model.parameters()[0].to_vec::<f32>().unwrap()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_captured_step_is_planned_and_its_bytes_have_owners() {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let model = model(&device);
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
    let mut captured = CapturedStep::new(&device);
    let (images, labels) = batch(&device, 0, 8);
    let (mut requests, mut times) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let before = device.estimated_time().unwrap();
        let run = captured.run(&[&images, &labels], &mut [&mut adamw], |inputs, optimizers| {
            let loss = model.forward(&inputs[0])?.cross_entropy(&inputs[1])?;
            optimizers[0].zero_grad();
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        });
        run.unwrap();
        requests.push(device.memory_stats()["allocation.all.allocated"]);
        times.push((device.estimated_time().unwrap() - before).as_secs_f64());
    }
    assert_eq!((captured.captures(), adamw.steps()), (1, vec![6; 4]));
    assert_eq!(requests[4], requests[5], "a replay requests nothing");
    // It also copies the inputs to their fixed memory.
    assert!(times[2] <= times[5] && times[5] < 1.2 * times[2], "{times:?}");
    assert!((times[3] - times[5]).abs() < 1e-9, "the capture takes no time on the GPU: {times:?}");
    // The inputs' fixed memory and the arena; gradients and the loss are in the arena as well.
    assert_eq!(requests[3] - requests[2], 3);
    let plan = captured.plan().unwrap();
    assert!(plan.arena_bytes as f64 <= 1.005 * plan.live_bytes as f64, "{plan:?}");
    assert_eq!((plan.unplanned, captured.difference()), (0, None));
    // The arena has the owners of the recorded run.
    let of = |category: Category| -> u64 {
        device.owners().iter().filter(|owner| owner.category == category).map(|owner| owner.bytes).sum()
    };
    let rounded = |x: &Tensor| ((x.numel() * 4) as u64).next_multiple_of(512);
    let parameters: u64 = model.parameters().iter().map(rounded).sum();
    assert_eq!((of(Category::Parameter), of(Category::OptimizerState)), (parameters, 2 * parameters));
    assert!(of(Category::Activation) > 0, "{:?}", device.owners());
    assert_eq!(device.owners().iter().map(|owner| owner.bytes).sum::<u64>(), device.memory_allocated());
    assert_eq!(device.memory_by_category().total(), device.memory_allocated());
    assert_eq!(device.peak_by_category().total(), device.max_memory_allocated());
    captured.reset();
    adamw.zero_grad();
    drop((images, labels));
    assert_eq!(device.memory_allocated(), 3 * parameters);
}

/// The peak of reserved bytes in some steps of a wide network.
fn reserved_by_wide_steps(captures: bool, settings: &str) -> u64 {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    device.set_allocator_settings(settings).unwrap();
    let mut model = Sequential::new(&Scope::new(&device, 1));
    for name in ["a", "b", "c", "d", "e", "f"] {
        model = model.add(name, |s| Linear::new(s, 1024, 1024)).unwrap();
    }
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
    let x = Tensor::zeros(&[1500, 1024], &device).unwrap();
    let mut captured = CapturedStep::new(&device);
    for _ in 0..5 {
        adamw.zero_grad();
        let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            let loss = model.forward(&inputs[0])?.square()?.sum()?;
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        };
        match captures {
            true => captured.run(&[&x], &mut [&mut adamw], step).unwrap(),
            false => step(std::slice::from_ref(&x), &mut [&mut adamw]).unwrap(),
        };
    }
    device.max_memory_reserved()
}

#[test]
fn a_captured_step_reserves_little_more_than_one_that_is_not() {
    for settings in ["", "expandable_segments:True"] {
        let [usual, captured] = [false, true].map(|captures| reserved_by_wide_steps(captures, settings));
        // The allowance is for the input's fixed memory, and for what the optimizer's state leaves free between its tensors.
        assert!(captured <= usual + (28 << 20), "{settings}: {captured}, {usual} without capture");
    }
}

#[test]
fn what_runs_of_another_shape_leave_is_not_overwritten_by_replays() {
    let device = late();
    let model = model(&device);
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
    let mut captured = CapturedStep::new(&device).warm_up(2);
    let mut kept = Vec::new();
    for number in 0..12 {
        let (images, labels) = batch(&device, number, if number % 3 == 2 { 4 } else { 8 });
        let outputs = captured.run(&[&images, &labels], &mut [&mut adamw], |inputs, optimizers| {
            let loss = model.forward(&inputs[0])?.cross_entropy(&inputs[1])?;
            optimizers[0].zero_grad();
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss.mul_scalar(1.0)?])
        });
        if captured.captures() < 2 && number % 3 == 2 {
            let loss = outputs.unwrap().remove(0);
            kept.push((loss.item::<f32>().unwrap(), loss));
        }
    }
    assert_eq!((captured.captures(), kept.len()), (2, 2));
    for (then, loss) in kept {
        assert_eq!(loss.item::<f32>().unwrap(), then);
    }
}
