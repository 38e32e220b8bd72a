//! Tests of rejected operations, and of errors that all ranks get together.

use plimsoll::amp::GradScaler;
use plimsoll::nn::{Linear, Module, ModuleList, Scope};
use plimsoll::optim::{
    Lamb, LambOptions, Muon, MuonOptions, Optimizer, Sgd, SgdOptions, clip_grad_norm_, step_in_backward,
};
use plimsoll::parallel::{DdpOptions, DistributedDataParallel, FullyShardOptions, Shard, fully_shard};
use plimsoll::{Device, ProcessGroup, Result, SimConfig, Tensor, no_grad};

use super::{Net, SHARDED, on_ranks, options};

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
    assert!(
        errors[0].contains("rank 1 has gradients for different parameters than this rank"),
        "{}",
        errors[0]
    );
    assert!(errors[1].contains("without a gradient here: extra.weight, extra.bias"), "{}", errors[1]);
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
        "sgd: the parameters of root are sharded, and the complete ones get no gradients: make the optimizer from \
         `FullyShardedDataParallel::parameters`"
    );
    assert!(step(before).contains("got another tensor after this optimizer was made"));
    let muon = Muon::new(vec![sharded.parameters().remove(0)], MuonOptions::default()).step();
    assert!(text(muon).starts_with("muon: root is sharded, and this optimizer needs complete parameters"));
    let lamb = Lamb::new(vec![sharded.parameters().remove(0)], LambOptions::default()).step();
    assert!(text(lamb).starts_with("lamb: root is sharded, and this optimizer needs complete parameters"));
    let in_backward = step_in_backward(&sharded.parameters(), SgdOptions::default()).map(drop);
    assert!(text(in_backward).contains("cannot be stepped in the backward pass"));
    let clipped = clip_grad_norm_(&sharded.parameters(), 1.0, 2.0).map(drop);
    assert!(text(clipped).contains("call `FullyShardedDataParallel::clip_grad_norm_`"));
    let sgd = Sgd::new(sharded.parameters(), SgdOptions::default());
    let unscaled = GradScaler::default().unscale_(&sgd);
    assert!(text(unscaled).contains("train a sharded model in bfloat16"));

    for written in [
        no_grad(|| whole[0].fill_(0.0)),
        no_grad(|| plimsoll::into_out(&whole[0].detach(), || whole[0].neg())),
    ] {
        assert!(text(written).contains("a complete parameter of a sharded model is read-only"));
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
        assert!(error.to_string().contains("was changed in place by sgd"), "{shard:?}: {error}");
        // An evaluation between the backward pass and the step notices the step, too.
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
        let mut list = ModuleList::new(&scope.at("h"), 4, |s| Linear::new(s, 128, 256)).unwrap();
        // Allocations that differ between ranks, so that the order of ids also differs.
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
