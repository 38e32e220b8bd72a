//! Data-parallel training gives PyTorch's numbers and the gradients of the full batch. The bits do not depend on how gradients
//! are split into buckets or how ranks are connected. Errors name the rank.

use std::thread;

use plimsoll::dist::{Environment, JoinOptions, Launcher, StoreHost, World, store};
use plimsoll::nn::{BatchNorm1d, Linear, Module, Scope, Sequential};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions, clip_grad_norm_};
use plimsoll::parallel::{
    DdpOptions, DistributedDataParallel, FullyShardOptions, FullyShardedDataParallel, fully_shard,
};
use plimsoll::{DType, Device, Error, ProcessGroup, Result, SimConfig, Tensor, members, no_grad};
use serde_json::Value;

/// Runs `f` on each rank of a group of threads.
fn on_ranks<T: Send>(size: usize, f: impl Fn(&ProcessGroup) -> T + Sync) -> Vec<T> {
    let ranks = ProcessGroup::threads(size);
    thread::scope(|scope| {
        let running: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                let f = &f;
                scope.spawn(move || f(&rank))
            })
            .collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

const SIZES: [usize; 3] = [5, 8, 4];
const ROWS: usize = 8;
const STEPS: usize = 4;

/// The formula of `fixtures/make_distributed.py`.
fn formula(seed: usize, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    let value = |i: usize| (((i * 7919 + seed * 104_729) % 10_007) as f64 / 10_007.0 - 0.5) as f32;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_slice(&values, shape, &Device::cpu()).unwrap()
}

struct Net {
    first: Linear,
    second: Linear,
    extra: Linear,
}

impl Module for Net {
    members!(first, second, extra);
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let scope = Scope::new(device, 1);
        let [width_in, width, classes] = SIZES;
        let net = Net {
            first: Linear::new(&scope.at("first"), width_in, width)?,
            second: Linear::new(&scope.at("second"), width, classes)?,
            extra: Linear::new(&scope.at("extra"), width, width)?,
        };
        for (i, parameter) in net.parameters().iter().enumerate() {
            no_grad(|| parameter.copy_(formula(i + 1, parameter.shape())))?;
        }
        Ok(net)
    }

    fn logits(&self, x: &Tensor, extra: bool) -> Result<Tensor> {
        let x = self.first.forward(x)?.tanh()?;
        let x = if extra { self.extra.forward(&x)?.tanh()? } else { x };
        self.second.forward(&x)
    }
}

fn target(seed: usize) -> Tensor {
    let classes: Vec<i64> = (0..ROWS).map(|row| ((row * 3 + seed) % SIZES[2]) as i64).collect();
    Tensor::from_slice(&classes, &[ROWS], &Device::cpu()).unwrap()
}

/// The way in which the ranks of a program work together.
enum Way {
    Ddp(DistributedDataParallel),
    Sharded(FullyShardedDataParallel),
}

