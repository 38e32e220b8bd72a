//! One training program on every device: the simulated device reports the same memory, and a device that computes asynchronously
//! gives the same bits.

use plimsoll::data::Digits;
use plimsoll::nn::Module;
use plimsoll::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::testing::{LateConfig, evict_at_random};
use plimsoll::{CpuConfig, Device, SimConfig, Tensor};

use crate::world::{batch, cnn, devices, lenet};

/// The bits of each step's loss and of the parameters after six steps.
fn trained(device: &Device) -> Vec<Vec<u32>> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    device.manual_seed(11);
    let model = cnn(device);
    let mut adam = Adam::new(model.parameters(), AdamOptions::default());
    let mut seen = Vec::new();
    for _ in 0..6 {
        let (images, labels) = batch(device);
        let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
        adam.zero_grad();
        loss.backward().unwrap();
        adam.step().unwrap();
        seen.push(bits(vec![loss.item().unwrap()]));
    }
    seen.extend(model.parameters().iter().map(|parameter| bits(parameter.to_vec().unwrap())));
    seen
}

#[test]
fn training_on_a_device_that_computes_later_gives_the_same_bits() {
    let expected = trained(&Device::cpu_with(CpuConfig::default()));
    for seed in 0..3 {
        let late = Device::late(LateConfig { seed, ..LateConfig::default() });
        assert_eq!(trained(&late), expected, "seed {seed}");
        assert_eq!(late.memory_allocated(), 0);
    }
}

#[test]
fn training_while_tensors_leave_at_random_gives_the_same_bits() {
    let expected = trained(&Device::cpu_with(CpuConfig::default()));
    for seed in 0..4 {
        let late = LateConfig { seed, ..LateConfig::default() };
        let device = if seed < 2 { Device::cpu_with(CpuConfig::default()) } else { Device::late(late) };
        let evictions = evict_at_random(&device, seed);
        assert_eq!(trained(&device), expected, "seed {seed} on {device}");
        assert!(evictions.offloaded() > 20 && evictions.evicted() > 2, "{evictions:?}");
        assert_eq!(device.memory_allocated(), 0);
    }
}

/// Trains LeNet on some synthetic digits. Returns each step's loss and the bits of the losses and final parameters.
fn lenet_trained(device: &Device) -> (Vec<f32>, Vec<Vec<u32>>) {
    let (digits, model) = (Digits::new(3, 96), lenet(device));
    let options = SgdOptions { lr: 0.05, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options);
    let mut losses = Vec::new();
    for step in 0..12 {
        let drawn: Vec<_> = (0..16).map(|i| digits.draw(step % 6 * 16 + i)).collect();
        let pixels: Vec<f32> =
            drawn.iter().flat_map(|(image, _)| image.map(|p| f32::from(p) / 255.0)).collect();
        let classes: Vec<i64> = drawn.iter().map(|&(_, class)| i64::from(class)).collect();
        let images = Tensor::from_slice(&pixels, &[16, 1, 28, 28], device).unwrap();
        let labels = Tensor::from_slice(&classes, &[16], device).unwrap();
        let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
        sgd.zero_grad();
        loss.backward().unwrap();
        sgd.step().unwrap();
        losses.push(loss.item().unwrap());
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    (losses, model.parameters().iter().map(|parameter| bits(parameter.to_vec().unwrap())).collect())
}

#[test]
fn lenet_learns_the_same_bits_while_its_tensors_leave_at_random() {
    let expected = lenet_trained(&Device::cpu_with(CpuConfig::default()));
    let sum = |losses: &[f32]| losses.iter().sum::<f32>();
    assert!(sum(&expected.0[6..]) < sum(&expected.0[..6]), "it learns: {:?}", expected.0);
    for device in [Device::cpu_with(CpuConfig::default()), Device::late(LateConfig::default())] {
        let evictions = evict_at_random(&device, 2);
        assert!(lenet_trained(&device) == expected, "other bits on {device}");
        assert!(evictions.offloaded() > 60 && evictions.evicted() > 10, "{evictions:?}");
        assert_eq!(device.memory_allocated(), 0);
    }
}

/// Two steps, an evaluation and an emptied cache, which together use most of the runtime.
fn train(device: &Device) {
    let model = cnn(device);
    let mut adam = Adam::new(model.parameters(), AdamOptions::default());
    for _ in 0..2 {
        let (images, labels) = batch(device);
        let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
        adam.zero_grad();
        loss.backward().unwrap();
        adam.step().unwrap();
    }
    device.empty_cache().unwrap();
    let (images, _) = batch(device);
    plimsoll::no_grad(|| model.forward(&images)?.argmax(1)).unwrap();
}

#[test]
fn a_training_run_is_the_same_to_the_allocator_on_both_devices() {
    let [cpu, sim] = devices();
    train(&cpu);
    train(&sim);
    assert_eq!(cpu.memory_stats(), sim.memory_stats());
    assert_eq!(cpu.memory_stats().len(), 123);
    assert_eq!(cpu.owners_at_peak(), sim.owners_at_peak());
    assert_eq!(cpu.peak_by_category(), sim.peak_by_category());
    assert_eq!((cpu.memory_allocated(), sim.memory_allocated()), (0, 0));
}

#[test]
fn running_out_happens_at_the_same_request_on_both_devices() {
    let refused = |device: &Device| {
        let model = cnn(device);
        let (images, labels) = batch(device);
        device.set_memory_limit(device.memory_reserved());
        let mut kept = Vec::new();
        loop {
            // Each output is kept and holds its graph, so at some point a request fails.
            let loss = match model.forward(&images).and_then(|output| output.cross_entropy(&labels)) {
                Ok(loss) => loss,
                Err(error) => break (kept.len(), error.to_string().replace("on cpu", "on sim")),
            };
            kept.push(loss);
        }
    };
    let [cpu, sim] = devices();
    assert_eq!(refused(&cpu), refused(&sim));
}

#[test]
fn the_size_of_a_simulated_device_changes_no_figure() {
    let figures = |capacity_bytes| {
        let device = Device::sim(SimConfig::new(capacity_bytes));
        train(&device);
        (device.memory_stats(), device.owners_at_peak())
    };
    assert_eq!(figures(64 << 20), figures(1 << 50));
}
