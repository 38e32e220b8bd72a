//! Several devices at the same time, and one device used by several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use plimsoll_tensor::label::{self, Span};
use plimsoll_tensor::op::{AdamStep, Decay, SgdStep};
use plimsoll_tensor::{Category, CpuConfig, DType, Device, DeviceKind, Error, SimConfig, Tensor};

fn own() -> Device {
    Device::cpu_with(CpuConfig::default())
}

fn sim() -> Device {
    Device::sim(SimConfig::new(1 << 30))
}

fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::cpu()).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

#[test]
fn the_host_is_one_device_and_others_are_their_own() {
    assert_eq!(Device::cpu(), Device::cpu());
    let device = own();
    assert_eq!(device, device.clone());
    assert_ne!(device, own());
    assert_ne!(device, Device::cpu());
    assert_ne!(sim(), sim());
    let _x = Tensor::zeros(&[1], &device).unwrap();
    assert_eq!((device.memory_allocated(), own().memory_allocated()), (512, 0));
}

#[test]
fn an_operation_takes_tensors_of_one_device() {
    let (x, y) = (Tensor::ones(&[2, 2], &own()).unwrap(), Tensor::ones(&[2, 2], &sim()).unwrap());
    let text = |error: Error| error.to_string();
    assert_eq!(
        (&x + &y).map_err(text).unwrap_err(),
        "add: tensors on cpu and on sim; move one with `to_device`"
    );
    assert!(matches!(x.matmul(&y), Err(Error::Device { op: "matmul", .. })));
    assert!(matches!(
        x.linear(&x, Some(&y.narrow(0, 0, 1).unwrap().squeeze(0).unwrap())),
        Err(Error::Device { .. })
    ));
    assert!(matches!(x.mse_loss(&y), Err(Error::Device { .. })));
    assert!(matches!(x.add_(&y), Err(Error::Device { op: "add_", .. })));
    assert!(matches!(x.copy_(&y), Err(Error::Device { op: "copy_", .. })));
    assert_eq!(
        (x.device().memory_allocated(), values(&x)),
        (512, vec![1.0; 4]),
        "nothing is left of the attempts"
    );
}

#[test]
fn a_tensor_moves_between_devices_with_its_values() {
    let (a, b) = (own(), own());
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], &a).unwrap();
    let there = x.t().unwrap().to_device(&b).unwrap();
    assert_eq!(
        (there.device(), there.shape(), values(&there)),
        (&b, &[3, 2][..], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0])
    );
    assert_eq!(values(&there.to_device(&a).unwrap()), values(&there));
    assert!(x.to_device(&a).unwrap().is_same(&x));
    let counted = x.to_dtype(DType::U8).unwrap().to_device(&sim()).unwrap();
    assert_eq!(
        (counted.shape(), counted.dtype(), counted.device().memory_allocated()),
        (&[2, 3][..], DType::U8, 512)
    );
    let w = x.copy().unwrap().requires_grad_(true).unwrap();
    w.to_device(&b).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
    let grad = w.grad().unwrap();
    assert_eq!((grad.device(), values(&grad)), (&a, values(&w.mul_scalar(2.0).unwrap())));
}

/// A tensor with this owner.
fn owned(category: Category, name: &str, device: &Device) -> Tensor {
    let _owner = Span::of(category, label::intern(name));
    Tensor::ones(&[256], device).unwrap()
}

/// The owners and categories of the bytes that a device holds.
fn owners(device: &Device) -> Vec<(String, Category)> {
    device.reset_peak_memory_stats();
    device.owners_at_peak().into_iter().map(|owner| (owner.label, owner.category)).collect()
}

#[test]
fn a_tensor_that_moves_keeps_its_owner() {
    use Category::{Buffer, Gradient, Input, OptimizerState, Parameter, Temporary};
    for there in [own(), sim()] {
        for category in [Parameter, Buffer, Gradient, OptimizerState, Input, Temporary] {
            let x = owned(category, "fc.weight", &own());
            let moved = x.to_device(&there).unwrap();
            assert_eq!((moved.label(), moved.category()), ("fc.weight".to_owned(), category));
            assert_eq!(owners(&there), [("fc.weight".to_owned(), category)], "in the account");
            if there.has_values() {
                let back = moved.to_device(&own()).unwrap();
                assert_eq!((back.label(), back.category()), ("fc.weight".to_owned(), category));
            }
        }
        let _layer = Span::layer(label::intern("conv1"));
        let parameter = owned(Parameter, "fc.weight", &own()).to_device(&there).unwrap();
        assert_eq!(parameter.label(), "fc.weight", "what lasts belongs to no layer that happens to run");
        let passing = owned(Temporary, "fc", &own()).to_device(&there).unwrap();
        assert_eq!(passing.label(), "conv1", "a value in passing belongs to the layer that moves it");
    }
}

