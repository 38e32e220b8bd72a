//! Functions whose memory is planned: the same bits, no request to the allocator, and nothing overwritten.

use plimsoll_tensor::testing::LateConfig;
use plimsoll_tensor::{
    CpuConfig, Device, Graph, Result, SimConfig, Stream, Tensor, Traced, no_grad, with_stream,
};

/// A small network, its input, and a step that computes gradients.
struct Network {
    weights: Vec<Tensor>,
    x: Tensor,
}

impl Network {
    fn new(device: &Device) -> Network {
        device.manual_seed(11);
        let weight = |rows: usize, columns: usize| {
            Tensor::randn(&[rows, columns], device).unwrap().requires_grad_(true).unwrap()
        };
        let weights = vec![weight(48, 96), weight(96, 200), weight(200, 48), weight(48, 7)];
        Network { weights, x: Tensor::randn(&[33, 48], device).unwrap() }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [a, b, c, d] = &self.weights[..] else { unreachable!() };
        let y = x.matmul(a)?.gelu()?.dropout(0.2, true)?.matmul(b)?.tanh()?.matmul(c)?;
        y.add(x)?.layer_norm(None, None, 1e-5)?.matmul(d)
    }

    /// The loss; gradients replace those of the last step.
    fn step(&self) -> Result<Tensor> {
        self.weights.iter().for_each(Tensor::clear_grad);
        let loss = self.forward(&self.x)?.square()?.mean()?;
        loss.backward()?;
        Ok(loss.detach())
    }

    fn values(&self, loss: &Tensor) -> Vec<Vec<f32>> {
        let gradients = self.weights.iter().map(|it| it.grad().unwrap());
        gradients.chain([loss.clone()]).map(|it| it.to_vec::<f32>().unwrap()).collect()
    }
}

fn requests(device: &Device) -> i64 {
    device.memory_stats()["allocation.all.allocated"]
}

#[test]
fn a_planned_step_gives_the_same_bits_without_requests_for_its_temporaries() {
    let (plain, traced) = (Device::cpu_with(CpuConfig::default()), Device::cpu_with(CpuConfig::default()));
    let (own, other) = (Network::new(&plain), Network::new(&traced));
    let mut step = Traced::new(&traced);
    for run in 0..6 {
        let before = requests(&traced);
        let found = step.run(|| other.step()).unwrap();
        let asked = requests(&traced) - before;
        assert_eq!(other.values(&found), own.values(&own.step().unwrap()), "run {run}");
        if run >= 2 {
            // The gradients and the loss outlive the run; the third run also requests the arena.
            assert_eq!(asked, if run == 2 { 6 } else { 5 }, "run {run}");
        }
    }
    let plan = step.plan().unwrap();
    assert_eq!(plan.unplanned, 5);
    assert!(plan.planned > 20, "{plan:?}");
    assert!(plan.arena_bytes as f64 <= 1.005 * plan.live_bytes as f64, "{plan:?}");
    assert_eq!((step.difference(), step.in_use_requests()), (None, 0));
}

#[test]
fn other_requests_are_served_by_the_allocator_and_named() {
    let device = Device::cpu_with(CpuConfig::default());
    let network = Network::new(&device);
    let mut forward = Traced::new(&device);
    let run = |traced: &mut Traced, x: &Tensor| {
        let y = traced.run(|| no_grad(|| network.forward(x)))?;
        y.to_vec::<f32>()
    };
    let small = network.x.narrow(0, 0, 16).unwrap().contiguous().unwrap();
    for _ in 0..3 {
        run(&mut forward, &network.x).unwrap();
    }
    assert!(forward.difference().is_none());
    device.manual_seed(5);
    let found = run(&mut forward, &small).unwrap();
    device.manual_seed(5);
    let expected = no_grad(|| network.forward(&small)).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(found, expected);
    let difference = forward.difference().unwrap();
    assert_eq!((difference.number, difference.op), (0, "matmul"));
    assert_eq!(difference.bytes, 16 * 96 * 4);
    // The plan is still good for the first shape.
    let before = requests(&device);
    run(&mut forward, &network.x).unwrap();
    assert_eq!(requests(&device) - before, 1);
    forward.reset();
    assert!(forward.plan().is_none() && forward.difference().is_none());
}

#[test]
fn a_tensor_that_outlives_its_run_is_not_overwritten() {
    let device = Device::cpu_with(CpuConfig::default());
    let network = Network::new(&device);
    let mut step = Traced::new(&device);
    let mut kept: Vec<(Tensor, Vec<f32>)> = Vec::new();
    for run in 0..6 {
        let hidden = step
            .run(|| {
                no_grad(|| {
                    let hidden = network.x.matmul(&network.weights[0])?;
                    let y = hidden.gelu()?.matmul(&network.weights[1])?.tanh()?;
                    y.sum()?;
                    // Runs after the recorded one keep what it dropped.
                    Ok((run >= 2).then_some(hidden))
                })
            })
            .unwrap();
        if let Some(hidden) = hidden {
            let values = hidden.to_vec::<f32>().unwrap();
            kept.push((hidden, values));
        }
    }
    assert!(step.in_use_requests() > 0);
    for (hidden, values) in kept {
        assert_eq!(hidden.to_vec::<f32>().unwrap(), values);
    }
    // The arena outlives the function as long as a tensor is in it.
    let last = step.run(|| no_grad(|| network.x.matmul(&network.weights[0]))).unwrap();
    let values = last.to_vec::<f32>().unwrap();
    drop(step);
    assert_eq!(last.to_vec::<f32>().unwrap(), values);
}

