//! Groups of ranks give the same bits on every device and with every transport, and their errors name the rank.

use std::thread;

use plimsoll_tensor::testing::LateConfig;
use plimsoll_tensor::{
    DType, Device, Error, ProcessGroup, ReduceOp, Result, Segment, SimConfig, Tensor, op::clip_norm_,
    unscale_, with_stream,
};

/// Runs `f` on each rank of a group of threads.
fn on_ranks<T: Send>(size: usize, f: impl Fn(&ProcessGroup) -> Result<T> + Sync) -> Vec<T> {
    let ranks = ProcessGroup::threads(size);
    thread::scope(|scope| {
        let running: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| f(rank))).collect();
        running.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
    })
}

/// The values of rank `rank`. Their sum depends on the order of addition.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + rank * 104_729) % 10_007) as f32 / 3.0 - 1500.0).collect()
}

/// The sum as a balanced tree over ranks, computed directly from its definition.
fn tree(parts: &[f32]) -> f32 {
    match parts.len() {
        1 => parts[0],
        n => tree(&parts[..n.next_power_of_two() / 2]) + tree(&parts[n.next_power_of_two() / 2..]),
    }
}

fn sums(size: usize, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..size).map(|rank| values(rank, count)).collect();
    (0..count).map(|i| tree(&all.iter().map(|values| values[i]).collect::<Vec<_>>())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Calls every collective on one rank, with tensors on `device`.
fn collectives(group: &ProcessGroup, device: &Device, count: usize) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let own = |count| Tensor::from_slice(&values(rank, count), &[count], device);
    let expected = sums(size, count);

    let x = own(count)?;
    group.all_reduce(&x, ReduceOp::Sum)?;
    assert_eq!(bits(&x.to_vec::<f32>()?), bits(&expected), "all_reduce of {count} on rank {rank} of {size}");

    let x = own(count * size)?;
    let part = Tensor::empty(&[count], DType::F32, device)?;
    group.reduce_scatter_tensor(&part, &x, ReduceOp::Avg)?;
    let whole = sums(size, count * size);
    let mean: Vec<f32> =
        whole[rank * count..(rank + 1) * count].iter().map(|x| x * (1.0 / size as f32)).collect();
    assert_eq!(bits(&part.to_vec::<f32>()?), bits(&mean), "reduce_scatter on rank {rank} of {size}");

    let all = Tensor::empty(&[size, count], DType::F32, device)?;
    group.all_gather_into_tensor(&all, &own(count)?)?;
    let expected: Vec<f32> = (0..size).flat_map(|rank| values(rank, count)).collect();
    assert_eq!(all.to_vec::<f32>()?, expected, "all_gather on rank {rank} of {size}");

    let x = own(count * size)?;
    let arrived = Tensor::empty(&[count * size], DType::F32, device)?;
    group.all_to_all_single(&arrived, &x)?;
    let expected: Vec<f32> = (0..size)
        .flat_map(|from| values(from, count * size)[rank * count..(rank + 1) * count].to_vec())
        .collect();
    assert_eq!(arrived.to_vec::<f32>()?, expected, "all_to_all on rank {rank} of {size}");

    let x = own(count)?.requires_grad_(true)?;
    group.broadcast(&x, size - 1)?;
    assert_eq!(x.to_vec::<f32>()?, values(size - 1, count), "broadcast on rank {rank} of {size}");
    group.barrier()
}

#[test]
fn collectives_are_right_on_one_to_five_ranks() {
    for size in 1..=5 {
        for count in [0, 1, 2, 7, 1000] {
            on_ranks(size, |group| collectives(group, &Device::cpu(), count));
        }
    }
}

#[test]
fn collectives_are_right_on_a_device_that_computes_later() {
    for size in [1, 2, 3] {
        on_ranks(size, |group| {
            let device = Device::late(LateConfig { seed: group.rank() as u64, ..LateConfig::default() });
            collectives(group, &device, 100)
        });
    }
}

#[test]
fn the_sum_does_not_depend_on_how_the_tensor_is_cut() {
    let whole = on_ranks(3, |group| {
        let x = Tensor::from_slice(&values(group.rank(), 1000), &[1000], &Device::cpu())?;
        group.all_reduce(&x, ReduceOp::Avg)?;
        x.to_vec::<f32>()
    });
    let pieces = on_ranks(3, |group| {
        let x = Tensor::from_slice(&values(group.rank(), 1000), &[1000], &Device::cpu())?;
        for (start, len) in [(0, 1), (1, 300), (301, 697), (998, 2)] {
            group.all_reduce(&x.narrow(0, start, len)?, ReduceOp::Avg)?;
        }
        x.to_vec::<f32>()
    });
    assert_eq!(whole, pieces);
    assert!(whole.iter().all(|rank| bits(rank) == bits(&whole[0])));
}

