//! Tests what a rank has in memory, and when units are gathered. A simulated rank has the same bytes as a real one.

use plimsoll::label::Category;
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::parallel::{FullyShardOptions, Shard, fully_shard};
use plimsoll::{Device, ProcessGroup, Result, SimConfig, State, Tensor};

use super::{Case, SHARDED, Training, Way, config, on_ranks, options};

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
fn gathering_ahead_gathers_no_unit_more_often_than_needed() {
    for (recomputes, shard) in
        [(false, Shard::Parameters), (true, Shard::Parameters), (false, Shard::Gradients)]
    {
        let device = Device::sim(SimConfig::new(8 << 30));
        let config = Gpt2Config { n_layer: 12, gradient_checkpointing: recomputes, ..config() };
        let mut model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
        let group = ProcessGroup::simulated(0, 2);
        let sharded = fully_shard(&mut model, &group, options(shard)).unwrap();
        let mut adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
        let mut step = || {
            let before = sharded.gathered().0;
            let tokens = Tensor::from_slice(&[7i64; 32], &[2, 16], &device).unwrap();
            model.loss(&tokens, &tokens).unwrap().backward().unwrap();
            adamw.step().unwrap();
            adamw.zero_grad();
            sharded.gathered().0 - before
        };
        let steps = [step(), step(), step(), step()];
        println!("{recomputes} {shard:?} {steps:?}");
        // The root and 12 blocks; then the 10 blocks that are no longer there, and at most two that were guessed wrong.
        let needed = if shard == Shard::Parameters { 23 } else { 13 };
        assert_eq!(steps[0], needed);
        assert!(steps.iter().all(|count| *count <= needed + 2), "{steps:?}");
        assert_eq!(steps[3], steps[2]);
    }
}

#[test]
fn rows_are_the_whole_parameters_cut_between_rows() {
    let size = 2;
    let whole = on_ranks(1, |group| {
        let training = Training::new(group, None, Case::default(), 1).unwrap();
        training
            .model
            .named_parameters()
            .iter()
            .map(|(_, it)| it.to_vec::<f32>().unwrap())
            .collect::<Vec<_>>()
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
        let real = on_ranks(4, |group| peaks(group, &Device::cpu_with(Default::default()), shard).unwrap());
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
    for (ranks, most_padding) in [(1, 0.0001), (8, 0.01), (64, 0.02), (1024, 0.25)] {
        let (start, added, slots, whole) = bytes(ranks, Shard::Parameters);
        let padding = (whole - parameters) as f64 / parameters as f64;
        assert!(padding < most_padding, "{padding} of padding on {ranks} ranks");
        // Rows, and slots for two blocks and the root.
        let buffers = 12 << 20; // room for the masks of attention and the tables of this model
        assert!(start >= whole / ranks as u64 + slots && start <= whole / ranks as u64 + slots + buffers);
        // Two moments of the rows, and slots of gradients, which are kept: one for the root, and one for each unit of a block. With
        // 1,024 ranks, rows of one length are a unit.
        let state = 2 * whole / ranks as u64;
        assert!(
            added >= state && added <= state + 2 * slots + (8 << 20),
            "{ranks} ranks: {added} for {state} of state and at most twice {slots} of slots"
        );
    }
    let (start, .., whole) = bytes(64, Shard::OptimizerState);
    assert!(start >= whole && start < whole + (12 << 20));
}

#[test]
fn whole_parameters_have_a_category_and_an_owner() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let mut model = Gpt2::new(&Scope::new(&device, 1), config()).unwrap();
    let _sharded =
        fully_shard(&mut model, &ProcessGroup::simulated(0, 4), FullyShardOptions::default()).unwrap();
    device.reset_peak_memory_stats();
    let labels: Vec<(String, Category)> =
        device.owners_at_peak().into_iter().map(|owner| (owner.label, owner.category)).collect();
    for label in ["gathered", "gathered root", "root", "transformer.h.0", "transformer.h.2"] {
        assert!(labels.contains(&(label.to_owned(), Category::Parameter)), "{label} in {labels:?}");
    }
}
