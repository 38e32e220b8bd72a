//! Sharded training has the bits of data-parallel training, whatever is sharded. Each rank has its part of the memory, to the byte
//! on simulated ranks too. A run is resumed with any number of ranks.

use std::thread;

use plimsoll::amp::{GradScaler, GradScalerState};
use plimsoll::label::Category;
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{BatchNorm1d, Linear, Module, Scope, Sequential};
use plimsoll::optim::{
    AdamW, AdamWOptions, Muon, MuonOptions, Optimizer, Sgd, SgdOptions, clip_grad_norm_, step_in_backward,
};
use plimsoll::parallel::{
    DdpOptions, DistributedDataParallel, FullyShardOptions, FullyShardedDataParallel, Shard, fully_shard,
};
use plimsoll::serialize::{Checkpoint, Strict};
use plimsoll::{DType, Device, Error, ProcessGroup, Result, SimConfig, State, Tensor, members, no_grad};

const SHARDED: [Shard; 3] = [Shard::OptimizerState, Shard::Gradients, Shard::Parameters];

/// Runs `f` on each rank of a group of threads.
fn on_ranks<T: Send>(size: usize, f: impl Fn(&ProcessGroup) -> T + Sync) -> Vec<T> {
    let ranks = ProcessGroup::threads(size);
    thread::scope(|scope| {
        let f = &f;
        let running: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || f(&rank))).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn options(shard: Shard) -> FullyShardOptions {
    FullyShardOptions { shard, ..FullyShardOptions::default() }
}

/// A GPT-2 whose matrices are large enough to be cut. Its output layer is tied to its embedding.
fn config() -> Gpt2Config {
    Gpt2Config {
        vocab_size: 200,
        n_positions: 16,
        n_embd: 128,
        n_layer: 3,
        n_head: 4,
        dropout: 0.0,
        ..Gpt2Config::small()
    }
}

/// What a training does besides plain steps.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    accumulates: bool,
    clips: bool,
    freezes: bool,
    is_bfloat16: bool,
    is_checkpointed: bool,
    drops: bool,
}

/// How a training shares its work.
enum Way {
    Ddp(DistributedDataParallel),
    Sharded(FullyShardedDataParallel),
}

/// A training of 4 ranks or fewer on the CPU. `None` is data parallel.
struct Training {
    device: Device,
    model: Gpt2,
    way: Way,
    adamw: AdamW,
    case: Case,
}

impl Training {
    fn new(group: &ProcessGroup, shard: Option<Shard>, case: Case, seed: u64) -> Result<Training> {
        let device = Device::cpu_with(Default::default());
        device.manual_seed(100 + group.rank() as u64);
        let config = Gpt2Config {
            gradient_checkpointing: case.is_checkpointed,
            dropout: if case.drops { 0.1 } else { 0.0 },
            recompute_mlp: if case.is_checkpointed { 0 } else { 1 },
            ..config()
        };
        let mut model = Gpt2::new(&Scope::new(&device, seed), config)?;
        if case.is_bfloat16 {
            model.bfloat16()?;
        }
        for (name, parameter) in model.named_parameters() {
            let is_frozen = case.freezes && (name.contains("h.1.") || name.contains("wpe"));
            parameter.requires_grad_(!is_frozen)?;
        }
        let (way, parameters) = match shard {
            None => {
                let ddp = DistributedDataParallel::new(&model, group, DdpOptions::default())?;
                (Way::Ddp(ddp), model.parameters())
            }
            Some(shard) => {
                let sharded = fully_shard(&mut model, group, options(shard))?;
                let rows = sharded.parameters();
                (Way::Sharded(sharded), rows)
            }
        };
        let mut adamw = AdamW::new(parameters, AdamWOptions { lr: 0.01, ..AdamWOptions::default() });
        if case.is_bfloat16 {
            adamw = adamw.with_master_weights();
        }
        Ok(Training { device, model, way, adamw, case })
    }

    fn loss(&self, group: &ProcessGroup, seed: usize) -> Result<Tensor> {
        let token = |i: usize| ((i * 31 + seed * 17 + group.rank() * 7) % 200) as i64;
        let tokens: Vec<i64> = (0..2 * 17).map(token).collect();
        let all = Tensor::from_slice(&tokens, &[2, 17], &self.device)?;
        self.model.loss(&all.narrow(1, 0, 16)?, &all.narrow(1, 1, 16)?)
    }

