//! Learning-rate schedulers compared with PyTorch's (`fixtures/make_optim.py` makes the table), and their state.

use plimsoll::optim::lr_scheduler::{
    Anneal, Better, ConstantLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, Curve, Cycles, CyclicLr,
    ExponentialLr, LinearLr, MultiStepLr, OneCycleLr, PlateauOptions, PolynomialLr, ReduceLrOnPlateau,
    Scheduler, SequentialLr, StepLr, SwaLr, Threshold,
};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use serde_json::Value;

use crate::optim::table;

/// Compares the learning rates of a curve with PyTorch's, for two groups.
fn check_curve(name: &str, curve: impl Curve) {
    let recorded = &table()["schedulers"][name];
    let mut sgd = Sgd::new(vec![], SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() });
    sgd.add_param_group(vec![], SgdOptions { lr: 0.02, momentum: 0.9, ..SgdOptions::default() }).unwrap();
    let mut scheduler = Scheduler::new(curve, &mut sgd).unwrap();
    for (step, expected) in recorded["lrs"].as_array().unwrap().iter().enumerate() {
        if step > 0 {
            scheduler.step(&mut sgd).unwrap();
        }
        assert_same(&format!("{name} at step {step}"), &sgd.lrs(), expected);
        if let Some(momenta) = recorded["momenta"].as_array() {
            assert_same(
                &format!("momentum of {name} at step {step}"),
                &sgd.momenta().unwrap(),
                &momenta[step],
            );
        }
    }
}

fn assert_same(what: &str, got: &[f64], expected: &Value) {
    for (got, expected) in got.iter().zip(expected.as_array().unwrap()) {
        let expected = expected.as_f64().unwrap();
        assert!(
            (got - expected).abs() <= 1e-12 * expected.abs().max(1e-3),
            "{what}: {got}, PyTorch's {expected}"
        );
    }
}

#[test]
fn every_scheduler_gives_pytorchs_sequence() {
    let restarts = |t_0, t_mult, eta_min| CosineAnnealingWarmRestarts { t_0, t_mult, eta_min };
    check_curve("restarts", restarts(3, 1, 0.0));
    check_curve("restarts, options", restarts(2, 3, 0.01));
    check_curve("polynomial", PolynomialLr::default());
    check_curve("polynomial, options", PolynomialLr { total_iters: 6, power: 2.5 });
    check_curve("swa", SwaLr::new(vec![0.05]));
    let linear = SwaLr { anneal_epochs: 4, anneal_strategy: Anneal::Linear, ..SwaLr::new(vec![0.05, 0.9]) };
    check_curve("swa, options", linear);
    check_curve("swa, at once", SwaLr { anneal_epochs: 0, ..SwaLr::new(vec![0.05]) });
    let cyclic = CyclicLr::new(vec![0.01], vec![0.5], 3);
    check_curve("cyclic", cyclic.clone());
    let (base_lr, max_lr) = (vec![0.01, 0.02], vec![0.5, 0.3]);
    let halved = CyclicLr {
        base_lr,
        max_lr,
        step_size_up: 2,
        step_size_down: Some(3),
        mode: Cycles::Triangular2,
        ..cyclic.clone()
    };
    check_curve("cyclic, halved", halved);
    let mode = Cycles::ExpRange(0.9);
    check_curve("cyclic, exponential", CyclicLr { mode, base_momentum: 0.7, max_momentum: 0.95, ..cyclic });
    check_curve("step", StepLr { step_size: 3, gamma: 0.5 });
    check_curve("multi_step", MultiStepLr { milestones: vec![2, 5, 5, 9], gamma: 0.1 });
    check_curve("exponential", ExponentialLr { gamma: 0.9 });
    check_curve("cosine", CosineAnnealingLr { t_max: 5, eta_min: 0.01 });
    check_curve("linear", LinearLr::default());
    check_curve("linear, options", LinearLr { start_factor: 0.1, end_factor: 0.8, total_iters: 4 });
    check_curve("constant", ConstantLr { factor: 0.5, total_iters: 3 });
    check_curve("one_cycle", OneCycleLr::new(vec![0.5, 0.3], 20));
    let options = OneCycleLr {
        pct_start: 0.4,
        anneal_strategy: Anneal::Linear,
        three_phase: true,
        div_factor: 10.0,
        final_div_factor: 100.0,
        ..OneCycleLr::new(vec![0.5], 17)
    };
    check_curve("one_cycle, options", options);
    let warm_up = LinearLr { start_factor: 0.1, total_iters: 4, ..LinearLr::default() };
    let cosine = CosineAnnealingLr { t_max: 10, eta_min: 0.0 };
    check_curve("warm-up, then cosine", SequentialLr::new(warm_up).then(4, cosine));
}

