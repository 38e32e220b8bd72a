//! Optimizer state that waits on the host between steps: the same bits, and the device's memory of a few parameters.

use std::time::Duration;

use plimsoll::nn::{Linear, Module, Scope, Sequential};
use plimsoll::offload::OffloadActivations;
use plimsoll::optim::{AdamW, AdamWOptions, Lamb, LambOptions, Optimizer, step_in_backward};
use plimsoll::testing::LateConfig;
use plimsoll::{DType, Device, Result, SimConfig, State, Tensor};

const LAYERS: usize = 8;
const WIDTH: usize = 48;

fn model(device: &Device, dtype: DType, layers: usize, width: usize) -> Sequential {
    let layer = |model: Sequential, i: usize| model.add(&format!("fc{i}"), |s| Linear::new(s, width, width));
    let mut model = (0..layers).try_fold(Sequential::new(&Scope::new(device, 3)), layer).unwrap();
    model.to_dtype(dtype).unwrap();
    model
}

fn late(seed: u64) -> Device {
    let longest_delay = Duration::from_micros(if seed.is_multiple_of(2) { 20 } else { 400 });
    // Without records of uses, memory that is read or reused too early has wrong values.
    Device::late(LateConfig { seed, longest_delay, records_uses: false, ..LateConfig::default() })
}

fn backward(model: &Sequential, step: usize) -> Result<()> {
    let device = model.parameters()[0].device().clone();
    let x = Tensor::full(&[4, WIDTH], 0.1 + step as f64 / 10.0, DType::F32, &device)?;
    model.forward(&x.to_dtype(model.parameters()[0].dtype())?)?.square()?.mean()?.backward()
}

fn values(model: &Sequential) -> Vec<Vec<f32>> {
    model.parameters().iter().map(|p| p.to_dtype(DType::F32).unwrap().to_vec().unwrap()).collect()
}

/// The parameters after four steps with an optimizer, and whether all its state is on the host then.
fn trained<O: Optimizer>(
    device: &Device,
    dtype: DType,
    make: impl Fn(Vec<Tensor>) -> O,
) -> (Vec<Vec<f32>>, bool) {
    let model = model(device, dtype, LAYERS, WIDTH);
    let mut optimizer = make(model.parameters());
    for step in 0..4 {
        optimizer.zero_grad();
        backward(&model, step).unwrap();
        optimizer.step().unwrap();
    }
    let state = optimizer.state_dict();
    let tensors: Vec<Tensor> = state.state.values().flat_map(|of| of.tensors.values().cloned()).collect();
    let sum: f32 = tensors.iter().flat_map(|it| it.to_vec::<f32>().unwrap()).sum();
    assert!(sum.is_finite() && sum != 0.0);
    let on_host = tensors.iter().filter(|tensor| tensor.state() == State::Offloaded).count();
    (values(&model), on_host * 2 > tensors.len())
}

#[test]
fn steps_have_the_bits_of_state_on_the_device() {
    for dtype in [DType::F32, DType::BF16] {
        let adamw = |parameters| {
            AdamW::new(parameters, AdamWOptions { lr: 0.01, ..AdamWOptions::default() }).with_master_weights()
        };
        let lamb = |parameters| {
            Lamb::new(parameters, LambOptions { lr: 0.01, ..LambOptions::default() }).with_master_weights()
        };
        let (plain, on_host) = trained(&late(0), dtype, adamw);
        assert!(!on_host);
        let (of_lamb, _) = trained(&late(0), dtype, lamb);
        for seed in 1..4 {
            let (offloaded, on_host) =
                trained(&late(seed), dtype, |parameters| adamw(parameters).with_offloaded_state());
            assert_eq!(
                (offloaded, on_host),
                (plain.clone(), true),
                "reading a state dict brings nothing back"
            );
            assert_eq!(
                trained(&late(seed), dtype, |parameters| lamb(parameters).with_offloaded_state()).0,
                of_lamb
            );
        }
        // In the backward pass, with activations that leave too.
        for seed in 1..4 {
            let device = late(seed);
            let model = model(&device, dtype, LAYERS, WIDTH);
            let options = AdamWOptions { lr: 0.01, ..AdamWOptions::default() };
            let steps = step_in_backward(&model.parameters(), options).unwrap();
            let steps = steps.with_master_weights().with_offloaded_state();
            let offload = OffloadActivations::new(plimsoll::offload::OffloadOptions {
                min_tensor_bytes: 0,
                wait: true,
                ..Default::default()
            });
            for step in 0..4 {
                let x = Tensor::full(&[4, WIDTH], 0.1 + f64::from(step) / 10.0, DType::F32, &device).unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let loss = offload.run(|| model.forward(&x)?.square()?.mean()).unwrap();
                loss.backward().unwrap();
            }
            drop(steps);
            assert_eq!(values(&model), plain);
        }
    }
}

