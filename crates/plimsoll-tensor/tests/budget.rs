//! Sequences that are checkpointed within a budget give bit-identical results, and use no more bytes than
//! the budget.

use plimsoll_tensor::checkpoint::{
    Budget, Checkpointer, Step, checkpoint, checkpoint_sequential, is_recomputing,
};
use plimsoll_tensor::label::{self, Span};
use plimsoll_tensor::{
    Category, CpuConfig, DType, Device, Error, Result, SimConfig, Tensor, autocast, no_grad,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Blocks of different kinds and widths, with random numbers: rows of `x` have `WIDTH` elements.
fn blocks(device: &Device, count: usize) -> (Vec<Tensor>, Vec<Step>) {
    let (mut weights, mut steps) = (Vec::new(), Vec::new());
    for number in 0..count {
        let hidden = WIDTH * (1 + number % 4);
        let wide = |rows: usize, columns: usize| {
            let _owner = Span::of(Category::Parameter, label::intern("weight"));
            let weight = Tensor::randn(&[rows, columns], device).unwrap();
            weight.requires_grad_(true).unwrap()
        };
        let (up, down) = (wide(WIDTH, hidden), wide(hidden, WIDTH));
        weights.extend([up.clone(), down.clone()]);
        steps.push(match number % 3 {
            0 => Step::new(move |x| x.matmul(&up)?.gelu()?.matmul(&down)),
            1 => Step::new(move |x| x.add(&x.matmul(&up)?.tanh()?.dropout(0.3, true)?.matmul(&down)?)),
            _ => Step::new(|x| x.layer_norm(None, None, 1e-5)?.gelu()),
        });
    }
    (weights, steps)
}

const WIDTH: usize = 64;
const ROWS: usize = 256;

fn input(device: &Device) -> Tensor {
    Tensor::randn(&[ROWS, WIDTH], device).unwrap().requires_grad_(true).unwrap()
}

/// The loss, the gradients and the next random number of a step with this budget; without one, everything
/// is kept.
fn step(budget: Option<Budget>, count: usize) -> Vec<Vec<f32>> {
    let device = Device::cpu_with(CpuConfig::default());
    device.manual_seed(3);
    let (weights, steps) = blocks(&device, count);
    let x = input(&device);
    let y = match budget {
        None => checkpoint_sequential(&steps, 1, &x).unwrap(),
        Some(budget) => checkpoint_sequential(&steps, budget, &x).unwrap(),
    };
    let loss = y.square().unwrap().mean().unwrap();
    loss.backward().unwrap();
    let after = Tensor::randn(&[4], &device).unwrap();
    let gradients = weights.iter().filter_map(Tensor::grad).chain(x.grad());
    [loss, after].into_iter().chain(gradients).map(|it| it.to_vec::<f32>().unwrap()).collect()
}

#[test]
fn every_budget_gives_the_same_bits() {
    let all = step(None, 15);
    assert!(all.len() > 20);
    let unit = (ROWS * WIDTH * 4) as u64;
    for budget in [Budget::Auto, Budget::Segments(4), Budget::Bytes(30 * unit), Budget::Bytes(18 * unit)] {
        assert_eq!(step(Some(budget), 15), all, "{budget:?}");
    }
}

/// The maximum number of bytes that the functions keep for the backward pass, beyond what there was
/// before.
fn kept(device: &Device, steps: &[Step], checkpointer: &Checkpointer, x: &Tensor) -> u64 {
    let activations = || device.memory_by_category()[Category::Activation];
    let most = Arc::new(AtomicUsize::new(0));
    // The bytes are checked after each block, including when it runs again.
    let watched = |step: &Step| {
        let (step, device, most) = (step.clone(), device.clone(), most.clone());
        Step::new(move |x: &Tensor| {
            let y = step.forward(x)?;
            let now = device.memory_by_category()[Category::Activation] as usize;
            most.fetch_max(now, Ordering::Relaxed);
            Ok(y)
        })
    };
    let steps: Vec<Step> = steps.iter().map(watched).collect();
    checkpointer.schedule(&steps, x).unwrap();
    let before = activations();
    most.store(0, Ordering::Relaxed);
    checkpointer.forward(&steps, x).unwrap().sum().unwrap().backward().unwrap();
    most.load(Ordering::Relaxed) as u64 - before
}

#[test]
fn no_more_is_kept_than_the_budget() {
    let device = Device::sim(SimConfig::new(1 << 34));
    let (_weights, steps) = blocks(&device, 48);
    let x = input(&device);
    let unit = (ROWS * WIDTH * 4) as u64;
    let least = Checkpointer::new(Budget::Auto).schedule(&steps, &x).unwrap().kept_bytes();
    let all = Checkpointer::new(Budget::Segments(1)).schedule(&steps, &x).unwrap().kept_bytes();
    assert!(4 * least < all, "{least} of {all}");
    let mut last = f64::INFINITY;
    for budget in [least - 4 * unit, least, 2 * least, 3 * least, all] {
        let checkpointer = Checkpointer::new(Budget::Bytes(budget));
        let schedule = checkpointer.schedule(&steps, &x).unwrap();
        assert!(schedule.kept_bytes() <= budget);
        let found = kept(&device, &steps, &checkpointer, &x);
        // The input of the sequence is not an activation. A running block also has its output.
        assert!(found <= budget + unit, "{found} of {budget}");
        assert!(schedule.recomputed() <= last, "{budget}");
        last = schedule.recomputed();
    }
    assert_eq!(last, 0.0);
}

/// The peaks of a step through identical layers, in units of one layer's output.
#[test]
fn a_chain_of_equal_layers_takes_twice_the_root_and_three() {
    for count in [16usize, 64, 100, 256, 1024, 4096] {
        let device = Device::sim(SimConfig::new(1 << 40));
        let x = Tensor::ones(&[1 << 18], &device).unwrap().requires_grad_(true).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let layer = || {
            let runs = runs.clone();
            Step::new(move |x: &Tensor| {
                runs.fetch_add(1, Ordering::Relaxed);
                x.tanh()
            })
        };
        let layers: Vec<Step> = (0..count).map(|_| layer()).collect();
        let checkpointer = Checkpointer::new(Budget::Auto);
        checkpointer.schedule(&layers, &x).unwrap();
        let measured = runs.swap(0, Ordering::Relaxed);
        assert_eq!(measured, count, "each layer runs once to be measured");
        device.reset_peak_memory_stats();
        checkpointer.forward(&layers, &x).unwrap().sum().unwrap().backward().unwrap();
        let units = device.max_memory_allocated() as f64 / f64::from(1 << 20);
        let law = 2.0 * (count as f64).sqrt() + 3.0;
        assert!(units <= law + 0.01, "{count} layers: {units} units, the law says {law}");
        assert!(runs.load(Ordering::Relaxed) <= 2 * count, "at most one more forward pass");
    }
}

#[test]
fn measuring_has_no_effect_on_the_program() {
    let device = Device::cpu_with(CpuConfig::default());
    device.manual_seed(5);
    let seen = Arc::new(AtomicUsize::new(0));
    let own = seen.clone();
    let counts = Step::new(move |x: &Tensor| {
        if !is_recomputing() {
            own.fetch_add(1, Ordering::Relaxed);
        }
        x.tanh()?.dropout(0.5, true)
    });
    let steps = vec![counts; 9];
    let x = input(&device);
    let state = device.rng_state();
    let checkpointer = Checkpointer::new(Budget::Auto);
    checkpointer.schedule(&steps, &x).unwrap();
    assert!(device.rng_state() == state && x.grad().is_none());
    assert_eq!(seen.load(Ordering::Relaxed), 0, "running statistics would not change");
    checkpointer.forward(&steps, &x).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 9);
    // Without gradients, nothing is kept or measured.
    let before = device.memory_allocated();
    no_grad(|| Checkpointer::new(Budget::Bytes(1)).forward(&steps, &x)).unwrap();
    assert_eq!(device.memory_allocated(), before);
}