#[test]
fn a_saved_tensor_that_moves_is_a_temporary_of_the_same_owner() {
    let x = owned(Category::Temporary, "fc", &own()).requires_grad_(true).unwrap();
    let y = x.square().unwrap();
    assert_eq!(x.category(), Category::Activation);
    let moved = x.detach().to_device(&sim()).unwrap();
    assert_eq!((moved.label().as_str(), moved.category()), ("fc", Category::Temporary));
    drop(y);
}

#[test]
fn a_leaf_that_moves_keeps_its_gradient_and_its_hooks() {
    let (here, there) = (own(), own());
    let w = owned(Category::Parameter, "w", &here).requires_grad_(true).unwrap();
    let seen = Arc::new(AtomicU32::new(0));
    let counter = seen.clone();
    w.register_post_accumulate_grad_hook(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    w.square().unwrap().sum().unwrap().backward().unwrap();
    let moved = w.leaf_to_device(&there).unwrap();
    assert!(moved.is_leaf() && moved.requires_grad());
    let grad = moved.grad().unwrap();
    assert_eq!((grad.device(), grad.label(), grad.category()), (&there, "w".to_owned(), Category::Gradient));
    moved.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!((values(&moved.grad().unwrap()), seen.load(Ordering::Relaxed)), (vec![4.0; 256], 2));
    assert!(w.leaf_to_device(&here).unwrap().is_same(&w));
    let frozen = owned(Category::Parameter, "w", &here).leaf_to_device(&there).unwrap();
    assert!(!frozen.requires_grad() && frozen.grad().is_none());
    let error = w.square().unwrap().leaf_to_device(&there).unwrap_err();
    assert!(error.to_string().contains("move it with `to_device`"), "{error}");
}

#[test]
fn a_device_describes_itself() {
    let h200 = Device::sim(SimConfig::like("h200").unwrap());
    let properties = h200.properties();
    let gpu = plimsoll_gpu::named("H200").unwrap();
    assert_eq!(properties.memory_bytes, gpu.memory_bytes);
    assert_eq!(h200.memory_info().total_bytes, gpu.memory_bytes);
    assert_eq!((properties.bandwidth, properties.flops), (Some(gpu.bandwidth), Some(gpu.flops)));
    assert_eq!(properties.blas_workspace_bytes, 32 << 20);
    assert_eq!((h200.name(), h200.facts().kind), ("sim:H200", DeviceKind::Cuda));
    let host = own();
    let properties = host.properties();
    assert_eq!((properties.name.as_str(), properties.bandwidth), ("cpu", None));
    assert_eq!(properties.memory_bytes, host.memory_info().total_bytes);
    assert_eq!((sim().properties().memory_bytes, sim().facts().kind), (1 << 30, DeviceKind::Cpu));
}

#[test]
fn a_name_that_is_no_gpus_is_an_error_with_the_names_that_are() {
    let error = |name| SimConfig::like(name).unwrap_err().to_string();
    assert!(error("H9000").starts_with("sim: `H9000` is not a known GPU; known are H200, H100, "));
    assert_eq!(error("A100"), "sim: `A100` is ambiguous: it could be A100-80GB, A100-40GB");
    assert!(error("").starts_with("sim: `` is not a known GPU"));
    assert!(error("MI300X").starts_with("sim: `MI300X` is a GPU of AMD"));
}

#[test]
fn a_seed_gives_the_same_numbers_again_on_any_device() {
    let draw = |device: &Device| {
        [Tensor::randn(&[1000], device), Tensor::rand(&[7], device)].map(|x| values(&x.unwrap()))
    };
    let (a, b) = (own(), own());
    a.manual_seed(3);
    let first = draw(&a);
    assert_ne!(first, draw(&a), "the next draw is another");
    a.manual_seed(3);
    b.manual_seed(3);
    assert_eq!((&first, &first), (&draw(&a), &draw(&b)));
    b.manual_seed(4);
    assert_ne!(first, draw(&b));
}

#[test]
fn threads_share_a_device_without_mixing_their_results() {
    let device = own();
    thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let w = Tensor::full(&[64, 64], f64::from(thread), DType::F32, device).unwrap();
                let w = w.requires_grad_(true).unwrap();
                for _ in 0..50 {
                    let y = w.matmul(&w).unwrap().mean().unwrap();
                    let thread = thread as f32;
                    assert_eq!(y.item::<f32>().unwrap(), 64.0 * thread * thread);
                    y.backward().unwrap();
                    let grad = w.grad().unwrap();
                    assert_eq!(values(&grad)[63 * 65], 2.0 * thread / 64.0);
                    w.clear_grad();
                }
            });
        }
    });
    assert_eq!((device.memory_allocated(), device.memory_by_category().total()), (0, 0));
}

