//! Hybrid sharding: groups of ranks share a model, and exchange the sums of gradients with other groups. Results are
//! bit-identical to data-parallel training, and only one of the groups saves.

use std::fs;

use plimsoll::models::Gpt2;
use plimsoll::nn::Scope;
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::parallel::{DeviceMesh, Shard, fully_shard};
use plimsoll::{Device, ProcessGroup, Result, SimConfig, Tensor, Traffic};

use super::saving::Folder;
use super::{Case, SHARDED, Training, Way, config, on_ranks, options, train};

#[test]
fn replicas_that_shard_have_the_bits_of_data_parallel_training() {
    let cases = [
        (4, 2, Case::default(), &SHARDED[..]),
        (4, 4, Case::default(), &SHARDED[2..]),
        (6, 3, Case { clips: true, ..Case::default() }, &SHARDED[2..]),
        (4, 2, Case { accumulates: true, clips: true, freezes: true, ..Case::default() }, &SHARDED[1..]),
        (4, 2, Case { is_bfloat16: true, clips: true, drops: true, ..Case::default() }, &SHARDED[..]),
    ];
    for (size, replicate, case, shards) in cases {
        let ddp = on_ranks(size, |group| train(group, None, case));
        let case = Case { replicate: Some(replicate), ..case };
        for &shard in shards {
            let found = on_ranks(size, |group| train(group, Some(shard), case));
            for (rank, found) in found.iter().enumerate() {
                assert_eq!(found.0, ddp[rank].0, "losses of {case:?}, {shard:?}, rank {rank} of {size}");
                assert!(found.1 == ddp[0].1, "parameters of {case:?}, {shard:?}, rank {rank} of {size}");
            }
        }
    }
}

/// The peaks of three steps, the bytes between them, and what was sent.
fn peaks(world: &ProcessGroup, device: &Device, shard: Shard) -> Result<([u64; 3], Traffic)> {
    let mut model = Gpt2::new(&Scope::new(device, 1), config())?;
    let mesh = DeviceMesh::new(world, &[("replicate", 2), ("shard", world.size() / 2)])?;
    let sharded = fully_shard(&mut model, &mesh, options(shard))?;
    let mut adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
    device.reset_peak_memory_stats();
    for _ in 0..3 {
        adamw.zero_grad();
        let tokens = Tensor::from_slice(&[7i64; 32], &[2, 16], device)?;
        model.loss(&tokens, &tokens)?.backward()?;
        sharded.clip_grad_norm_(1.0)?;
        adamw.step()?;
    }
    adamw.zero_grad();
    let bytes = [device.max_memory_allocated(), device.max_memory_reserved(), device.memory_allocated()];
    Ok((bytes, world.traffic()))
}

#[test]
fn a_simulated_rank_of_a_mesh_has_the_bytes_of_a_real_one() {
    for shard in SHARDED {
        let real = on_ranks(4, |group| peaks(group, &Device::cpu_with(Default::default()), shard).unwrap());
        for (rank, real) in real.iter().enumerate() {
            let device = Device::sim(SimConfig::new(1 << 30));
            let simulated = peaks(&ProcessGroup::simulated(rank, 4), &device, shard).unwrap();
            assert_eq!(simulated, *real, "{shard:?}, rank {rank}");
        }
    }
}

#[test]
fn one_replica_saves_and_any_mesh_resumes() {
    let folder = Folder::new("hybrid");
    let run = folder.0.join("run");
    let hybrid = Case { replicate: Some(2), ..Case::default() };
    let expected = on_ranks(4, |group| {
        let mut training = Training::new(group, None, Case::default(), 1).unwrap();
        training.steps(group, 0..4);
        training.values().unwrap()
    });
    let saved = on_ranks(4, |group| {
        let mut training = Training::new(group, Some(Shard::Parameters), hybrid, 1).unwrap();
        training.steps(group, 0..2);
        training.save(&run, 2)
    });
    assert!(saved.iter().all(|saved| *saved == run.join("step-00000002")), "{saved:?}");
    for part in ["model", "optimizer"] {
        assert_eq!(fs::read_dir(run.join("latest").join(part)).unwrap().count(), 2, "{part}");
    }
    for (case, loaded_by) in [
        (hybrid, Shard::Parameters),
        (hybrid, Shard::OptimizerState),
        (Case { replicate: Some(4), ..hybrid }, Shard::Gradients),
        (Case::default(), Shard::Parameters),
        (Case::default(), Shard::Nothing),
    ] {
        let found = on_ranks(4, |group| {
            let mut training = Training::new(group, Some(loaded_by), case, 9).unwrap();
            assert_eq!(training.load(&run), 2);
            training.steps(group, 2..4);
            training.values().unwrap()
        });
        assert!(found == expected, "resumed by {loaded_by:?} of {case:?}");
    }
    // State dicts of whole tensors, only on rank 0.
    let counts = on_ranks(4, |group| {
        let mut training = Training::new(group, Some(Shard::Parameters), hybrid, 1).unwrap();
        training.steps(group, 0..1);
        let Way::Sharded(sharded) = &training.way else { unreachable!() };
        let state = sharded.optimizer_state_dict(&training.adamw).unwrap();
        let tensors = state.state.values().map(|it| it.tensors.len()).sum::<usize>();
        (sharded.state_dict(&training.model).unwrap().iter().count(), tensors)
    });
    assert!(counts[0].0 > 10 && counts[0].1 > 20, "{counts:?}");
    assert_eq!(counts[1..], [(0, 0); 3]);
}

#[test]
fn a_rank_that_is_gone_is_named_by_its_number_in_the_world() {
    let case = Case { replicate: Some(2), ..Case::default() };
    let errors = on_ranks(4, |group| {
        let mut training = Training::new(group, Some(Shard::Parameters), case, 1).unwrap();
        training.steps(group, 0..1);
        if group.rank() == 3 {
            return String::new(); // its connections close here
        }
        let failed = (1..100).find_map(|step| training.step(group, step).err());
        failed.expect("a rank is gone").to_string()
    });
    for (rank, error) in errors.iter().enumerate().take(3) {
        assert!(error.contains("rank 3 is gone"), "rank {rank} says {error}");
    }
}

#[test]
fn a_mesh_that_no_model_can_be_sharded_over_is_refused() {
    let world = ProcessGroup::simulated(0, 8);
    let device = Device::sim(SimConfig::new(1 << 30));
    let mut model = Gpt2::new(&Scope::new(&device, 1), config()).unwrap();
    let mesh = DeviceMesh::new(&world, &[("a", 2), ("b", 2), ("c", 2)]).unwrap();
    let error = fully_shard(&mut model, &mesh, options(Shard::Parameters)).unwrap_err().to_string();
    assert!(error.contains("a=2,b=2,c=2") && error.contains("of one dimension, or of two"), "{error}");
}
