//! The memory of complete training steps, byte for byte, on a device that computes and on a simulated one.
//!
//! The figures of the five layers are sums of tensors, each rounded up to blocks of 512 bytes as in PyTorch.

use std::process::Command;

use plimsoll::memory::outside_bytes;
use plimsoll::nn::{Linear, Module, ReLU, Scope, Sequential};
use plimsoll::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::{Category, CpuConfig, Device, Tensor};

use crate::world::{batch, cnn, devices};

#[test]
fn five_linear_layers_take_what_their_tensors_take() {
    for device in devices() {
        let allocated = || device.memory_allocated();
        let (input, label) =
            (Tensor::randn(&[10, 3], &device).unwrap(), Tensor::randn(&[10, 100], &device).unwrap());
        assert_eq!(allocated(), 4_608);

        let sizes = [3, 300, 300, 400, 300, 100];
        let empty = Sequential::new(&Scope::new(&device, 0));
        let model = sizes
            .windows(2)
            .enumerate()
            .try_fold(empty, |model, (i, size)| {
                model.add(&i.to_string(), |s| Linear::new(s, size[0], size[1]))
            })
            .unwrap();
        let parameter_bytes: usize = model.parameters().iter().map(|parameter| parameter.numel() * 4).sum();
        assert_eq!((parameter_bytes, allocated()), (1_449_200, 1_457_152));
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.01, ..SgdOptions::default() });

        let output = model.forward(&input).unwrap();
        assert_eq!(allocated(), 1_514_496);
        let loss = output.mse_loss(&label).unwrap();
        assert_eq!(allocated(), 1_515_008);
        loss.backward().unwrap();
        assert_eq!(allocated(), 2_914_304);
        sgd.step().unwrap();
        assert_eq!(allocated(), 2_914_304);
        drop((output, loss));
        assert_eq!(allocated(), 2_909_696);
    }
}

/// The categories that hold bytes now. Checks that their bytes sum to the allocated bytes, and those at the peak to the peak.
fn held(device: &Device) -> Vec<Category> {
    let by_category = device.memory_by_category();
    assert_eq!(by_category.total(), device.memory_allocated());
    assert_eq!(device.peak_by_category().total(), device.max_memory_allocated());
    let at_peak: u64 = device.owners_at_peak().iter().map(|owner| owner.bytes).sum();
    assert_eq!(at_peak, device.max_memory_allocated());
    by_category.iter().filter(|&(_, bytes)| bytes > 0).map(|(category, _)| category).collect()
}

#[test]
fn every_byte_of_a_training_step_has_its_purpose() {
    use Category::{Activation, Gradient, Input, OptimizerState, Parameter, Temporary};
    for device in devices() {
        let model = cnn(&device);
        assert_eq!(held(&device), [Parameter]);
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..SgdOptions::default() });
        let (images, labels) = batch(&device);
        assert_eq!(held(&device), [Parameter, Input]);
        let output = model.forward(&images).unwrap();
        assert_eq!(held(&device), [Parameter, Activation, Temporary, Input]);
        let loss = output.cross_entropy(&labels).unwrap();
        assert_eq!(held(&device), [Parameter, Activation, Temporary, Input]);
        assert_eq!((images.category(), labels.category()), (Input, Input));
        loss.backward().unwrap();
        assert_eq!(held(&device), [Parameter, Gradient, Temporary, Input]);
        let temporary = device.memory_by_category()[Temporary];
        assert_eq!(temporary, 1024 + 512, "the output of 16 × 10 and the loss");
        sgd.step().unwrap();
        assert_eq!(held(&device), [Parameter, Gradient, OptimizerState, Temporary, Input]);
        drop((images, labels, output, loss));
        assert_eq!(held(&device), [Parameter, Gradient, OptimizerState]);
        sgd.zero_grad();
        drop(sgd);
        assert_eq!(held(&device), [Parameter]);
        drop(model);
        assert_eq!(held(&device), []);
    }
}

