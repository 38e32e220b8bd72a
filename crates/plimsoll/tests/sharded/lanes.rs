//! With lanes, results are bit-identical on any number of ranks.

use plimsoll::nn::{BatchNorm1d, Module, Scope};
use plimsoll::optim::Optimizer;
use plimsoll::parallel::{DdpOptions, DistributedDataParallel, Reproducible, Shard};
use plimsoll::{DType, Device, Error, ProcessGroup, Result, Tensor};

use super::{Case, SHARDED, Training, on_ranks};

const LANES: Reproducible = Reproducible { lanes: 8 };

/// The losses of this rank's lanes, and all parameters, after a few steps. In the second step, a pass fails at first.
fn train(group: &ProcessGroup, shard: Option<Shard>, case: Case) -> (Vec<u32>, Vec<Vec<u8>>) {
    let run = || {
        let mut training = Training::new(group, shard, case, 1)?;
        training.device.manual_seed(100);
        let mut losses = Vec::new();
        for step in 0..3 {
            training.adamw.zero_grad();
            if step == 1 {
                one_pass_and_a_failure(&mut training, group)?;
            }
            losses = LANES.run(group, &training.device, |lane| {
                let loss = training.loss_of(lane, step)?;
                loss.backward()?;
                Ok(loss.to_dtype(DType::F32)?.item::<f32>()?.to_bits())
            })?;
            training.update()?;
        }
        Ok::<_, Error>((losses, training.values()?))
    };
    run().unwrap()
}

/// A pass that succeeds, and one that fails on all ranks before its gradients are complete. Both must be forgotten.
fn one_pass_and_a_failure(training: &mut Training, group: &ProcessGroup) -> Result<()> {
    if LANES.lanes == group.size() {
        return Ok(());
    }
    let state = training.device.rng_state();
    training.loss(group, 5)?.backward()?;
    let loss = training.loss(group, 6)?;
    let fails = training.model.parameters()[0].register_hook(|_| Err(Error::argument("test", "fails")))?;
    assert!(loss.backward().is_err());
    fails.remove();
    training.model.parameters().iter().for_each(Tensor::clear_grad);
    training.adamw.zero_grad();
    training.device.set_rng_state(state);
    Ok(())
}

fn all_are_equal(case: Case, sizes: &[usize], shards: &[Option<Shard>]) {
    let case = Case { lanes: Some(LANES), ..case };
    let one = on_ranks(1, |group| train(group, None, case)).remove(0);
    for &size in sizes {
        for &shard in shards {
            let found = on_ranks(size, |group| train(group, shard, case));
            for (rank, (losses, parameters)) in found.iter().enumerate() {
                let expected: Vec<u32> = one.0.iter().skip(rank).step_by(size).copied().collect();
                assert_eq!(*losses, expected, "losses of {case:?}, {shard:?}, rank {rank} of {size}");
                assert!(*parameters == one.1, "parameters of {case:?}, {shard:?}, rank {rank} of {size}");
            }
        }
    }
}

#[test]
fn any_number_of_ranks_and_any_sharding_give_the_bits_of_one() {
    let all = || [None].into_iter().chain(SHARDED.map(Some)).collect::<Vec<_>>();
    all_are_equal(Case { drops: true, clips: true, ..Case::default() }, &[2, 4], &all());
    all_are_equal(Case { drops: true, ..Case::default() }, &[1, 8], &[None, Some(Shard::Parameters)]);
    all_are_equal(Case { is_bfloat16: true, clips: true, ..Case::default() }, &[2, 8], &all());
    all_are_equal(
        Case { is_checkpointed: true, drops: true, freezes: true, ..Case::default() },
        &[2],
        &[Some(Shard::Parameters)],
    );
    let replicated = Case { is_bfloat16: true, drops: true, replicate: Some(2), ..Case::default() };
    all_are_equal(replicated, &[4], &[Some(Shard::Gradients), Some(Shard::Parameters)]);
}

#[test]
fn what_depends_on_the_order_of_passes_is_refused() {
    let group = ProcessGroup::threads(1).remove(0);
    let norm = BatchNorm1d::new(&Scope::new(&Device::cpu(), 1), 4).unwrap();
    let options = DdpOptions { reproducible: Some(LANES), ..DdpOptions::default() };
    let message = DistributedDataParallel::new(&norm, &group, options).unwrap_err().to_string();
    assert!(message.contains("running_mean: running statistics of batch normalization"), "{message}");
    let options = DdpOptions { find_unused_parameters: true, ..options };
    let net = super::Net::new(&Device::cpu()).unwrap();
    let message = DistributedDataParallel::new(&net, &group, options).unwrap_err().to_string();
    assert!(message.contains("unset `find_unused_parameters`"), "{message}");
}
