//! The account of every byte: the same numbers on a device that computes and on one that only counts.
//!
//! The figures follow from PyTorch's rules: blocks of 512 bytes; segments of 2 MiB, 20 MiB or the size of one large request.
//! Tests that need layers and optimizers are in `crates/plimsoll/tests/memory.rs`.

use plimsoll_tensor::label::{self, Span};
use plimsoll_tensor::op::{Reduction, SgdStep};
use plimsoll_tensor::{
    BackwardOptions, Category, Conv2dOptions, CpuConfig, DType, Device, Error, MaxPool2dOptions, OutOfMemory,
    Result, SimConfig, Tensor,
};

const MIB: u64 = 1 << 20;

/// A host device and a simulated one, both empty.
fn devices() -> [Device; 2] {
    [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(1 << 30))]
}

/// Allocated and reserved bytes.
fn bytes(device: &Device) -> (u64, u64) {
    let allocated = device.memory_allocated();
    assert_eq!(device.memory_by_category().total(), allocated, "the categories sum to what is allocated");
    assert_eq!(device.peak_by_category().total(), device.max_memory_allocated());
    (allocated, device.memory_reserved())
}

/// A tensor of one mebibyte.
fn mebibyte(device: &Device) -> Tensor {
    Tensor::ones(&[512, 512], device).unwrap()
}

/// The categories that hold bytes now.
fn held(device: &Device) -> Vec<(&'static str, u64)> {
    let by_category = device.memory_by_category();
    by_category
        .iter()
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(category, bytes)| (category.name(), bytes))
        .collect()
}

#[test]
fn a_dropped_tensor_stays_reserved_until_the_cache_is_emptied() {
    for device in devices() {
        let x = Tensor::rand(&[1024, 1024], &device).unwrap();
        let y = Tensor::rand(&[2048, 2048], &device).unwrap();
        assert_eq!(bytes(&device), (20_971_520, 20_971_520));
        drop(x);
        assert_eq!(bytes(&device), (16_777_216, 20_971_520));
        drop(y);
        device.empty_cache().unwrap();
        assert_eq!(bytes(&device), (0, 0));
    }
}

#[test]
fn the_last_handle_frees() {
    for device in devices() {
        let x = Tensor::rand(&[1024, 1024], &device).unwrap();
        let y = Tensor::rand(&[2048, 2048], &device).unwrap();
        let (second_x, second_y) = (x.clone(), y.clone());
        drop((x, y));
        assert_eq!(bytes(&device), (20_971_520, 20_971_520));
        device.empty_cache().unwrap();
        assert_eq!(bytes(&device), (20_971_520, 20_971_520));
        drop((second_x, second_y));
        assert_eq!(bytes(&device), (0, 20_971_520));
        device.empty_cache().unwrap();
        assert_eq!(bytes(&device), (0, 0));
    }
}

#[test]
fn a_tensor_replaced_in_a_loop_needs_room_for_two() {
    for device in devices() {
        let mut x = Tensor::randn(&[1024, 1024], &device).unwrap();
        let mut highest = 0;
        for _ in 1..100 {
            highest = highest.max(device.memory_allocated());
            x = Tensor::randn(&[1024, 1024], &device).unwrap();
        }
        assert_eq!((highest, device.max_memory_allocated()), (4_194_304, 8_388_608));
        drop(x);
    }
}

#[test]
fn views_take_nothing_and_keep_their_storage() {
    for device in devices() {
        let x = mebibyte(&device);
        let views = [
            x.t().unwrap(),
            x.narrow(0, 1, 1).unwrap(),
            x.reshape(&[-1]).unwrap(),
            x.unsqueeze(0).unwrap().expand(&[100, 512, 512]).unwrap(),
            x.detach(),
        ];
        drop(x);
        assert_eq!(bytes(&device).0, MIB);
        drop(views);
        assert_eq!(bytes(&device).0, 0);
    }
}

#[test]
fn a_saved_temporary_is_an_activation_until_its_derivative_has_run() {
    for device in devices() {
        let w = mebibyte(&device).requires_grad_(true).unwrap();
        let y = w.tanh().unwrap();
        assert_eq!(y.category(), Category::Activation);
        let loss = y.sum().unwrap();
        assert_eq!(held(&device), [("activation", MIB), ("temporary", MIB + 512)]);
        loss.backward().unwrap();
        assert_eq!(y.category(), Category::Temporary, "its handle is all that keeps it");
        assert_eq!(held(&device), [("gradient", MIB), ("temporary", 2 * MIB + 512)]);
    }
}