#[test]
fn short_floats_travel_short_and_are_added_in_32_bits() {
    // 256 + 1 + 1 is 256 if each sum is rounded to 8 bits, and 258 if only the last one is.
    let sums = on_ranks(3, |group| {
        let x = Tensor::full(&[6], if group.rank() == 0 { 256.0 } else { 1.0 }, DType::BF16, &Device::cpu())?;
        group.all_reduce(&x, ReduceOp::Sum)?;
        // 6 elements of 2 bytes. Two thirds of them are sent, in each of two collectives.
        assert_eq!((group.traffic().collectives, group.traffic().sent_bytes), (2, 16));
        x.float()?.to_vec::<f32>()
    });
    assert_eq!(sums, vec![vec![258.0; 6]; 3]);
}

#[test]
fn a_simulated_group_requests_the_same_bytes_and_moves_none() {
    let requests = |group: &ProcessGroup, device: &Device| -> Result<(u64, u64, u64)> {
        let x = Tensor::full(&[1 << 20], 1.0, DType::F32, device)?;
        group.all_reduce(&x, ReduceOp::Sum)?;
        group.all_reduce(&x.narrow(0, 0, 1001)?, ReduceOp::Sum)?;
        Ok((device.max_memory_allocated(), device.max_memory_reserved(), group.traffic().sent_bytes))
    };
    let real = on_ranks(4, |group| requests(group, &Device::cpu_with(Default::default())));
    for (rank, real) in real.iter().enumerate() {
        let simulated = ProcessGroup::simulated(rank, 4);
        assert_eq!(requests(&simulated, &Device::sim(SimConfig::new(1 << 30))).unwrap(), *real);
    }
    let alone = ProcessGroup::simulated(0, 1024);
    let error = alone.all_reduce(&Tensor::ones(&[1024], &Device::cpu()).unwrap(), ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains("this group is simulated"), "{error}");
    assert!(alone.barrier().is_ok());
    assert_eq!(alone.all_gather_bytes(b"x", "").unwrap().len(), 1024);
}

/// Bytes outside the allocator that a reduce-scatter and an all-gather of shared memory take.
fn outside_of_shared(gpu: &str, ranks: usize) -> u64 {
    let device = Device::sim(SimConfig::like(gpu).unwrap());
    let group = ProcessGroup::simulated(0, ranks);
    let before = device.outside_bytes().unwrap();
    let shared = group.empty_shared(&[1 << 24], DType::BF16, &device).unwrap();
    let own = Tensor::empty(&[(1 << 24) / ranks], DType::BF16, &device).unwrap();
    with_stream(&group.stream(&device), || {
        group.reduce_scatter_tensor(&own, &shared, ReduceOp::Avg).unwrap();
        group.all_gather_into_tensor(&shared, &own).unwrap();
    });
    device.outside_bytes().unwrap() - before
}

#[test]
fn shared_memory_needs_no_nccl_between_gpus_of_one_host_with_nvlink() {
    assert_eq!((outside_of_shared("H200", 2), outside_of_shared("H200", 8)), (0, 0));
    // Two hosts, and GPUs without NVLink.
    let [hosts, pcie] = [("H200", 16), ("RTX 4090", 2)].map(|(gpu, ranks)| outside_of_shared(gpu, ranks));
    assert!(hosts > 1 << 29 && pcie > 0, "{hosts} on two hosts, {pcie} without NVLink");
}

#[test]
fn shared_memory_is_one_allocation_of_the_device() {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    device.set_allocator_settings("expandable_segments:True").unwrap();
    let group = ProcessGroup::simulated(0, 2);
    let shared = group.empty_shared(&[1 << 24], DType::F32, &device).unwrap();
    let usual = Tensor::empty(&[1 << 24], DType::F32, &device).unwrap();
    let is_expandable = |tensor: &Tensor| {
        let at = tensor.data_ptr();
        let holds = |it: &&Segment| it.addr.0 <= at && at < it.addr.0 + it.bytes;
        device.memory_snapshot().iter().find(holds).unwrap().is_expandable
    };
    assert_eq!((is_expandable(&shared), is_expandable(&usual)), (false, true));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let group = ProcessGroup::simulated(0, 4);
    let device = Device::sim(SimConfig::new(1 << 30));
    let zeros = |shape: &[usize]| Tensor::zeros(shape, &device).unwrap();
    let refused = |result: Result<()>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(
        group.all_gather_into_tensor(&zeros(&[7]), &zeros(&[2])),
        "all_gather_into_tensor: [7] for 4 parts of [2]",
    );
    refused(group.reduce_scatter_tensor(&zeros(&[2]), &zeros(&[9]), ReduceOp::Sum), "[9] for 4 parts of [2]");
    refused(group.all_to_all_single(&zeros(&[6]), &zeros(&[6])), "6 elements to send, but room for 6");
    refused(group.broadcast(&zeros(&[1]), 4), "broadcast: rank 4 of 4");
    let whole = Tensor::full(&[8], 1.0, DType::I64, &device).unwrap();
    refused(group.all_reduce(&whole, ReduceOp::Sum), "all_reduce: expected a floating-point type, got int64");
    refused(group.all_gather_into_tensor(&whole, &zeros(&[2])), "all_gather_into_tensor");
    assert!(
        group.all_gather_into_tensor(&whole, &Tensor::full(&[2], 1.0, DType::I64, &device).unwrap()).is_ok()
    );
}

