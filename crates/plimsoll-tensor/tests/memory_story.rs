//! Questions that users ask about memory: who requested it, on which line, and why it is not freed. Also reserved memory, and
//! rehearsals.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use plimsoll_tensor::checkpoint::{checkpoint, recompute_output};
use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::save_on_cpu::{HostMemory, save_on_cpu};
use plimsoll_tensor::{
    BackwardOptions, CpuConfig, DType, Device, Error, EventHandle, MemoryAction, SimConfig, Tensor, history,
};

const MIB: u64 = 1 << 20;

fn devices() -> [Device; 2] {
    [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(1 << 30))]
}

fn mebibyte(device: &Device) -> Tensor {
    Tensor::ones(&[512, 512], device).unwrap()
}

#[test]
fn events_add_up_to_the_allocated_bytes() {
    for device in devices() {
        let bytes = Arc::new(AtomicU64::new(0));
        let sum = bytes.clone();
        let handle = device.on_event(move |event| match event.action {
            MemoryAction::Alloc => drop(sum.fetch_add(event.bytes, Ordering::Relaxed)),
            MemoryAction::Free => drop(sum.fetch_sub(event.bytes, Ordering::Relaxed)),
        });
        let w = Tensor::randn(&[300, 300], &device).unwrap().requires_grad_(true).unwrap();
        let y = w.matmul(&w).unwrap().relu().unwrap();
        assert_eq!(bytes.load(Ordering::Relaxed), device.memory_allocated());
        y.sum().unwrap().backward().unwrap();
        drop(y);
        assert_eq!(bytes.load(Ordering::Relaxed), device.memory_allocated());
        handle.remove();
        handle.remove();
        let _more = mebibyte(&device);
        assert_eq!(bytes.load(Ordering::Relaxed) + MIB, device.memory_allocated());
    }
}

