//! Captured graphs on the late device, which has values, and on simulated devices.

use plimsoll_tensor::testing::{LateConfig, Pauses};
use plimsoll_tensor::{
    DType, Device, Error, Generator, Graph, GraphPool, SimConfig, Stream, Tensor, with_generator, with_stream,
};

fn late() -> Device {
    Device::late(LateConfig::default())
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

#[test]
fn a_replay_computes_from_what_is_in_the_tensors_then() {
    let device = late();
    let (x, w) =
        (Tensor::ones(&[3], &device).unwrap(), Tensor::full(&[3], 2.0, DType::F32, &device).unwrap());
    let (mut graph, y) = Graph::capture(&device, None, || x.mul(&w)?.add_scalar(1.0)).unwrap();
    graph.replay().unwrap();
    assert_eq!(values(&y), [3.0; 3]);
    w.fill_(5.0).unwrap();
    graph.replay().unwrap();
    assert_eq!(values(&y), [6.0; 3]);
}

#[test]
fn memory_of_a_capture_is_a_pool_of_its_own_and_replays_request_none() {
    for device in [late(), Device::sim(SimConfig::like("H200").unwrap())] {
        let x = Tensor::ones(&[1 << 20], &device).unwrap();
        let reserved = device.memory_reserved();
        let (mut graph, y) = Graph::capture(&device, None, || x.exp()?.exp()?.exp()).unwrap();
        assert_eq!(graph.pool().reserved_bytes(), 20 << 20, "{device}");
        assert_eq!(device.memory_reserved(), reserved + (20 << 20));
        let (allocated, requests) =
            (device.memory_allocated(), device.memory_stats()["allocation.all.allocated"]);
        for _ in 0..5 {
            graph.replay().unwrap();
        }
        assert_eq!(device.memory_allocated(), allocated);
        assert_eq!(device.memory_stats()["allocation.all.allocated"], requests);
        // A freed tensor of the graph's pool is not reused for other requests of the device.
        let z = Tensor::ones(&[1 << 20], &device).unwrap();
        assert_eq!(device.memory_reserved(), reserved + (20 << 20));
        drop((z, graph, y));
        device.synchronize().unwrap();
        device.empty_cache().unwrap();
        assert_eq!(device.memory_reserved(), reserved);
    }
}

#[test]
fn graphs_that_share_a_pool_share_the_memory_of_what_no_tensor_keeps() {
    let device = late();
    let pool = GraphPool::new(&device).unwrap();
    let x = Tensor::ones(&[1 << 20], &device).unwrap();
    let capture = |n: f64| Graph::capture(&device, Some(&pool), || x.exp()?.mul_scalar(n)?.sum()).unwrap();
    let (mut first, sum) = capture(1.0);
    let reserved = pool.reserved_bytes();
    let (mut second, double) = capture(2.0);
    assert_eq!(pool.reserved_bytes(), reserved);
    for _ in 0..3 {
        second.replay().unwrap();
        first.replay().unwrap();
        let (sum, double) = (sum.item::<f32>().unwrap(), double.item::<f32>().unwrap());
        assert!((double / sum - 2.0).abs() < 1e-6, "{sum} {double}");
    }
}

#[test]
fn replays_draw_the_numbers_that_the_function_would_draw() {
    let device = late();
    let generator = Generator::new(9);
    let x = Tensor::ones(&[200], &device).unwrap();
    let draw = || {
        let kept = x.dropout(0.5, true)?;
        let own = with_generator(&generator, || Tensor::randn(&[200], &device))?;
        kept.add(&own)?.add(&Tensor::randint(0, 1000, &[200], &device)?.float()?)
    };
    device.manual_seed(4);
    let eager: Vec<Vec<f32>> = (0..4).map(|_| values(&draw().unwrap())).collect();
    let after = (device.rng_state(), generator.state());
    device.manual_seed(4);
    generator.manual_seed(9);
    let first = values(&draw().unwrap());
    let (mut graph, y) = Graph::capture(&device, None, draw).unwrap();
    let mut replayed = vec![first];
    for _ in 0..3 {
        graph.replay().unwrap();
        replayed.push(values(&y));
    }
    assert_eq!(replayed, eager);
    assert_eq!((device.rng_state(), generator.state()), after);
    // A new seed also takes effect.
    device.manual_seed(4);
    generator.manual_seed(9);
    graph.replay().unwrap();
    assert_eq!(values(&y), eager[0]);
}

#[test]
fn what_cannot_be_replayed_is_refused_by_name_and_the_device_stays_usable() {
    let device = late();
    let x = Tensor::ones(&[4], &device).unwrap();
    let side = Stream::new(&device);
    let try_capture = |f: &dyn Fn() -> plimsoll_tensor::Result<()>| {
        let before = device.memory_stats()["reserved_bytes.all.current"];
        let error = Graph::capture(&device, None, f).unwrap_err();
        assert!(matches!(error, Error::Captured { .. }), "{error}");
        assert!(!device.is_capturing());
        assert_eq!(values(&x.add_scalar(1.0).unwrap()), [2.0; 4]);
        device.empty_cache().unwrap();
        assert_eq!(device.memory_stats()["reserved_bytes.all.current"], before);
        error.to_string()
    };
    let read = try_capture(&|| x.exp()?.sum()?.item::<f32>().map(drop));
    assert!(read.starts_with("item: cannot be captured: there are no values"), "{read}");
    let write = try_capture(&|| Tensor::from_slice(&[1.0f32], &[1], &device).map(drop));
    assert!(write.starts_with("to_device: cannot be captured"), "{write}");
    assert!(try_capture(&|| device.synchronize()).starts_with("synchronize: "));
    assert!(try_capture(&|| device.current_stream().query().map(drop)).starts_with("query: "));
    assert!(try_capture(&|| with_stream(&side, || x.exp()).map(drop)).starts_with("exp: "));
    assert!(try_capture(&|| x.offload()).starts_with("offload: "));
    assert!(try_capture(&|| Graph::capture(&device, None, || Ok(())).map(drop)).starts_with("capture: "));
    let seed = try_capture(&|| {
        Tensor::randn(&[3], &device)?;
        device.manual_seed(3);
        Tensor::randn(&[3], &device).map(drop)
    });
    assert!(seed.starts_with("manual_seed: "), "{seed}");
}

#[test]
fn a_device_that_computes_at_once_has_nothing_to_capture() {
    let error = Graph::capture(&Device::cpu(), None, || Ok(())).unwrap_err().to_string();
    assert_eq!(
        error,
        "capture: cannot be captured: this device runs operations immediately: call the function instead"
    );
}

#[test]
fn a_capture_that_runs_out_of_memory_leaves_the_device_as_it_was() {
    let device = Device::late(LateConfig { capacity_bytes: Some(64 << 20), ..LateConfig::default() });
    let x = Tensor::ones(&[1 << 20], &device).unwrap();
    let reserved = device.memory_reserved();
    let grown = Graph::capture(&device, None, || {
        let mut all = vec![x.exp()?];
        for _ in 0..30 {
            all.push(all[0].exp()?);
        }
        Ok(all)
    });
    let error = grown.unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    device.empty_cache().unwrap();
    assert_eq!((device.memory_reserved(), device.is_capturing()), (reserved, false));
    let (mut graph, y) = Graph::capture(&device, None, || x.add_scalar(1.0)).unwrap();
    graph.replay().unwrap();
    assert_eq!(values(&y)[..2], [2.0; 2]);
}

#[test]
fn a_panic_in_a_capture_ends_it() {
    let device = late();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Graph::capture(&device, None, || -> plimsoll_tensor::Result<()> { panic!("on purpose") })
    }));
    assert!(caught.is_err() && !device.is_capturing());
    assert_eq!(values(&Tensor::ones(&[2], &device).unwrap()), [1.0; 2]);
}