#[test]
fn only_some_state_is_on_the_device() {
    let peak = |offloads: bool, in_backward: bool| {
        let device = Device::sim(SimConfig::like("H200").unwrap());
        let model = model(&device, DType::F32, 24, 2048); // 16 MiB each
        let x = Tensor::empty(&[8, 2048], DType::F32, &device).unwrap();
        let options = AdamWOptions::default();
        let begin = device.memory_allocated();
        let mut seconds = 0.0;
        if in_backward {
            let steps = step_in_backward(&model.parameters(), options).unwrap();
            let _steps = if offloads { steps.with_offloaded_state() } else { steps };
            for _step in 0..3 {
                let before = device.estimated_time().unwrap();
                model.forward(&x).unwrap().sum().unwrap().backward().unwrap();
                seconds = (device.estimated_time().unwrap() - before).as_secs_f64();
            }
        } else {
            let adamw = AdamW::new(model.parameters(), options);
            let mut adamw = if offloads { adamw.with_offloaded_state() } else { adamw };
            for _step in 0..3 {
                model.forward(&x).unwrap().sum().unwrap().backward().unwrap();
                let before = device.estimated_time().unwrap();
                adamw.step().unwrap();
                seconds = (device.estimated_time().unwrap() - before).as_secs_f64();
                adamw.zero_grad();
            }
        }
        ((device.max_memory_allocated() - begin) >> 20, seconds)
    };
    // 24 gradients and 48 moments of 16 MiB.
    let ((all, _), (some, seconds)) = (peak(false, false), peak(true, false));
    assert!(all >= 72 * 16, "{all}");
    // The moments of 64 MiB of parameters in use, as many on their way here, and two that leave.
    assert!(some <= (24 + 8 + 8 + 3) * 16, "{some}");
    // 768 MiB in each direction at the same time, at 55 GB/s.
    assert!(seconds < 1.3 * f64::from(768 << 20) / 55e9, "{seconds}");
    let ((all, _), (some, _)) = (peak(false, true), peak(true, true));
    assert!(all >= 48 * 16 && some <= 9 * 16, "{all} and {some}");
}

#[test]
fn a_capture_and_a_new_group() {
    let device = late(1);
    let model = model(&device, DType::F32, LAYERS, WIDTH);
    let mut parameters = model.parameters();
    let others = parameters.split_off(4);
    let mut adamw = AdamW::new(parameters, AdamWOptions::default()).with_offloaded_state();
    adamw.add_param_group(others, AdamWOptions { lr: 0.1, ..AdamWOptions::default() }).unwrap();
    backward(&model, 0).unwrap();
    adamw.step().unwrap();
    let state = adamw.state_dict();
    let last = &state.state[&(2 * LAYERS - 4)].tensors["exp_avg"];
    assert_eq!(last.state(), State::Offloaded);
    let captured = plimsoll::Graph::capture(&device, None, || adamw.step());
    assert!(captured.err().unwrap().to_string().contains("offload"));
    let group = plimsoll::ProcessGroup::threads(1).remove(0);
    let mut sharded = self::model(&device, DType::F32, LAYERS, WIDTH);
    let sharded = plimsoll::parallel::fully_shard(&mut sharded, &group, Default::default()).unwrap();
    let parameters = sharded.parameters();
    parameters.iter().for_each(|p| p.set_grad(Some(p.detach())).unwrap());
    let refused = AdamW::new(parameters, AdamWOptions::default()).with_offloaded_state().step();
    assert!(refused.unwrap_err().to_string().contains("cannot wait on the host"));
}