#[test]
fn threads_that_change_two_tensors_by_each_other_do_not_wait_for_ever() {
    let (x, y) = (tensor(&[1.0; 4], &[4]), tensor(&[0.0; 4], &[4]));
    thread::scope(|scope| {
        for turn in 0..4 {
            let (to, from) = if turn % 2 == 0 { (&x, &y) } else { (&y, &x) };
            scope.spawn(move || {
                for _ in 0..200 {
                    to.add_scaled_(from, 0.0).unwrap();
                    to.detach().narrow(0, 0, 2).unwrap().copy_(to.narrow(0, 1, 2).unwrap()).unwrap();
                    to.mul_(to.detach()).unwrap();
                    from.to_vec::<f32>().unwrap();
                }
            });
        }
    });
    assert_eq!((values(&x), values(&y)), (vec![1.0; 4], vec![0.0; 4]));
}

#[test]
fn threads_that_add_to_one_tensor_lose_nothing() {
    let (sum, one) = (tensor(&[0.0; 1000], &[1000]), tensor(&[1.0; 1000], &[1000]));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| sum.add_(&one).unwrap()));
        }
    });
    assert_eq!(values(&sum), vec![2000.0; 1000]);
}

#[test]
fn a_tensor_can_change_itself() {
    let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    x.add_(&x).unwrap();
    assert_eq!(values(&x), [2.0, 4.0, 6.0, 8.0]);
    x.add_(x.t().unwrap()).unwrap();
    assert_eq!(values(&x), [4.0, 10.0, 10.0, 16.0]);
    x.t().unwrap().add_scaled_(&x, -0.5).unwrap();
    assert_eq!(values(&x), [2.0, 5.0, 5.0, 8.0]);
    x.mul_(x.narrow(0, 1, 1).unwrap()).unwrap();
    assert_eq!(values(&x), [10.0, 40.0, 25.0, 64.0]);
    x.copy_(x.t().unwrap()).unwrap();
    assert_eq!(values(&x), [10.0, 25.0, 40.0, 64.0]);
}

#[test]
fn overlapping_parts_are_copied_as_if_through_a_third_place() {
    let shift = |to: usize, from: usize| {
        let x = tensor(&[0.0, 1.0, 2.0, 3.0, 4.0], &[5]);
        x.narrow(0, to, 3).unwrap().copy_(x.narrow(0, from, 3).unwrap()).unwrap();
        values(&x)
    };
    assert_eq!(shift(0, 1), [1.0, 2.0, 3.0, 3.0, 4.0]);
    assert_eq!(shift(2, 1), [0.0, 1.0, 1.0, 2.0, 3.0]);
    assert_eq!(shift(1, 1), [0.0, 1.0, 2.0, 3.0, 4.0]);
    let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    // Adds one row to every column of the other: strided when read, broadcast when written.
    x.t().unwrap().narrow(1, 0, 1).unwrap().add_(x.narrow(0, 1, 1).unwrap().t().unwrap()).unwrap();
    assert_eq!(values(&x), [5.0, 7.0, 9.0, 4.0, 5.0, 6.0]);
}

#[test]
fn a_change_of_a_view_leaves_its_surroundings_alone() {
    let x = tensor(&[1.0; 9], &[3, 3]);
    let column = x.narrow(1, 1, 1).unwrap();
    column.add_(tensor(&[1.0], &[1])).unwrap();
    column.mul_(tensor(&[1.0, 2.0, 3.0], &[3, 1])).unwrap();
    assert_eq!(values(&x), [1.0, 2.0, 1.0, 1.0, 4.0, 1.0, 1.0, 6.0, 1.0]);
    column.fill_(0.0).unwrap();
    assert_eq!(values(&x), [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    column.uniform_(5.0, 6.0, plimsoll_tensor::op::RandomStream { seed: 1, stream: 1 }).unwrap();
    let x = values(&x);
    assert!((0..9).all(|i| if i % 3 == 1 { (5.0..6.0).contains(&x[i]) } else { x[i] == 1.0 }), "{x:?}");
}

#[test]
fn an_expanded_tensor_refuses_a_change_in_place() {
    let x = tensor(&[1.0], &[1]).expand(&[3]).unwrap();
    let text = "fill: several elements of an expanded tensor share memory: copy it first";
    assert_eq!(x.fill_(1.0).unwrap_err().to_string(), text);
}

#[test]
fn an_optimizer_step_refuses_state_that_shares_memory() {
    let sgd = SgdStep {
        lr: 0.1,
        momentum: 0.9,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        first: false,
        maximize: false,
    };
    let adam = AdamStep {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.0,
        decay: Decay::InGradient,
        step: 1,
        amsgrad: false,
        maximize: false,
    };
    let x = tensor(&[1.0, 2.0], &[2]);
    let other = tensor(&[0.0, 0.0], &[2]);
    assert!(matches!(x.sgd_step_(&other, Some(&x), sgd), Err(Error::Argument { op: "sgd", .. })));
    assert!(matches!(
        x.adam_step_(&x, &other, &other.detach(), adam),
        Err(Error::Argument { op: "adam", .. })
    ));
    assert_eq!(values(&x), [1.0, 2.0]);
    // The gradient may be the parameter itself, because it is only read.
    x.sgd_step_(&x, Some(&other), sgd).unwrap();
    assert_eq!(values(&x), [0.9, 1.8]);
}
