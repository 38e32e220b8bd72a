//! A step in the backward pass is an optimizer like others: it trains with the same numbers, and its state dict is theirs.

use plimsoll::amp::GradScaler;
use plimsoll::data::{DataLoader, Digits};
use plimsoll::fit::Techniques;
use plimsoll::nn::{Flatten, Linear, Module, Scope, Sequential};
use plimsoll::optim::lr_scheduler::{Scheduler, StepLr};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer, step_in_backward};
use plimsoll::{Device, Tensor, TrainError, Trainer};

fn model() -> Sequential {
    let root = Sequential::new(&Scope::new(&Device::cpu(), 3));
    (0..3).try_fold(root, |model, i| model.add(&format!("fc{i}"), |s| Linear::new(s, 8, 8))).unwrap()
}

fn options() -> AdamWOptions {
    AdamWOptions { lr: 0.01, ..AdamWOptions::default() }
}

/// Three steps of the usual loop.
fn train(model: &Sequential, optimizer: &mut dyn Optimizer) {
    for step in 0..3 {
        let x = Tensor::ones(&[4, 8], &Device::cpu()).unwrap();
        let loss =
            ((model.forward(&x).unwrap() - f64::from(step)).unwrap().square().unwrap()).mean().unwrap();
        optimizer.zero_grad();
        loss.backward().unwrap();
        optimizer.step().unwrap();
    }
}

fn values(model: &Sequential) -> Vec<Vec<f32>> {
    model.parameters().iter().map(|parameter| parameter.to_vec().unwrap()).collect()
}

#[test]
fn the_usual_loop_trains_with_the_same_numbers_and_each_state_dict_loads_the_other() {
    let (usual, own) = (model(), model());
    let mut adamw = AdamW::new(usual.parameters(), options());
    let mut steps = step_in_backward(&own.parameters(), options()).unwrap();
    train(&usual, &mut adamw);
    train(&own, &mut steps);
    assert_eq!(values(&own), values(&usual));
    assert_eq!(steps.steps(), adamw.steps());
    let (saved, of_adamw) = (steps.state_dict(), adamw.state_dict());
    assert_eq!(saved.param_groups, of_adamw.param_groups);
    assert_eq!(saved.state.len(), 6);
    // Each continues from the other's state.
    drop(steps);
    let mut swapped = step_in_backward(&own.parameters(), AdamWOptions::default()).unwrap();
    swapped.load_state_dict(&of_adamw).unwrap();
    assert_eq!(swapped.lrs(), [0.01]);
    adamw.load_state_dict(&saved).unwrap();
    train(&usual, &mut adamw);
    train(&own, &mut swapped);
    assert_eq!(values(&own), values(&usual));
    // On an error nothing changes.
    let mut wrong = saved.clone();
    wrong.state.get_mut(&5).unwrap().tensors.clear();
    assert!(swapped.load_state_dict(&wrong).is_err());
    assert_eq!(swapped.steps(), [6; 6]);
}

#[test]
fn a_scheduler_sets_the_rate_of_every_parameter() {
    let model = model();
    let mut steps = step_in_backward(&model.parameters(), options()).unwrap();
    let mut scheduler = Scheduler::new(StepLr { step_size: 1, gamma: 0.5 }, &mut steps).unwrap();
    scheduler.step(&mut steps).unwrap();
    assert_eq!(steps.lrs(), [0.005]);
    assert_eq!(steps.state_dict().param_groups[0].options["lr"], 0.005);
}

#[test]
fn what_needs_all_gradients_is_refused() {
    let model = Sequential::new(&Scope::new(&Device::cpu(), 1));
    let model = model.add("flatten", Flatten::new).unwrap().add("fc", |s| Linear::new(s, 784, 10)).unwrap();
    let techniques = Techniques { step_in_backward: true, ..Techniques::default() };
    let mut steps = techniques.adamw(model.parameters(), options()).unwrap();
    let digits = DataLoader::new(std::sync::Arc::new(Digits::new(1, 20)), 10).unwrap();
    let loss = |batch: &[Tensor]| model.forward(&batch[0])?.cross_entropy(&batch[1]);
    let errors = [
        Trainer::new(&model, steps.as_mut()).accumulate(2).fit(&digits, loss).unwrap_err(),
        Trainer::new(&model, steps.as_mut()).clip_grad_norm(1.0).fit(&digits, loss).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, TrainError::Options(_)), "{error}");
        assert!(error.to_string().contains("but this optimizer steps in it"), "{error}");
    }
    let error = GradScaler::default().step(steps.as_mut()).unwrap_err().to_string();
    assert!(error.contains("already stepped with scaled gradients"), "{error}");
    Trainer::new(&model, steps.as_mut()).fit(&digits, loss).unwrap();
    let in_8_bits = Techniques { adamw_8bit: true, ..Techniques::default() };
    let wrong = in_8_bits.adamw(model.parameters(), AdamWOptions { amsgrad: true, ..options() });
    assert!(wrong.err().unwrap().to_string().contains("there is no `amsgrad`"));
}
