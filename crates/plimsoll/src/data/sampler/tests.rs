//! Tests each sampler against its definition in PyTorch.

use std::collections::BTreeMap;

use super::*;

fn order(sampler: &dyn Sampler, epoch: u64) -> Vec<usize> {
    let order = sampler.order(epoch).unwrap();
    assert_eq!(order.len(), sampler.len());
    order.to_vec()
}

fn counts(indices: &[usize]) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for &index in indices {
        *counts.entry(index).or_insert(0) += 1;
    }
    counts
}

#[test]
fn draws_with_replacement_are_uniform_and_any_position_is_known_at_once() {
    let sampler = RandomSampler::new(4, 9).with_replacement(8_000);
    let drawn = order(&sampler, 3);
    // Each count should be 2,000, with a standard deviation of 39.
    assert!(counts(&drawn).values().all(|count| (1_800..2_200).contains(count)), "{:?}", counts(&drawn));
    assert_eq!(sampler.order(3).unwrap().index(7_777), drawn[7_777]);
    assert_ne!(order(&sampler, 4), drawn);
    let endless = RandomSampler::new(usize::MAX, 1).with_replacement(usize::MAX).order(0).unwrap();
    assert!(endless.index(usize::MAX - 1) < usize::MAX);
    assert!(RandomSampler::new(0, 1).with_replacement(5).is_empty());
}

#[test]
fn weights_are_the_shares_of_the_draws() {
    let weights = [0.0, 2.0, 0.0, 1.0, 5.0, 0.0];
    let drawn = order(&WeightedRandomSampler::new(&weights, 8_000, 1).unwrap(), 0);
    let counts = counts(&drawn);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 3, 4]);
    for (index, expected) in [(1, 2_000), (3, 1_000), (4, 5_000)] {
        assert!(counts[&index].abs_diff(expected) < 200, "{counts:?}");
    }
}

#[test]
fn without_replacement_each_sample_comes_once_and_heavy_ones_come_first() {
    let weights: Vec<f64> = (0..50).map(|i| if i % 5 == 0 { 0.0 } else { 1.0 }).collect();
    let sampler = WeightedRandomSampler::new(&weights, 40, 1).unwrap().without_replacement().unwrap();
    let mut all = order(&sampler, 0);
    all.sort_unstable();
    assert_eq!(all, (0..50).filter(|i| i % 5 != 0).collect::<Vec<_>>());
    // The first draw has weight 1, 2 or 5 with probability 1/8, 2/8 or 5/8; the second is drawn among the other two.
    let sampler = WeightedRandomSampler::new(&[1.0, 2.0, 5.0], 2, 1).unwrap().without_replacement().unwrap();
    let firsts: Vec<Vec<usize>> = (0..4_000).map(|epoch| order(&sampler, epoch)).collect();
    let share = |pair: [usize; 2]| firsts.iter().filter(|order| order[..] == pair).count();
    assert!(share([2, 1]).abs_diff(4_000 * 5 / 8 * 2 / 3) < 150, "{}", share([2, 1]));
    assert!(share([0, 1]).abs_diff(4_000 / 8 * 2 / 7) < 60, "{}", share([0, 1]));
}

#[test]
fn weights_that_are_none_are_refused() {
    let refusal = |weights: &[f64]| WeightedRandomSampler::new(weights, 1, 1).unwrap_err().to_string();
    assert_eq!(refusal(&[1.0, -0.5]), "weight 1 is -0.5; weights must be finite and not negative");
    assert!(refusal(&[f64::NAN]).contains("weight 0 is NaN"));
    assert!(refusal(&[0.0, 0.0]).contains("the 2 weights sum to 0"));
    assert!(refusal(&[]).contains("the 0 weights sum to 0"));
    assert!(refusal(&[f64::MAX, f64::MAX]).contains("sum to inf"));
    let scarce = WeightedRandomSampler::new(&[1.0, 0.0], 2, 1).unwrap().without_replacement();
    assert!(
        scarce.unwrap_err().to_string().starts_with("2 samples cannot be drawn without replacement: 1 have")
    );
}

/// The expected lists are `list(DistributedSampler(range(n), r, k, shuffle=False, drop_last=d))` in PyTorch 2.15.
#[test]
fn replicas_get_the_samples_that_pytorchs_get() {
    let parts = |len, replicas, drop: bool| -> Vec<Vec<usize>> {
        let part = |rank| {
            let sampler = DistributedSampler::new(len, replicas, rank).unwrap();
            order(&if drop { sampler.drop_last() } else { sampler }, 0)
        };
        (0..replicas).map(part).collect()
    };
    assert_eq!(parts(7, 3, false), [[0, 3, 6], [1, 4, 0], [2, 5, 1]]);
    assert_eq!(parts(7, 3, true), [[0, 3], [1, 4], [2, 5]]);
    assert_eq!(parts(2, 5, false), [[0], [1], [0], [1], [0]]);
    assert_eq!(parts(2, 5, true), vec![Vec::<usize>::new(); 5]);
    assert_eq!(parts(6, 2, true), parts(6, 2, false));
    assert_eq!(parts(0, 2, false), vec![Vec::<usize>::new(); 2]);
}

#[test]
fn shuffled_replicas_share_one_order_that_changes_by_epoch() {
    let part = |rank, epoch| order(&DistributedSampler::new(10, 2, rank).unwrap().shuffle(5), epoch);
    let mut all = [part(0, 1), part(1, 1)].concat();
    assert_ne!(part(0, 0), part(0, 1));
    all.sort_unstable();
    assert_eq!(all, (0..10).collect::<Vec<_>>());
    let error = DistributedSampler::new(10, 2, 2).unwrap_err().to_string();
    assert_eq!(error, "rank 2 of 2 replicas; ranks are numbered from 0");
    assert!(DistributedSampler::new(10, 0, 0).is_err());
}