#[test]
fn a_rank_that_is_lost_or_elsewhere_is_an_error_with_its_number() {
    let mut ranks = ProcessGroup::threads(2);
    drop(ranks.pop());
    let x = Tensor::ones(&[4], &Device::cpu()).unwrap();
    let error = ranks[0].all_reduce(&x, ReduceOp::Sum).unwrap_err();
    assert_eq!(
        error.to_string(),
        "all_to_all: rank 1 is gone: its thread ended\nthis rank was in all_to_all 0 of `ones` (16 bytes of float32)"
    );
    assert!(error.distributed().is_some());
    let late = Device::late(LateConfig::default());
    let error = ranks[0]
        .broadcast(&Tensor::ones(&[4], &late).unwrap(), 1)
        .and_then(|()| late.synchronize())
        .unwrap_err();
    assert!(error.distributed().is_some() && matches!(error, Error::Late { .. }), "{error}");

    let ranks = ProcessGroup::threads(2);
    let run = |rank: usize| {
        let x = Tensor::full(&[4], 1.0, [DType::F32, DType::F64][rank], &Device::cpu()).unwrap();
        ranks[rank].broadcast(&x, 0)
    };
    let errors = thread::scope(|scope| {
        [0, 1].map(|rank| scope.spawn(move || run(rank))).map(|rank| rank.join().unwrap())
    });
    let error = errors[0].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("rank 1 is in broadcast 0 of `full` (32 bytes of float64 from rank 0)"),
        "{error}"
    );
}

#[test]
fn views_of_one_storage_change_together_if_they_do_not_overlap() {
    let device = Device::cpu();
    let bucket = Tensor::ones(&[10], &device).unwrap();
    let part = |start, len| bucket.narrow(0, start, len).unwrap();
    let (a, b) = (part(0, 4), part(4, 6));
    assert_eq!(unscale_(&[&b, &a], 2.0).unwrap().item::<f32>().unwrap(), 0.0);
    assert_eq!(bucket.to_vec::<f32>().unwrap(), [2.0; 10]);
    let norm = clip_norm_(&[a.clone(), b], 1.0, 2.0).unwrap().unwrap().item::<f32>().unwrap();
    assert!((norm - 40.0f32.sqrt()).abs() < 1e-5);
    let error = unscale_(&[&a, &part(3, 2)], 2.0).unwrap_err().to_string();
    assert!(error.contains("two of the tensors that it changes share memory"), "{error}");
    let error = unscale_(&[&a, &a], 2.0).unwrap_err().to_string();
    assert!(error.contains("share memory"), "{error}");
}

#[test]
fn callbacks_run_once_after_the_pass_and_not_after_a_failed_one() {
    use plimsoll_tensor::autograd::queue_callback;
    use std::sync::{Arc, Mutex};
    let seen: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |what| {
        let seen = Arc::clone(&seen);
        move || {
            seen.lock().unwrap().push(what);
            Ok(())
        }
    };
    assert!(queue_callback(note("outside")).is_err());
    let device = Device::cpu();
    let [a, b] = [(); 2].map(|()| Tensor::ones(&[2], &device).unwrap().requires_grad_(true).unwrap());
    for (leaf, hook, end) in [(&a, "hook a", "end a"), (&b, "hook b", "end b")] {
        let (at_hook, at_end) = (note(hook), note(end));
        leaf.register_post_accumulate_grad_hook(move |_| {
            at_hook()?;
            queue_callback(at_end.clone())
        })
        .unwrap();
    }
    let product = (&a * &b).unwrap();
    product.sum().unwrap().backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), ["hook a", "hook b", "end a", "end b"]);
    seen.lock().unwrap().clear();
    let failing = b.register_post_accumulate_grad_hook(|_| Err(Error::argument("hook", "no"))).unwrap();
    assert!((&a * &b).unwrap().sum().unwrap().backward().is_err());
    assert_eq!(*seen.lock().unwrap(), ["hook a", "hook b"]);
    failing.remove();
    seen.lock().unwrap().clear();
    a.sum().unwrap().backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), ["hook a", "end a"]);
}