#[test]
fn what_two_operations_saved_is_an_activation_until_both_let_go() {
    for device in devices() {
        let w = mebibyte(&device).requires_grad_(true).unwrap();
        let x = mebibyte(&device);
        let (a, b) = ((&w * &x).unwrap(), (&w * &x).unwrap());
        drop(a);
        assert_eq!(x.category(), Category::Activation);
        drop(b);
        assert_eq!(x.category(), Category::Temporary);
    }
}

#[test]
fn what_has_a_purpose_keeps_it_when_saved() {
    for device in devices() {
        let named = |category, name: &str| {
            let _owner = Span::of(category, label::intern(name));
            mebibyte(&device)
        };
        let w = named(Category::Parameter, "fc.weight").requires_grad_(true).unwrap();
        let x = named(Category::Input, "batch");
        let loss = (&w * &x).unwrap().sum().unwrap();
        assert_eq!((w.category(), x.category()), (Category::Parameter, Category::Input));
        loss.backward().unwrap();
        let grad = w.grad().unwrap();
        assert_eq!((grad.category(), grad.label()), (Category::Gradient, "fc.weight".to_owned()));
        assert_eq!((x.category(), x.label()), (Category::Input, "batch".to_owned()));
        drop((loss, grad));
        assert_eq!(held(&device), [("parameter", MIB), ("gradient", MIB), ("input", MIB)]);
    }
}

#[test]
fn an_owner_without_a_name_still_says_what_for() {
    for device in devices() {
        let _owner = Span::of(Category::Input, label::intern(""));
        let x = mebibyte(&device);
        assert_eq!((x.category(), x.label()), (Category::Input, "ones".to_owned()));
    }
}

#[test]
fn a_gradient_that_must_be_copied_is_a_gradient_too() {
    for device in devices() {
        let w = mebibyte(&device).requires_grad_(true).unwrap();
        // The gradient of a transposed sum arrives as an expanded view.
        w.t().unwrap().sum().unwrap().backward().unwrap();
        let grad = w.grad().unwrap();
        assert_eq!(
            (grad.category(), grad.label().as_str(), grad.is_contiguous()),
            (Category::Gradient, "ones", true)
        );
        drop(grad);
        assert_eq!(held(&device), [("gradient", MIB), ("temporary", MIB)]);
    }
}

#[test]
fn scratch_lives_for_one_kernel_and_shows_in_the_peak() {
    for device in devices() {
        let x = Tensor::ones(&[4, 3, 32, 32], &device).unwrap();
        let w = Tensor::ones(&[16, 3, 5, 5], &device).unwrap();
        device.reset_peak_memory_stats();
        let y = x.conv2d(&w, None, Conv2dOptions { padding: [2, 2].into(), ..Default::default() }).unwrap();
        assert_eq!(device.memory_by_category()[Category::Workspace], 0);
        let at_peak = device.peak_by_category();
        assert!(at_peak[Category::Workspace] > 0);
        assert_eq!(at_peak.total(), device.memory_allocated() + at_peak[Category::Workspace]);
        let scratch = device.owners_at_peak().into_iter().find(|owner| owner.category == Category::Workspace);
        assert_eq!(scratch.map(|owner| (owner.label, owner.blocks)), Some(("conv2d".to_owned(), 1)));
        drop(y);
    }
}

#[test]
fn max_pooling_keeps_one_byte_per_window_and_not_its_input() {
    for device in devices() {
        let x = Tensor::ones(&[1, 16, 256, 256], &device).unwrap().requires_grad_(true).unwrap();
        let hidden = (&x + 1.0).unwrap();
        let pooled = hidden.max_pool2d(MaxPool2dOptions::square(2)).unwrap();
        drop(hidden);
        assert_eq!(held(&device), [("activation", MIB / 4), ("temporary", 5 * MIB)]);
        drop(pooled);
    }
}

