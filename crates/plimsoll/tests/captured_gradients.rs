//! Captured steps that share gradients with other steps, or add to those of the step before.

use plimsoll::nn::{Linear, Module, Scope, Sequential, Tanh};
use plimsoll::optim::{Adam, AdamOptions, Optimizer, RmsProp, RmsPropOptions, Sgd, SgdOptions};
use plimsoll::{CapturedStep, Result, Tensor};

use crate::captured_step::{batch, late, model};

#[test]
fn shapes_share_an_arena_and_gradients_to_which_a_step_adds_are_kept() {
    let device = late();
    let run = |captures: bool, sizes: [usize; 4]| {
        let model = model(&device);
        let parameters = model.parameters();
        let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.05, ..SgdOptions::default() });
        let mut captured = CapturedStep::new(&device).warm_up(2);
        device.manual_seed(5);
        let mut values = Vec::new();
        for number in 0..24 {
            // The gradients of four batches of different sizes are added up.
            let (images, labels) = batch(&device, number, sizes[number as usize % 4]);
            let step = |inputs: &[Tensor], _: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                let loss = model.forward(&inputs[0])?.cross_entropy(&inputs[1])?;
                loss.backward()?;
                Ok(vec![loss])
            };
            let outputs = match captures {
                true => captured.run(&[&images, &labels], &mut [&mut sgd], step).unwrap(),
                false => step(&[images, labels], &mut [&mut sgd]).unwrap(),
            };
            values.extend(outputs[0].to_vec::<f32>().unwrap());
            values.extend(parameters[3].grad().unwrap().to_vec::<f32>().unwrap());
            if number % 4 == 3 {
                sgd.step().unwrap();
                sgd.zero_grad();
            }
        }
        values.extend(parameters.iter().flat_map(|it| it.to_vec::<f32>().unwrap()));
        (values, captured.captures())
    };
    for sizes in [[9, 8, 5, 8], [8, 8, 8, 8], [5, 8, 9, 5]] {
        let ((values, captures), (expected, _)) = (run(true, sizes), run(false, sizes));
        assert_eq!(values, expected, "{sizes:?}");
        assert!((2..=8).contains(&captures), "{sizes:?}: {captures}");
    }
}

/// A generator and a discriminator, each with a captured step. Both steps give the discriminator gradients, which are cleared
/// after every second step.
fn adversaries(captures: bool) -> (Vec<f32>, [u64; 2]) {
    let device = late();
    device.manual_seed(3);
    let net = |seed: u64, [a, b, c]: [usize; 3]| {
        let net = Sequential::new(&Scope::new(&device, seed)).push(|s| Linear::new(s, a, b)).unwrap();
        net.push(Tanh::new).unwrap().push(|s| Linear::new(s, b, c)).unwrap()
    };
    let (generator, critic) = (net(1, [5, 24, 7]), net(2, [7, 31, 1]));
    let mut adam = Adam::new(generator.parameters(), AdamOptions { lr: 3e-3, ..AdamOptions::default() });
    let mut rms = RmsProp::new(critic.parameters(), RmsPropOptions { lr: 1e-3, ..RmsPropOptions::default() });
    let (mut of_critic, mut of_generator) = (CapturedStep::new(&device), CapturedStep::new(&device));
    let mut values = Vec::new();
    for number in 0..40 {
        let rows = if number % 6 == 5 { 3 } else { 11 };
        let (x, z) =
            (Tensor::randn(&[rows, 7], &device).unwrap(), Tensor::randn(&[rows, 5], &device).unwrap());
        let score = |x: &Tensor| critic.forward(x)?.softplus()?.mean();
        let judge = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            let fake = generator.forward(&inputs[1])?.detach();
            let loss = (score(&fake)? - score(&inputs[0])?)?;
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        };
        let outputs = match captures {
            true => of_critic.run(&[&x, &z], &mut [&mut rms], judge).unwrap(),
            false => judge(&[x, z.clone()], &mut [&mut rms]).unwrap(),
        };
        values.push(outputs[0].item::<f32>().unwrap());
        if number % 2 == 1 {
            rms.zero_grad();
        }
        if number % 3 == 0 {
            continue;
        }
        let forge = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
            optimizers[0].zero_grad();
            let loss = score(&generator.forward(&inputs[0])?)?.neg()?;
            loss.backward()?;
            optimizers[0].step()?;
            Ok(vec![loss])
        };
        let outputs = match captures {
            true => of_generator.run(&[&z], &mut [&mut adam, &mut rms], forge).unwrap(),
            false => forge(&[z], &mut [&mut adam, &mut rms]).unwrap(),
        };
        values.push(outputs[0].item::<f32>().unwrap());
    }
    let parameters = [generator.parameters(), critic.parameters()].concat();
    values.extend(parameters.iter().flat_map(|it| it.to_vec::<f32>().unwrap()));
    (values, [of_critic.captures(), of_generator.captures()])
}

#[test]
fn steps_that_add_to_each_others_gradients_train_as_uncaptured_ones_to_the_bit() {
    let ((captured, captures), (usual, _)) = (adversaries(true), adversaries(false));
    assert_eq!(captured, usual);
    assert!(captures.iter().all(|captures| *captures > 0));
}