/// Runs one of the programs of `make_distributed.py`. Returns its losses, and its parameters at the end.
fn program(group: &ProcessGroup, name: &str, options: DdpOptions) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut net = Net::new(&Device::cpu())?;
    let (is_sharded, name) = (name.starts_with("fsdp_"), name.trim_start_matches("fsdp_"));
    let parameters = net.named_parameters();
    for (name_of, parameter) in &parameters {
        let is_frozen = (name == "frozen" && name_of.starts_with("first"))
            || (name == "plain" && name_of.starts_with("extra"));
        parameter.requires_grad_(!is_frozen)?;
    }
    let unused = name == "unused";
    let (way, trained) = if is_sharded {
        let units = ["first", "second", "extra"].map(str::to_owned).to_vec();
        let options = FullyShardOptions { units, ..FullyShardOptions::default() };
        let sharded = fully_shard(&mut net, group, options)?;
        let rows = sharded.parameters();
        (Way::Sharded(sharded), rows)
    } else {
        let options = DdpOptions { find_unused_parameters: unused, ..options };
        let ddp = DistributedDataParallel::new(&net, group, options)?;
        (Way::Ddp(ddp), net.parameters().into_iter().filter(Tensor::requires_grad).collect())
    };
    let mut adamw =
        AdamW::new(trained.clone(), AdamWOptions { lr: 0.01, weight_decay: 0.1, ..AdamWOptions::default() });
    let always = ["clipped", "accumulated", "frozen"].contains(&name);
    let loss_of = |step: usize, micro: usize| {
        let seed = 100 + (step * 4 + micro) * group.size() + group.rank();
        let extra = always || (unused && (step + group.rank()).is_multiple_of(2) && step != 1);
        net.logits(&formula(seed, &[ROWS, SIZES[0]]), extra)?.cross_entropy(target(seed))
    };
    let mut losses = Vec::new();
    for step in 0..STEPS {
        adamw.zero_grad();
        let loss = if name == "accumulated" {
            let first = || loss_of(step, 1)?.mul_scalar(0.5)?.backward();
            match &way {
                Way::Ddp(ddp) => ddp.no_sync(first)?,
                Way::Sharded(sharded) => {
                    sharded.set_requires_gradient_sync(false);
                    first()?;
                    sharded.set_requires_gradient_sync(true);
                }
            }
            let loss = loss_of(step, 0)?;
            loss.mul_scalar(0.5)?.backward()?;
            loss
        } else {
            let loss = loss_of(step, 0)?;
            loss.backward()?;
            loss
        };
        if name == "clipped" {
            match &way {
                Way::Ddp(_) => clip_grad_norm_(&trained, 0.05, 2.0)?,
                Way::Sharded(sharded) => sharded.clip_grad_norm_(0.05)?,
            };
        }
        adamw.step()?;
        losses.push(loss.to_dtype(DType::F64)?.item::<f64>()?);
    }
    let mut values = Vec::new();
    for parameter in net.parameters() {
        values.extend(parameter.to_dtype(DType::F64)?.to_vec::<f64>()?);
    }
    Ok((losses, values))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// The largest absolute difference between elements of two lists.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn losses_and_parameters_are_those_of_pytorchs_ddp_and_fsdp2() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/distributed.json"))
            .unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    const PROGRAMS: [&str; 8] = [
        "plain",
        "clipped",
        "accumulated",
        "frozen",
        "unused",
        "fsdp_clipped",
        "fsdp_accumulated",
        "fsdp_frozen",
    ];
    for (size, name) in [2, 4].into_iter().flat_map(|size| PROGRAMS.map(|name| (size, name))) {
        let of = |dtype: &str| &recorded[size.to_string()][name][dtype];
        let (short, long) = (of("float32"), of("float64"));
        let ours = on_ranks(size, |group| program(group, name, DdpOptions::default()).unwrap());
        for (rank, (losses, parameters)) in ours.iter().enumerate() {
            let what = format!("{name} on rank {rank} of {size}");
            let (theirs, exact) = (numbers(&short["losses"][rank]), numbers(&long["losses"][rank]));
            // The tolerance is four times the rounding error of PyTorch's own numbers, but at least four units in the last place
            // of a loss near 2.
            let allowed = 4.0 * apart(&theirs, &exact).max(1.2e-7);
            assert!(apart(losses, &exact) <= allowed, "{what}: losses {losses:?} for {exact:?}");
            let (theirs, exact) = (numbers(&short["parameters"]), numbers(&long["parameters"]));
            let allowed = 4.0 * apart(&theirs, &exact);
            let found = apart(parameters, &exact);
            assert!(
                found <= allowed,
                "{what}: parameters differ by {found}, PyTorch's own by {}",
                allowed / 4.0
            );
            assert_eq!(parameters, &ours[0].1, "{what}: not rank 0's");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_sizes_of_buckets() {
    let run = |bytes: u64| {
        let options =
            DdpOptions { bucket_cap_bytes: bytes, first_bucket_bytes: bytes, ..DdpOptions::default() };
        on_ranks(3, |group| program(group, "clipped", options).unwrap())
    };
    let whole = run(1 << 20);
    for bytes in [1, 100, 300] {
        assert_eq!(run(bytes), whole, "buckets of {bytes} bytes");
    }
}

#[test]
fn gradients_lie_in_buckets_in_the_order_in_which_they_come() {
    let buckets = on_ranks(2, |group| {
        let net = Net::new(&Device::cpu()).unwrap();
        let options = DdpOptions { bucket_cap_bytes: 300, first_bucket_bytes: 100, ..DdpOptions::default() };
        let ddp = DistributedDataParallel::new(&net, group, options).unwrap();
        net.logits(&formula(1, &[ROWS, 5]), true).unwrap().sum().unwrap().backward().unwrap();
        let grads: Vec<Tensor> = net.parameters().iter().map(|parameter| parameter.grad().unwrap()).collect();
        let label = grads[0].label();
        (ddp.buckets(), label, grads.iter().filter(|grad| grad.storage_bytes() >= 300).count())
    });
    for (buckets, label, shared) in buckets {
        let names: Vec<Vec<&str>> =
            buckets.iter().map(|bucket| bucket.parameters.iter().map(String::as_str).collect()).collect();
        assert_eq!(names.concat().len(), 6);
        assert!(names[0].iter().all(|name| name.starts_with("second")), "{names:?}");
        assert!(names.last().unwrap().iter().all(|name| name.starts_with("first")), "{names:?}");
        assert!(label.starts_with("bucket ") && shared > 0, "{label}");
    }
}

/// Trains a model with batch normalization, which has buffers, on one rank's rows of a batch.
fn normalized(group: &ProcessGroup, rows: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let device = Device::cpu();
    let model = Sequential::new(&Scope::new(&device, 5 + group.rank() as u64)) // different initial values on each rank
        .add("fc", |s| Linear::new(s, 5, 6))?
        .add("norm", |s| BatchNorm1d::new(s, 6))?
        .add("out", |s| Linear::new(s, 6, 1))?;
    let _ddp = DistributedDataParallel::new(&model, group, DdpOptions::default())?;
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() });
    for step in 0..3 {
        sgd.zero_grad();
        let x = formula(step * 10 + group.rank(), &[rows, 5]);
        model.forward(&x)?.square()?.mean()?.backward()?;
        sgd.step()?;
    }
    let all = |tensors: Vec<(String, Tensor)>| -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for (_, tensor) in tensors.iter().filter(|(_, tensor)| tensor.dtype() == DType::F32) {
            values.extend(tensor.to_vec::<f32>()?);
        }
        Ok(values)
    };
    Ok((all(model.named_parameters())?, all(model.named_buffers())?))
}