#[test]
fn activations_die_on_the_way_back() {
    for device in devices() {
        let x = mebibyte(&device).requires_grad_(true).unwrap();
        let depth = 20;
        let last = (0..depth).try_fold(x.clone(), |x, _| x.tanh()).unwrap();
        let loss = last.sum().unwrap();
        drop(last);
        let before = device.memory_allocated();
        assert_eq!(before, (depth + 1) * MIB + 512);
        device.reset_peak_memory_stats();
        loss.backward().unwrap();
        // The first step of the backward pass holds two temporaries more than the graph did; each later one starts with one
        // activation less. A pass that freed everything at its end would need twice the memory of the graph.
        assert!(
            device.max_memory_allocated() <= before + 2 * MIB + 512,
            "{} before, {} at the peak",
            before,
            device.max_memory_allocated()
        );
        assert_eq!(device.memory_allocated(), 2 * MIB + 512);
    }
}

#[test]
fn a_retained_graph_keeps_its_activations() {
    for device in devices() {
        let x = mebibyte(&device).requires_grad_(true).unwrap();
        let loss = x.tanh().unwrap().sum().unwrap();
        loss.backward_with(BackwardOptions { retain_graph: true, ..Default::default() }).unwrap();
        assert_eq!(device.memory_by_category()[Category::Activation], MIB);
        loss.backward().unwrap();
        assert_eq!(held(&device), [("gradient", MIB), ("temporary", MIB + 512)]);
    }
}

#[test]
fn a_deeper_chain_needs_no_more_on_top_of_its_activations() {
    let extra = |depth: u64| {
        let device = Device::sim(SimConfig::new(1 << 40));
        let x = mebibyte(&device).requires_grad_(true).unwrap();
        let loss = (0..depth).try_fold(x, |x, _| x.sigmoid()).unwrap().sum().unwrap();
        device.reset_peak_memory_stats();
        loss.backward().unwrap();
        device.max_memory_allocated() - (depth + 1) * MIB
    };
    assert_eq!(extra(2), extra(200));
}