#[test]
fn a_callback_may_use_the_device_and_remove_itself() {
    for device in devices() {
        let (own, calls) = (Arc::new(OnceLock::<EventHandle>::new()), Arc::new(AtomicU64::new(0)));
        let (itself, count, on) = (own.clone(), calls.clone(), device.clone());
        let handle = device.on_event(move |event| {
            count.fetch_add(1, Ordering::Relaxed);
            // Requests and frees of a callback are not reported: this would never end.
            let more = mebibyte(&on).exp().unwrap();
            assert!(on.memory_allocated() > 0 && on.owners().iter().any(|owner| owner.label == event.label));
            drop(more);
            on.memory_snapshot();
            itself.get().unwrap().remove();
        });
        own.set(handle).unwrap();
        let _x = mebibyte(&device);
        let _y = mebibyte(&device);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_panic_in_a_callback_is_ignored() {
    let device = Device::sim(SimConfig::new(1 << 30));
    device.on_event(|_| panic!("ignored"));
    let x = mebibyte(&device);
    drop(x);
    assert_eq!(device.memory_allocated(), 0);
}

#[test]
fn offloaded_bytes_are_freed_and_allocated_again() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = mebibyte(&device);
    let (sender, events) = mpsc::channel();
    device.on_event(move |event| sender.send((event.action, event.requested_bytes, event.op)).unwrap());
    x.offload().unwrap();
    let _guard = x.pin().unwrap();
    let seen: Vec<_> = events.try_iter().collect();
    assert_eq!(seen, [(MemoryAction::Free, MIB, ""), (MemoryAction::Alloc, MIB, "pin")]);
}

#[test]
fn reserved_memory_serves_later_requests_and_is_in_no_peak() {
    for device in devices() {
        device.reserve(100 * MIB).unwrap();
        device.reserve(50 * MIB).unwrap(); // fits already
        assert_eq!((device.memory_reserved(), device.max_memory_allocated()), (100 * MIB, 0));
        assert!(device.owners_at_peak().is_empty());
        let _tensors: Vec<Tensor> =
            (0..9).map(|_| Tensor::empty(&[10 << 20], DType::U8, &device).unwrap()).collect();
        assert_eq!((device.memory_reserved(), device.memory_allocated()), (100 * MIB, 90 * MIB));
    }
    let device = Device::sim(SimConfig::new(1 << 30).alloc_conf("expandable_segments:True").unwrap());
    device.reserve(100 * MIB).unwrap();
    assert_eq!(device.memory_reserved(), 100 * MIB);
}

#[test]
fn a_reserve_that_does_not_fit_says_so() {
    let device = Device::sim(SimConfig::new(1 << 30));
    device.set_memory_limit(64 * MIB);
    let error = device.reserve(100 * MIB).unwrap_err();
    assert!(error.to_string().starts_with("out of memory on sim: reserve asked for 100.00 MiB"), "{error}");
    assert_eq!(device.memory_reserved(), 0);
    device.set_memory_limit(None);
    assert!(device.reserve(2 << 30).unwrap_err().out_of_memory().is_some());
    device.reserve(0).unwrap();
}

#[test]
fn owners_of_live_bytes_add_up() {
    for device in devices() {
        let _layer = Span::layer(intern("fc1"));
        let (x, y) = (mebibyte(&device), mebibyte(&device));
        y.set_owner(Category::Parameter, intern("fc1.weight"));
        let owners = device.owners();
        let seen: Vec<_> =
            owners.iter().map(|owner| (owner.label.as_str(), owner.category, owner.blocks)).collect();
        assert_eq!(seen.len(), 2);
        assert!(seen.contains(&("fc1", Category::Temporary, 1)), "{seen:?}");
        assert!(seen.contains(&("fc1.weight", Category::Parameter, 1)), "{seen:?}");
        assert_eq!(owners.iter().map(|owner| owner.bytes).sum::<u64>(), device.memory_allocated());
        drop((x, y));
        assert!(device.owners().is_empty());
    }
}

#[test]
fn handles_views_and_saves_are_counted_apart() {
    let uses = |x: &Tensor| {
        let uses = x.storage_uses();
        (uses.handles, uses.views, uses.saved, uses.guards)
    };
    for device in devices() {
        let x = mebibyte(&device);
        assert_eq!(uses(&x), (1, 0, 0, 0));
        let again = x.clone();
        assert_eq!(uses(&x), (2, 0, 0, 0));
        let view = x.narrow(0, 0, 2).unwrap();
        assert_eq!((uses(&x), uses(&view)), ((2, 1, 0, 0), (1, 1, 0, 0)));
        drop(again);
        let guard = x.pin().unwrap();
        assert_eq!(uses(&x), (1, 1, 0, 1));
        drop((guard, view));
        let w = x.requires_grad_(true).unwrap();
        let loss = w.square().unwrap().sum().unwrap();
        assert_eq!(uses(&w), (3, 0, 1, 0), "`x`, `w` and an edge of the graph");
        loss.backward().unwrap();
        drop(loss);
        assert_eq!(uses(&w), (2, 0, 0, 0));
    }
}

#[test]
fn a_retained_gradient_ends_with_its_handle() {
    let x = Tensor::ones(&[2], &Device::cpu()).unwrap().requires_grad_(true).unwrap();
    let y = x.exp().unwrap();
    let (first, second) = (y.retain_grad().unwrap(), y.retain_grad().unwrap());
    let loss = y.sum().unwrap();
    let pass = || loss.backward_with(BackwardOptions { retain_graph: true, ..Default::default() }).unwrap();
    pass();
    assert!(y.retains_grad() && y.grad().is_some());
    second.remove(); // of the same hook
    first.remove();
    y.clear_grad();
    pass();
    assert!(!y.retains_grad() && y.grad().is_none());
    y.retain_grad().unwrap();
    pass();
    assert!(y.grad().is_some());
    x.retain_grad().unwrap().remove(); // a leaf keeps its gradient
    pass();
    assert!(x.grad().is_some());
}

/// The line of the program that requested the memory of a tensor.
fn line(x: &Tensor) -> Option<(&'static str, u32)> {
    let address = x.storage_ptr();
    let segments = x.device().memory_snapshot();
    let mut blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let block = blocks.find(|block| block.addr.0 == address).unwrap();
    history::line(block.stack.unwrap()).map(|at| (at.file(), at.line()))
}

#[test]
fn memory_belongs_to_the_line_that_called_the_operation() {
    #[track_caller]
    fn here(up: u32) -> Option<(&'static str, u32)> {
        let at = Location::caller();
        Some((at.file(), at.line() - up))
    }
    for device in devices() {
        let x = mebibyte(&device).requires_grad_(true).unwrap();
        assert_eq!(line(&x).map(|(file, _)| file), Some(file!()));
        let y = x.exp().unwrap();
        assert_eq!(line(&y), here(1));
        let z = (&y + &x).unwrap();
        assert_eq!(line(&z), here(1));
        let loss = z.sum().unwrap();
        loss.backward().unwrap();
        assert_eq!(line(&x.grad().unwrap()), here(1));
        let other = thread::scope(|scope| scope.spawn(|| (line(&x.sin().unwrap()), here(0))).join().unwrap());
        assert_eq!(other.0, other.1);
    }
}

#[test]
fn what_a_graph_keeps_adds_up_to_what_it_frees() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let w = mebibyte(&device).requires_grad_(true).unwrap();
    w.set_owner(Category::Parameter, intern("fc.weight"));
    let x = mebibyte(&device);
    let block = {
        let w = w.clone();
        move |x: &[Tensor]| x[0].matmul(&w)?.relu()?.exp()?.tanh()
    };
    let check = |name: &str, run: &dyn Fn() -> Tensor, rows: usize| {
        let input = x.copy().unwrap().requires_grad_(true).unwrap();
        let before = device.memory_allocated() - MIB;
        drop(input);
        let loss = run();
        let memory = loss.saved_memory();
        let kept = device.memory_allocated() - before - 512; // without the loss itself
        assert_eq!((memory.bytes(), memory.parameter_bytes()), (kept, MIB), "{name}: {memory}");
        assert_eq!(memory.saved.len(), rows, "{name}: {memory}");
        drop(loss);
        assert_eq!(device.memory_allocated(), before, "{name}");
    };
    let leaf = || x.copy().unwrap().requires_grad_(true).unwrap();
    check("plain", &|| block(&[leaf()]).unwrap().sum().unwrap(), 4);
    check("checkpoint", &|| checkpoint(block.clone(), &[&leaf()]).unwrap().sum().unwrap(), 1);
    let normalized = |x: &Tensor| recompute_output(|x: &[Tensor]| x[0].relu(), &[x]);
    check("recompute_output", &|| normalized(&leaf()).unwrap().matmul(&w).unwrap().sum().unwrap(), 2);
    let shared = leaf().exp().unwrap();
    drop(shared);
    let twice = || {
        let y = leaf().exp()?;
        y.mul(&y)?.add(&y.square()?)?.matmul(&w)?.sum()
    };
    let loss = twice().unwrap();
    let memory = loss.saved_memory();
    let exp = memory.saved.iter().find(|kept| kept.through.iter().any(|by| by == "square")).unwrap();
    assert_eq!((exp.bytes, &exp.through[..]), (MIB, &["square", "mul", "exp"].map(String::from)[..]));
    let text = memory.to_string();
    assert!(
        text.contains("of parameters\n") && text.contains(" %  1024.00 KiB  float32 [512, 512] of exp"),
        "{text}"
    );
}