#[test]
fn memory_of_another_stream_that_a_capture_frees_is_not_used_again_too_early() {
    let pauses = Pauses::default();
    let device = Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() });
    let side = Stream::new(&device);
    let far = with_stream(&side, || Tensor::full(&[1 << 20], 3.0, DType::F32, &device)).unwrap();
    device.synchronize().unwrap();
    let mut far = Some(far);
    let (mut graph, y) = Graph::capture(&device, None, || {
        let y = far.as_ref().unwrap().mul_scalar(2.0)?;
        // Freed during the capture: its stream does not reuse the memory before the capture ends.
        drop(far.take());
        Ok(y)
    })
    .unwrap();
    let again = with_stream(&side, || Tensor::full(&[1 << 20], 7.0, DType::F32, &device)).unwrap();
    device.synchronize().unwrap();
    drop(again);
    graph.replay().unwrap();
    // As in PyTorch, a replay reads the current contents of the memory, so the program must keep its inputs alive. The segment
    // itself must not have been freed.
    assert!(values(&y).iter().all(|&x| x == 6.0 || x == 14.0));
}

#[test]
fn other_threads_compute_while_one_captures() {
    let device = late();
    let x = Tensor::ones(&[8], &device).unwrap();
    let (mut graph, y) = Graph::capture(&device, None, || {
        let y = x.add_scalar(1.0)?;
        let other = device.clone();
        let there =
            std::thread::spawn(move || values(&Tensor::ones(&[8], &other).unwrap().mul_scalar(4.0).unwrap()));
        assert_eq!(there.join().unwrap(), [4.0; 8]);
        y.add_scalar(1.0)
    })
    .unwrap();
    graph.replay().unwrap();
    assert_eq!(values(&y), [3.0; 8]);
}

#[test]
fn an_error_of_values_in_a_replay_names_its_operator() {
    let device = late();
    let (table, index) =
        (Tensor::ones(&[4, 2], &device).unwrap(), Tensor::from_slice(&[1i64, 2], &[2], &device).unwrap());
    let (mut graph, _rows) = Graph::capture(&device, None, || table.index_select(0, &index)).unwrap();
    graph.replay().unwrap();
    device.synchronize().unwrap();
    index.fill_(9.0).unwrap();
    graph.replay().unwrap();
    let error = device.synchronize().unwrap_err();
    assert!(matches!(error, Error::Late { op: "index_select", .. }), "{error}");
    index.fill_(3.0).unwrap();
    graph.replay().unwrap();
    device.synchronize().unwrap();
}