fn out_of_memory<T>(result: Result<T>) -> OutOfMemory {
    let error = result.err().expect("no room");
    error.out_of_memory().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn running_out_names_who_asked_and_leaves_everything_as_it_was() {
    for device in devices() {
        device.set_memory_limit(24 * MIB);
        let x = Tensor::ones(&[2048, 1024], &device).unwrap();
        let y = (&x + &x).unwrap();
        let before = (bytes(&device), device.memory_by_category());

        let error = (&x + &y).unwrap_err();
        let name = device.name();
        assert_eq!(
            error.to_string(),
            format!(
                "out of memory on {name}: add asked for 8.00 MiB (temporary, by add); the limit is 24.00 MiB, of \
                 which 20.00 MiB is reserved and 4.00 MiB is left, but the request needs a segment of 20.00 MiB; \
                 4.00 MiB of the reserved bytes is cached, and the largest free block for a request of this size is \
                 4.00 MiB; 16.00 MiB is held by temporaries (16.00 MiB)"
            )
        );
        let report = out_of_memory(Err::<(), _>(error));
        assert_eq!((report.device.as_str(), report.label.as_str(), report.op), (name, "add", "add"));
        let numbers = &report.numbers;
        assert_eq!((numbers.requested_bytes, numbers.segment_bytes), (8 * MIB, 20 * MIB));
        assert_eq!((numbers.allocated_bytes, numbers.reserved_bytes), (16 * MIB, 20 * MIB));
        assert_eq!((numbers.limit_bytes, numbers.category), (Some(24 * MIB), Category::Temporary));
        assert_eq!((numbers.largest_free_block_bytes, numbers.by_category.total()), (4 * MIB, 16 * MIB));

        assert_eq!((bytes(&device), device.memory_by_category()), before);
        assert_eq!(device.memory_stats()["num_ooms"], 1);
        assert_eq!(x.narrow(0, 0, 1024).unwrap().exp().unwrap().shape(), [1024, 1024], "4 MiB still fit");
        device.set_memory_limit(None);
        assert_eq!((&x + &y).unwrap().shape(), [2048, 1024]);
    }
}

#[test]
fn a_full_host_is_out_of_memory_too() {
    let device = Device::cpu_with(CpuConfig { capacity_bytes: Some(24 * MIB) });
    let _x = Tensor::ones(&[1024, 1024], &device).unwrap();
    let report = out_of_memory(Tensor::zeros(&[5 << 20], &device));
    assert_eq!((report.numbers.limit_bytes, report.numbers.device_total_bytes), (None, 24 * MIB));
    assert_eq!(
        report.to_string(),
        "out of memory on cpu: zeros asked for 20.00 MiB (temporary, by zeros); the device has 24.00 MiB, of which \
         20.00 MiB is reserved and 4.00 MiB is left, but the request needs a segment of 20.00 MiB; 16.00 MiB of the \
         reserved bytes is cached, and the largest free block for a request of this size is 16.00 MiB; 4.00 MiB is \
         held by temporaries (4.00 MiB)"
    );
}

#[test]
fn a_device_that_others_fill_says_how_much_they_hold() {
    let device = Device::cpu_with(CpuConfig { capacity_bytes: Some(24 * MIB) });
    let _x = Tensor::ones(&[1024, 1024], &device).unwrap();
    let mut report = out_of_memory(Tensor::zeros(&[5 << 20], &device));
    assert_eq!(report.held_by_others_bytes(), None);
    report.numbers.device_total_bytes = 100 * MIB;
    report.numbers.device_free_bytes = 7 * MIB;
    assert_eq!(report.held_by_others_bytes(), Some(73 * MIB));
    let text = report.to_string();
    let said = "the device has 100.00 MiB, of which 20.00 MiB is reserved, 73.00 MiB is held by others and 7.00 MiB is left, and the \
                request needs a segment of 20.00 MiB; 16.00 MiB of the reserved";
    assert!(text.contains(said), "{text}");
    report.numbers.device_free_bytes = 80 * MIB;
    assert!(report.held_by_others_bytes().is_none() && report.is_system_refusal(), "{report}");
}

#[test]
fn a_layer_that_runs_out_is_named() {
    for device in devices() {
        device.set_memory_limit(2 * MIB);
        let (x, y) = (mebibyte(&device), mebibyte(&device));
        let _layer = Span::layer(label::intern("encoder.fc1"));
        let report = out_of_memory(x.matmul(&x));
        assert_eq!((report.label.as_str(), report.op), ("encoder.fc1", "matmul"));
        drop(y);
        assert_eq!(x.matmul(&x).unwrap().label(), "encoder.fc1");
    }
}

#[test]
fn an_operation_that_runs_out_halfway_gives_back_what_it_had() {
    for device in devices() {
        // The output of the convolution fits, but its scratch memory does not.
        let x = Tensor::ones(&[1, 64, 64, 64], &device).unwrap();
        let w = Tensor::ones(&[64, 64, 3, 3], &device).unwrap();
        device.reset_peak_memory_stats();
        let options = Conv2dOptions { padding: [1, 1].into(), ..Default::default() };
        let whole = x.conv2d(&w, None, options).unwrap();
        drop(whole);
        device.empty_cache().unwrap();
        let before = device.memory_allocated();
        device.set_memory_limit(device.memory_reserved() + 2 * MIB);
        let report = out_of_memory(x.conv2d(&w, None, options));
        assert_eq!((report.numbers.category, device.memory_allocated()), (Category::Workspace, before));
    }
}

#[test]
fn a_backward_pass_that_runs_out_keeps_no_half_made_gradient() {
    for device in devices() {
        let w = Tensor::ones(&[1024, 1024], &device).unwrap().requires_grad_(true).unwrap();
        let loss = w.tanh().unwrap().sum().unwrap();
        device.set_memory_limit(device.memory_reserved());
        let filler: Vec<Tensor> = std::iter::from_fn(|| Tensor::ones(&[1024, 1024], &device).ok()).collect();
        assert!(loss.backward().is_err());
        assert!(w.grad().is_none());
        drop((filler, loss));
        assert_eq!(device.memory_allocated(), 4 * MIB, "the graph is gone, the leaf is there");
        w.tanh().unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(w.grad().unwrap().shape(), [1024, 1024]);
    }
}

#[test]
fn empty_tensors_take_nothing_in_any_operation() {
    for device in devices() {
        let leaf = |shape: &[usize]| Tensor::zeros(shape, &device).unwrap().requires_grad_(true).unwrap();
        let (x, y) = (leaf(&[0, 3]), leaf(&[3, 0]));
        let labels = Tensor::full(&[0], 0.0, DType::I64, &device).unwrap();
        let outputs = [
            &x + &x,
            &x / 2.0,
            x.exp(),
            x.relu(),
            x.t(),
            x.reshape(&[3, 0, 7]),
            x.narrow(1, 1, 1),
            x.softmax(1),
            x.log_softmax(0),
            x.argmax(1),
            x.matmul(&y),
            x.sum_dims(&[1]),
            x.copy(),
            x.to_dtype(DType::U8),
            x.unsqueeze(0).and_then(|x| x.expand(&[5, 0, 3])),
            leaf(&[0, 1, 4, 4]).max_pool2d(MaxPool2dOptions::square(2)),
            y.mean_keepdim(&[0]),
        ];
        for output in outputs {
            assert_eq!(output.unwrap().numel(), 0);
        }
        x.detach().add_(x.detach()).unwrap();
        x.detach().fill_(1.0).unwrap();
        let step = SgdStep {
            lr: 0.1,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            first: true,
            maximize: false,
        };
        x.sgd_step_(&x.detach(), None, step).unwrap();
        assert_eq!((bytes(&device), device.memory_stats()["allocation.all.allocated"]), ((0, 0), 0));
        // A result that has elements but is computed from none is zero, or NaN for a mean.
        let sums = [
            y.matmul(&x),
            x.sum(),
            x.mean(),
            x.nll_loss(&labels, Reduction::Sum),
            x.mse_loss(x.detach()),
            y.linear(leaf(&[2, 0]), None),
        ];
        for sum in sums {
            let sum = sum.unwrap();
            assert!(sum.numel() > 0);
            if device.has_values() {
                assert!(sum.to_vec::<f32>().unwrap().iter().all(|&x| x == 0.0 || x.is_nan()));
            }
        }
        (&x.sum().unwrap() + &y.matmul(&x).unwrap().sum().unwrap()).unwrap().backward().unwrap();
        assert_eq!((x.grad().unwrap().shape(), y.grad().unwrap().shape()), (&[0, 3][..], &[3, 0][..]));
    }
}

#[test]
fn a_simulated_device_has_shapes_and_no_values() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], &device).unwrap();
    let y = x.matmul(x.t().unwrap()).unwrap();
    assert_eq!(y.shape(), [2, 2]);
    let text = "to_vec: sim computes no values, so there is nothing to read; run on `cpu` to get numbers, or call \
                `Device::rehearse` to read zeros";
    assert_eq!(y.to_vec::<f32>().unwrap_err().to_string(), text);
    assert!(matches!(y.sum().unwrap().item::<f32>(), Err(Error::NoValues { op: "item", .. })));
    assert!(matches!(y.to_device(&Device::cpu()), Err(Error::NoValues { op: "to_device", .. })));
}