#[test]
fn start_values_and_buffers_are_those_of_rank_0() {
    let ranks = on_ranks(3, |group| normalized(group, 4).unwrap());
    assert!(ranks.iter().all(|rank| *rank == ranks[0]));
}

/// Trains on this rank's rows. The batches are the same for any number of ranks.
fn share(group: &ProcessGroup) -> Result<(Vec<f32>, Vec<f32>)> {
    const BATCH: usize = 12;
    let net = Net::new(&Device::cpu())?;
    let _ddp = DistributedDataParallel::new(&net, group, DdpOptions::default())?;
    let mut sgd = Sgd::new(net.parameters(), SgdOptions { lr: 0.5, ..SgdOptions::default() });
    let rows = BATCH / group.size();
    let mut losses = Vec::new();
    for step in 0..10 {
        let x = formula(step, &[BATCH, 5]).narrow(0, group.rank() * rows, rows)?;
        let y: Vec<i64> = (0..rows).map(|row| ((group.rank() * rows + row) % SIZES[2]) as i64).collect();
        sgd.zero_grad();
        let loss = net.logits(&x, true)?.cross_entropy(&Tensor::from_slice(&y, &[rows], &Device::cpu())?)?;
        loss.backward()?;
        sgd.step()?;
        let all = group.all_gather_bytes(&loss.item::<f32>()?.to_le_bytes(), "loss")?;
        let sum: f32 =
            all.iter().map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).sum();
        losses.push(sum / group.size() as f32);
    }
    let mut values = Vec::new();
    for parameter in net.parameters() {
        values.extend(parameter.to_vec::<f32>()?);
    }
    Ok((losses, values))
}

#[test]
fn several_ranks_are_one_on_the_whole_batch() {
    let one = on_ranks(1, |group| share(group).unwrap()).remove(0);
    for size in [2, 3, 4] {
        for (losses, values) in on_ranks(size, |group| share(group).unwrap()) {
            let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-6);
            assert!(
                near(&losses, &one.0) && near(&values, &one.1),
                "{size} ranks: {losses:?} for {:?}",
                one.0
            );
        }
    }
    assert!(one.0[9] < one.0[0]);
}

#[test]
fn sockets_have_the_bits_of_threads() {
    let server = store::Server::bind("127.0.0.1:0").unwrap();
    let join = |rank| {
        let environment = Environment {
            launcher: Launcher::Env,
            rank,
            size: 2,
            local_rank: rank,
            local_size: 2,
            address: "127.0.0.1".to_owned(),
            port: server.address().port(),
            store_host: StoreHost::Launcher,
            run: "/test/".to_owned(),
        };
        World::join(Some(environment), JoinOptions::default()).unwrap()
    };
    let over_sockets = thread::scope(|scope| {
        let running = [0, 1].map(|rank| {
            let join = &join;
            scope.spawn(move || share(join(rank).group()).unwrap())
        });
        running.map(|rank| rank.join().unwrap())
    });
    assert_eq!(over_sockets.to_vec(), on_ranks(2, |group| share(group).unwrap()));
}