    fn step(&mut self, group: &ProcessGroup, step: usize) -> Result<u32> {
        self.adamw.zero_grad();
        if self.case.accumulates {
            let first = || self.loss(group, 1000 + step)?.mul_scalar(0.5)?.backward();
            match &self.way {
                Way::Ddp(ddp) => ddp.no_sync(first)?,
                Way::Sharded(sharded) => {
                    sharded.set_requires_gradient_sync(false);
                    first()?;
                    sharded.set_requires_gradient_sync(true);
                }
            }
        }
        let loss = self.loss(group, step)?;
        loss.backward()?;
        if self.case.clips {
            let norm = match &self.way {
                Way::Ddp(ddp) => ddp.clip_grad_norm_(0.1)?,
                Way::Sharded(sharded) => sharded.clip_grad_norm_(0.1)?,
            };
            assert!(norm.unwrap().item::<f32>()? > 0.1);
        }
        self.adamw.step()?;
        Ok(loss.to_dtype(DType::F32)?.item::<f32>()?.to_bits())
    }

    /// All whole parameters.
    fn values(&self) -> Result<Vec<Vec<u8>>> {
        self.model.parameters().iter().map(|parameter| parameter.to_bytes()).collect()
    }
}

/// Losses and parameters of a few steps.
fn train(group: &ProcessGroup, shard: Option<Shard>, case: Case) -> (Vec<u32>, Vec<Vec<u8>>) {
    let run = || {
        let mut training = Training::new(group, shard, case, 1)?;
        let losses = (0..3).map(|step| training.step(group, step)).collect::<Result<_>>()?;
        Ok::<_, Error>((losses, training.values()?))
    };
    run().unwrap()
}

fn all_are_equal(case: Case, sizes: &[usize]) {
    for &size in sizes {
        let ddp = on_ranks(size, |group| train(group, None, case));
        for shard in [Shard::Nothing].into_iter().chain(SHARDED) {
            let found = on_ranks(size, |group| train(group, Some(shard), case));
            for rank in 0..size {
                assert_eq!(found[rank].0, ddp[rank].0, "losses of {case:?}, {shard:?}, rank {rank} of {size}");
                assert!(found[rank].1 == ddp[0].1, "parameters of {case:?}, {shard:?}, rank {rank} of {size}");
            }
        }
    }
}

#[test]
fn all_ways_to_shard_have_the_bits_of_data_parallel_training() {
    all_are_equal(Case::default(), &[1, 2, 3, 4]);
    all_are_equal(Case { accumulates: true, clips: true, ..Case::default() }, &[2, 4]);
    all_are_equal(Case { freezes: true, drops: true, clips: true, ..Case::default() }, &[2]);
    all_are_equal(Case { is_bfloat16: true, clips: true, ..Case::default() }, &[4]);
    all_are_equal(Case { is_checkpointed: true, drops: true, ..Case::default() }, &[2]);
}

#[test]
fn gradients_that_accumulate_with_an_exchange_each_time_add_up() {
    let found = on_ranks(2, |group| {
        let run = |passes: usize| -> Result<Vec<f32>> {
            let training = Training::new(group, Some(Shard::Parameters), Case::default(), 1)?;
            for _ in 0..passes {
                training.loss(group, 1)?.backward()?;
            }
            let Way::Sharded(sharded) = &training.way else { unreachable!() };
            let grads = sharded.parameters().into_iter().filter_map(|rows| rows.grad());
            let values: Result<Vec<Vec<f32>>> = grads.map(|grad| grad.to_vec::<f32>()).collect();
            Ok(values?.concat())
        };
        (run(1).unwrap(), run(2).unwrap())
    });
    for (once, twice) in found {
        assert!(once.iter().any(|grad| *grad != 0.0));
        assert!(once.iter().zip(&twice).all(|(once, twice)| 2.0 * once == *twice));
    }
}