#[test]
fn a_simulated_device_can_be_larger_than_any_machine() {
    let device = Device::sim(SimConfig::new(1 << 50).named("cluster"));
    let x = Tensor::zeros(&[1 << 20, 1 << 20], &device).unwrap();
    assert_eq!((device.memory_allocated(), device.name()), (1 << 42, "cluster"));
    let report = out_of_memory(x.unsqueeze(0).unwrap().expand(&[1 << 9, 1 << 20, 1 << 20]).unwrap().copy());
    assert_eq!((report.op, report.numbers.limit_bytes), ("copy", None));
}

#[test]
fn products_of_16_bit_floats_copy_no_operand() {
    for (device, dtype) in devices()
        .into_iter()
        .flat_map(|device| [DType::BF16, DType::F16].map(|dtype| (device.clone(), dtype)))
    {
        let matrix = |rows: usize| {
            let x = Tensor::zeros(&[rows, 2048], &device).unwrap().to_dtype(dtype).unwrap();
            x.requires_grad_(true).unwrap()
        };
        let (x, w, bias) = (matrix(1024), matrix(2048), matrix(1).flatten(0, 1).unwrap().detach());
        let before = device.memory_allocated();
        let scratch = 6 * MIB;
        device.reset_peak_memory_stats();
        let y = x.linear(&w, Some(&bias)).unwrap();
        let (of_x, of_w) = (1024 * 2048 * 2, 2048 * 2048 * 2);
        assert!(device.max_memory_allocated() <= before + of_x + scratch, "{dtype}, forward");
        let gradient = Some(y.detach());
        y.backward_with(BackwardOptions { gradient, ..BackwardOptions::default() }).unwrap();
        assert!(device.max_memory_allocated() <= before + of_x + of_x + of_w + scratch, "{dtype}, backward");
        device.reset_peak_memory_stats();
        let product = x.detach().matmul(w.detach()).unwrap();
        assert!(device.max_memory_allocated() <= device.memory_allocated() + scratch, "{dtype}, matmul");
        drop(product);
    }
}