#[test]
fn nested_runs_are_refused_and_errors_leave_the_plan_usable() {
    let device = Device::cpu_with(CpuConfig::default());
    let network = Network::new(&device);
    let (mut outer, mut inner) = (Traced::new(&device), Traced::new(&device));
    for _ in 0..3 {
        outer.run(|| network.step()).unwrap();
        inner.run(|| network.step()).unwrap();
    }
    let error = outer.run(|| inner.run(|| network.step())).unwrap_err().to_string();
    assert!(error.contains("inside of another"), "{error}");
    let failed = outer.run(|| {
        network.x.matmul(&network.weights[0])?;
        network.x.matmul(&network.weights[1])
    });
    assert!(failed.is_err());
    let own = Network::new(&Device::cpu_with(CpuConfig::default()));
    device.manual_seed(3);
    own.x.device().manual_seed(3);
    let found = outer.run(|| network.step()).unwrap();
    assert_eq!(network.values(&found), own.values(&own.step().unwrap()));
}

#[test]
fn work_on_another_stream_keeps_its_memory() {
    let device = Device::late(LateConfig::default());
    let network = Network::new(&device);
    let side = Stream::new(&device);
    let mut step = Traced::new(&device);
    let mut sums = Vec::new();
    for _ in 0..4 {
        let sum = step.run(|| {
            no_grad(|| {
                let y = network.x.matmul(&network.weights[0])?;
                side.wait_stream(&device.current_stream())?;
                let sum = with_stream(&side, || y.sum())?;
                drop(y);
                let z = network.x.matmul(&network.weights[0])?.fill_(0.0);
                device.current_stream().wait_stream(&side)?;
                z?;
                sum.item::<f32>()
            })
        });
        sums.push(sum.unwrap());
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    assert!(step.plan().unwrap().unplanned > 0);
}

/// The bytes of a step of a larger network are known before any run on a real device.
#[test]
fn a_simulated_step_has_the_plan_of_a_real_one() {
    let plan = |device: &Device| {
        let network = Network::new(device);
        let mut step = Traced::new(device);
        for _ in 0..3 {
            step.run(|| network.step()).unwrap();
        }
        step.plan().unwrap()
    };
    let (cpu, sim) =
        (plan(&Device::cpu_with(CpuConfig::default())), plan(&Device::sim(SimConfig::new(1 << 30))));
    assert_eq!(cpu, sim);
}

/// The host frees memory of another stream while its work may still run: it must not be part of this stream's arena.
#[test]
fn work_that_stays_on_another_stream_is_not_overwritten() {
    let device = Device::late(LateConfig::default());
    let network = Network::new(&device);
    let side = Stream::new(&device);
    let mut step = Traced::new(&device);
    let mut sums = Vec::new();
    for _ in 0..5 {
        let sum = step.run(|| {
            no_grad(|| {
                side.wait_stream(&device.current_stream())?;
                let sum = with_stream(&side, || network.x.matmul(&network.weights[0])?.tanh()?.sum())?;
                // Requests of the same sizes on the main stream.
                let y = network.x.matmul(&network.weights[0])?.exp()?;
                device.current_stream().wait_stream(&side)?;
                drop(y);
                sum.item::<f32>()
            })
        });
        sums.push(sum.unwrap());
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    let plan = step.plan().unwrap();
    assert!(plan.planned > 0 && plan.unplanned >= 2, "{plan:?}");
}

#[test]
fn a_captured_graph_keeps_its_own_memory() {
    let device = Device::late(LateConfig::default());
    let network = Network::new(&device);
    let mut step = Traced::new(&device);
    let mut captured = None;
    for run in 0..4 {
        let graph = step.run(|| {
            no_grad(|| {
                network.x.matmul(&network.weights[0])?.gelu()?.sum()?;
                match run {
                    3 => {
                        Graph::capture(&device, None, || network.x.matmul(&network.weights[0])?.gelu()?.sum())
                            .map(Some)
                    }
                    _ => Ok(None),
                }
            })
        });
        captured = graph.unwrap();
    }
    let (mut graph, sum) = captured.unwrap();
    drop(step);
    let expected =
        no_grad(|| network.x.matmul(&network.weights[0])?.gelu()?.sum()).unwrap().item::<f32>().unwrap();
    let others: Vec<Tensor> = (0..20).map(|_| Tensor::zeros(&[33, 96], &device).unwrap()).collect();
    graph.replay().unwrap();
    assert_eq!(sum.item::<f32>().unwrap(), expected);
    assert!(others.iter().all(|it| it.to_vec::<f32>().unwrap().iter().all(|x| *x == 0.0)));
}