#[test]
fn after_a_step_parameters_gradients_and_state_are_all_there_is() {
    for device in devices() {
        let model = cnn(&device);
        let mut adam = Adam::new(model.parameters(), AdamOptions::default());
        let block_bytes = |parameter: &Tensor| (parameter.numel() * 4).next_multiple_of(512) as u64;
        let expected: u64 = model.parameters().iter().map(block_bytes).sum();
        for _ in 0..3 {
            let (images, labels) = batch(&device);
            let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
            adam.zero_grad();
            loss.backward().unwrap();
            adam.step().unwrap();
            drop((images, labels, loss));
            let now = device.memory_by_category();
            assert_eq!(
                [
                    now[Category::Parameter],
                    now[Category::Gradient],
                    now[Category::OptimizerState],
                    now.total()
                ],
                [expected, expected, 2 * expected, 4 * expected]
            );
        }
    }
}

#[test]
fn the_peak_names_its_holders() {
    for device in devices() {
        let model = Sequential::new(&Scope::new(&device, 0))
            .add("fc1", |s| Linear::new(s, 8, 512))
            .and_then(|m| m.add("relu", ReLU::new))
            .and_then(|m| m.add("fc2", |s| Linear::new(s, 512, 4)))
            .unwrap();
        let x = Tensor::randn(&[256, 8], &device).unwrap();
        model.forward(&x).unwrap().sum().unwrap().backward().unwrap();
        // The hidden layer's tensors are the largest: the one that `relu` saved, and its incoming and outgoing gradient.
        let largest: Vec<_> = device
            .owners_at_peak()
            .into_iter()
            .take(3)
            .map(|owner| (owner.label, owner.category, owner.bytes))
            .collect();
        let expected = [
            ("relu", Category::Activation),
            ("fc2 backward", Category::Temporary),
            ("relu backward", Category::Temporary),
        ];
        assert_eq!(largest, expected.map(|(label, category)| (label.to_owned(), category, 524_288)));
    }
}

#[test]
fn a_gradient_belongs_to_its_parameter() {
    for device in devices() {
        let model = cnn(&device);
        let (images, labels) = batch(&device);
        model.forward(&images).unwrap().cross_entropy(&labels).unwrap().backward().unwrap();
        for parameter in model.parameters() {
            let grad = parameter.grad().unwrap();
            assert_eq!((grad.label(), grad.category()), (parameter.label(), Category::Gradient));
        }
    }
}

#[test]
fn every_step_after_the_first_peaks_alike() {
    for device in devices() {
        let model = cnn(&device);
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..SgdOptions::default() });
        let peaks: Vec<(u64, u64)> = (0..4)
            .map(|_| {
                device.reset_peak_memory_stats();
                let (images, labels) = batch(&device);
                let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
                sgd.zero_grad();
                loss.backward().unwrap();
                sgd.step().unwrap();
                (device.max_memory_allocated(), device.memory_reserved())
            })
            .collect();
        assert_eq!(peaks[1..], [peaks[1]; 3]);
    }
}

#[test]
fn a_step_that_runs_out_can_be_taken_again_with_more_room() {
    for device in devices() {
        let model = cnn(&device);
        let (images, labels) = batch(&device);
        let before = device.memory_allocated();
        device.empty_cache().unwrap();
        device.set_memory_limit(device.memory_reserved());
        // Takes every remaining small block of the segment, so that the first layer finds no room.
        let filler: Vec<Tensor> = std::iter::from_fn(|| Tensor::zeros(&[128], &device).ok()).collect();
        let error = model.forward(&images).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().label, "conv");
        drop(filler);
        assert_eq!(device.memory_allocated(), before);
        device.set_memory_limit(None);
        model.forward(&images).unwrap().cross_entropy(&labels).unwrap().backward().unwrap();
        assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
    }
}

/// Resident bytes include those of all tests in the process, so this test runs in a separate process, which the first call
/// starts.
#[test]
fn what_a_device_obtained_is_not_outside() {
    const ALONE: &str = "PLIMSOLL_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "memory::what_a_device_obtained_is_not_outside", "--nocapture"]);
        let output = command.env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let device = Device::cpu_with(CpuConfig::default());
    let Some(before) = outside_bytes(&device) else {
        eprintln!("this system has no /proc/self/status");
        return;
    };
    let x = Tensor::ones(&[32 << 20], &device).unwrap();
    let resident = device.resident_bytes().unwrap();
    assert!(resident >= 128 << 20, "{resident} bytes of a tensor of 128 MiB are resident");
    let after = outside_bytes(&device).unwrap();
    assert!(after < before + (64 << 20), "outside grew from {before} to {after} by a tensor");
    drop(x);
}