#[test]
fn units_are_gathered_when_they_are_touched() {
    on_ranks(2, |group| {
        let training = Training::new(group, Some(Shard::Parameters), Case::default(), 1).unwrap();
        let Way::Sharded(sharded) = &training.way else { unreachable!() };
        let names: Vec<String> = sharded.units().into_iter().map(|unit| unit.name).collect();
        assert_eq!(names, ["root", "transformer.h.0", "transformer.h.1", "transformer.h.2"]);
        assert!(training.model.parameters().iter().all(|parameter| parameter.state() == State::Lent));
        let before = group.traffic().collectives;
        let loss = training.loss(group, 1).unwrap();
        // The root stays in its slot. Each block is gathered once, and the last two are still there.
        assert_eq!((sharded.gathered().0, group.traffic().collectives - before), (4, 4));
        let there = |at: usize| {
            let (_, weight) = training
                .model
                .named_parameters()
                .into_iter()
                .find(|(name, _)| name.contains(&format!("h.{at}.mlp.c_fc.weight")))
                .unwrap();
            weight.state()
        };
        assert_eq!([0, 1, 2].map(there), [State::Lent, State::Resident, State::Resident]);
        loss.backward().unwrap();
        assert_eq!(sharded.gathered().0, 5);
        assert!(training.model.parameters().iter().all(|parameter| parameter.grad().is_none()));
        sharded.reshard();
        assert_eq!([0, 1, 2].map(there), [State::Lent; 3]);
    });
}

#[test]
fn rows_are_the_whole_parameters_cut_between_rows() {
    let size = 3;
    let whole = on_ranks(1, |group| {
        let training = Training::new(group, None, Case::default(), 1).unwrap();
        training.model.named_parameters().iter().map(|(_, it)| it.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    })
    .remove(0);
    let ranks = on_ranks(size, |group| {
        let training = Training::new(group, Some(Shard::Parameters), Case::default(), 1).unwrap();
        let Way::Sharded(sharded) = &training.way else { unreachable!() };
        let rows = sharded.named_parameters().iter().map(|it| {
            assert_eq!(it.rows.shape()[1..], it.full_shape[1..]);
            (it.name.clone(), it.offset, it.rows.to_vec::<f32>().unwrap())
        });
        rows.collect::<Vec<_>>()
    });
    let mut cut = 0;
    for (i, whole) in whole.iter().enumerate() {
        let parts: Vec<&(String, usize, Vec<f32>)> =
            ranks.iter().map(|rank| &rank[i]).filter(|(.., rows)| !rows.is_empty()).collect();
        assert_eq!(parts.iter().flat_map(|(.., rows)| rows.clone()).collect::<Vec<f32>>(), *whole);
        cut += usize::from(parts.len() > 1);
    }
    assert!(cut >= 3, "{cut} parameters were cut");
}

/// The peaks of three steps, and the bytes between them.
fn peaks(group: &ProcessGroup, device: &Device, shard: Shard) -> Result<[u64; 3]> {
    let mut model = Gpt2::new(&Scope::new(device, 1), config())?;
    let sharded = fully_shard(&mut model, group, options(shard))?;
    let mut adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
    device.reset_peak_memory_stats();
    for _ in 0..3 {
        adamw.zero_grad();
        let tokens = Tensor::from_slice(&[7i64; 32], &[2, 16], device)?;
        model.loss(&tokens, &tokens)?.backward()?;
        adamw.step()?;
    }
    adamw.zero_grad();
    Ok([device.max_memory_allocated(), device.max_memory_reserved(), device.memory_allocated()])
}

#[test]
fn a_simulated_rank_has_the_bytes_of_a_real_one() {
    for shard in [Shard::Nothing].into_iter().chain(SHARDED) {
        let real =
            on_ranks(4, |group| peaks(group, &Device::cpu_with(Default::default()), shard).unwrap());
        for (rank, peak) in real.iter().enumerate() {
            assert_eq!(peak, &real[0], "{shard:?}: rank {rank} has other peaks than rank 0");
            let device = Device::sim(SimConfig::new(1 << 30));
            let simulated = peaks(&ProcessGroup::simulated(rank, 4), &device, shard).unwrap();
            assert_eq!(simulated, *peak, "{shard:?}, rank {rank}");
        }
    }
}

#[test]
fn a_rank_of_many_has_its_part_of_the_memory() {
    let bytes = |ranks: usize, shard: Shard| {
        let device = Device::sim(SimConfig::new(8 << 30));
        let mut model = Gpt2::new(&Scope::new(&device, 1), Gpt2Config::small()).unwrap();
        let group = ProcessGroup::simulated(0, ranks);
        let sharded = fully_shard(&mut model, &group, options(shard)).unwrap();
        let mut adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
        let start = device.memory_allocated();
        let tokens = Tensor::from_slice(&[7i64; 64], &[1, 64], &device).unwrap();
        model.loss(&tokens, &tokens).unwrap().backward().unwrap();
        adamw.step().unwrap();
        adamw.zero_grad();
        let units = sharded.units();
        let whole: u64 = units.iter().map(|unit| unit.bytes).sum();
        (start, device.memory_allocated() - start, sharded.gathered().1, whole)
    };
    let parameters = 124_439_808 * 4;
    for (ranks, most_padding) in [(1, 0.0001), (8, 0.01), (64, 0.02), (1024, 0.2)] {
        let (start, added, slots, whole) = bytes(ranks, Shard::Parameters);
        let padding = (whole - parameters) as f64 / parameters as f64;
        assert!(padding < most_padding, "{padding} of padding on {ranks} ranks");
        // Rows, and slots for two blocks and the root.
        let buffers = 12 << 20; // room for the masks of attention and the tables of this model
        assert!(start >= whole / ranks as u64 + slots && start <= whole / ranks as u64 + slots + buffers);
        // Two moments of the rows, and a slot of gradients for the blocks and one for the root, which are kept.
        assert!(added >= 2 * whole / ranks as u64 && added <= 2 * whole / ranks as u64 + slots + (8 << 20));
    }
    let (start, .., whole) = bytes(64, Shard::OptimizerState);
    assert!(start >= whole && start < whole + (12 << 20));
}

struct Net {
    first: Linear,
    extra: Linear,
    second: Linear,
}

impl Module for Net {
    members!(first, extra, second);
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let scope = Scope::new(device, 1);
        Ok(Net {
            first: Linear::new(&scope.at("first"), 128, 256)?,
            extra: Linear::new(&scope.at("extra"), 256, 256)?,
            second: Linear::new(&scope.at("second"), 256, 4)?,
        })
    }

    fn loss(&self, group: &ProcessGroup, with_extra: bool) -> Result<Tensor> {
        let x = Tensor::full(&[4, 128], 0.1 * (1 + group.rank()) as f64, DType::F32, self.first.weight().device())?;
        let x = self.first.forward(&x)?.tanh()?;
        let x = if with_extra { self.extra.forward(&x)?.tanh()? } else { x };
        self.second.forward(&x)?.square()?.mean()
    }
}