#[test]
fn tensors_that_hooks_moved_to_the_host_are_listed_there() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = mebibyte(&device).requires_grad_(true).unwrap();
    let loss = save_on_cpu(HostMemory::Pageable, || x.exp()?.square()?.sum()).unwrap();
    let memory = loss.saved_memory();
    let on_host = memory.saved.iter().filter(|kept| kept.device == Device::cpu());
    assert_eq!(on_host.map(|kept| kept.bytes).collect::<Vec<_>>(), [MIB; 2], "{memory}");
}

#[test]
fn values_are_zeros_in_a_rehearsal_and_each_read_is_counted() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::ones(&[4, 2], &device).unwrap();
    let message = "item: sim computes no values, so there is nothing to read; run on `cpu` to get numbers, or call \
                   `Device::rehearse` to read zeros";
    assert_eq!(x.sum().unwrap().item::<f32>().unwrap_err().to_string(), message);
    assert!(device.rehearsal().is_none());
    device.rehearse();
    device.rehearse();
    assert_eq!(device.rehearsal().unwrap().to_string(), "no value was read");
    let allocated = device.memory_allocated();
    for _ in 0..3 {
        assert_eq!(x.sum().unwrap().item::<f32>().unwrap(), 0.0);
    }
    assert_eq!(x.transpose(0, 1).unwrap().to_vec::<f32>().unwrap(), [0.0; 8]);
    let host = Device::cpu_with(CpuConfig::default());
    let there = x.to_device(&host).unwrap();
    assert_eq!((there.to_vec::<f32>().unwrap(), host.memory_allocated()), (vec![0.0; 8], 512));
    assert_eq!(x.gt_scalar(0.5).unwrap().nonzero().unwrap().shape(), [0, 2], "no zero is above 0.5");
    assert_eq!(device.memory_allocated(), allocated);
    let rehearsal = device.rehearsal().unwrap();
    let places: Vec<_> = rehearsal.places.iter().map(|place| (place.op, place.reads)).collect();
    assert_eq!(places[..3], [("item", 3), ("to_vec", 1), ("to_device", 1)]);
    assert!(rehearsal.places.iter().all(|place| place.at.is_some_and(|at| at.file() == file!())));
    let text = rehearsal.to_string();
    assert!(text.contains("item of sum, 3 times\n"), "{text}");
    assert!(!device.has_values(), "its values are still unknown");
    let cpu = Device::cpu_with(CpuConfig::default());
    cpu.rehearse();
    assert!(cpu.rehearsal().is_none());
}

#[test]
fn events_name_the_line_and_what_is_freed() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let events = Arc::new(Mutex::new(Vec::new()));
    let list = events.clone();
    device.on_event(move |event| list.lock().unwrap().push(event.clone()));
    let w = mebibyte(&device).requires_grad_(true).unwrap();
    let loss = w.exp().unwrap().sum().unwrap();
    drop(loss);
    let events = events.lock().unwrap();
    let of_exp: Vec<_> = events
        .iter()
        .filter(|event| event.label == "exp")
        .map(|event| (event.action, event.category, event.at.map(Location::file)))
        .collect();
    assert_eq!(
        of_exp,
        [
            (MemoryAction::Alloc, Category::Temporary, Some(file!())),
            (MemoryAction::Free, Category::Activation, None),
        ]
    );
}

#[test]
fn an_operation_whose_size_depends_on_values_says_how_to_opt_in() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let error = Tensor::ones(&[4], &device).unwrap().nonzero().unwrap_err();
    assert!(matches!(error.without_layer(), Error::Argument { .. }));
    assert!(error.to_string().ends_with("call `Device::rehearse` to take them as zeros"), "{error}");
}
