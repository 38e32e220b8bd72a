//! Results are bit-identical to data-parallel training, no matter what is sharded. Also tests a
//! resumed run.

use plimsoll::nn::{BatchNorm1d, Linear, Module, Scope, Sequential};
use plimsoll::optim::{
    AdamW, AdamWOptions, NAdam, NAdamOptions, Optimizer, RAdam, RAdamOptions, Sgd, SgdOptions,
};
use plimsoll::parallel::{Shard, fully_shard};
use plimsoll::serialize::{Checkpoint, Strict};
use plimsoll::{Device, ProcessGroup, Result, Tensor};

use super::{Case, Net, SHARDED, Training, Way, on_ranks, options, train};

fn all_are_equal(case: Case, sizes: &[usize]) {
    for &size in sizes {
        let ddp = on_ranks(size, |group| train(group, None, case));
        for shard in [Shard::Nothing].into_iter().chain(SHARDED) {
            let found = on_ranks(size, |group| train(group, Some(shard), case));
            for rank in 0..size {
                assert_eq!(
                    found[rank].0, ddp[rank].0,
                    "losses of {case:?}, {shard:?}, rank {rank} of {size}"
                );
                assert!(
                    found[rank].1 == ddp[0].1,
                    "parameters of {case:?}, {shard:?}, rank {rank} of {size}"
                );
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
fn optimizers_of_tensor_operations_step_the_rows_of_each_rank() {
    let losses = |group: &ProcessGroup, shard: Shard, is_nadam: bool| -> Result<Vec<f32>> {
        let mut net = Net::new(&Device::cpu())?;
        let sharded = fully_shard(&mut net, group, options(shard))?;
        let radam =
            RAdamOptions { lr: 0.05, betas: (0.8, 0.9), weight_decay: 0.1, ..RAdamOptions::default() };
        let mut optimizer: Box<dyn Optimizer> = match is_nadam {
            true => Box::new(NAdam::new(sharded.parameters(), NAdamOptions::default())),
            false => Box::new(RAdam::new(sharded.parameters(), radam)),
        };
        let mut losses = Vec::new();
        for _ in 0..6 {
            optimizer.zero_grad();
            let loss = net.loss(group, true)?;
            loss.backward()?;
            optimizer.step()?;
            losses.push(loss.item()?);
        }
        Ok(losses)
    };
    for is_nadam in [false, true] {
        let whole = on_ranks(2, |group| losses(group, Shard::Nothing, is_nadam).unwrap());
        assert!(whole[0][5] < whole[0][0]);
        for shard in SHARDED {
            assert_eq!(on_ranks(2, |group| losses(group, shard, is_nadam).unwrap()), whole, "{shard:?}");
        }
    }
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
fn buffers_are_rank_0s() {
    let run = |group: &ProcessGroup, shard: Shard| -> Result<Vec<Vec<u8>>> {
        let device = Device::cpu_with(Default::default());
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
        training.steps(group, 0..4);
        training.values().unwrap()
    });
    for saved_by in [Shard::Nothing, Shard::OptimizerState, Shard::Parameters] {
        let path = folder.join("checkpoint.safetensors");
        on_ranks(2, |group| {
            let mut training = Training::new(group, Some(saved_by), Case::default(), 1).unwrap();
            training.steps(group, 0..2);
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
                    training.steps(group, 2..4);
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