#[test]
fn a_plateau_is_pytorchs() {
    let table = table();
    let check = |name: &str, mut plateau: ReduceLrOnPlateau| {
        let mut sgd = Sgd::new(vec![], SgdOptions { lr: 0.1, ..SgdOptions::default() });
        sgd.add_param_group(vec![], SgdOptions { lr: 0.02, ..SgdOptions::default() }).unwrap();
        for (step, metric) in table["metrics"].as_array().unwrap().iter().enumerate() {
            // A scheduler that was saved and loaded continues where it was.
            let mut resumed = ReduceLrOnPlateau::clone(&plateau);
            resumed.load_state_dict(&plateau.state_dict()).unwrap();
            plateau = resumed;
            plateau.step(metric.as_f64().unwrap(), &mut sgd).unwrap();
            assert_same(name, &sgd.lrs(), &table["schedulers"][name]["lrs"][step + 1]);
        }
    };
    let options =
        PlateauOptions { factor: 0.5, patience: 2, cooldown: 1, min_lr: 0.003, ..PlateauOptions::default() };
    check("plateau", ReduceLrOnPlateau::new(options));
    let threshold = Threshold::Abs(0.05);
    let options = PlateauOptions { mode: Better::Max, patience: 1, threshold, ..PlateauOptions::default() };
    check("plateau, options", ReduceLrOnPlateau::new(options));
}

#[test]
fn a_scheduler_that_was_saved_goes_on_where_it_was() {
    let options = SgdOptions { lr: 0.1, ..SgdOptions::default() };
    let (mut sgd, mut resumed) = (Sgd::new(vec![], options), Sgd::new(vec![], options));
    let curve = CosineAnnealingLr { t_max: 5, eta_min: 0.01 };
    let mut whole = Scheduler::new(curve, &mut sgd).unwrap();
    (0..7).for_each(|_| whole.step(&mut sgd).unwrap());
    let mut halves = Scheduler::new(curve, &mut resumed).unwrap();
    resumed.load_state_dict(&sgd.state_dict()).unwrap();
    halves.load_state_dict(&whole.state_dict()).unwrap();
    for _ in 0..5 {
        whole.step(&mut sgd).unwrap();
        halves.step(&mut resumed).unwrap();
        assert_eq!(sgd.lrs(), resumed.lrs());
    }
    assert!(halves.load_state_dict(&serde_json::json!({})).is_err());
}

#[test]
fn a_cycle_has_an_end() {
    let mut sgd = Sgd::new(vec![], SgdOptions::default());
    let mut scheduler = Scheduler::new(OneCycleLr::new(vec![0.5], 3), &mut sgd).unwrap();
    (0..3).for_each(|_| scheduler.step(&mut sgd).unwrap());
    let error = scheduler.step(&mut sgd).unwrap_err();
    assert_eq!(error.to_string(), "OneCycleLr: step 4 is beyond the cycle of 3 steps");
    assert_eq!(scheduler.last_step(), 3);
}

#[test]
fn a_second_scheduler_starts_from_pytorchs_rates() {
    let options = SgdOptions { lr: 0.1, ..SgdOptions::default() };
    // Restarts begin at the initial rate, even though an earlier scheduler has changed it.
    let mut sgd = Sgd::new(vec![], options);
    let mut first = Scheduler::new(ExponentialLr { gamma: 0.5 }, &mut sgd).unwrap();
    first.step(&mut sgd).unwrap();
    Scheduler::new(CosineAnnealingWarmRestarts { t_0: 3, t_mult: 1, eta_min: 0.0 }, &mut sgd).unwrap();
    assert_eq!(sgd.lrs(), [0.1]);
    // The initial rate of an optimizer whose first scheduler is a cycle is the cycle's.
    let mut sgd = Sgd::new(vec![], options);
    Scheduler::new(CyclicLr::new(vec![0.01], vec![0.5], 3), &mut sgd).unwrap();
    assert_eq!(sgd.initial_lrs(), [0.01]);
}