#[test]
fn each_shape_and_type_has_its_own_schedule() {
    let device = Device::sim(SimConfig::new(1 << 34));
    let (_weights, steps) = blocks(&device, 12);
    let checkpointer = Checkpointer::new(Budget::Auto);
    let of = |rows: usize| {
        let x = Tensor::ones(&[rows, WIDTH], &device).unwrap();
        checkpointer.schedule(&steps, &x).unwrap().kept_bytes()
    };
    let (small, large) = (of(256), of(1024));
    assert_eq!(large, 4 * small);
    let x = Tensor::ones(&[1024, WIDTH], &device).unwrap();
    let cast = autocast::autocast(DType::BF16, || checkpointer.schedule(&steps, &x));
    let cast = cast.unwrap().kept_bytes();
    assert!(cast < large, "{cast} and {large}");
}

#[test]
fn a_budget_that_cannot_be_met_names_the_least() {
    let device = Device::sim(SimConfig::new(1 << 34));
    let (_weights, steps) = blocks(&device, 12);
    let x = input(&device);
    let error = checkpoint_sequential(&steps, Budget::Bytes(4096), &x).unwrap_err();
    assert!(matches!(error, Error::Argument { op: "checkpoint_sequential", .. }), "{error}");
    let text = error.to_string();
    let least: u64 = text.split("they need ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    checkpoint_sequential(&steps, Budget::Bytes(least), &x).unwrap().sum().unwrap().backward().unwrap();
}

#[test]
fn errors_of_a_block_are_its_own() -> Result<()> {
    let device = Device::sim(SimConfig::new(1 << 30));
    let steps = [Step::new(Tensor::tanh), Step::new(|x: &Tensor| x.reshape(&[7]))];
    let x = Tensor::ones(&[8], &device)?.requires_grad_(true)?;
    let error = checkpoint_sequential(&steps, Budget::Auto, &x).unwrap_err().to_string();
    assert!(error.contains("reshape"), "{error}");
    Ok(())
}

#[test]
fn a_block_that_changes_its_input_is_named() {
    let device = Device::cpu_with(CpuConfig::default());
    let doubled = |x: &Tensor| {
        x.mul_scalar_(2.0)?;
        x.exp()
    };
    let steps = [Step::new(|x: &Tensor| x.add_scalar(1.0)), Step::new(doubled)];
    let error = checkpoint_sequential(&steps, Budget::Auto, &input(&device)).unwrap_err().to_string();
    assert!(error.contains("block 1"), "{error}");
    // If the number of segments is given, nothing needs to be measured.
    let x = input(&device);
    let checkpointer = Checkpointer::new(1);
    checkpointer.forward(&steps, &x).unwrap().sum().unwrap().backward().unwrap();
}

#[test]
fn a_budget_works_inside_of_a_checkpoint() {
    let device = Device::cpu_with(CpuConfig::default());
    let (_weights, steps) = blocks(&device, 6);
    let checkpointer = Arc::new(Checkpointer::new(Budget::Auto));
    let x = input(&device);
    let mut gradients = Vec::new();
    for _ in 0..2 {
        let (own, steps) = (checkpointer.clone(), steps.clone());
        device.manual_seed(9);
        let y = checkpoint(move |x| own.forward(&steps, &x[0]), &[&x]).unwrap();
        y.sum().unwrap().backward().unwrap();
        gradients.push(x.grad().unwrap().to_vec::<f32>().unwrap());
        x.clear_grad();
    }
    assert_eq!(gradients[0], gradients[1], "the first run, which measures, and the second");
    checkpointer.forget();
}