#[test]
fn a_simulated_rank_has_the_bytes_of_a_real_one() {
    let peaks = |group: &ProcessGroup, device: &Device| -> Result<(u64, u64)> {
        let model = Sequential::new(&Scope::new(device, 1))
            .add("a", |s| Linear::new(s, 300, 700))?
            .add("b", |s| Linear::new(s, 700, 90))?;
        let options =
            DdpOptions { first_bucket_bytes: 1 << 12, bucket_cap_bytes: 1 << 18, ..DdpOptions::default() };
        let _ddp = DistributedDataParallel::new(&model, group, options)?;
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
        for _ in 0..3 {
            sgd.zero_grad();
            model.forward(&Tensor::ones(&[16, 300], device)?)?.sum()?.backward()?;
            sgd.step()?;
        }
        Ok((device.max_memory_allocated(), device.max_memory_reserved()))
    };
    let real = on_ranks(4, |group| peaks(group, &Device::cpu_with(Default::default())).unwrap());
    for (rank, real) in real.iter().enumerate() {
        let device = Device::sim(SimConfig::new(1 << 30));
        assert_eq!(peaks(&ProcessGroup::simulated(rank, 4), &device).unwrap(), *real, "rank {rank}");
    }
}

#[test]
fn models_and_passes_that_differ_are_errors_that_name_a_rank() {
    let text = |result: Result<()>| result.unwrap_err().to_string();
    let wider = on_ranks(2, |group| {
        let model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2 + group.rank()).unwrap();
        text(DistributedDataParallel::new(&model, group, DdpOptions::default()).map(drop))
    });
    assert!(wider[0].contains("rank 1 has a different model from this rank"), "{}", wider[0]);
    assert!(wider[1].contains("rank 0 has a different model"), "{}", wider[1]);

    let frozen = on_ranks(1, |group| {
        let model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2).unwrap();
        model.requires_grad_(false).unwrap();
        text(DistributedDataParallel::new(&model, group, DdpOptions::default()).map(drop))
    });
    assert!(frozen[0].contains("no parameter of the model requires a gradient"), "{}", frozen[0]);

    // Rank 1 uses another part of the model.
    let ways = on_ranks(2, |group| {
        let net = Net::new(&Device::cpu()).unwrap();
        let _ddp = DistributedDataParallel::new(&net, group, DdpOptions::default()).unwrap();
        let loss = net.logits(&formula(1, &[ROWS, 5]), group.rank() == 1).unwrap();
        text(loss.sum().unwrap().backward())
    });
    assert!(
        ways[0].contains("rank 1 has gradients for different parameters")
            && ways[0].contains("without a gradient here: extra.weight, extra.bias"),
        "{}",
        ways[0]
    );

    // The second pass uses another part of the model than the first. A failed pass must leave no state behind.
    let passes = on_ranks(2, |group| {
        let net = Net::new(&Device::cpu()).unwrap();
        let _ddp = DistributedDataParallel::new(&net, group, DdpOptions::default()).unwrap();
        let pass = |extra| {
            net.zero_grad();
            net.logits(&formula(1, &[ROWS, 5]), extra)?.sum()?.backward()
        };
        pass(true).unwrap();
        let error = text(pass(false));
        pass(true).unwrap();
        error
    });
    for error in passes {
        assert!(error.contains("no gradient in this backward pass for extra.weight, extra.bias"), "{error}");
    }
}

#[test]
fn a_lost_rank_ends_the_backward_pass_with_its_number() {
    let errors = on_ranks(3, |group| {
        let net = Net::new(&Device::cpu()).unwrap();
        let _ddp = DistributedDataParallel::new(&net, group, DdpOptions::default()).unwrap();
        if group.rank() == 1 {
            return None; // drops its group
        }
        Some(net.logits(&formula(1, &[ROWS, 5]), true).unwrap().sum().unwrap().backward().unwrap_err())
    });
    for error in errors.iter().flatten() {
        assert!(
            error.distributed().is_some_and(|why| why.to_string().starts_with("rank 1 is gone")),
            "{error}"
        );
        assert!(!matches!(error, Error::Argument { .. }));
    }
    assert_eq!(errors.iter().flatten().count(), 2);
}