#[test]
fn a_parameter_that_no_rank_uses_keeps_no_gradient() {
    let run = |group: &ProcessGroup, shard: Shard| -> Result<Vec<Vec<u8>>> {
        let mut net = Net::new(&Device::cpu())?;
        let sharded = fully_shard(&mut net, group, options(shard))?;
        let decay = AdamWOptions { lr: 0.01, weight_decay: 0.5, ..AdamWOptions::default() };
        let mut adamw = AdamW::new(sharded.parameters(), decay);
        for _ in 0..2 {
            adamw.zero_grad();
            net.loss(group, false)?.backward()?;
            adamw.step()?;
        }
        net.parameters().iter().map(|parameter| parameter.to_bytes()).collect()
    };
    let expected = on_ranks(2, |group| run(group, Shard::Nothing).unwrap());
    for shard in SHARDED {
        assert!(on_ranks(2, |group| run(group, shard).unwrap()) == expected, "{shard:?}");
    }
}

#[test]
fn ranks_that_use_other_parameters_are_told_so() {
    let errors = on_ranks(2, |group| {
        let mut net = Net::new(&Device::cpu()).unwrap();
        let _sharded = fully_shard(&mut net, group, options(Shard::OptimizerState)).unwrap();
        // All are read, so that the same units are gathered; rank 1 has no gradient for one.
        let loss = net.loss(group, true).unwrap();
        let other = net.loss(group, group.rank() == 0).unwrap();
        drop(loss);
        other.backward().unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 has gradients of other parameters than this rank"), "{}", errors[0]);
    assert!(errors[1].contains("without a gradient here: extra.weight, extra.bias"), "{}", errors[1]);
}

#[test]
fn buffers_are_rank_0s() {
    let run = |group: &ProcessGroup, shard: Shard| -> Result<Vec<Vec<u8>>> {
        let device = Device::cpu();
        let mut model = Sequential::new(&Scope::new(&device, 1 + group.rank() as u64))
            .add("0", |s| Linear::new(s, 128, 256))?
            .add("norm", |s| BatchNorm1d::new(s, 256))?;
        let sharded = fully_shard(&mut model, group, options(shard))?;
        let mut sgd = Sgd::new(sharded.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
        device.manual_seed(group.rank() as u64);
        for _ in 0..2 {
            sgd.zero_grad();
            model.forward(&Tensor::randn(&[4, 128], &device)?)?.square()?.mean()?.backward()?;
            sgd.step()?;
        }
        let tensors = model.named_parameters().into_iter().chain(model.named_buffers());
        tensors.map(|(_, tensor)| tensor.to_bytes()).collect()
    };
    let expected = on_ranks(3, |group| run(group, Shard::Nothing).unwrap());
    assert!(expected[1] == expected[0] && expected[2] == expected[0]);
    for shard in SHARDED {
        assert!(on_ranks(3, |group| run(group, shard).unwrap()) == expected, "{shard:?}");
    }
}

#[test]
fn a_run_is_resumed_however_it_was_sharded_and_is_now() {
    let folder = std::env::temp_dir().join(format!("plimsoll-sharded-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let expected = on_ranks(2, |group| {
        let mut training = Training::new(group, None, Case::default(), 1).unwrap();
        (0..4).for_each(|step| drop(training.step(group, step).unwrap()));
        training.values().unwrap()
    });
    for saved_by in [Shard::Nothing, Shard::OptimizerState, Shard::Parameters] {
        let path = folder.join("checkpoint.safetensors");
        on_ranks(2, |group| {
            let mut training = Training::new(group, Some(saved_by), Case::default(), 1).unwrap();
            (0..2).for_each(|step| drop(training.step(group, step).unwrap()));
            let Way::Sharded(sharded) = &training.way else { unreachable!() };
            let model = sharded.state_dict(&training.model).unwrap();
            let adamw = sharded.optimizer_state_dict(&training.adamw).unwrap();
            if group.rank() == 0 {
                Checkpoint::default().model_state(&model).optimizer_state(adamw).save(&path).unwrap();
            }
        });
        for loaded_by in [Shard::Nothing, Shard::Gradients, Shard::Parameters] {
            for size in [2, 3] {
                let found = on_ranks(size, |group| {
                    let mut training = Training::new(group, Some(loaded_by), Case::default(), 9).unwrap();
                    let file = Checkpoint::open(&path).unwrap();
                    let Way::Sharded(sharded) = &training.way else { unreachable!() };
                    sharded.load_state_dict(&training.model, &file.model_source(), Strict::Yes).unwrap();
                    let state = file.read_optimizer_state(&training.device).unwrap();
                    sharded.load_optimizer_state_dict(&mut training.adamw, &state).unwrap();
                    (2..4).for_each(|step| drop(training.step(group, step).unwrap()));
                    training.values().unwrap()
                });
                let (saved, loaded) = (saved_by, loaded_by);
                if size == 2 {
                    assert!(found == expected, "saved by {saved:?}, resumed by {loaded:?}");
                } else {
                    assert!(found[1] == found[0] && found[2] == found[0], "{saved:?}, {loaded:?}");
                }
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_sharding_cannot_do_is_refused_by_name() {
    let text = |result: Result<()>| result.unwrap_err().to_string();
    let mut net = Net::new(&Device::cpu()).unwrap();
    let before = net.parameters();
    let group = ProcessGroup::threads(1).remove(0);
    let sharded = fully_shard(&mut net, &group, FullyShardOptions::default()).unwrap();
    let whole = net.parameters();
    net.loss(&group, true).unwrap().backward().unwrap();

    let step = |parameters: Vec<Tensor>| text(Sgd::new(parameters, SgdOptions::default()).step());
    assert_eq!(
        step(whole.clone()),
        "sgd: the whole parameters of root are sharded, and get no gradients: make the optimizer from \
         `FullyShardedDataParallel::parameters`"
    );
    assert!(step(before).contains("has another tensor since this optimizer was made"));
    let muon = Muon::new(vec![sharded.parameters().remove(0)], MuonOptions::default()).step();
    assert!(text(muon).starts_with("muon: root is sharded, and this optimizer needs complete matrices"));
    let in_backward = step_in_backward(&sharded.parameters(), SgdOptions::default()).map(drop);
    assert!(text(in_backward).contains("cannot be stepped in the backward pass"));
    let clipped = clip_grad_norm_(&sharded.parameters(), 1.0, 2.0).map(drop);
    assert!(text(clipped).contains("call `FullyShardedDataParallel::clip_grad_norm_`"));
    let sgd = Sgd::new(sharded.parameters(), SgdOptions::default());
    let unscaled = GradScaler::new(GradScalerState::default()).unscale_(&sgd);
    assert!(text(unscaled).contains("train a sharded model in bfloat16"));

    for written in [no_grad(|| whole[0].fill_(0.0)), no_grad(|| plimsoll::into_out(&whole[0].detach(), || whole[0].neg()))] {
        assert!(text(written).contains("a whole parameter of a sharded model is only read"));
    }
    assert!(text(whole[0].offload()).contains("has no memory of its own"));
    assert!(text(whole[0].pin().map(drop)).contains("has no memory of its own"));
    let other = Device::sim(SimConfig::new(1 << 20));
    assert!(text(net.to(&other)).contains("move and convert a model before `fully_shard`"));
    assert!(text(net.bfloat16()).contains("move and convert a model before `fully_shard`"));
    let again = fully_shard(&mut net, &group, FullyShardOptions::default()).map(drop);
    assert_eq!(text(again), "fully_shard: first.weight is sharded already");
    let ddp = DistributedDataParallel::new(&net, &group, DdpOptions::default()).map(drop);
    assert!(text(ddp).contains("first.weight is sharded already"));
    drop(sharded);
    let dropped = net.loss(&group, true).map(drop);
    assert!(text(dropped).contains("was dropped: keep it as long as the model"));
}

#[test]
fn a_backward_pass_after_a_step_notices_that_parameters_have_changed() {
    for shard in SHARDED {
        let mut net = Net::new(&Device::cpu()).unwrap();
        let group = ProcessGroup::threads(1).remove(0);
        let sharded = fully_shard(&mut net, &group, options(shard)).unwrap();
        let mut sgd = Sgd::new(sharded.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
        let loss = net.loss(&group, true).unwrap();
        net.loss(&group, true).unwrap().backward().unwrap();
        sgd.step().unwrap();
        let error = loss.backward().unwrap_err();
        assert!(matches!(error, Error::SavedModified { .. }), "{shard:?}: {error}");
        // A step also counts for an evaluation between the backward pass and the step.
        net.loss(&group, true).unwrap().backward().unwrap();
        let old = no_grad(|| net.loss(&group, true)).unwrap().item::<f32>().unwrap();
        sgd.step().unwrap();
        assert!(no_grad(|| net.loss(&group, true)).unwrap().item::<f32>().unwrap() < old, "{shard:?}");
    }
}

#[test]
fn a_lost_rank_ends_the_forward_pass_with_its_number() {
    let errors = on_ranks(3, |group| {
        let mut net = Net::new(&Device::cpu()).unwrap();
        let _sharded = fully_shard(&mut net, group, FullyShardOptions::default()).unwrap();
        if group.rank() == 1 {
            return None; // drops its group
        }
        Some(net.loss(group, true).unwrap_err())
    });
    for error in errors.iter().flatten() {
        let lost = error.distributed().is_some_and(|why| why.to_string().starts_with("rank 1 is gone"));
        assert!(lost, "{error}");
    }
    assert_eq!(errors.iter().flatten().count(), 2);
}

#[test]
fn an_operation_on_two_units_gathers_both_in_one_order() {
    let found = on_ranks(4, |group| {
        let device = Device::cpu();
        let scope = Scope::new(&device, 1);
        let mut list = plimsoll::nn::ModuleList::new(&scope.at("h"), 4, |s| Linear::new(s, 128, 256)).unwrap();
        // Allocations that differ between ranks, so that the order of ids does, too.
        let noise: Vec<Vec<u8>> = (0..group.rank() * 5).map(|i| vec![0u8; 64 + i * 40]).collect();
        let sharded = fully_shard(&mut list, group, FullyShardOptions::default()).unwrap();
        let mut sums = Vec::new();
        for (a, b) in [(0, 1), (2, 3), (3, 0), (1, 2), (2, 0), (3, 1)] {
            let sum = list[a].weight().add(list[b].weight()).unwrap().sum().unwrap();
            sums.push(sum.item::<f32>().unwrap().to_bits());
        }
        drop(noise);
        (sums, sharded.gathered().0)
    });
    assert!(found.iter().all(|rank| *rank == found[0]));
}

#[test]
fn whole_parameters_have_a_category_and_an_owner() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let mut model = Gpt2::new(&Scope::new(&device, 1), config()).unwrap();
    let _sharded = fully_shard(&mut model, &ProcessGroup::simulated(0, 4), FullyShardOptions::default()).unwrap();
    device.reset_peak_memory_stats();
    let labels: Vec<(String, Category)> =
        device.owners_at_peak().into_iter().map(|owner| (owner.label, owner.category)).collect();
    for label in ["gathered", "gathered root", "root", "transformer.h.0", "transformer.h.2"] {
        assert!(labels.contains(&(label.to_owned(), Category::Parameter)), "{label} in {labels:?}");
    }
}
